"""A site's bags: how many, how large, and how well they tell the classes apart."""

from collections import Counter

import torch

from fedapp.data.bags import condition
from fedapp.data.own import Listing
from fedapp.data.parts import BAGS
from fedapp.experiment.experiment import Experiment
from fedapp.methods import method_class, method_names
from fedapp.tools.datacheck.findings import Finding, fault, note, shown

HARD = 100.0
"""Condition number above which bags of some hundred images teach little."""


def bags_in_words(listing: Listing, hide_below: int) -> str:
    """Say how many bags there are, of how many images, and the condition number.

    hide_below: smallest count that is shown.
    """
    sizes = sorted(Counter(entry.bag for entry in listing.entries if entry.bag).values())
    of = " to ".join(dict.fromkeys(shown(size, hide_below) for size in (sizes[0], sizes[-1])))
    return f"{len(sizes)} of {of} images; condition number {_condition(listing):.3g}"


def findings_of_bags(listing: Listing, experiment: Experiment | None) -> list[Finding]:
    """Return whether the agreed method can learn from the bags, and whether they are much alike."""
    if not listing.bags:
        return []
    found = []
    if experiment and BAGS not in experiment.method.learns_from:
        able = [name for name in method_names() if BAGS in method_class(name).learns_from]
        what = f"images in bags, but method.name = {experiment.method.name!r} does not use them"
        found.append(fault(what, f"have the preset's method changed to {' or '.join(able)}"))
    if HARD < _condition(listing) < float("inf"):
        what = f"the bags' proportions are much alike (condition number above {HARD:g})"
        remedy = "they teach little; divide the images so that in each bag another class prevails"
        found.append(note(what, remedy))
    return found


def _condition(listing: Listing) -> float:
    return condition(torch.tensor(list(listing.bags.values()), dtype=torch.float64))
