"""Malformed messages: valid ones, damaged at the level of bytes, JSON, fields and records."""

import json
import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SLOW = 15_000
"""Cases of a kind in the slow tests: two in three or more are malformed, so 10,000 are."""
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

Edit = tuple[int, int, int]

BYTES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 2**20), st.integers(0, 2**16)), max_size=4
)
JSON = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2**16), st.integers(0, 2**16)),
    min_size=1,
    max_size=3,
)


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


def fuzz(examples: int, strategy: Any, check: Callable[[Any], bool]) -> tuple[int, int]:
    """Check `examples` cases, always the same ones; return how many ran and how many were refused.

    check: returns whether the case was refused, and raises where what is right was not done.
    """
    ran = refused = 0

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
        nonlocal ran, refused
        ran += 1
        refused += check(case)

    began = time.process_time()
    run()
    print(f"{ran} run, {refused} refused, {time.process_time() - began:.0f} s of CPU", flush=True)
    return ran, refused
