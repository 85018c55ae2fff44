"""Collects the results of all cells in tidy CSV files, written anew whenever a cell is done."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.core.disk import write_atomic
from fedapp.core.errors import RunError
from fedapp.core.formatting import csv_text
from fedapp.core.settings import OWN
from fedapp.core.untrusted_files import read_json
from fedapp.data.split.manifest import Manifest
from fedapp.experiment.code_hash import code_hash, versions
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.metrics import calibration_error
from fedapp.protocol.messages import Evaluation
from fedapp.reports.comparison.record import (
    BY_METRIC,
    COLUMNS,
    LAST,
    OF_AN_ANSWER,
    SELECTED,
    VALIDATION,
    ComparisonRecord,
    read_comparison,
)
from fedapp.reports.statistics import largest_fall, last_rounds
from fedapp.server.standings import spread as spread_of
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.grid import ANSWER, Grid

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]

_OF_AN_ANSWER = dict(
    zip(OF_AN_ANSWER, ("best_by_validation", "best_by_validation_round", "final"), strict=True)
)
"""Suffix of a column, after the answer's name -> key of that answer in summary.json."""
_AT_LAST = {**_OF_AN_ANSWER, SELECTED: "final"}
"""The same if runs are judged at their last round or there are no validation images."""


class Collection:
    """Reads the cells of a comparison, each once when it is done, and writes the result files."""

    def __init__(self, grid: Grid, cells: Sequence[Cell], out: Path) -> None:
        self._grid, self._out = grid, out
        place = {name: k for k, name in enumerate([s.name for s in grid.settings])}
        order = {name: k for k, name in enumerate(grid.methods)}
        seeds = {seed: k for k, seed in enumerate(grid.seeds)}
        self._cells = sorted(
            cells, key=lambda c: (place[c.setting], order[c.method], seeds[c.seed])
        )
        self._read: dict[Cell, Tables] = {}

    @property
    def results(self) -> list[Row]:
        """The rows of results.csv, one for each cell that is done."""
        return [self.result(cell) for cell in self._cells if cell in self._read]

    @property
    def done(self) -> int:
        """How many runs are done. One run may have several rows, scored by different answers."""
        return len({cell.folder for cell in self._read})

    def record(self) -> ComparisonRecord:
        """Return the files that were written, as reports read them."""
        return read_comparison(self._out)

    def result(self, cell: Cell) -> Row:
        """Return the row of results.csv for a cell that is done."""
        return self._read[cell]["results.csv"][0]

    def write(self) -> list[Path]:
        """Write all files and return their paths. Raises RunError if a cell's files are damaged."""
        for cell in self._cells:
            if cell not in self._read and cell.state() == "done":
                at_last = self._grid.judged == "last"
                self._read[cell] = _tables(cell, self._out, at_last)
        paths = []
        for name, columns in COLUMNS.items():
            rows = [row for cell in self._cells for row in self._read.get(cell, {}).get(name, ())]
            values = ([row.get(column) for column in columns] for row in rows)
            paths.append(self._out / name)
            write_atomic(paths[-1], csv_text([columns, *values]).encode(), durable=True)
        paths.append(self._out / "comparison.json")
        text = json.dumps(self._description(), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomic(paths[-1], f"{text}\n".encode(), durable=True)
        return paths

    def split_faults(self) -> list[str]:
        """Return a line for each setting and seed whose cells were not run on the same split.

        The visible labels may differ, because a method may be given all of them.
        """
        lines = []
        groups: dict[tuple[str, int], list[Cell]] = {}
        for cell in self._cells:
            if cell in self._read:
                groups.setdefault((cell.setting, cell.seed), []).append(cell)
        for (setting, seed), group in groups.items():
            other = [cell.method for cell in group[1:] if not _same_split(group[0], cell)]
            if other:
                lines.append(
                    f"{setting} / seed {seed}: {', '.join(other)}: run on another split than "
                    f"{group[0].method}, so not to be compared with it"
                )
        return lines

    def _description(self) -> Row:
        grid = self._grid
        papers = {s.name: s.paper.described for s in grid.settings if s.paper}
        return {
            "title": grid.title,
            "name": grid.name,
            "grid": grid.to_plain(),
            "paper": {"by_setting": papers} if papers else {},
            "settings": [s.name for s in grid.settings],
            "methods": list(grid.methods),
            "reference": grid.reference,
            "judged": grid.judged,
            "answers": {m: answer for m, c in grid.methods.items() if (answer := c.get(ANSWER))},
            "seeds": list(grid.seeds),
            "presets": {label: c.get("method.preset") for label, c in grid.methods.items()},
            "code": code_hash()[1],
            "versions": versions(),
        }


def _tables(cell: Cell, out: Path, at_last: bool) -> Tables:
    """Return the rows of a cell that is done. at_last: whether it is judged at its last round."""
    folder = RunFolder(cell.folder)
    try:
        summary = read_json(cell.folder / "summary.json")
        accuracy = summary["mean_test_accuracy"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"{cell.folder / 'summary.json'}: cannot be read ({error!r}): remove that folder to "
            "run the cell again"
        ) from error
    rounds, sites = folder.metrics(), folder.per_site()
    if cell.answer:
        summary, rounds, sites = scored_by(cell.answer, summary, rounds, sites, cell.name)
        accuracy = summary["mean_test_accuracy"]
    curve = [] if cell.parents else rounds  # Mix is measured once, after the last round
    at = {row["round"]: row for row in curve}
    chosen = accuracy.get("best_by_validation_round")
    last = at_last or accuracy.get("best_by_validation") is None
    spread = "" if last else "by_validation_"
    selected = max(at, default=None) if last else chosen
    data, split = cell.experiment.data, cell.experiment.split
    by_alpha = split.deal.startswith("dirichlet") and data.name != OWN
    key: Row = {"setting": cell.setting, "method": cell.method, "seed": cell.seed}
    result = {
        **key,
        **{name: summary.get(name) for name in COLUMNS["results.csv"]},
        **key,
        "dataset": data.name,
        "alpha": split.dirichlet_alpha if by_alpha else None,
        "best_test_accuracy": accuracy.get("best"),
        "best_round": accuracy.get("best_round"),
        "final_test_accuracy": accuracy.get("final"),
        "selected_test_accuracy": accuracy.get("final" if last else "best_by_validation"),
        "selected_round": selected,
        "selected_val_accuracy": at[selected].get("mean_val_accuracy") if chosen in at else None,
        "selected_by": LAST if last else VALIDATION,
        "selected_std": summary.get(f"{spread}std_test_accuracy"),
        "selected_worst_decile": summary.get(f"{spread}worst_decile_accuracy"),
        "final_std": summary.get("std_test_accuracy"),
        "final_worst_decile": summary.get("worst_decile_accuracy"),
        "warmup_test_accuracy": at.get(0, {}).get("mean_test_accuracy"),
        "last5_test_accuracy": last_rounds(curve),
        "largest_fall": largest_fall(curve),
        "calibration_error": _calibration_error(cell),
        **{
            f"{answer}_{column}": found.get(name)
            for answer, found in summary.get("answers", {}).items()
            for column, name in (_AT_LAST if last else _OF_AN_ANSWER).items()
        },
        **{
            column: (summary.get("pooled", {}).get(metric) or {}).get(
                "final" if last else "best_by_validation"
            )
            for metric, column in BY_METRIC.items()
        },
        "models_down": summary.get("models_sent"),
        "code": cell.run_facts().get("code"),
        "cell": cell.folder.relative_to(out).as_posix(),
    }
    of_a_site = "final_accuracy" if last else "by_validation_accuracy"
    return {
        "results.csv": [result],
        "sites.csv": [{**row, **key, "selected_accuracy": row.get(of_a_site)} for row in sites],
        "rounds.csv": [{**row, **key} for row in rounds],
    }


def _calibration_error(cell: Cell) -> float | None:
    """Return the calibration error of all sites' test answers after the last round, if recorded."""
    path = cell.folder / "evaluations.json"
    part = f"test_{cell.answer}" if cell.answer else "test"
    try:
        sites = read_json(path)
        parts = [Evaluation(**site[part]) for site in sites.values() if part in site]
        return calibration_error(parts)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: cannot be read ({error!r}): remove {path.parent} to run the cell again"
        ) from error


def _same_split(first: Cell, second: Cell) -> bool:
    """Return whether two cells' sites hold the same images in the same parts, as far as known."""
    paths = [cell.folder / "manifest.safetensors" for cell in (first, second)]
    if all(path.is_file() for path in paths):
        a, b = map(Manifest.load, paths)
        return np.array_equal(a.site, b.site) and np.array_equal(a.split, b.split)
    if first.experiment.split.labels != second.experiment.split.labels:
        return True  # Flower leaves digests only, which differ with the visible labels
    return bool(first.run_facts().get("manifest") == second.run_facts().get("manifest"))


def scored_by(
    answer: str,
    summary: Mapping[str, Any],
    rounds: Sequence[Row],
    sites: Sequence[Row],
    name: str,
) -> tuple[Row, list[Row], list[Row]]:
    """Return summary.json, metrics.jsonl and per_site.csv as if the run had used another answer.

    A run of fine-tuned FedAvg measures plain FedAvg too, as its common answer. So one run gives two
    rows of a grid, each judged by its own validation accuracy. name: the cell's, for errors.

    A site that lacks the answer counts with the common one, as in the means
    (`Standings.of_answer`). Values that are not recorded for each answer are left out: the spread
    over sites before the last round, and the accuracy of single sites at other rounds. Raises
    RunError if the run did not measure the answer.
    """
    found = summary.get("answers", {}).get(answer)
    if found is None:
        has = ", ".join(summary.get("answers", {})) or "none"
        raise RunError(
            f"{name}: answer = {answer!r}: its run did not measure that ({has}); leave it out"
        )
    per_site = [_scored_site(row, answer) for row in sites]
    last = spread_of([a for row in per_site if (a := row["final_accuracy"]) is not None])
    curve = [_scored_round(row, answer) for row in rounds]
    tested = [row for row in curve if row["round"] and row["mean_test_accuracy"] is not None]
    best = max(tested, key=lambda row: row["mean_test_accuracy"], default=None)
    of_answer = {
        "best": best and best["mean_test_accuracy"],
        "best_round": best and best["round"],
        **{key: value for key, value in found.items() if key != "sites_without"},
    }
    lost = [key for key in summary if key.startswith(("by_validation_", "best_", "pooled"))]
    kept = {key: value for key, value in summary.items() if key not in lost}
    return {**kept, **last, "mean_test_accuracy": of_answer}, curve, per_site


def _scored_round(row: Row, answer: str) -> Row:
    means = {
        f"mean_{part}_accuracy": row.get(f"mean_{part}_accuracy_{answer}")
        for part in ("test", "val")
    }
    return {**row, "std_test_accuracy": None, "worst_decile_accuracy": None, **means}


def _scored_site(row: Row, answer: str) -> Row:
    own = row.get(f"{answer}_accuracy")
    return {
        **{key: value for key, value in row.items() if key != "one_answer"},  # of the answer in use
        "warmup_accuracy": None,
        "best_round_accuracy": None,
        "by_validation_accuracy": None,
        "final_accuracy": row.get("common_accuracy") if own is None else own,
    }
