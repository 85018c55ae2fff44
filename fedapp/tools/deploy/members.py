"""`fedapp members`: the setting of a preset that says whose keys mask a run's sums."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedapp.core.errors import ConfigError
from fedapp.protocol.secure_aggregation.keys import registered_fingerprint


def members_line(files: Sequence[Path]) -> str:
    """Return `privacy.members` for public keys in OpenSSH's format, NAME.pub each.

    files: keys, or folders of keys, such as `server/supernodes` of `fedapp certs`. Raises
    ConfigError on a file that is no such key, and where there is none.
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
