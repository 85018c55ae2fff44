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
CLASSES = 10


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
    *,
    sites: int = 20,
    rounds: int = 20,
    **plan: Any,
) -> ComparisonRecord:
    """A whole comparison: curves that rise and settle, sites of few and many labels."""
    tables: dict[str, list[Row]] = {"results": [], "sites": [], "rounds": []}
    for i, setting in enumerate(settings):
        for j, method in enumerate(methods):
            for seed in seeds:
                draw = np.random.default_rng((7, i, j, seed))
                split = np.random.default_rng((8, i, seed))
                level = 0.66 + 0.1 * np.sin(j) * j / (j + 3) + 0.03 * i + draw.normal(0, 0.008)
                models = 0 if method == "local_only" else 600 // (2 + i + j)
                key, draws = (setting, method, seed), (draw, split)
                found = _cell(out, key, draws, level, models, sites, rounds)
                for name, rows in found.items():
                    tables[name] += rows
    return written(out, tables["results"], tables["sites"], tables["rounds"], **plan)


def _cell(
    out: Path,
    key: tuple[str, str, int],
    draws: tuple[np.random.Generator, np.random.Generator],
    level: float,
    models: int,
    sites: int,
    rounds: int,
) -> dict[str, list[Row]]:
    draw, split = draws
    names = dict(zip(("setting", "method", "seed"), key, strict=True))
    every_label, alone = key[1].endswith("_sl"), key[1] == "local_only"
    curve = level - 0.3 * np.exp(-np.arange(rounds + 1) / (rounds / 5))
    curve += draw.normal(0, 0.006, rounds + 1)
    curve[0] = 0.4
    spread = 0.23 if alone else 0.12
    mus, counts = split.beta(0.5, 0.5, sites), split.integers(50, 900, sites)
    accuracies = np.clip(
        level + spread * (mus - mus.mean()) + draw.normal(0, 0.05, sites), 0.02, 0.99
    )
    error = 0.95 - curve + draw.normal(0, 0.01, rounds + 1)
    silent = alone or every_label
    folder = "cells/" + "-".join(re.sub(r"\W", "_", str(part)) for part in key)
    best = int(curve.argmax())
    result_row = names | {
        **{"dataset": "fashion_mnist", "alpha": 0.5, "sites": sites, "rounds": rounds},
        **{"best_test_accuracy": curve[best], "best_round": best},
        **{"final_test_accuracy": curve[-1], "selected_test_accuracy": level - 0.004},
        **{"selected_round": rounds - 1, "selected_std": accuracies.std()},
        "selected_by": "validation",
        "selected_worst_decile": np.sort(accuracies)[: max(sites // 10, 1)].mean(),
        **{"last5_test_accuracy": curve[-5:].mean(), "calibration_error": draw.uniform(0.02, 0.1)},
        "largest_fall": max(0.0, *(curve[1:-1] - curve[2:])),
        **({} if key[1] in ONE_ANSWER else _answers(level, draw)),
        "pseudo_label_error": "" if silent else error[-1],
        **{"models_down": models, "models_up": models // 3},
        **{
            "bytes_down": models * 422_000,
            "bytes_up": models * 141_000,
            "bytes_evaluation": 4_000_000,
        },
        **{"cost_bound_models": 485 if key[1].startswith("um_") else "", "wall_seconds": 260},
        **{
            "manifest": ("b" if every_label else "a") * 64,
            "code": "0123456789abcdef",
            "cell": folder,
        },
    }
    site_rows = [
        names
        | {"site": n, "mu": 1.0 if every_label else mus[n], "train": counts[n]}
        | {"labelled": counts[n] if every_label else int(mus[n] * counts[n])}
        | {"test": counts[n] // 4, "selected_accuracy": accuracies[n]}
        | {"final_accuracy": accuracies[n] - 0.01}
        for n in range(sites)
    ]
    round_rows = [
        names
        | {"round": n, "mean_test_accuracy": curve[n]}
        | {"pseudo_label_error": "" if silent or n == 0 else error[n]}
        for n in range(rounds + 1)
    ]
    _evaluations(out / folder, draw, level, sites)
    return {"results": [result_row], "sites": site_rows, "rounds": round_rows}


def _answers(level: float, draw: np.random.Generator) -> Row:
    return {
        f"{answer}_{at}_test_accuracy": level + above + draw.normal(0, 0.005)
        for answer, above in (("common", -0.03), ("tuned", 0.0))
        for at in ("selected", "final")
    }


def _evaluations(folder: Path, draw: np.random.Generator, level: float, sites: int) -> None:
    shares = np.full((CLASSES, CLASSES), (1 - level) / (CLASSES - 1))
    np.fill_diagonal(shares, level)
    plain = {
        str(n): {"test": {"confusion": [draw.multinomial(30, row).tolist() for row in shares]}}
        for n in range(sites)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluations.json").write_text(json.dumps(plain), encoding="utf-8")
