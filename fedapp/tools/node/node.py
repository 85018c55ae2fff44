"""`fedapp node`: starts a site's node from a few settings, which are checked first."""

import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedapp.core.errors import ConfigError
from fedapp.core.optional_dependencies import needs
from fedapp.site.mask_identity import SIGNING_KEY
from fedapp.site.policy import NO_TERMS, SITE_FOLDER, SitePolicy
from fedapp.site.record import Record
from fedapp.tools.node.app_bundle import installed
from fedapp.tools.node.approvals import Approvals
from fedapp.tools.node.status import Status, status_path
from fedapp.tools.node.supervisor import LOOK_S, Supervisor, Watch

CHILD = (sys.executable, "-m", "fedapp.tools.node.supernode")


@dataclass(frozen=True)
class SiteNode:
    """A site's node.

    server: host:port. keys: folder with `ca.crt` and `supernode.key`. port: the SuperNode's own.
    config: Flower's node config (TOML values). folder: the site's own, with its terms and record;
    None: `keys`. no_terms: the site has no terms, and allows every run of an approved app.
    """

    server: str
    keys: Path
    port: int
    config: str
    folder: Path | None = None
    no_terms: bool = False

    @property
    def _own(self) -> Path:
        return (self.folder or self.keys).absolute()

    @property
    def _ca(self) -> Path:
        return self.keys / "ca.crt"

    @property
    def _key(self) -> Path:
        return self.keys / "supernode.key"

    def check(self) -> None:
        """Raise ConfigError if the SuperNode could not start, and RecordError as `run` does."""
        for file, remedy in (
            (self._ca, "copy the certificate of the server's CA there"),
            (self._key, "make the site's key there (docs/DEPLOY.md, step 2)"),
        ):
            try:
                file.read_bytes()
            except OSError as error:
                raise ConfigError(f"--keys: {file}: {error.strerror}: {remedy}") from error
        try:
            load_ssh_private_key(self._key.read_bytes(), None)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"--keys: {self._key}: is no private key without a passphrase: the public half is "
                "supernode.key.pub (docs/DEPLOY.md, step 2)"
            ) from error
        try:
            ssl.create_default_context(cafile=self._ca)
        except ssl.SSLError as error:
            raise ConfigError(
                f"--keys: {self._ca}: is no certificate (PEM): copy that of the server's CA there"
            ) from error
        Approvals(self._own).decisions()
        if SitePolicy(self._own, self.no_terms).terms.bounds_epsilon:
            needs("privacy", "dp_accounting")  # no run with noise could be done, and all must be
        Record(self._own).check()

    def _port_trouble(self) -> str:
        """Return what to do where another program listens on the SuperNode's port, else ""."""
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return ""
        return (
            f"--port: {self.port} is in use, perhaps by another site's node on this machine: give "
            "this one another port, or stop that one"
        )

    def _advice(self) -> str:
        """Return what to do where the SuperNode has ended."""
        asked = f"fedapp check --server {self.server} --keys {self.keys}"
        return self._port_trouble() or f"`{asked}` may say why"

    def options(self) -> list[str]:
        """Return the command line options for Flower's SuperNode."""
        return [
            f"--superlink={self.server}",
            f"--root-certificates={self._ca}",
            f"--auth-supernode-private-key={self._key}",
            f"--port={self.port}",
            f'--node-config={self.config} {SITE_FOLDER}="{plain("site-folder", self._own)}" '
            f'{SIGNING_KEY}="{plain("key", self._key)}"{f" {NO_TERMS}=true" * self.no_terms}',
        ]

    def trouble(self) -> str:
        """Return why the server does not answer this machine; empty: it answers."""
        context = ssl.create_default_context(cafile=self._ca)
        try:
            with urllib.request.urlopen(
                f"https://{self.server}/health", timeout=LOOK_S, context=context
            ):
                return ""
        except urllib.error.HTTPError as error:
            return f"the server answers {error.code}" if error.code >= 500 else ""
        except (urllib.error.URLError, OSError) as error:
            return f"the server does not answer ({getattr(error, 'reason', error)})"

    def run(self) -> None:
        """Keep the node online until a signal ends this program.

        Raises at the start ConfigError, RecordError if the record is not as this site left it, and
        StoreError if it cannot be written.
        """
        self.check()
        if in_use := self._port_trouble():
            raise ConfigError(in_use)
        Record(self._own).add(
            "started", app=installed().hash
        )  # if it cannot be written, no run may be done here
        # Else Flower writes ten lines for each message; `client_app.refusals` shows our own lines.
        os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")
        # Nobody else learns that this hospital runs a node, unless somebody here says so.
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        # Flower starts its other programs by name, from the PATH.
        places = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
        os.environ["PATH"] = os.pathsep.join(places)
        status = Status(status_path(self.port))
        arguments = [str(self._own), *self.options()]
        Supervisor(CHILD, arguments, self.trouble, status, Watch(), advice=self._advice).run()


def node_config(site_name: str, data: Path | None, more: str) -> str:
    """Return Flower's node config of a site. more: further settings in Flower's syntax."""
    own = {"site-name": site_name, "data-path": str(data.absolute()) if data else ""}
    own = {name: plain(name, value) for name, value in own.items()}
    words = [f'{name}="{value}"' for name, value in own.items() if value]
    return " ".join([*words, more]).strip()


def plain(name: str, value: object) -> str:
    """Return a value as text. Raises ConfigError if it has characters that end a TOML string."""
    if '"' in (text := str(value)) or "\\" in text:
        raise ConfigError(f"{name} {text!r}: must be without quotes and backslashes")
    return text
