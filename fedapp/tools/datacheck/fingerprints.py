"""Are the same images at two sites? By keyed digests, of which nobody without the key learns one.

Sites that agree to compare share a key of 32 bytes or more. Each writes the HMAC-SHA256 of every
image's `content_of` under that key, sorted, so that their order says nothing; two such files have
as many lines in common as there are equal images. The key and the files stay among these sites:
the server has no part in it. Who has key and file can ask whether an image that he holds is at the
other site; who has the file alone learns how many different images there are.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import ConfigError
from fedapp.ground.foreign import json_file
from fedapp.ground.settings import DataSettings

FORMAT: Final = "um-pfssl fingerprints 1"
LEAST_KEY: Final = 32
"""Bytes of a key, at least."""


@dataclass(frozen=True)
class Fingerprints:
    """What a site writes. rules: how images were read; key: which key it was, by a digest of it."""

    rules: str
    key: str
    digests: frozenset[str]


def read_key(path: Path) -> bytes:
    """Return a key. Raises ConfigError where it is none."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"{path}: the key cannot be read ({error.strerror}): name the file that the sites share"
        ) from error
    if len(key) < LEAST_KEY:
        raise ConfigError(
            f"{path}: a key of {len(key)} bytes, must have {LEAST_KEY} or more: make one by "
            "`openssl rand -hex 32` and give it to the other sites by another way than the files"
        )
    return key


def fingerprints(contents: Sequence[str], settings: DataSettings, key: bytes) -> Fingerprints:
    """Return the keyed digests of images. contents: `content_of` each; empty ones are left out."""
    rules = [settings.image_size, settings.channels, settings.window]
    return Fingerprints(
        json.dumps(rules),
        _keyed(key, "which key"),
        frozenset(_keyed(key, f"image {one}") for one in contents if one),
    )


def write(path: Path, found: Fingerprints) -> None:
    """Write a file for the other sites."""
    told = {"format": FORMAT, "rules": found.rules, "key": found.key}
    text = json.dumps({**told, "digests": sorted(found.digests)}, indent=0)
    write_atomic(path, text.encode(), durable=False)


def read(path: Path) -> Fingerprints:
    """Return what a site wrote. Raises ConfigError where it is no such file."""
    try:
        found: Any = json_file(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as fingerprints ({error}): {_REMEDY}") from error
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        raise ConfigError(f"{path}: not of the format {FORMAT!r}: {_REMEDY}")
    digests, rules, key = (found.get(name) for name in ("digests", "rules", "key"))
    listed: list[Any] = digests if isinstance(digests, list) else [None]
    if not all(isinstance(one, str) for one in (*listed, rules, key)):
        raise ConfigError(f"{path}: its digests, rules or key are not text: {_REMEDY}")
    return Fingerprints(str(rules), str(key), frozenset(map(str, listed)))


def in_common(one: Fingerprints, other: Fingerprints) -> frozenset[str]:
    """Return the digests of images that both have. Raises ConfigError where they do not compare."""
    if one.key != other.key:
        raise ConfigError(
            "the two were made with different keys: all sites that compare must use one key"
        )
    if one.rules != other.rules:
        raise ConfigError(
            f"images were read by different rules ({one.rules} and {other.rules}: size, channels, "
            "window): use one preset at both sites"
        )
    return one.digests & other.digests


def named_in(
    names: Sequence[str], contents: Sequence[str], key: bytes, common: frozenset[str]
) -> list[str]:
    """Return which of a site's own images are in common. contents: of each name."""
    both = zip(names, contents, strict=True)
    return [name for name, one in both if one and _keyed(key, f"image {one}") in common]


def _keyed(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), sha256).hexdigest()


_REMEDY = "name a file that `fedapp check --fingerprints` wrote"
