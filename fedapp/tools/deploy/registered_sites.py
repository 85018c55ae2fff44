"""`fedapp sites`: lists the sites registered at a SuperLink, or prints `privacy.members`.

`flwr supernode list` of Flower 1.41 shows only numbers, and a site is unregistered by its number,
so this table has both names and numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.node_pb2 import NodeInfo
from rich.table import Table

from fedapp.core.errors import ConfigError
from fedapp.protocol.secure_aggregation.keys import registered_fingerprint

_SINCE = {
    "registered": "registered_at",
    "online": "last_activated_at",
    "offline": "last_deactivated_at",
}
"""For each state of a registered site, the field in which Flower keeps when it began."""


def sites_at(superlink: str | None) -> Table:
    """Return the sites of a SuperLink as a table sorted by name.

    superlink: a connection in Flower's config.toml; None: the default one. Raises Click's error,
    with a remedy, if there is no such connection or no answer.
    """
    with flwr_cli_exc_handler():
        client = init_http_client_from_connection(read_superlink_connection(superlink))
        try:
            return table(client.ListNodes(ListNodesRequest()).nodes_info)
        finally:
            client.close()


def table(nodes: Iterable[NodeInfo]) -> Table:
    """Return nodes as a table sorted by name, without those that were unregistered."""
    shown = Table("site", "state", "since", "number")
    for node in sorted(nodes, key=lambda node: (node.name, node.node_id)):
        if node.status in _SINCE:
            since = str(getattr(node, _SINCE[node.status]))[:19].replace("T", " ")
            shown.add_row(node.name or "-", node.status, f"{since} UTC", str(node.node_id))
    return shown


def members_line(files: Sequence[Path]) -> str:
    """Return the setting `privacy.members`, which says whose keys mask a run's sums.

    files: public keys in OpenSSH format, named NAME.pub after the site, or folders of them, such as
    `server/supernodes` of `fedapp certs`. Raises ConfigError if a file is no such key, or if there
    is none.
    """
    named = [f"{file.stem}={_fingerprint(file)}" for file in _keys(files)]
    if not named:
        raise ConfigError(f"{files[0]}: holds no public key (*.pub): name the sites' keys")
    return f'privacy.members="{", ".join(named)}"'


def _keys(files: Sequence[Path]) -> Iterator[Path]:
    for path in files:
        yield from sorted(path.glob("*.pub")) if path.is_dir() else [path]


def _fingerprint(file: Path) -> str:
    try:
        return registered_fingerprint(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}: name the sites' public keys") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
