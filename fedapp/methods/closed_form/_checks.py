"""Checks of what sites send for the closed form."""

from collections.abc import Mapping
from itertools import starmap
from types import MappingProxyType

import torch

from fedapp.ground.errors import ProtocolError
from fedapp.learn.params import Params
from fedapp.messages.protocol import Reply, SiteFacts, Task
from fedapp.methods.base import Arrived
from fedapp.methods.closed_form._contents import (
    FILTERS,
    GRID,
    GUESSES,
    LOGLIK,
    OWN_VOTES,
    SOLUTION,
    SUMS,
    VOTES,
    WORST,
    owed,
)
from fedapp.methods.closed_form._discriminant import COUNTS, Guesses, Sums, pairs
from fedapp.methods.closed_form._released import MIDDLE

SLACK = 1e-4
"""Of sums that came, relative: they are rounded to float32."""
MEND = "the site must send what this version of fedapp computes, unchanged"


def check_owed(task: Task, reply: Reply, also: Mapping[str, str] = MappingProxyType({})) -> None:
    """Refuse an answer that lacks what was asked for, or holds more. Raises ProtocolError.

    also: the role that is owed for each action of the method's own.
    """
    role = owed(task) or also.get(task.action, "")
    if role and reply.contents.keys() != {role}:
        came = ", ".join(sorted(reply.contents)) or "nothing"
        raise ProtocolError(f"asked for its {role}, it sent {came}: {MEND}")


def check_closed(arrived: Mapping[str, Arrived], facts: SiteFacts) -> None:
    """Refuse sums and votes that cannot be of the site's images. Raises ProtocolError."""
    if made := sorted({FILTERS, GRID, SOLUTION, MIDDLE} & arrived.keys()):
        raise ProtocolError(f"sent a {made[0]}, which the server alone makes: {MEND}")
    for role in {VOTES, OWN_VOTES} & arrived.keys():
        _check_votes(arrived[role].whole, facts)
    if SUMS in arrived:
        sums = Sums.from_params(arrived[SUMS].whole)
        for one in pairs(sums) if len(sums.counts) > len(facts.classes) else [sums]:
            _check_sums(one, facts, every=one is sums)
    if GUESSES in arrived:
        guesses = Guesses.from_params(arrived[GUESSES].whole)
        finds = len(guesses.counts) > len(facts.classes)
        both = (of.unflatten(0, (-1, 2)) for of in (guesses.counts, guesses.by_class))
        for guess in starmap(Guesses, zip(*both, strict=True)) if finds else [guesses]:
            _check_guesses(guess, facts)


def _check_votes(votes: Params, facts: SiteFacts) -> None:
    loglik, least = votes[LOGLIK], WORST * facts.val
    if bool((loglik > 0).any() or (loglik < least * (1 + SLACK)).any()):
        raise ProtocolError(
            f"votes: of the site's {facts.val} validation images log-likelihoods must lie in "
            f"[{least:g}, 0]: {MEND}"
        )


def _check_guesses(guesses: Guesses, facts: SiteFacts) -> None:
    counts, rounding = guesses.counts, SLACK * (1 + facts.unlabelled)
    if float(counts.min()) < 0 or abs(float(counts.sum()) - facts.unlabelled) > rounding:
        raise ProtocolError(
            f"guesses: {COUNTS} adds up to {float(counts.sum()):g}, the site has "
            f"{facts.unlabelled} unlabelled images: {MEND}"
        )
    if bool((guesses.by_class.norm(dim=1) > counts + rounding).any()):
        raise ProtocolError(
            f"guesses: a sum of features is longer than its images allow, and features have norm 1 "
            f"at most: {MEND}"
        )


def _check_sums(sums: Sums, facts: SiteFacts, every: bool) -> None:
    """every: whether each labelled image is of a class; a finding need not be read in each."""
    images, known = facts.labelled + facts.unlabelled, int(sums.counts.sum())
    if int(sums.counts.min()) < 0 or known > facts.labelled or (every and known < facts.labelled):
        raise ProtocolError(
            f"sums: {COUNTS} adds up to {known}, the site has {facts.labelled} "
            f"labelled images: {MEND}"
        )
    if sums.images != images:
        raise ProtocolError(f"sums: of {sums.images:g} images, the site has {images}: {MEND}")
    most, of_group = sums.by_group
    # The last is a difference of rounded sums.
    rounding = SLACK + 1e-6 * images
    if bool((of_group.norm(dim=1) > most * (1 + SLACK) + rounding).any()):
        raise ProtocolError(
            f"sums: a sum of features is longer than the number of its images allows, and features "
            f"have norm 1 at most: {MEND}"
        )
    trace = float(sums.second.trace())
    if not trace <= images * (1 + SLACK) + SLACK:
        raise ProtocolError(
            f"sums: the second moment of {images} images has trace {trace:g}, and features have "
            f"norm 1 at most: {MEND}"
        )
    slack = SLACK * (trace + SLACK) * torch.eye(len(sums.total), dtype=torch.float64)
    if int(torch.linalg.cholesky_ex(sums.unexplained + slack).info):
        raise ProtocolError(
            "sums: the second moment is not positive semi-definite once class sums are taken out; "
            f"no images have such sums: {MEND}"
        )
