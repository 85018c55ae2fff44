"""`fedapp sign`: signs a run with the coordinator's key and prints the command that starts it."""

import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedapp.core.errors import ConfigError
from fedapp.experiment.code_hash import digest_of_files
from fedapp.experiment.config import (
    flower_run_config,
    load_experiment,
    parse_overrides,
    unchecked_settings,
)
from fedapp.experiment.preset_files import yaml_path
from fedapp.experiment.run_folder import check_name, new_identity
from fedapp.experiment.signed_runs import (
    SIGNED,
    RunStatement,
    fingerprint,
    private_key,
    read_statement,
    settings_digest,
    sign,
)
from fedapp.tools.node.app_bundle import installed


def signed_run(
    preset: str,
    texts: Sequence[str],
    key: Path,
    days: float,
    identity: str,
    passphrase: Callable[[], str],
) -> Iterator[str]:
    """Yield lines that say what was signed, and the command that starts the signed run.

    preset: its name, or the path of its file in `conf` here: `flwr run .` sends this folder. texts:
    overrides, with `runtime.run_name`. key: the coordinator's private key. days: within which each
    site must begin the run. identity: that of a run that goes on; empty: a new one. passphrase:
    asks a person, if the key has one. Raises ConfigError if a setting is wrong or the key cannot be
    used.
    """
    overrides = parse_overrides(texts)
    preset, source = _sent_with_the_app(preset)
    name = load_experiment(source, overrides).runtime.run_name
    if not name:
        raise ConfigError("fedapp sign: needs the run's name, runtime.run_name=NAME: it is signed")
    check_name(name)
    signer = _read(key, passphrase)
    word = RunStatement(
        run=name,
        code=digest_of_files(installed().files),
        settings=settings_digest(unchecked_settings(source, overrides)),
        identity=identity or new_identity(),
        until=int(time.time() + days * 86400),
    )
    token = sign(word, signer)
    read_statement(token)  # so that an invalid identity is refused here
    yield f"signed   run {name}, code {word.code[:16]}, settings {word.settings[:16]}"
    yield f"by       {fingerprint(signer.public_key())}"
    yield f"begun by {word.ends} at each site, or is refused there"
    run_config = {"preset": preset, "set": shlex.join(texts), SIGNED: token}
    yield f"flwr run . --stream --run-config {shlex.quote(flower_run_config(run_config))}"


def _sent_with_the_app(preset: str) -> tuple[str, str]:
    """Return the preset's name at the server and the sites, and what it is here: name or path.

    An absolute path stays one: the file is at the same place there. Raises ConfigError for another
    file that `flwr run .`, begun in this folder, would not send.
    """
    here, path = Path("conf").absolute(), yaml_path(preset)
    if path is None:
        sent = here / f"{preset}.yaml"
        return preset, str(sent) if sent.is_file() else preset
    if path.is_absolute():
        return preset, preset
    if path.absolute().parent != here:
        raise ConfigError(
            f"preset '{preset}': `flwr run .` does not send this file: copy it into {here}, and "
            f"sign {path.stem}"
        )
    return path.stem, str(path)


def _read(path: Path, passphrase: Callable[[], str]) -> Ed25519PrivateKey:
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"--key: {path}: {error.strerror}: ssh-keygen -t ed25519 -f {path}"
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"--key: {path}: others may read it: chmod 600 {path}")
    try:
        try:
            return private_key(content, None)
        except TypeError:  # it has a passphrase
            return private_key(content, passphrase().encode())
    except ConfigError as error:
        raise ConfigError(f"--key: {path}: {error}") from error
