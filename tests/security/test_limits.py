"""Attacks that once worked, one each, and the table of limits in docs/SECURITY.md."""

import json
import re
import struct
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from fedapp.core.errors import MAX_QUOTED, ProtocolError
from fedapp.learn.params import from_bytes
from fedapp.methods.base import Round
from fedapp.methods.um_pfssl.helper_lists import HelperLists
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol.codec import MAX_CONTAINERS, decode_answer
from fedapp.protocol.messages import MODEL, Missing, ModelRef, ScoredRef
from fedapp.protocol.messages import SCHEMA as SCHEMA_VERSION
from fedapp.server.checks import check_reply
from tests.server.test_checks import FACTS, HONEST, TASK, bins, ref

D = "ab" * 32
SCHEMA = {"w": ((2,), torch.float32)}


def head(body, kind='"Missing"', schema=str(SCHEMA_VERSION)):
    return f'{{"schema":{schema},"kind":{kind},"body":{body}}}'.encode()


MISSING = '{"site":1,"round":1,"digests":[]}'


@pytest.mark.parametrize(("data", "says"), [
    (head('{"site":1,"site":2,"round":1,"digests":[]}'), "names a key twice"),
    (head(MISSING, schema="true"), "message schema True"),
    (head(MISSING, schema="1.0"), "message schema 1.0"),
    (head(MISSING, schema='["x"]'), "message schema list"),
    (head(MISSING, kind="[1]"), "unknown message kind 'list'"),
    (head(MISSING).decode().encode("utf-16"), "not JSON"),
    (head("[" * 900 + "]" * 900), "recursion limit"),
    (head("[" + "[]," * MAX_CONTAINERS + "[]]"), "lists and objects"),
    (head('{"site":1,"round":1,"digests":NaN}'), "NaN is no JSON"),
    (head("{" + ",".join(f'"{k}":1' for k in range(257)) + "}"), "257 entries; at most 256"),
    (head(json.dumps({"site": 1, "round": 1, "digests": [D] * 129})), "128"),
    (head('{"site":1,"round":1,"reason":"\\u001b[2J"}', '"Refusal"'), "reason"),
    (head('{"site":1,"round":1,"reason":"a\\nb"}', '"Refusal"'), "reason"),
    (head('{"site":1,"round":1,"reason":"\\u202egnp"}', '"Refusal"'), "reason"),
])  # fmt: skip
def test_heads_that_two_readers_could_read_differently_or_that_cost_much(data, says):
    with pytest.raises(ProtocolError, match=says):
        decode_answer(data)


def test_a_list_of_wrong_items_is_one_error():
    """A million errors, one an item, once took gigabytes."""
    text = json.dumps({"site": 1, "round": 1, "digests": [1] * 10_000})
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Missing).validate_json(text, strict=True)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("changes", [
    {"inputs": []}, {"inputs": [0]}, {"inputs": [1, 2**16 + 1, 1]}, {"inputs": [1, 1, 1, 1]},
    {"inputs": 1}, {"inputs": [1.5]}, {"inputs": [1] * 100_000}, {"classes": []},
    {"classes": ["a"] * 1001}, {"classes": ["x" * 201]},
    {"labelled": 2**31}, {"test": -1}, {"site": 2**31},
])  # fmt: skip
def test_facts_that_the_server_would_build_a_huge_network_for(changes):
    facts = {"site": 0, "inputs": [1, 8, 8], "classes": ["a"], "labelled": 1, "unlabelled": 1,
             "val": 1, "test": 1, "split_digest": D}  # fmt: skip
    decode_answer(head(json.dumps(facts), '"SiteFacts"'))
    with pytest.raises(ProtocolError):
        decode_answer(head(json.dumps(facts | changes), '"SiteFacts"'))


def tensors(**entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**64 - 1], [0, 2**33, 2**33], [0, 2**62]])
def test_shapes_that_no_tensor_can_have(shape):
    """safetensors lets them pass, torch raises TypeError or RuntimeError."""
    blob = tensors(w={"dtype": "F32", "shape": shape, "data_offsets": [0, 0]})
    with pytest.raises(ProtocolError, match="someone's upload"):
        from_bytes(blob, SCHEMA, "someone's upload")


def test_an_error_never_repeats_a_whole_message():
    many = tensors(**{
        f"n{k}\x1b[2J": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(600)
    })  # fmt: skip
    with pytest.raises(ProtocolError, match="unexpected tensors") as caught:
        from_bytes(many, {f"w{k}": ((1,), torch.float32) for k in range(100)}, "x")
    assert len(str(caught.value)) <= MAX_QUOTED and str(caught.value).isprintable()


def listed(*scores):
    return {"helpers": tuple(ScoredRef(ref(k), s) for k, s in zip((1, 3), scores, strict=True))}


@pytest.mark.parametrize(("changes", "says"), [
    (listed(0.4, 0.5), "not in the order"),
    (listed(1e308, 0.5), "outside"),
    (listed(0.5, -0.1), "outside"),
    ({"metrics": {"epsilon": -3.0}}, "epsilon = -3; must not be negative"),
    (bins(bin_confidence=(1.0, *[0.0] * 12, 1.6, 0.0)), "does not belong there"),
])  # fmt: skip
def test_lies_that_were_believed(changes, says):
    with pytest.raises(ProtocolError, match=says):
        check_reply(TASK, replace(HONEST, **changes), FACTS, {MODEL})
        UmPfssl().check_reply(TASK, replace(HONEST, **changes), FACTS)


class Everybody:
    """A pool of a hundred trained sites."""

    def latest(self, site):
        return ModelRef(site, 1, f"{site:064x}")

    def trained(self):
        return tuple(range(100))


def test_a_helper_list_that_a_site_made_longer_is_cut_back():
    """Otherwise it would grow by R a round until the site is sent all models there are."""
    method = UmPfssl(helper_list_size=3, num_replaced=2)
    rnd = Round(3, 0, (0,), frozenset({0}), Everybody())
    helpers = {0: tuple(ScoredRef(ref(k), 0.5) for k in range(1, 40))}
    [task] = next(method.server_round(HelperLists(helpers), rnd))
    assert len(task.models["helpers"]) == 2 and len(task.models["newcomers"]) == 2


def test_the_documents_table_of_limits_is_the_code():
    text = (Path(__file__).parents[2] / "docs" / "SECURITY.md").read_text()
    rows = re.findall(r"^\|[^|]*\| (`[^|]*`) \| ([\d, ]+) \|$", text, re.M)
    found = {}
    for names, values in rows:
        found |= dict(zip(re.findall(r"`(.*?)`", names), values.split(","), strict=True))
    assert len(found) >= 13
    for name, value in found.items():
        module, _, constant = name.rpartition(".")
        module = module if module.startswith("client_app") else f"fedapp.{module}"
        assert getattr(import_module(module), constant) == int(value), name
