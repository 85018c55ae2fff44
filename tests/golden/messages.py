"""Every message as text: each kind with all its fields, to the byte, and all those of whole runs.

Of a run's messages what does not hang on the processor's last bits is told: kinds, the fields and
their order, names, shapes and dtypes, and all numbers but floats and counts of predictions. Helpers
are in the order of their sites. Of hex digits is told how many they are and, in place of them, when
they first appeared.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from flwr.app import Array

from fedapp.core.errors import StoreError
from fedapp.experiment.config import load_experiment
from fedapp.protocol import flower_records
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import Answer, Incoming, Origin, Request, SumStep, Task
from fedapp.simulation.in_process import Loopback
from tests.flower.results import loopback
from tests.golden.numbers import SHRUNK, SLOWLY

SMALLER = {
    "data.subset": 200, "split.num_clients": 3, "training.warmup_epochs": 1, "rounds.num_rounds": 2,
    "rounds.sample_rate": 1.0,
}  # fmt: skip
"""Over digits_demo, shrunk. `SLOWLY`: so that other bits change no choice that hangs on scores."""
MASKED = {"privacy.sums": "masked", "rounds.num_rounds": 1}
EPSILON = {"privacy.epsilon": 8.0, "model.norm": "group", "training.augment": "none"}
RUNS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "um_pfssl": ("um_pfssl", {}),
    "recommended": ("recommended", {"rounds.num_rounds": 1}),
    "flexproto": ("flexproto", {}),
    "ditto": ("ditto", {}),
    "fedavg_epsilon": ("fedavg", EPSILON),
    "fedavg_masked": ("fedavg", MASKED),
    "fedavg_masked_epsilon": ("fedavg", {**EPSILON, **MASKED}),
}
"""By name: a method preset, and settings."""
HEX = re.compile('"([0-9a-f]{32,})"')
HEX_LIST = re.compile(r'\["[0-9a-f]{32,}"(, "[0-9a-f]{32,}")*\]')
FLOAT = re.compile(r'(?<!"steps": )(?<!"images": )-?\b\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)\b')
COUNTS = re.compile(
    r'(confusion|bin_\w+|scores|by_class|by_uncertainty|wrong_by_\w+)": (\[[][\d., e-]*\])'
)
"""Numbers that hang on what a model says, in lists."""


def filled(kind: Any) -> Any:
    """Return a value of a kind, as annotations name it; of a message all fields are set."""
    origin, args = (
        get_origin(kind),
        [each for each in get_args(kind) if each not in (..., NoneType)],
    )
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{each.name: filled(hints[each.name]) for each in dataclasses.fields(kind)})
    if origin is tuple:
        return tuple(map(filled, args))
    if origin is Mapping:
        return {"name": filled(args[1])}
    if origin is Literal:
        return args[-1]
    return filled(args[-1]) if args else {bool: True, int: 7, float: 0.5, str: "text, é"}[kind]


def of_each_kind(_: Path) -> str:
    """Return a message of each kind as it travels, and how Flower carries some."""
    kinds = [*get_args(Request), *get_args(Answer), Origin]
    sent = {kind.__name__: filled(kind) for kind in kinds}
    lines = [encode(message).decode().replace(',"', ',\n"') + "\n" for message in sent.values()]
    origin, come = sent["Origin"], Incoming(sent["Refusal"], {"a" * 64: b"content"})
    for name, records in {
        "a request": flower_records.write_request(origin, sent["Hello"], come.payloads),
        "tasks": flower_records.pack_tasks(origin, [b"one", b"two"]),
        "an answer": flower_records.write_answer(come),
        "answers": flower_records.write_answers([come, come]),
    }.items():
        lines.append(f"Flower's records of {name}")
        for place, held in records.items():
            for key, value in held.items():
                array = isinstance(value, Array)
                told = (value.dtype, value.shape, value.stype, value.data) if array else value
                lines.append(f"{type(held).__name__} {place}, {key}: {told}")
    return "\n".join(lines) + "\n"


class Transcript:
    """The messages of a run, one after the other."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._named: dict[str, str] = {}
        self._layouts: dict[str, str] = {}

    def add(self, head: bytes, attached: Any = (), fetch: Any = None) -> None:
        """Take a message down, and of contents that it is the first to name what they hold.

        Of steps of a masked sum those of the first site: the others' have the same form.
        """
        message, known = json.loads(head), len(self._named)
        fields = message.pop("body")
        for lists in (fields, fields.get("models", {})):
            lists.get("helpers", []).sort(key=_site)
        body = "\n".join(f"  {key}: {json.dumps(value)}" for key, value in fields.items())
        title = f"{json.dumps(message)}, site {fields['site']}, {len(attached)} contents attached"
        self.lines += ["", title]
        body = COUNTS.sub(_counted, body)
        for found in HEX.finditer(HEX_LIST.sub("", body)):
            self._named.setdefault(found[1], f"#{len(self._named) + 1} ({len(found[1])})")
        body = HEX.sub(lambda found: self._named[found[1]], HEX_LIST.sub(self._listed, body))
        if not (fields.get("sum") and fields["site"]):
            self.lines.append(FLOAT.sub("float", body))
        for digits, name in list(self._named.items())[known:] if fetch else ():
            try:
                self.lines.append(f"  {name} is {self._layout(fetch(digits))}")
            except StoreError:
                continue  # the digest of something else, or of what stays at the site

    def _listed(self, found: re.Match[str]) -> str:
        """Return a list, sorted by digest where it was made, in the order of first appearance."""
        digits = HEX.findall(found[0])
        told = [name for known, name in self._named.items() if known in digits]
        return str([*told, *["another"] * (len(digits) - len(told))])

    def _layout(self, blob: bytes) -> str:
        size = 8 + int.from_bytes(blob[:8], "little")
        told = json.dumps(json.loads(blob[8:size])).replace("}, ", "},\n    ")
        before = self._layouts.get(told)
        self._layouts.setdefault(told, f"contents of kind {len(self._layouts) + 1}")
        return before or f"{self._layouts[told]}, {len(blob)} bytes:\n    {told}"


def _site(helper: dict[str, Any]) -> int:
    """Return the site of a helper, in a list that is sorted by what models say."""
    return int(helper.get("model", helper)["site"])


def _counted(found: re.Match[str]) -> str:
    lists, numbers = found[2].count("["), len(re.findall(r"[\d.e-]+", found[2]))
    return f'{found[1]}": {lists} lists of {numbers} numbers'


def of_run(name: str, out: Path) -> str:
    """Return the messages of a run and, after it, of tasks that its first site cannot do."""
    preset, settings = RUNS[name]
    said, honest = Transcript(), Loopback.exchange
    carriers, tasks = list[Loopback](), list[Task]()

    def exchange(self: Loopback, outbox: Any, fetch: Any, deadline_s: float) -> Iterator[Any]:
        if not carriers:
            carriers.append(self)
            for facts in self.introduce():
                said.add(encode(facts))
        for outgoing in outbox:
            said.add(outgoing.head, outgoing.attach, fetch)
            tasks.append(outgoing.task)
        for number, incoming in honest(self, outbox, fetch, deadline_s):
            said.add(encode(incoming.answer), incoming.payloads, fetch)
            yield number, incoming

    given = {**SHRUNK, **SMALLER, **SLOWLY, "method.preset": preset, "runtime.out": str(out)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loopback, "exchange", exchange)
        loopback(load_experiment("digits_demo", {**given, **settings}))
    said.lines += ["", "Tasks that cannot be done"]
    task = tasks[0]
    lost = dataclasses.replace(task.own, digest="0" * 64)
    other = SumStep(0, "announce") if task.sum is None else None
    add = task.sum and dataclasses.replace(task.sum, stage="add")
    for changes in ({"own": lost, "sum": add}, {"sum": other}):
        incoming = carriers[0].sites[task.site].handle(dataclasses.replace(task, **changes), {})
        said.add(encode(incoming.answer), incoming.payloads)
    return "\n".join(said.lines[1:]) + "\n"
