"""Messages as JSON: round trips, and everything that must be refused."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.core.errors import ProtocolError
from fedapp.protocol.codec import (
    MAX_BYTES,
    MAX_CONTAINERS,
    as_received,
    decode_answer,
    decode_origin,
    decode_request,
    encode,
)
from fedapp.protocol.messages import ANSWERS as NAMES
from fedapp.protocol.messages import (
    MAX_SETTINGS,
    SCHEMA,
    Evaluation,
    Hello,
    Missing,
    ModelRef,
    Origin,
    Refusal,
    Reply,
    ScoredRef,
    SiteFacts,
    Task,
    without_repeats,
)

D = "ab" * 32
REF = ModelRef(3, 2, D)
TASK = Task(1, 4, "train", REF, {"helpers": (REF,), "newcomers": ()})
RESULT = Evaluation(((1, 0), (0, 2)), (3,), (3,), (2.5,))
REPLY = Reply(1, 4, D, (ScoredRef(REF, 0.5),), (D,), {"loss": 0.25}, {"test": RESULT})
ANSWERS = [
    REPLY,
    Missing(1, 4, (D,)),
    Refusal(1, 4, "why"),
    SiteFacts(1, (3, 8, 8), ("a",), 1, 2, 3, 4, D),
]


def test_requests_come_back_equal():
    told = replace(TASK, phase=3, numbers={"sure_right": 2.0, "sure_total": 2.5})
    assert decode_request(encode(told)) == told
    hello = Hello({"seed": 0, "data.std": 1.0, "data.name": "own", "data.download": True})
    again = decode_request(encode(hello))
    assert again == hello and encode(again) == encode(hello)  # 1.0 stays a float, True a truth
    origin = Origin("run-1", "0" * 16, D)
    assert decode_origin(encode(origin)) == origin
    again = replace(origin, identity="a" * 64)
    assert decode_origin(encode(again)) == again


@pytest.mark.parametrize("message", [TASK, *ANSWERS], ids=lambda m: type(m).__name__)
def test_a_message_comes_back_equal_by_wire_and_without_one(message):
    head = encode(message)
    arrived = as_received(message, head)
    assert arrived is not message
    assert arrived == (decode_request if message is TASK else decode_answer)(head) == message


@pytest.mark.parametrize("message", [
    replace(REPLY, model="short"),
    replace(REPLY, held=(D,) * 129),
    replace(REPLY, round=True),
    replace(REPLY, metrics={"Loss": 1.0}),
    Refusal(1, 4, "two\nlines"),
    Refusal(1, 4, "long" * MAX_BYTES),
])  # fmt: skip
def test_what_a_reader_refuses_is_refused_without_a_wire_too(message):
    head = encode(message)
    with pytest.raises(ProtocolError) as by_wire:
        decode_answer(head)
    with pytest.raises(ProtocolError) as here:
        as_received(message, head)
    assert str(here.value) == str(by_wire.value)


def test_a_request_is_not_an_answer():
    with pytest.raises(ProtocolError, match="an answer was due, Task came"):
        decode_answer(encode(TASK))
    with pytest.raises(ProtocolError, match="a request was due, Reply came"):
        decode_request(encode(REPLY))
    with pytest.raises(ProtocolError, match="an origin was due"):
        decode_origin(encode(REPLY))


def head(kind="Reply", schema=SCHEMA, **changes):
    body = json.loads(encode(REPLY))["body"] | changes
    return json.dumps({"schema": schema, "kind": kind, "body": body}).encode()


@pytest.mark.parametrize(("data", "says"), [
    (b"", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[1]", "exactly schema, kind and body"),
    (b"[" * 10_000, "not JSON"),
    (b"[" * 100_000, "more than 16384 lists"),
    (bytes(MAX_BYTES + 1), "at most"),
    (head(schema=SCHEMA + 1), f"schema {SCHEMA + 1}, the other side understands {SCHEMA}: install"),
    (head(schema=str(SCHEMA)), "schema str, the other side"),
    (head(kind="Bogus"), "unknown message kind 'Bogus'"),
    (head(kind=["x"]), "unknown message kind"),
    (head(site="1"), "site: Input should be a valid integer"),
    (head(site=-2), "site: Input should be greater"),
    (head(round=True), "round: Input should be a valid integer"),
    (head(model="../../etc/passwd"), "model: String should match"),
    (head(held=[D[:-1]]), "held.0: String should match"),
    (head(extra=1), "extra: Unexpected"),
    (head(metrics={"loss": math.inf}), "Infinity is no JSON"),
    (head(metrics={"Not A Name": 1}), "String should match"),
    (head(helpers=[{"model": {"site": 1, "version": 0, "digest": D}}]), "score: Field required"),
])  # fmt: skip
def test_what_is_not_exactly_right_is_refused_with_its_name(data, says):
    with pytest.raises(ProtocolError, match=says):
        decode_answer(data)


def task(**changes):
    body = json.loads(encode(TASK))["body"] | changes
    return json.dumps({"schema": SCHEMA, "kind": "Task", "body": body}).encode()


@pytest.mark.parametrize(("data", "says"), [
    (task(phase=-1), "phase: Input should be greater"),
    (task(phase=2**53), "phase: Input should be less"),
    (task(phase=1.0), "phase: Input should be a valid integer"),
    (task(phase=True), "phase: Input should be a valid integer"),
    (task(numbers={"sure": math.nan}), "NaN is no JSON"),
    (task(numbers={"sure": "1"}), "numbers.sure: Input should be a valid number"),
    (task(numbers={"Not A Name": 1}), "numbers.Not A Name.*: String should match"),
    (task(numbers={f"n{'x' * k}": 1 for k in range(33)}), "numbers: .*at most 32"),
    (task(numbers=[1]), "numbers: Input should be a"),
])  # fmt: skip
def test_a_phase_is_a_count_and_numbers_are_few_finite_and_named(data, says):
    with pytest.raises(ProtocolError, match=says):
        decode_request(data)


def test_the_largest_honest_answer_fits():
    """1000 classes, measured on both parts: what a site uses, and each of its answers."""
    row = (0,) * 998 + (12345, 678)
    result = Evaluation((row,) * 1000, (1,) * 15, (1,) * 15, (1 / 3,) * 15)
    each = len(encode(replace(REPLY, evaluations={"test": result})))
    count = 2 * (1 + len(NAMES))
    assert count * each < MAX_BYTES and count * 1003 < MAX_CONTAINERS


def test_an_evaluation_of_two_names_travels_once():
    both = {"test_common": RESULT, "test": RESULT, "val": replace(RESULT)}
    once, equal = without_repeats(both)
    assert list(once) == ["test_common", "val"] and equal == {"test": "test_common"}
    sent = replace(REPLY, evaluations=once, equal=equal)
    got = decode_answer(encode(sent))
    assert got == sent
    assert got.with_repeats() == replace(REPLY, evaluations=both)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_never_sent(value):
    with pytest.raises(ProtocolError, match=r"^Reply message cannot be sent: .* is no JSON"):
        encode(Reply(1, 1, D, metrics={"loss": value}))


def test_words_may_speak_of_nan():
    refusal = Refusal(1, 1, "the loss is:NaN, [Infinity")
    assert decode_answer(encode(refusal)) == refusal


def test_half_a_character_is_never_sent():
    with pytest.raises(ProtocolError, match=r"^Refusal message cannot be sent: .*surrogate"):
        encode(Refusal(1, 1, "\udc80"))


@settings(max_examples=300)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3),
))  # fmt: skip
def test_arbitrary_bodies_end_in_a_protocol_error_or_a_message(body):
    for kind in ("Reply", "Missing", "SiteFacts", "Task"):
        data = json.dumps({"schema": SCHEMA, "kind": kind, "body": body}).encode()
        with pytest.raises(ProtocolError):
            decode_answer(data)


def test_a_task_refers_to_each_content_once_by_the_names_of_their_roles():
    """In whatever order its models were put together."""
    own, first, second = (ModelRef(k, 1, f"{k:064x}") for k in range(3))
    models = {"z": (second, own), "a": (first,), "b": (first, second)}
    task = Task(0, 1, "train", own, models)
    assert task.refs() == (own, first, second)
    assert replace(task, models=dict(reversed(models.items()))).refs() == task.refs()


def test_as_many_settings_as_are_allowed_are_read():
    hello = Hello({str(number): 1 for number in range(MAX_SETTINGS)})
    assert decode_request(encode(hello)) == hello
