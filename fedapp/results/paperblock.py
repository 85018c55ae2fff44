"""A run's end in the paper's terms: mu, deciles over sites, bounds (`fedapp run --paper`).

Files hold shares in [0, 1], the screen shows percent.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedapp.ground.text import count, percent, points, size
from fedapp.learn.metrics import LABEL_GROUPS
from fedapp.results.endblock import (
    FEW_SITES,
    FINAL,
    SHOWN,
    WARMUP,
    Row,
    by_label_group,
    counted,
    doubts,
    exceptions,
    known,
    measured,
    title,
    untested,
    who,
)
from fedapp.server.standings import spread

_LABEL = 42
"""Columns of what a line begins with."""
_FILES = (
    "summary.json",
    "per_site.csv",
    "metrics.jsonl",
    "evaluations.json",
    "sites.jsonl",
    "traffic.csv",
    "config.yaml",
    "run.json",
    "manifest.safetensors",
    "checkpoint.json",
)


def paper_block(summary: Row, per_site: Sequence[Row], run: Path) -> str:
    """Return the result of a run as plain text of 100 columns, paths apart.

    At most 30 lines; of a run of at most `FEW_SITES` sites 14 more.

    summary: as in summary.json; per_site: as in per_site.csv; run: the run's folder. What was not
    measured (a site without test images, a method without a bound) shows as a dash or not at all.
    """
    blocks = [
        [title(summary)],
        _accuracies(summary, per_site),
        _answers(summary),
        _by_site(per_site),
        _by_labels(per_site),
        _movers(per_site),
        _costs(summary),
        [*untested(summary, per_site), *exceptions(per_site), *doubts(summary)],
        _files(run),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _accuracies(summary: Row, per_site: Sequence[Row]) -> list[str]:
    mean = summary.get("mean_test_accuracy") or {}
    best, chosen = (
        "-" if (found := mean.get(f"{at}_round")) is None else found
        for at in ("best", "best_by_validation")
    )
    start = spread(known(per_site, WARMUP))
    table = [
        ("after warm-up", *(start[f"{of}_accuracy"] for of in _SPREAD)),
        *(
            (label, mean.get(at), *(summary.get(f"{kind}{of}_accuracy") for of in _SPREAD[1:]))
            for label, at, kind in (
                (f"final, round {summary['rounds']}", "final", ""),
                (f"best, round {best}", "best", "best_"),
                (f"best by validation, round {chosen}", "best_by_validation", "by_validation_"),
            )
        ),
    ]
    head = _cells("Accuracy on the sites' own test images, %", "mean", "std", "worst decile")
    return [head, *(_cells(f"  {label}", *map(percent, row)) for label, *row in table)]


def _answers(summary: Row) -> list[str]:
    """What the sites could answer with, where they have more than one answer."""
    found = summary.get("answers") or {}
    if len(found) < 2:
        return []
    head = _cells("What sites could answer with, mean, %", "final", "by validation")
    return [head, *(_cells(f"  {_ANSWERS[name]}", *_both(row)) for name, row in found.items())]


def _both(row: Row) -> tuple[str, str]:
    return percent(row["final"]), percent(row["best_by_validation"])


_ANSWERS = {
    "common": "the server's model",
    "tuned": "their own after local training",
    "alone": "their own, trained alone",
    "online": "the server's online network",
    "one_round": "the closed form, before any training",
}
_SPREAD = ("mean_test", "std_test", "worst_decile")


def _by_site(per_site: Sequence[Row]) -> list[str]:
    """Return counts and intervals: a percentage of a few images is hardly a number."""
    if len(per_site) > FEW_SITES or not (rows := measured(per_site)):
        return []
    lines = [_cells("By site, final", "right / of", "%", "95 % interval")]
    for row in rows:
        right, interval = counted(row)
        lines.append(_cells(f"  {who(row)}"[: _LABEL - 1], right, percent(row[FINAL]), interval))
    return lines


def _by_labels(per_site: Sequence[Row]) -> list[str]:
    lines = [_cells("By share of labels, %", "sites", "after warm-up", "final", "change")]
    for label, rows in by_label_group(per_site, LABEL_GROUPS).items():
        values = ["-", "-", "-"]
        if both := [row for row in rows if _gain(row) is not None]:
            start, end = (fmean(row[column] for row in both) for column in (WARMUP, FINAL))
            values = [percent(start), percent(end), points(end - start)]
        lines.append(_cells(f"  {label}", str(len(rows)), *values))
    return lines


def _movers(per_site: Sequence[Row]) -> list[str]:
    gains = [(change, row) for row in per_site if (change := _gain(row)) is not None]
    gains.sort(key=lambda mover: (-mover[0], mover[1]["site"]))
    best = [_mover(*mover) for mover in gains if mover[0] > 0][:SHOWN]
    worst = [_mover(*mover) for mover in reversed(gains) if mover[0] < 0][:SHOWN]
    return [
        "Against the site's own warm-up model, points",
        f"  gained most  {'  '.join(best) or 'none'}",
        f"  lost most    {'  '.join(worst) or 'none'}",
    ]


def _gain(row: Row) -> float | None:
    """Return the final accuracy less the warm-up's, or None where one is unknown."""
    start, end = row.get(WARMUP), row.get(FINAL)
    return None if start is None or end is None else end - start


def _mover(change: float, row: Row) -> str:
    mu = "" if row.get("mu") is None else f" (mu {row['mu']:.2f})"
    return f"{who(row)} {points(change)}{mu}"


def _costs(summary: Row) -> list[str]:
    down, up = summary.get("models_sent"), summary.get("models_up")
    error = summary.get("pseudo_label_error")
    lines = [
        f"Pseudo-label error  {percent(error)}{'' if error is None else ' %, last measured'}",
        f"Models sent         {count(down)} to sites, {count(up)} to the server",
    ]
    bound = summary.get("cost_bound_models")
    total = None if down is None else down + (up or 0)
    if bound is not None:
        share = f"; sent: {percent(total / bound)} % of it" if bound and total is not None else ""
        lines.append(f"  paper's bound     {count(bound)} models (Eq. 28){share}")
        saved = (greedy := summary["cost_greedy_models"]) - bound  # Eq. 29
        kept = f"; the bound saves {count(saved)}" if saved > 0 else ""
        lines.append(f"  greedy search     {count(greedy)} models (Eq. 27){kept}")
    traffic = f"{size(summary.get('bytes_down'))} to sites, {size(summary.get('bytes_up'))}"
    lines.append(f"Bytes sent          {traffic} to the server")
    if measuring := summary.get("bytes_evaluation"):
        lines.append(f"  for measuring     {size(measuring)}, not counted above")
    return lines


def _files(run: Path) -> list[str]:
    there = [name for name in _FILES if (run / name).exists()]
    return [f"Files in {run}", f"  {' '.join(there)}"] if there else [f"Files in {run}"]


def _cells(label: str, *values: str) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{value:>14}" for value in values)
