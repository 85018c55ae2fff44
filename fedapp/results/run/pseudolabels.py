"""Pseudo-labels: how many, of which class, how uncertain, and how many are wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.ground.text import percent
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.charts import Bar, Line, bars, line_chart, percents, rounds_axis
from fedapp.results.run.record import RunRecord

_TITLE = "Pseudo-labels"
_READING = (
    "Labels that the models gave to unlabelled images, for sites to learn from: each site's last, "
    "added up. Uncertainty is the entropy of the label's probabilities, 0 % sure and 100 % "
    "undecided."
)
_KNOWN = " Striped: wrong, which only a simulation knows."
MOST_CLASSES = 40
"""Classes that are shown each by itself."""
Counts = Mapping[str, Sequence[int]]
"""A `protocol.PseudoLabels` as sites.jsonl has it."""


def pseudo_labels(run: RunRecord) -> Block:
    """Return the pseudo-labels of a run, or why they are not known."""
    last = [found for site in run.sites if (found := latest(run, site.number))]
    if not last:
        why = (
            "The run did not count pseudo-labels: its method makes none, or other ones in every "
            "training step."
            if run.history
            else "This run did not record them (sites.jsonl)."
        )
        return Block(_TITLE, _READING, _errors(run), missing=why)
    return shown(last, run.classes, _errors(run))


def latest(run: RunRecord, site: int) -> Counts | None:
    """Return a site's counts of the last round in which it had pseudo-labels; None: never."""
    found: list[dict[str, Any]] = [said["pseudo"] for _, said in run.said(site) if "pseudo" in said]
    return found[-1] if found else None


def shown(last: Sequence[Counts], classes: Sequence[str], more: Sequence[Figure] = ()) -> Block:
    """Return the block of these counts, added up. more: figures that follow."""
    known = all(counts["wrong_by_class"] or not sum(counts["by_class"]) for counts in last)
    by_class, wrong_class = (_sum(last, key) for key in ("by_class", "wrong_by_class"))
    by_bin, wrong_bin = (_sum(last, key) for key in ("by_uncertainty", "wrong_by_uncertainty"))
    step = 100 // len(by_bin)
    bins = [f"{step * i} to {step * (i + 1)} %" for i in range(len(by_bin))]
    figures = [_counted("By uncertainty", bins, by_bin, wrong_bin if known else None)]
    if len(classes) <= MOST_CLASSES:
        figures.insert(0, _counted("By class", classes, by_class, wrong_class if known else None))
    reading = _READING + (_KNOWN if known else " How many are wrong nobody knows at real sites.")
    return Block(_TITLE, reading, [*figures, *more])


def _sum(every: Sequence[Counts], key: str) -> list[int]:
    given = [counts[key] for counts in every if counts[key]]
    return [sum(column) for column in zip(*given, strict=True)]


def _counted(
    title: str, names: Sequence[str], counts: Sequence[int], wrong: Sequence[int] | None
) -> Figure:
    given, rows = [], []
    for i, (name, n) in enumerate(zip(names, counts, strict=True)):
        bad = wrong[i] if wrong else 0
        share = f", {percent(bad / n)} % wrong" if wrong and n else ""
        given.append(Bar(name, [(n - bad, "c0"), (bad, "striped")], f"{n}{share}"))
        rows.append([name, str(n), str(bad) if wrong else DASH])
    total = sum(counts)
    said = f"{total} pseudo-labels"
    if wrong and total:
        said += f", {sum(wrong)} of them wrong ({percent(sum(wrong) / total)} %)"
    table = Table(f"Pseudo-labels {title.lower()}", ["", "Images", "Wrong"], rows, labels=1)
    return Figure(bars(title, given, f"{title}: {said}."), f"{said}.", table)


def _errors(run: RunRecord) -> list[Figure]:
    found = [(r["round"], e) for r in run.rounds if (e := r.get("pseudo_label_error")) is not None]
    if len(found) < 2:
        return []
    (first, began), (last, ended) = found[0], found[-1]
    said = (
        f"Wrong pseudo-labels: {percent(began)} % in round {first}, {percent(ended)} % in round "
        f"{last}."
    )
    rows = [[str(number), percent(share)] for number, share in found]
    picture = line_chart(
        "Wrong by round", [Line("wrong", found, "c2")], rounds_axis(run.last), percents(), said
    )
    return [Figure(picture, said, Table("Wrong by round", ["Round", "%"], rows, labels=1))]
