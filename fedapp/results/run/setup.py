"""What a reader needs to run it again: settings that differ, versions; and what went wrong."""

from collections.abc import Mapping
from typing import Any

from fedapp.experiment.config import MACHINE_KEYS, load_experiment, to_plain
from fedapp.experiment.presetfiles import method_presets, presets
from fedapp.experiment.records import json_values
from fedapp.ground.errors import FedAppError
from fedapp.learn.metrics import FEW
from fedapp.results.layout import Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.record import RunRecord
from fedapp.server.fall import fallen

_MOST = 40
"""Warnings shown; more are counted."""


def setup(run: RunRecord) -> Block:
    """Return settings that differ from the preset's, and versions."""
    title = "Settings and versions"
    reading = "What to give to run it again. config.yaml in the run's folder has every setting."
    name = str(run.settings.get("name"))
    rows, lines = [], []
    try:
        preset = _preset(name)
    except FedAppError:
        preset = None
    if preset is None:
        lines.append(f"Preset {name}: not one of this version's, so nothing is compared with it.")
    else:
        ours, theirs = _flat(run.settings), _flat(preset)
        rows = [
            [key, _shown(theirs.get(key)), _shown(ours.get(key))]
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
            and key not in MACHINE_KEYS
            and key.partition(".")[0] not in MACHINE_KEYS
        ]
        lines.append(f"Preset {name}: {len(rows) or 'no'} settings differ.")
    tables = []
    if rows:
        tables.append(Table("Settings that differ", ["Setting", "Preset", "Here"], rows, labels=3))
    versions = [[key, str(value)] for key, value in (run.facts.get("versions") or {}).items()]
    split = run.sites[0].standing.facts.split_digest
    begun = [
        ["started", str(run.facts.get("started", "-"))],
        ["code", str(run.facts.get("code", "-"))],
        ["split", split[:16]],
    ]
    tables.append(Table("Versions", ["", ""], [*begun, *versions], labels=2))
    return Block(title, reading, tables=tables, lines=lines)


def warnings(run: RunRecord) -> Block:
    """Return all that a reader should be warned of."""
    found = [*_of_rounds(run), *_of_sites(run)]
    more = [f"And {len(found) - _MOST} more."] if len(found) > _MOST else []
    reading = "What went wrong or makes a number weak."
    return Block("Warnings", reading, lines=[*found[:_MOST], *more] or ["None."])


def _of_rounds(run: RunRecord) -> list[str]:
    names = {str(site.number): site.name for site in run.sites}
    found: list[str] = []
    planned = run.setting("rounds", "num_rounds")
    if run.summary is None or (isinstance(planned, int) and run.last < planned):
        found.append(f"The run is not over: round {run.last} of {planned}.")
    before: dict[str, Any] = {}
    for row in run.rounds:
        if warning := fallen(row, before):
            found.append(f"{warning[:1].upper()}{warning[1:]}.")
        for site, reason in (row.get("skipped") or {}).items():
            who = names.get(site, f"site {site}")
            found.append(f"Round {row['round']}: {who} skipped: {reason}.")
        if late := row.get("joined"):
            who = ", ".join(names.get(str(site), f"site {site}") for site in late)
            found.append(f"Round {row['round']}: joined: {who}.")
        before = row
    for number, row in sorted(run.history.items()):
        for site, said in row.get("sites", {}).items():
            if said.get("memory_lost"):
                who = names.get(site, f"site {site}")
                found.append(f"Round {number}: {who} had lost what it keeps to itself.")
    return found


def _of_sites(run: RunRecord) -> list[str]:
    found = []
    facts = [(site.name, site.standing) for site in run.sites]
    for label, names in (
        ("No test images, so nothing is known", [n for n, s in facts if not s.facts.test]),
        (
            f"Fewer than {FEW} test images, mostly chance",
            [f"{n} ({s.facts.test})" for n, s in facts if 0 < s.facts.test < FEW],
        ),
        (
            "Classes without test images",
            [
                f"{n} ({len(s.facts.classes) - s.test_classes} of {len(s.facts.classes)})"
                for n, s in facts
                if s.facts.test and s.test_classes is not None
                and s.test_classes < len(s.facts.classes)
            ],
        ),
    ):  # fmt: skip
        if names:
            shown = ", ".join(names[:12])
            more = f" and {len(names) - 12} more" if len(names) > 12 else ""
            found.append(f"{label}: {shown}{more}.")
    return found


def _preset(name: str) -> Mapping[str, Any] | None:
    """Return a preset's settings by a run's name for it, such as `digits_demo-fixavg`."""
    for known in presets():
        if name == known:
            return to_plain(load_experiment(known))
        for method in method_presets():
            if name == f"{known}-{method}":
                return to_plain(load_experiment(known, {"method.preset": method}))
    return None


def _flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in json_values(plain).items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): item for name, item in inner.items()}
    return flat


def _shown(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)
