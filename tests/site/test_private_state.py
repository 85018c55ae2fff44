"""A site's private part: by content, the versions that may be asked for, none for another."""

import logging

import pytest
import torch

from fedapp.core.errors import StoreError
from fedapp.learn.params import digest_of, schema_of, to_bytes
from fedapp.site.private_state import PrivateParts


def part(value):
    return {"head.weight": torch.full((3, 2), float(value)), "count": torch.tensor(int(value))}


SCHEMA = schema_of(part(0))


def w_0():
    return {**part(-1), "body.weight": torch.zeros(5)}


@pytest.fixture
def parts(tmp_path):
    return PrivateParts(tmp_path / "private")


def assert_is(params, value):
    assert params.keys() == SCHEMA.keys()
    assert all(torch.equal(params[n], t) for n, t in part(value).items())


def files(parts):
    return sorted(path.stem for path in parts.root.rglob("*.safetensors"))


def test_before_the_first_version_there_is_none(parts):
    assert parts.load("", SCHEMA) is None
    assert not parts.root.exists()


def test_what_is_kept_comes_back_under_the_digest_of_its_content(parts):
    digest = parts.keep(part(1), before="", round=1)
    assert digest == digest_of(to_bytes(part(1)))
    assert_is(parts.load(digest, SCHEMA), 1)
    assert_is(PrivateParts(parts.root).load(digest, SCHEMA), 1)  # another process finds it too


def test_the_version_before_stays_for_a_run_that_resumes_and_none_older(parts):
    first = parts.keep(part(1), before="", round=1)
    second = parts.keep(part(2), before=first, round=2)
    assert_is(parts.load(first, SCHEMA), 1)
    third = parts.keep(part(3), before=second, round=3)
    assert files(parts) == sorted([second, third])


def test_what_a_round_began_with_stays_through_all_its_phases(parts):
    began = before = parts.keep(part(1), before="", round=1)
    for value in (2, 3, 4):
        before = PrivateParts(parts.root).keep(part(value), before, round=2)
    assert_is(parts.load(began, SCHEMA), 1)
    assert len(files(parts)) == 3
    last = parts.keep(part(5), before, round=3)
    assert files(parts) == sorted([before, last])


def test_an_answer_that_the_server_never_got_does_not_push_out_the_version_it_knows(parts):
    known = parts.keep(part(1), before="", round=1)
    for value in (2, 3, 4):  # three replies in turn are lost: the server still names the first
        parts.keep(part(value), before=known, round=2)
    assert_is(parts.load(known, SCHEMA), 1)
    assert len(files(parts)) == 2


def test_the_same_content_again_is_the_same_version(parts):
    first = parts.keep(part(1), before="", round=1)
    assert parts.keep(part(1), before=first, round=2) == first
    assert files(parts) == [first]


def test_a_method_without_private_tensors_leaves_no_trace(parts):
    assert parts.load("", {}) == {}
    assert parts.keep({}, before="", round=1) == ""
    assert not parts.root.exists()


@pytest.mark.parametrize("harm", ["removed", "cut", "of another model"])
def test_what_is_lost_is_none_and_the_log_says_so(parts, caplog, harm):
    digest = parts.keep(part(1), before="", round=1)
    [path] = parts.root.rglob("*.safetensors")
    schema = SCHEMA
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        schema = {**SCHEMA, "head.weight": ((4, 2), torch.float32)}

    with caplog.at_level(logging.WARNING):
        assert parts.load(digest, schema) is None
    assert "the site begins it again" in caplog.text


def test_a_disk_that_refuses_is_an_error_of_ours(parts, monkeypatch):
    parts.root.parent.mkdir(exist_ok=True)
    parts.root.write_text("a file where the folder should be")
    with pytest.raises(StoreError):
        parts.keep(part(1), before="", round=1)
