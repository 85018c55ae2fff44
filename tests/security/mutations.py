"""Malformed messages: valid ones, damaged at the level of bytes, JSON, fields and records."""

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedapp.protocol.messages import SCHEMA

SLOW = 18_000
"""Cases of a kind in the slow tests, at least, so that there are `MALFORMED` among them."""
MALFORMED = 10_000
"""Different messages of a kind that the slow tests must see refused, at least."""
RAW = "\0raw:"
"""Begins a text that goes into the JSON as it stands: what json.dumps would never write."""

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 4, -1, -2, -(2**63), 2**31, 2**31 - 1, 2**53, 2**63, 2**64,
    1e308, -1e308, 1e-320, 0.5, 1.5, -0.0, 1.0, math.nan, math.inf, -math.inf, 10**400, "", "1",
    "a", "x" * 5000, "../../etc/passwd", "0" * 64, "F" * 64, "0" * 64 + "\n", "\uff10" * 64,
    "site\x1b[2J", "\u202egnp",
    "\ud800", "\x00", "é", "e\u0301", [], {}, [[]], [None], {"a": 1}, [0] * 2000, ["0" * 64] * 200,
    {f"k{'x' * k}": 0 for k in range(40)}, RAW + "1e999", RAW + "1" * 4400, RAW + "[" * 3000,
    RAW + '{"a":1,"a":2}', RAW + "01", RAW + '"\\ud800"', RAW + "1.0", RAW + "1e0", RAW + "-0",
    RAW + "[[],[],[]]", RAW + '"\\u0000"',
)  # fmt: skip
"""Values that break careless readers; with a case's own plausible ones they take a place."""


def counts(fast: int, slow: int = SLOW) -> list[Any]:
    """Return how many cases of a kind a test tries, each time and in its slow version."""
    marks = (pytest.mark.slow, pytest.mark.timeout(1800))
    return [fast, pytest.param(slow, marks=marks)]


Edit = tuple[int, int, int]


def _edits(kinds: int, places: int, most: int) -> Any:
    """Return a strategy for edits: simple ones, which repeat, and wild ones, which hardly do."""
    whats = 2**16
    simple = st.lists(
        st.tuples(st.integers(0, kinds - 1), st.integers(0, places - 1), st.integers(0, whats - 1)),
        min_size=1,
        max_size=most,
    )

    def wild(seed: bytes) -> list[Edit]:
        draw = random.Random(seed)
        return [
            (draw.randrange(kinds), draw.randrange(places), draw.randrange(whats))
            for _ in range(draw.randint(1, most))
        ]

    seeds = (st.binary(min_size=size, max_size=size) for size in (8, 9, 10))
    return st.one_of(simple, *(seed.map(wild) for seed in seeds))


BYTES = _edits(7, 2**20, 4)
JSON = _edits(6, 2**16, 3)
HEAD_CASES = st.one_of(
    st.tuples(st.just("bytes"), BYTES),
    st.tuples(st.just("json"), JSON),
    st.tuples(st.just("both"), st.tuples(JSON, BYTES)),
    st.tuples(st.just("records"), st.tuples(st.integers(0, 20), st.integers(0, 2**12))),
)
"""Damage to a message's JSON, and to the records around it (`odd_records`)."""


def spoilt_head(case: tuple[str, Any], head: bytes, plausible: Sequence[Any]) -> bytes:
    """Return a message's JSON after a case's damage."""
    level, edits = case
    if level == "bytes":
        return damaged(head, edits)
    value = json.loads(head)
    if level == "json":
        return twisted(value, edits, plausible)
    return damaged(twisted(value, edits[0], plausible), edits[1])


def damaged(data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the bytes with some flipped, set, cut out, repeated or put in."""
    out = bytearray(data)
    for kind, place, what in edits:
        at = place % (len(out) + 1)
        piece = (what % 2**16).to_bytes(2, "big")
        if kind == 0 and at < len(out):
            out[at] ^= 1 << what % 8
        elif kind == 1 and at < len(out):
            out[at] = what % 256
        elif kind == 2:
            del out[at : at + 1 + what % 40]
        elif kind == 3:
            out[at:at] = out[at : at + 1 + what % 40]
        elif kind == 4:
            out[at:at] = piece
        elif kind == 5:
            del out[at:]
        elif kind == 6:
            out[at : at + 1] = rb'{}[]",:0-eE\u'[what % 14 : what % 14 + 1]
    return bytes(out)


def twisted(value: Any, edits: Sequence[Edit], plausible: Sequence[Any]) -> bytes:
    """Return JSON with places replaced, removed, named twice, renamed, repeated or exchanged."""
    root = [json.loads(json.dumps(value))]
    for kind, place, what in edits:
        spots = list(_spots(root))
        holder, key = spots[place % len(spots)]
        pool = NASTY if what % 2 else plausible
        new = deepcopy(pool[what // 2 % len(pool)])  # a later edit may change it
        if kind <= 1:
            holder[key] = new
        elif kind == 2 and holder is not root:
            del holder[key]
        elif kind == 3 and isinstance(holder, dict):
            holder[str(new)[:80]] = holder.pop(key)
        elif kind == 4 and isinstance(holder[key], list):
            holder[key] = holder[key] * (2 + what % 3) + [new] * (what % 2)
        elif kind == 5:
            other, name = spots[what % len(spots)]
            holder[key] = json.loads(json.dumps(other[name])) if other is not root else new
    text = json.dumps(root[0], ensure_ascii=True)
    for raw in {entry for entry in NASTY if isinstance(entry, str) and entry.startswith(RAW)}:
        text = text.replace(json.dumps(raw), raw.removeprefix(RAW))
    return text.encode()


def _spots(holder: Any) -> Any:
    """Yield every place of a JSON value as (container, key), but for long lists' later items."""
    inner = holder.items() if isinstance(holder, dict) else enumerate(holder[:20])
    for key, value in list(inner):
        yield holder, key
        if isinstance(value, dict | list):
            yield from _spots(value)


def odd_records(records: RecordDict, kind: int, what: int) -> RecordDict:
    """Return a message's records with one of them put wrong, below the level of JSON."""
    parts, blob = dict(records), bytes(what % 64)
    name = ("0" * 64, "../x", "", "\x1b[2J", "f" * 5000)[what % 5]
    arrays = (
        Array("uint8", (len(blob),), "safetensors", blob),
        Array("uint8", (len(blob) + 1,), "safetensors", blob),
        Array("float32", (len(blob),), "safetensors", blob),
        Array("uint8", (len(blob), 1), "safetensors", blob),
        Array("uint8", (-1,), "safetensors", blob),
        Array("uint8", (2**62, 2**62), "numpy.ndarray", blob),
        Array("\x1b[2J" * 99, (), "pickle", blob),
    )
    changes: tuple[Callable[[], Any], ...] = (
        lambda: parts.pop("heads"),
        lambda: parts.update({"heads": MetricRecord({"message": 1})}),
        lambda: parts.update({"heads": ConfigRecord({"message": "text"})}),
        lambda: parts.update({"heads": ConfigRecord({"message": [b"a", b"b"]})}),
        lambda: parts.update({"heads": ConfigRecord({**parts["heads"], name: blob})}),
        lambda: parts.update({name or "x": ConfigRecord()}),
        lambda: parts.update({"models": ConfigRecord({name or "x": blob})}),
        lambda: parts.update({"models": ArrayRecord({name: arrays[what % len(arrays)]})}),
        lambda: parts.update(
            {"models": ArrayRecord({f"{k:064x}": arrays[0] for k in range(what % 200)})}
        ),
    )
    changes[kind % len(changes)]()
    return RecordDict(parts)


_BEGIN = f'{{"schema":{SCHEMA},"kind":"'.encode()
HEADS = st.one_of(
    st.binary(max_size=400),
    st.binary(max_size=60).map(lambda data: _BEGIN + data + b'"}'),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)
"""Bytes where a message's JSON belongs."""

_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
_NAMES = _TEXT | st.sampled_from(["heads", "models", "message", "origin", "0" * 64, "../x"])
_ARRAYS = st.builds(
    lambda dtype, shape, stype, data: Array(dtype, tuple(shape), stype, data),
    st.sampled_from(["uint8", "float32", "object", "\x1b[2J"]),
    st.lists(st.integers(-1, 2**62), max_size=3),
    st.sampled_from(["safetensors", "numpy.ndarray", "pickle", ""]),
    st.binary(max_size=64),
)
_VALUES = (
    st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans() | st.binary(max_size=80)
    | _TEXT | st.lists(st.binary(max_size=8), max_size=3)
)  # fmt: skip
_RECORD = st.one_of(
    st.dictionaries(_NAMES, _VALUES, max_size=3).map(ConfigRecord),
    st.dictionaries(_NAMES, _ARRAYS, max_size=3).map(ArrayRecord),
    st.dictionaries(_NAMES, st.integers(0, 9) | st.floats(), max_size=3).map(MetricRecord),
)
RECORDS = st.dictionaries(_NAMES, _RECORD, max_size=3).map(RecordDict)
"""Whatever Flower can carry."""


def fingerprint(message: Any) -> str:
    """Return a hash by which two messages are the same or not."""
    if isinstance(message, RecordDict):
        parts = [
            (name, type(record).__name__, key, vars(value) if isinstance(value, Array) else value)
            for name, record in message.items()
            for key, value in (*record.items(), ("", ""))
        ]
        message = repr(parts).encode()
    return hashlib.sha256(message).hexdigest()


def fuzz(
    kind: str,
    examples: int,
    strategy: Any,
    build: Callable[[Any], Any],
    refuses: Callable[[Any], bool],
) -> None:
    """Try `examples` cases, always the same ones; demand that enough of them were malformed.

    build: returns a case's message. refuses: whether it was refused, which counts as malformed;
    raises where what is right was not done.
    """
    ran, malformed = 0, set[str]()

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(strategy)
    def run(case: Any) -> None:
        nonlocal ran
        ran += 1
        message = build(case)
        if refuses(message):
            malformed.add(fingerprint(message))

    began = time.process_time()
    run()
    taken = time.process_time() - began
    print(
        f"{kind}: {ran} messages, {len(malformed)} different ones refused, {taken:.0f} s of CPU",
        flush=True,
    )
    assert len(malformed) >= (MALFORMED if examples >= SLOW else examples // 2)
