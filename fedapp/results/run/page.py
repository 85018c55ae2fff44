"""Blocks -> one HTML page that needs no other file and no network."""

from collections.abc import Sequence

from fedapp.results.layout import Table, html_page
from fedapp.results.run.about import (
    protocol,
    sentence,
    setup,
    side_by_side,
    times,
    traffic,
    warnings,
)
from fedapp.results.run.accuracy import curves, dumbbells, harm
from fedapp.results.run.blocks import Block
from fedapp.results.run.classes import class_mix, confusion, pseudo_labels, trust
from fedapp.results.run.helpers import helpers
from fedapp.results.run.quality import found, joining
from fedapp.results.run.record import RunRecord

Subject = Sequence[tuple[str, Block]]
"""One block for each run, with the run's name; all of one title."""


def run_page(runs: Sequence[RunRecord]) -> str:
    """Return the page of one run, or of several side by side."""
    every = [(run.name, blocks_of(run)) for run in runs]
    subjects = [[(name, of[i]) for name, of in every] for i in range(len(every[0][1]))]
    several = len(runs) > 1
    title = "Runs side by side" if several else runs[0].name
    first = [side_by_side(list(runs))] if several else []
    lead = [
        f"{run.name}: {text}" if several else text
        for run in runs
        for text in (joining(run), sentence(run), *run.counted)
    ]
    return render(title, lead, first, subjects)


def blocks_of(run: RunRecord) -> list[Block]:
    """Return all that can be said of a run, always as many blocks in the same order."""
    tested = run.evaluations()
    return [
        Block("How the numbers were made", "", tables=[protocol(run)]),
        warnings(run),
        curves(run),
        dumbbells(run),
        harm(run),
        found(run),
        class_mix(run),
        helpers(run),
        pseudo_labels(run),
        confusion(tested, run.classes),
        trust(tested),
        traffic(run),
        times(run),
        setup(run),
    ]


def render(
    title: str, lead: Sequence[str], first: Sequence[Table], subjects: Sequence[Subject]
) -> str:
    """Return a page. lead: what stands at its head, the most important first. first: tables below.

    A subject of which there is nothing to show has no section: a line at the end says why.
    """
    shown = [of for of in subjects if any(block.full for _, block in of)]
    left_out = [
        f"{of[0][1].title}: {why}"
        for of in subjects
        if of not in shown
        for why in dict.fromkeys(block.missing for _, block in of)
    ]
    return html_page("run", title=title, lead=lead, first=first, subjects=shown, left_out=left_out)
