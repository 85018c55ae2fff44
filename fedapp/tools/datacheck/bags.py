"""A site's bags: how many, how large, and how well they tell the classes apart."""

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedapp.data.bags import condition, too_little
from fedapp.data.own import Listing
from fedapp.data.own.deal import TRAIN
from fedapp.data.parts import BAGS
from fedapp.experiment.experiment import Experiment
from fedapp.methods import learning_from
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


def findings_of_bags(
    listing: Listing, parts: Sequence[str], experiment: Experiment | None
) -> list[Finding]:
    """Return whether the agreed method can learn from the bags, and whether they are much alike.

    parts: of each entry, as it is dealt.
    """
    if not listing.bags:
        return []
    found = []
    if experiment and BAGS not in experiment.method.learns_from:
        what = f"images in bags, but method.name = {experiment.method.name!r} does not use them"
        found.append(
            fault(what, f"have the preset's method changed to {' or '.join(learning_from(BAGS))}")
        )
    dealt = zip(listing.entries, parts, strict=True)
    filled = {entry.bag for entry, part in dealt if entry.bag and part == TRAIN}
    if filled < set(listing.bags) and (wrong := too_little(_proportions(listing, filled))):
        what = f"where a patient is tested, images in bags are set aside; then {wrong[0]}"
        found.append(fault(what, "keep patients who are tested out of the bags"))
    if HARD < _condition(listing) < float("inf"):
        what = f"the bags' proportions are much alike (condition number above {HARD:g})"
        remedy = "they teach little; divide the images so that in each bag another class prevails"
        found.append(note(what, remedy))
    return found


def _condition(listing: Listing) -> float:
    return condition(_proportions(listing, listing.bags))


def _proportions(listing: Listing, bags: Collection[str]) -> Tensor:
    """Return Pi of these bags, float64 [M, C]."""
    rows = [shares for bag, shares in listing.bags.items() if bag in bags]
    classes = len(next(iter(listing.bags.values())))
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), classes)
