"""The app that a run brings: one hash wherever it is made, and archives that are no app."""

import hashlib
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from fedapp.core.errors import ConfigError
from fedapp.experiment.code_hash import code_digest, code_hash, digest_of_files
from fedapp.tools.node import app_bundle
from fedapp.tools.node.app_bundle import Bundle, installed, read_app, read_fab
from fedapp.tools.node.approve import hash_line

ROOT = Path(__file__).parents[3]
PROJECT = b'[project]\nname = "app"\nversion = "2"\n[tool.flwr.app]\npublisher = "us"\n'


def fab(files):
    """An archive of (name, content) pairs, in this order."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return packed.getvalue()


def test_a_checkout_its_fab_and_the_installed_package_have_one_hash(tmp_path):
    shipped = ("fedapp", "server_app", "client_app", "conf")
    files = {
        name: path
        for name, path in collect_files(ROOT).items()
        if "/" not in name or name.startswith(shipped)
    }
    built, _ = build_fab_from_files(files)
    (tmp_path / "app.fab").write_bytes(built)
    found = [read_fab(built), read_app(tmp_path / "app.fab"), read_app(ROOT), installed()]
    assert len({one.hash for one in found}) == 1
    # What logs and results call "code", and what people compare by telephone, is the same number.
    assert found[0].hash == code_digest() == digest_of_files(found[0].files)
    assert found[0].hash.startswith(code_hash()[1]) and hash_line(ROOT).startswith(found[0].hash)
    own_preset = Bundle({**found[0].files, "conf/hospitals.yaml": b"seed: 1"})
    assert own_preset.hash == digest_of_files(own_preset.files) == found[0].hash
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert found[0].title == f"fedapp fedapp {version}"
    assert found[0].differences(installed()) == {}


def test_the_hash_by_hand():
    one = Bundle({"a.py": b"1", "pyproject.toml": b"x = 1"})
    counted = b"a.py\x001\x001" + b'pyproject.toml\x008\x00{"x": 1}'
    assert one.hash == hashlib.sha256(counted).hexdigest()


@pytest.mark.parametrize(("files", "same"), [
    ({"README.md": b"other"}, True),
    ({"LICENSE": b"other"}, True),
    ({"conf/hospitals.yaml": b"x: 1"}, True),
    ({"conf/methods/own.yaml": b"x: 1"}, True),
    ({"conf/own.yaml.py": b""}, False),
    ({"conf.yaml": b""}, False),
    ({"pyproject.toml": PROJECT + b'[tool.flwr.federations]\ndefault = "here"\n'}, True),
    ({"pyproject.toml": b"# said in another order\n" + PROJECT}, True),
    ({"pyproject.toml": PROJECT + b'[tool.flwr.app.components]\nclientapp = "x:y"\n'}, False),
    ({"a.py": b"pass "}, False),
    ({"sub/README.md": b""}, False),
    ({"torch.py": b""}, False),
    ({"__pycache__/a.cpython-311.pyc": b""}, False),
])  # fmt: skip
def test_whatever_a_program_may_read_counts(files, same):
    plain = Bundle({"pyproject.toml": PROJECT, "a.py": b"pass"})
    other = Bundle({**plain.files, **files})
    assert (plain.hash == other.hash) is same
    assert (other.differences(plain) == {}) is same


def test_neither_the_order_nor_the_packing_counts():
    files = [("pyproject.toml", PROJECT), ("a.py", b"pass")]
    assert read_fab(fab(files)).hash == read_fab(fab(files[::-1])).hash
    assert read_fab(fab(files)).hash == read_fab(b"before" + fab(files)).hash


def test_a_boundary_between_name_and_content_cannot_be_moved():
    hashes = {Bundle({"pyproject.toml": b"", name: content}).hash for name, content in
              (("a", b"bc"), ("ab", b"c"), ("a\x002\x00b", b"c"))}  # fmt: skip
    assert len(hashes) == 3


@pytest.mark.parametrize(("files", "rule"), [
    ([("a.py", b""), ("a.py", b"")], "two files named"),
    ([("a.py", b""), ("A.py", b"")], "two files named"),
    ([("../a.py", b"")], "no plain name"),
    ([("a/../b.py", b"")], "no plain name"),
    ([("/a.py", b"")], "no plain name"),
    ([("a//b.py", b"")], "no plain name"),
    ([("./a.py", b"")], "no plain name"),
    ([("a\\b.py", b"")], "no plain name"),
    ([("a\n.py", b"")], "no plain name"),
    ([("folder/", b"")], "no plain name"),
    ([("a.py", b"")], r"no pyproject\.toml"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_two_programs_could_read_differently_is_refused(files, rule):
    more = [] if "pyproject" in rule else [("pyproject.toml", PROJECT)]
    with pytest.raises(ConfigError, match=rule):
        read_fab(fab([*files, *more]))


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip at all" * 9, fab([])[:-3]])
def test_what_is_no_archive_is_refused_by_name(content):
    with pytest.raises(ConfigError, match="is no zip archive"):
        read_fab(content)


def test_a_bomb_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(app_bundle, "MAX_UNPACKED", 1000)
    with pytest.raises(ConfigError, match="larger than"):
        read_fab(fab([("pyproject.toml", PROJECT), ("a.py", b" " * 1001)]))
    monkeypatch.setattr(app_bundle, "MAX_FILES", 1)
    with pytest.raises(ConfigError, match="2 files: at most 1"):
        read_fab(fab([("pyproject.toml", PROJECT), ("a.py", b"")]))


def test_the_title_is_one_line_and_a_broken_project_file_an_error():
    app = Bundle({"pyproject.toml": b'[project]\nname = "a\\u001b[2Jb"\n'})
    assert app.title == "a [2Jb"
    with pytest.raises(ConfigError, match=r"pyproject\.toml cannot be read"):
        _ = Bundle({"pyproject.toml": b"= ="}).hash


def test_changed_lines_are_shown_without_what_steers_a_terminal():
    before = Bundle({"pyproject.toml": PROJECT, "a.py": b"one\ntwo\n"})
    after = Bundle({"pyproject.toml": PROJECT, "a.py": b"one\n\x1b[2J\n", "b.py": b"new\n"})
    assert after.differences(before) == {"a.py": "changed", "b.py": "added"}
    assert before.differences(after)["b.py"] == "removed"
    assert [line for line in after.lines(before, "a.py") if line[:1] in "+-"][2:] == [
        "-two",
        "+?[2J",
    ]


@pytest.mark.parametrize("name", ["absent", "folder"])
def test_what_is_no_app_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="name a FAB or a checkout"):
        read_app(tmp_path / name)
