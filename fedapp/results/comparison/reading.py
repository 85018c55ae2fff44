"""The files of a comparison -> `Comparison`: comparison.json and three CSV files."""

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedapp.ground.errors import RunError
from fedapp.results.comparison.record import CellResult, Comparison, Key, RoundResult, SiteResult


def read_comparison(folder: Path) -> Comparison:
    """Read the folder of a comparison, finished or not.

    Raises RunError where it is none, or where one of its files is damaged.
    """
    path = folder / "comparison.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        settings, methods = [str(s) for s in plan["settings"]], [str(m) for m in plan["methods"]]
        seeds = [int(seed) for seed in plan["seeds"]]
    except FileNotFoundError as error:
        raise RunError(f"{path}: is missing; name the folder of a comparison") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: is damaged ({error}); run the comparison again") from error
    planned = {(s, m, seed) for s in settings for m in methods for seed in seeds}
    cells = {_key(row): row for row in _read(folder / "results.csv", CellResult)}
    sites: dict[Key, dict[int, SiteResult]] = {}
    for site in _read(folder / "sites.csv", SiteResult):
        sites.setdefault(_key(site), {})[site.site] = site
    rounds: dict[Key, list[RoundResult]] = {}
    for row in _read(folder / "rounds.csv", RoundResult):
        rounds.setdefault(_key(row), []).append(row)
    return Comparison(
        folder=folder,
        title=str(plan.get("title") or folder.name),
        settings=settings,
        methods=methods,
        seeds=seeds,
        cells={key: cell for key, cell in cells.items() if key in planned},
        sites={key: rows for key, rows in sites.items() if key in planned},
        rounds={key: rows for key, rows in rounds.items() if key in planned},
        presets={k: str(v) for k, v in (plan.get("presets") or {}).items() if v},
        paper=plan.get("paper") or {},
        versions=plan.get("versions") or {},
        reference=str(plan.get("reference") or ""),
        answers=plan.get("answers") or {},
        judged=str(plan.get("judged") or "validation"),
    )


Row = TypeVar("Row", CellResult, SiteResult, RoundResult)


def _key(row: CellResult | SiteResult | RoundResult) -> Key:
    return row.setting, row.method, row.seed


def _read(path: Path, kind: type[Row]) -> list[Row]:
    """Return the rows of a CSV file; none where it is absent, for nothing has run yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        due = [f.name for f in fields(kind) if f.default is MISSING]
        lacking = [name for name in due if name not in (reader.fieldnames or ())]
        if lacking:
            raise RunError(f"{path}: has no column {', '.join(lacking)}; run the comparison again")
        return list(_typed(reader, kind, path))


def _typed(reader: "csv.DictReader[str]", kind: type[Row], path: Path) -> Iterable[Row]:
    hints = get_type_hints(kind)
    for row in reader:
        try:
            there = {name: hint for name, hint in hints.items() if name in row}
            yield kind(**{name: _value(row[name], hint) for name, hint in there.items()})
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{path}: line {reader.line_num} is damaged ({error}); run the comparison again"
            ) from error


def _value(text: str, hint: object) -> Any:
    """Return a text as its column's type; an empty or not finite number: None, not measured."""
    if hint is str:
        return text
    if hint is int:
        return int(text)
    number = float(text) if text.strip() else math.nan
    return number if math.isfinite(number) else None
