"""Advice as a person reads it, and as JSON."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.text import duration, percent, points
from fedapp.results.statistics import Runs, paired_difference
from fedapp.tools.advise.rule import MARGIN, Advice
from fedapp.tools.compare.tuning import RATE

NAMES = {
    "local_only": "a network alone",
    "one_round": "one round without training",
    "fedavg": "plain average",
    "fedavg_ft": "fine-tuned average",
    "recommended": "recommended",
    "prior_shift": "prior shift",
}
"""Candidate -> what a person calls it; no name has a comma, lists are of names."""
MANY_LABELS = 0.9
"""Mean share of labels from which learning from unlabelled images has little to add."""


def table(
    found: Mapping[str, Runs],
    advice: Advice,
    costs: Mapping[str, float],
    metric: str = "accuracy",
) -> list[str]:
    """Return a line for each candidate. costs: seconds of one run of it, mean over seeds."""
    width = max(12, len(metric) + 4)
    head = f"less {NAMES[advice.method]}, points"
    lines = [f"{'':26}{metric + ', %':>{width}}{head:>44}{'one run':>14}"]
    for name, runs in found.items():
        difference, cost = advice.differences.get(name), duration(costs[name])
        text = ""
        if difference is not None:
            text = points(difference.value)
            if difference.low is not None and difference.high is not None:
                text += f" ({points(difference.low)} to {points(difference.high)})"
        accuracy = percent(fmean(runs.values()))
        lines.append(f"{NAMES[name]:26}{accuracy:>{width}}{text:>44}{cost:>14}")
    return lines


def anchored(together: Runs, alone: Runs) -> list[str]:
    """Return what one round is worth over the same closed form at each site alone, in a line.

    together, alone: its accuracies and those of each site's own sums, by seed. Nothing where no
    seed has both.
    """
    if (found := paired_difference(together, alone)) is None:
        return []
    ends = (
        ""
        if found.low is None or found.high is None
        else (f" ({points(found.low)} to {points(found.high)})")
    )
    return [
        f"What joining is worth: {points(found.value)} points{ends} over the same closed form at "
        f"each site alone, which has {percent(fmean(alone.values()))} %."
    ]


def left_out_words(left_out: Mapping[str, str]) -> list[str]:
    """Return a line for each candidate that cannot run. left_out: why, by candidate."""
    return [f"left out: {NAMES[name]}: {why}" for name, why in left_out.items()]


def tuned_words(chosen: Mapping[str, Mapping[str, Scalar]]) -> list[str]:
    """Return the learning rates that were chosen for the candidates; nothing if none was."""
    named = [f"{NAMES[name]} {values[RATE]}" for name, values in chosen.items() if values]
    if not named:
        return []
    return [f"Learning rates, chosen on validation images of another seed: {_joined(named)}"]


def reason(advice: Advice, test_images: int, shares: Sequence[float]) -> list[str]:
    """Return the recommendation and why, a sentence each.

    test_images: of all sites together, under one seed. shares: of labels, site by site.
    """
    name, margin = NAMES[advice.method], f"{100 * MARGIN:.0f} point"
    if all(difference.n < 2 for difference in advice.differences.values()):
        return ["One seed tells nothing about other seeds: give several (--seeds)."]
    lines = _sure(advice, name, margin) if advice.clear else _unsure(advice, name, test_images)
    if len(shares) == 1:
        lines.append(
            "There is one site: nobody to learn from. Train on its own data, without this."
        )
    elif shares and fmean(shares) >= MANY_LABELS:
        lines.append(
            "Nearly all images have a label: what this program does with unlabelled images adds "
            "little here."
        )
    return lines


def _sure(advice: Advice, name: str, margin: str) -> list[str]:
    if not advice.over:
        return [f"Take: {name}. Nothing else that was tried can be more than {margin} better."]
    return [
        f"Take: {name}. It is better than {_named(advice.over)}, beyond chance.",
        f"Nothing else that was tried can be more than {margin} better.",
    ]


def _unsure(advice: Advice, name: str, test_images: int) -> list[str]:
    if advice.over:
        first = f"Take: {name}. It is better than {_named(advice.over)}, beyond chance."
    else:
        first = f"Cannot tell: nothing is shown to be better than {name}."
    seen = ""
    if advice.reach is not None:
        seen = f": differences smaller than {100 * advice.reach:.1f} points are not seen"
    return [
        first,
        f"{test_images:,} test images a seed cannot tell it from {_named(advice.rivals)}{seen}.",
        f"Highest so far: {NAMES[advice.highest]}.",
        "More seeds (--seeds), or more images that are labelled for testing, tell more.",
    ]


def _named(candidates: Sequence[str]) -> str:
    return _joined([NAMES[candidate] for candidate in candidates])


def _joined(words: Sequence[str]) -> str:
    """Return at least one of them as a list in a sentence: "a, b and c"."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def as_json(
    found: Mapping[str, Runs],
    advice: Advice,
    costs: Mapping[str, float],
    test_images: int,
    chosen: Mapping[str, Mapping[str, Scalar]] = MappingProxyType({}),
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return all of it as JSON can hold it; accuracies and differences are shares."""
    return {
        "method": advice.method,
        "clear": advice.clear,
        "better_than": list(advice.over),
        "rivals": list(advice.rivals),
        "highest": advice.highest,
        "reach": advice.reach,
        "test_images": test_images,
        "candidates": {
            name: {
                "accuracy": fmean(runs.values()),
                "seconds": costs[name],
                **chosen.get(name, {}),
                **({} if (d := advice.differences.get(name)) is None else
                   {"difference": d.value, "low": d.low, "high": d.high}),
            }
            for name, runs in found.items()
        },
        "left_out": dict(left_out),
    }  # fmt: skip
