"""Flower records: round trips, and everything that must be refused."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedapp.core.errors import ProtocolError
from fedapp.protocol import flower_records
from fedapp.protocol.messages import MAX_ENTRIES, Hello, Incoming, Missing, Origin

D = "cd" * 32
ORIGIN = Origin("run-1", "0" * 16, D)
ANSWER = Missing(1, 2, (D,))


def test_requests_and_contents_come_back():
    records = flower_records.write_request(ORIGIN, Hello(), {D: b"model"})
    assert flower_records.read_request(records) == (ORIGIN, Hello(), {D: b"model"})


def test_answers_come_back_and_one_model_is_one_array():
    records = flower_records.write_answer(Incoming(ANSWER, {D: b"abc"}))
    incoming = flower_records.read_answer(records)
    assert (incoming.answer, incoming.payloads) == (ANSWER, {D: b"abc"})
    assert incoming.head_bytes == len(records["heads"]["message"])
    assert list(records["models"]) == [D]
    assert records["models"][D].data == b"abc"


def good():
    return flower_records.write_answer(Incoming(ANSWER, {D: b"abc"}))


def arrays(array, name=D):
    records = good()
    records["models"] = ArrayRecord({name: array})
    return records


def heads(values):
    records = good()
    records["heads"] = ConfigRecord(values)
    return records


class Huge(bytes):
    """Claims 2 GB without holding them."""

    def __len__(self):
        return 2 * 2**30


ONE = Array("uint8", (1,), "safetensors", b"x")
MANY = RecordDict(
    {
        "heads": ConfigRecord({"message": b"{}"}),
        "models": ArrayRecord({f"{k:064x}": ONE for k in range(129)}),
    }
)


def test_as_many_contents_as_are_allowed_are_read():
    payloads = {f"{number:064x}": b"x" for number in range(MAX_ENTRIES)}
    assert (
        flower_records.read_answer(flower_records.write_answer(Incoming(ANSWER, payloads))).payloads
        == payloads
    )


@pytest.mark.parametrize(("records", "says"), [
    (RecordDict(), "must be heads and models"),
    (RecordDict({"heads": MetricRecord({"a": 1})}), "must be a ConfigRecord"),
    (RecordDict({"heads": good()["heads"], "other": ConfigRecord()}), "must be heads and models"),
    (heads({"message": "text"}), "must hold bytes"),
    (heads({"message": b"{}", "more": b""}), "must be a ConfigRecord with"),
    (heads({"message": b"{}"}), "exactly schema, kind and body"),
    (RecordDict({"heads": good()["heads"], "models": ConfigRecord()}), "must be an ArrayRecord"),
    (arrays(Array(np.zeros(3, np.float32))), "must be one flat safetensors uint8 array"),
    (arrays(Array("uint8", (3, 1), "safetensors", b"abc")), "must be one flat"),
    (arrays(Array("uint8", (4,), "safetensors", b"abc")), "must be one flat"),
    (arrays(Array("uint8", (2 * 2**30,), "safetensors", Huge(b""))), "at most 1073741824"),
    (MANY, "129 models in one message"),
])  # fmt: skip
def test_what_is_not_exactly_right_is_refused(records, says):
    with pytest.raises(ProtocolError, match=says):
        flower_records.read_answer(records)


TASK = b'{"schema":1}'


def lot(**changes):
    """Records of several tasks, some of their heads others."""
    records = flower_records.pack_tasks(ORIGIN, [TASK])
    records["heads"] = ConfigRecord({**records["heads"], **changes})
    return records


@pytest.mark.parametrize(("records", "says"), [
    (RecordDict({**lot(), "models": ArrayRecord()}), "must be heads alone"),
    (lot(more=b""), "must hold"),
    (lot(messages=TASK), "bytes and a list of bytes"),
    (lot(origin="text"), "bytes and a list of bytes"),
    (lot(messages=["text"]), "1 messages in one; at most 65536, all bytes"),
    (lot(messages=[b""] * (flower_records.MAX_BATCH + 1)), "65537 messages in one"),
    (lot(), "exactly schema, kind and body"),
])  # fmt: skip
def test_several_tasks_that_are_not_exactly_right_are_refused(records, says):
    with pytest.raises(ProtocolError, match=says):
        flower_records.read_tasks(records)


def test_several_answers_come_back_in_their_order():
    answers = [Incoming(Missing(site, 2, (D,))) for site in (3, 1, 2)]
    found = flower_records.read_answers(flower_records.write_answers(answers))
    assert [one.answer for one in found] == [one.answer for one in answers]
