"""The same images at two sites, by keyed digests: who has what, and what nobody learns."""

import json
from dataclasses import replace

import pytest

from fedapp.ground.errors import ConfigError
from fedapp.tools.datacheck import fingerprints
from tests.own import agreed, three_sites
from tests.tools.datacheck.test_check import said

KEY = b"k" * 32


def test_as_many_lines_in_common_as_equal_images():
    one = fingerprints.fingerprints(["a", "b", ""], agreed(), KEY)
    other = fingerprints.fingerprints(["c", "b"], agreed(), KEY)
    common = fingerprints.in_common(one, other)
    assert len(one.digests) == 2 and len(common) == 1
    assert fingerprints.named_in(["x", "y", "z"], ["a", "b", ""], KEY, common) == ["y"]
    assert fingerprints.in_common(one, one) == one.digests


def test_a_digest_says_nothing_without_the_key(tmp_path):
    """By hand: HMAC-SHA256 of RFC 2104, and no digest in clear is in the file."""
    import hashlib

    def padded(byte):
        return bytes(x ^ byte for x in KEY.ljust(64, b"\0"))

    inner = hashlib.sha256(padded(0x36) + b"image a").digest()
    by_hand = hashlib.sha256(padded(0x5C) + inner).hexdigest()
    found = fingerprints.fingerprints(["a"], agreed(), KEY)
    assert found.digests == {by_hand}
    other = fingerprints.fingerprints(["a"], agreed(), b"l" * 32)
    assert not found.digests & other.digests
    with pytest.raises(ConfigError, match="different keys"):
        fingerprints.in_common(found, other)


def test_images_read_by_other_rules_are_not_compared():
    one = fingerprints.fingerprints(["a"], agreed(), KEY)
    other = fingerprints.fingerprints(["a"], replace(agreed(), image_size=16), KEY)
    with pytest.raises(ConfigError, match="by different rules"):
        fingerprints.in_common(one, other)


def test_a_file_comes_back_and_others_are_refused(tmp_path):
    path, found = tmp_path / "f", fingerprints.fingerprints(["a", "b"], agreed(), KEY)
    fingerprints.write(path, found)
    assert fingerprints.read(path) == found
    listed = json.loads(path.read_text())["digests"]
    assert listed == sorted(listed)
    for bad in ("", "[]", "{}", json.dumps({"format": fingerprints.FORMAT, "digests": [1]})):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="name a file that"):
            fingerprints.read(path)
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(ConfigError, match="5 bytes, must have 32"):
        fingerprints.read_key(tmp_path / "key")
    with pytest.raises(ConfigError, match="cannot be read"):
        fingerprints.read_key(tmp_path / "none")


def test_two_sites_find_the_images_that_both_have(tmp_path):
    root, key = three_sites(tmp_path / "sites"), tmp_path / "key"
    key.write_bytes(KEY)
    twin = next((root / "north" / "scans").glob("*.png"))
    (root / "east" / "unlabelled").mkdir(exist_ok=True)
    (root / "east" / "unlabelled" / "twin.png").write_bytes(twin.read_bytes())
    file = tmp_path / "north.json"
    code, _ = said(root / "north", fingerprints=file, key=key)
    assert code == 0 and file.exists()
    code, output = said(root / "east", site_name="east", against=file, key=key)
    assert code == 1 and "at the other site too are 1 of its images: unlabelled/twin.png" in output
    code, _ = said(root / "west", site_name="west", against=file, key=key)
    assert code == 0
    with pytest.raises(ConfigError, match="--preset"):
        said(root / "north", fingerprints=file)
