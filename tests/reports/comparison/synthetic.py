"""The files that a comparison leaves, with numbers that look like its, made in a moment."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.reports.comparison.record import COLUMNS, ComparisonRecord, read_comparison

Row = dict[str, Any]

ONE_ANSWER = ("local_only", "mix")
"""Methods whose sites have one model only."""
SITES, ROUNDS, CLASSES = 20, 20, 10


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write a CSV file; what a row lacks stays empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def change(path: Path, edit: Callable[[Row], Row | None]) -> None:
    """Edit a CSV file row by row; None removes the row."""
    rows = read_rows(path)
    columns = list(rows[0])
    write_rows(path, columns, [new for row in rows if (new := edit(row)) is not None])


def result(setting: str, method: str, seed: int, selected: float | None, **more: Any) -> Row:
    """One row of results.csv."""
    row = {"setting": setting, "method": method, "seed": seed, "dataset": "fashion_mnist"}
    return row | {"sites": 20, "rounds": 20, "selected_test_accuracy": selected} | more


def runs(setting: str, method: str, *selected: float | None, **more: Any) -> list[Row]:
    """Rows of results.csv, one for each seed."""
    return [result(setting, method, seed, value, **more) for seed, value in enumerate(selected)]


def site(
    setting: str, method: str, seed: int, number: int, selected: float | None, **more: Any
) -> Row:
    """One row of sites.csv: a site with half of its ten images labelled."""
    row = {"setting": setting, "method": method, "seed": seed, "site": number, "mu": 0.5}
    return row | {"train": 10, "labelled": 5, "selected_accuracy": selected} | more


def written(
    out: Path,
    results: Iterable[Row],
    sites: Iterable[Row] = (),
    rounds: Iterable[Row] = (),
    **plan: Any,
) -> ComparisonRecord:
    """Write a comparison with these rows and read it back; the plan is what the results name."""
    results = list(results)
    for name, rows_of in {"results.csv": results, "sites.csv": sites, "rounds.csv": rounds}.items():
        write_rows(out / name, COLUMNS[name], rows_of)
    named = {
        "title": "made up",
        "settings": list(dict.fromkeys(row["setting"] for row in results)),
        "methods": list(dict.fromkeys(row["method"] for row in results)),
        "seeds": sorted({row["seed"] for row in results}),
        "paper": None,
        "grid": {},
        "versions": {"torch": "2.12.1"},
    }
    (out / "comparison.json").write_text(json.dumps(named | plan), encoding="utf-8")
    return read_comparison(out)


def realistic(
    out: Path,
    settings: Sequence[str] = ("alpha=0.5", "alpha=5"),
    methods: Sequence[str] = ("local_only", "fixavg", "um_pfssl"),
    seeds: Sequence[int] = (0, 1, 2),
    **plan: Any,
) -> ComparisonRecord:
    """A whole comparison: curves that rise and settle, sites of few and many labels."""
    results, sites, rounds = list[Row](), list[Row](), list[Row]()
    for i, setting in enumerate(settings):
        for j, method in enumerate(methods):
            for seed in seeds:
                draw, split = np.random.default_rng((7, i, j, seed)), np.random.default_rng((8, i))
                level = 0.66 + 0.1 * np.sin(j) * j / (j + 3) + 0.03 * i + draw.normal(0, 0.008)
                curve = level - 0.3 * np.exp(-np.arange(ROUNDS + 1) / 4)
                curve += draw.normal(0, 0.006, ROUNDS + 1)
                key = {"setting": setting, "method": method, "seed": seed}
                teaches = method != "local_only"
                error = [0.95 - a if teaches and n else "" for n, a in enumerate(curve)]
                mus, counts = split.beta(0.5, 0.5, SITES), split.integers(50, 900, SITES)
                own = np.clip(level + 0.12 * mus + draw.normal(0, 0.05, SITES), 0.02, 0.99)
                cell = "cells/" + re.sub(r"\W", "_", f"{setting}-{method}-{seed}")
                more = {} if method in ONE_ANSWER else _answers(level, draw)
                more |= {
                    "alpha": 0.5, "best_test_accuracy": curve.max(), "selected_by": "validation",
                    "final_test_accuracy": curve[-1], "selected_std": own.std(),
                    "selected_worst_decile": np.sort(own)[:2].mean(), "calibration_error": 0.05,
                    "last5_test_accuracy": curve[-5:].mean(), "largest_fall": 0.01,
                    "pseudo_label_error": error[-1], "models_down": teaches * 600 // (2 + i + j),
                    "models_up": 99, "bytes_down": 422_000, "bytes_up": 141_000,
                    "wall_seconds": 260,
                    "manifest": "a" * 64, "code": "0123456789abcdef", "cell": cell,
                }  # fmt: skip
                results.append(result(setting, method, seed, level - 0.004, **more))
                for n, (mu, count) in enumerate(zip(mus, counts.tolist(), strict=True)):
                    images = {"mu": mu, "train": count, "labelled": int(mu * count), "test": 9}
                    final = {"final_accuracy": own[n] - 0.01}
                    sites.append(site(setting, method, seed, n, own[n], **images, **final))
                for n, value in enumerate(curve):
                    row = {"mean_test_accuracy": value, "pseudo_label_error": error[n]}
                    rounds.append(key | {"round": n} | row)
                _evaluations(out / cell, draw, level)
    return written(out, results, sites, rounds, **plan)


def _answers(level: float, draw: np.random.Generator) -> Row:
    return {
        f"{answer}_{at}_test_accuracy": level + above + draw.normal(0, 0.005)
        for answer, above in (("common", -0.03), ("tuned", 0.0))
        for at in ("selected", "final")
    }


def _evaluations(folder: Path, draw: np.random.Generator, level: float) -> None:
    shares = np.full((CLASSES, CLASSES), (1 - level) / (CLASSES - 1))
    np.fill_diagonal(shares, level)
    counts = [draw.multinomial(30, row).tolist() for row in shares]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluations.json").write_text(json.dumps({"0": {"test": {"confusion": counts}}}))
