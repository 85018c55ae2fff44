"""What a person reads when a run is over. Files hold shares in [0, 1], the screen shows percent."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapp.ground.text import count, duration, percent, points, size
from fedapp.learn.metrics import FEW, LABEL_GROUPS, label_group, wilson
from fedapp.methods.um_pfssl.costs import saving
from fedapp.server.standings import spread

Row = dict[str, Any]

SHOWN = 3
"""Sites shown of those that gained and that lost most."""
FEW_SITES = 10
"""Runs of at most as many sites show each site's accuracy with its counts and its interval."""
_NAMED = 4
"""Sites named where a list of sites could be long."""
_LABEL = 42
"""Columns of what a line begins with."""
_FILES = (
    "summary.json",
    "per_site.csv",
    "metrics.jsonl",
    "evaluations.json",
    "traffic.csv",
    "config.yaml",
    "run.json",
    "manifest.safetensors",
    "checkpoint.json",
)


def end_block(summary: Row, per_site: Sequence[Row], run: Path) -> str:
    """Return the result of a run as plain text of 100 columns, paths apart.

    At most 30 lines; of a run of at most `FEW_SITES` sites 14 more.

    summary: as in summary.json; per_site: as in per_site.csv; run: the run's folder. What was not
    measured (a site without test images, a method without a bound) shows as a dash or not at all.
    """
    blocks = [
        [_title(summary)],
        _accuracies(summary, per_site),
        _answers(summary),
        _kept(summary, per_site),
        _by_site(per_site),
        _by_labels(per_site),
        _movers(per_site),
        _costs(summary),
        _exceptions(summary, per_site),
        _files(run),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _title(summary: Row) -> str:
    what = [
        str(summary["method"]),
        f"{summary['sites']} sites",
        f"{summary['rounds']} rounds",
        f"seed {summary['seed']}",
        duration(summary.get("wall_seconds")),
    ]
    return f"{summary['preset']}: {', '.join(what)}"


def _accuracies(summary: Row, per_site: Sequence[Row]) -> list[str]:
    mean = summary.get("mean_test_accuracy") or {}
    start = spread(_known(per_site, "warmup_accuracy"))
    table = [
        ("after warm-up", *(start[f"{of}_accuracy"] for of in _SPREAD)),
        (
            f"final, round {summary['rounds']}",
            mean.get("final"),
            summary.get("std_test_accuracy"),
            summary.get("worst_decile_accuracy"),
        ),
        (
            f"best, round {_or_dash(mean.get('best_round'))}",
            mean.get("best"),
            summary.get("best_std_test_accuracy"),
            summary.get("best_worst_decile_accuracy"),
        ),
        (
            f"best by validation, round {_or_dash(mean.get('best_by_validation_round'))}",
            mean.get("best_by_validation"),
            summary.get("by_validation_std_test_accuracy"),
            summary.get("by_validation_worst_decile_accuracy"),
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


def _kept(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """What the sites keep by their validation images, and whom joining did not help."""
    found = summary.get("kept") or {}
    if found.get("mean") is None:
        return []
    lines = [_cells("What sites keep, by their validation images", percent(found["mean"]))]
    if found["told"]:
        names = {str(row["site"]): _brief(row) for row in per_site}
        alone = [names[site] for site in found["alone"] if site in names]
        more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
        who = f": {', '.join(alone[:_NAMED])}{more}; they keep their model alone" if alone else ""
        lines.append(f"  joining did not help  {len(alone)} of {found['told']} sites{who}")
    return lines


def _both(row: Row) -> tuple[str, str]:
    return percent(row["final"]), percent(row["best_by_validation"])


_ANSWERS = {
    "common": "the server's model",
    "tuned": "their own after local training",
    "alone": "their own, trained alone",
}
_SPREAD = ("mean_test", "std_test", "worst_decile")


def _by_site(per_site: Sequence[Row]) -> list[str]:
    """Return counts and intervals: a percentage of a few images is hardly a number."""
    if len(per_site) > FEW_SITES or not (measured := _measured(per_site)):
        return []
    lines = [_cells("By site, final", "right / of", "%", "95 % interval")]
    for row in measured:
        right, total = round(row["final_accuracy"] * row["test"]), row["test"]
        low, high = wilson(right, total)
        values = percent(row["final_accuracy"]), f"{percent(low)} to {percent(high)}"
        lines.append(_cells(f"  {_who(row)}"[: _LABEL - 1], f"{right} / {total}", *values))
    return lines


def _measured(per_site: Sequence[Row]) -> list[Row]:
    """Return the rows of sites whose final accuracy and its images are known."""
    return [row for row in per_site if row.get("test") and row.get("final_accuracy") is not None]


def _by_labels(per_site: Sequence[Row]) -> list[str]:
    groups: dict[str, list[Row]] = {label: [] for label in LABEL_GROUPS}
    for row in per_site:
        if row.get("mu") is not None:
            groups[LABEL_GROUPS[label_group(row["mu"])]].append(row)
    lines = [_cells("By share of labels, %", "sites", "after warm-up", "final", "change")]
    for label, rows in groups.items():
        both = [row for row in rows if _gain(row) is not None]
        values = ["-", "-", "-"]
        if both:
            start = fmean(row["warmup_accuracy"] for row in both)
            end = fmean(row["final_accuracy"] for row in both)
            values = [percent(start), percent(end), points(end - start)]
        lines.append(_cells(f"  {label}", str(len(rows)), *values))
    return lines


def _movers(per_site: Sequence[Row]) -> list[str]:
    gains = [(gain, row) for row in per_site if (gain := _gain(row)) is not None]
    gains.sort(key=lambda mover: (-mover[0], mover[1]["site"]))
    best = [_mover(*mover) for mover in gains if mover[0] > 0][:SHOWN]
    worst = [_mover(*mover) for mover in reversed(gains) if mover[0] < 0][:SHOWN]
    return [
        "Against the site's own warm-up model, points",
        f"  gained most  {'  '.join(best) or 'none'}",
        f"  lost most    {'  '.join(worst) or 'none'}",
    ]


def _mover(gain: float, row: Row) -> str:
    mu = "" if row.get("mu") is None else f" (mu {row['mu']:.2f})"
    return f"{_who(row)} {points(gain)}{mu}"


def _who(row: Row) -> str:
    return str(row.get("name") or f"site {row['site']}")


def _brief(row: Row) -> str:
    return str(row.get("name") or row["site"])


def _untested_classes(row: Row) -> int:
    """Return of how many classes a site has no test images; 0 where that is not known."""
    known: int | None = row.get("test_classes")
    return 0 if known is None else row["classes"] - known


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
        saved = saving(greedy := summary["cost_greedy_models"], bound)
        kept = f"; the bound saves {count(saved)}" if saved > 0 else ""
        lines.append(f"  greedy search     {count(greedy)} models (Eq. 27){kept}")
    traffic = f"{size(summary.get('bytes_down'))} to sites, {size(summary.get('bytes_up'))}"
    lines.append(f"Bytes sent          {traffic} to the server")
    if measuring := summary.get("bytes_evaluation"):
        lines.append(f"  for measuring     {size(measuring)}, not counted above")
    return lines


def _exceptions(summary: Row, per_site: Sequence[Row]) -> list[str]:
    untested = summary.get("sites_without_test_images")
    if untested is None:
        untested = [row["site"] for row in per_site if row.get("test") == 0]
    skipped = [row for row in per_site if row.get("rounds_skipped")]
    skipped.sort(key=lambda row: (-row["rounds_skipped"], row["site"]))
    lines = []
    if untested:
        lines.append(f"No test images      sites {_some([str(site) for site in untested])}")
    if len(per_site) <= FEW_SITES:
        measured = _measured(per_site)
        if few := [f"{_brief(row)} ({row['test']})" for row in measured if row["test"] < FEW]:
            lines.append(f"Few test images     sites {_some(few)}: under {FEW}, mostly chance")
        lacking = [(row, n) for row in measured if (n := _untested_classes(row))]
        if partial := [f"{_brief(row)} ({n} of {row['classes']})" for row, n in lacking]:
            lines.append(f"Classes untested    sites {_some(partial)}")
    if skipped:
        named = _some([f"{row['site']} ({row['rounds_skipped']})" for row in skipped])
        lines.append(f"Skipped (rounds)    sites {named}")
    return lines


def _files(run: Path) -> list[str]:
    there = [name for name in _FILES if (run / name).exists()]
    return [f"Files in {run}", f"  {' '.join(there)}"] if there else [f"Files in {run}"]


def _gain(row: Row) -> float | None:
    """Return the final accuracy less the warm-up's, or None where one is unknown."""
    start, end = row.get("warmup_accuracy"), row.get("final_accuracy")
    return None if start is None or end is None else end - start


def _known(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _cells(label: str, *values: str) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{value:>14}" for value in values)
