"""How a site's inputs are composed: counts by class and part, copies, bags; are they enough?"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedapp.core.formatting import first_names
from fedapp.data.bag_proportions import condition_number, why_unidentifiable
from fedapp.data.own import Entry, Listing
from fedapp.data.own.train_test_split import MIN_GROUPS, SET_ASIDE, TEST, TRAIN, VAL, Group
from fedapp.data.sites import BAGS
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES, wilson
from fedapp.experiment.experiment import Experiment
from fedapp.methods import methods_learning_from
from fedapp.tools.check.remarks import SHOWN, Remark, fault, note, shown

UNLABELLED = "(no label)"
BAGGED = "(in a bag)"
_PARTS = (TRAIN, VAL, TEST)
_Cell = tuple[str, str]
FEW_OF_CLASS = 5
"""With fewer test images of a class, the share of right answers on them says almost nothing."""

_USES = {TRAIN: "training", VAL: "validation", TEST: "test"}
_NAMED = 4
"""How many of several equal files are named."""
MOST_CONDITION = 100.0
"""Condition number of the proportions above which bags of some hundred images teach little."""
ONE_CLASS = 0.85
"""Share of a site's labelled images from which on one class counts as nearly all of them."""


class Counts:
    """Counts of images by class and part."""

    def __init__(
        self,
        entries: Sequence[Entry],
        parts: Sequence[str],
        classes: Sequence[str],
        sums: bool = True,
    ):
        """Count images.

        classes: the agreed ones, which get a row even without images. sums: whether each image has
        one class, so that sums over the classes are meaningful.
        """
        self._sums = sums
        pairs = zip(entries, parts, strict=True)
        self.cells = Counter[_Cell]((_row(entry), part) for entry, part in pairs)
        others = {label for label, _ in self.cells} - {*classes, UNLABELLED, BAGGED}
        bagged = [BAGGED] if any(entry.bag for entry in entries) else []
        self._rows = [*classes, *sorted(others), *bagged, UNLABELLED]

    def table(self, hide_below: int) -> Table:
        """Return the counts as a table.

        hide_below: N; a count from 1 to N - 1 is shown as "< N". A sum that includes such a count
            is left out, because the count could be computed from it.
        """
        table = Table("images of class", *_PARTS, "all", title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self._rows:
            cells = [self.cells[row, part] for part in _PARTS]
            table.add_row(
                escape(row), *(shown(n, hide_below) for n in cells), _total(cells, hide_below)
            )
        if not self._sums:
            return table
        sums = []
        for part in _PARTS:
            sums.append(_total([self.cells[row, part] for row in self._rows], hide_below))
        every = [self.cells[row, part] for row in self._rows for part in _PARTS]
        table.add_section()
        table.add_row("all", *sums, _total(every, hide_below))
        return table

    def remarks(self, hide_below: int) -> Iterator[Remark]:
        """Yield which images are missing. Nothing here tells a count that must be hidden.

        hide_below: as of `table`.
        """
        by_part = Counter[str]()
        for (_, part), count in self.cells.items():
            by_part[part] += count
        no_label = (UNLABELLED, BAGGED)
        labelled = sum(n for (label, _), n in self.cells.items() if label not in no_label)
        if not by_part[TRAIN]:
            yield fault("no training images", "add images, or change the column split")
        elif by_part[TRAIN] == self.cells[UNLABELLED, TRAIN]:
            remedy = "the site learns from its helpers alone; label some if you can"
            yield note("no labelled training images", remedy)
        learned = {label: n for (label, part), n in self.cells.items() if part == TRAIN}
        learned = {label: n for label, n in learned.items() if label not in no_label}
        total, most = sum(learned.values()), max(learned, key=lambda of: learned[of], default="")
        rest = total - learned.get(most, 0)
        if most and not 0 < rest < hide_below and wilson(total - rest, total)[1] >= ONE_CLASS:
            what = f"nearly all labelled training images are of class {most!r}"
            if rest > (1 - ONE_CLASS) * total:
                what = f"labels are too few to tell whether nearly all images are of class {most!r}"
            remedy = "always answering it may be hard to beat: compare before you use a model"
            yield note(what, remedy)
        learns = by_part[TRAIN] > self.cells[UNLABELLED, TRAIN] + self.cells[BAGGED, TRAIN]
        for part, use in ((VAL, "validation"), (TEST, "test")):
            if labelled and not by_part[part]:
                remedy = "label more images, or write a column split that has some"
                # A site may keep its few labels for one purpose, but not by accident.
                yield (fault if learns else note)(f"no {use} images", remedy)
        if not labelled:
            remedy = "nobody will know how good the site's model is; label some if you can"
            yield note("no labels: no validation and no test images", remedy)
        if self.cells[UNLABELLED, SET_ASIDE] or self.cells[BAGGED, SET_ASIDE]:
            text = "some images without a label are set aside"
            remedy = "their groups are for validation or testing, where labels are needed"
            yield note(text, remedy)


def _row(entry: Entry) -> str:
    return entry.label or (BAGGED if entry.bag else UNLABELLED)


def _total(counts: Sequence[int], hide_below: int) -> str:
    hidden = [n for n in counts if 0 < n < hide_below]
    return "-" if hidden else f"{sum(counts):,}"


def remarks_on_classes(
    entries: Sequence[Entry],
    parts: Sequence[str],
    groups: Sequence[Group],
    classes: Sequence[str],
    hide_below: int,
) -> Iterator[Remark]:
    """Yield the classes that lack images in a part (train, val, test) that the site uses.

    parts, groups: of each entry; a group is what goes into one part together, such as a patient's
    images. classes: the agreed ones. hide_below: as of `Counts.table`.
    """
    rows = [row for row in zip(entries, parts, groups, strict=True) if row[0].label]
    used = [part for part in _USES if any(found == part for _, found, _ in rows)]
    known = sorted({entry.label for entry, _, _ in rows} - {*classes})
    dealt = not any(entry.part for entry in entries)
    absent = list[str]()
    for name in [*classes, *known]:
        mine = [(part, group) for entry, part, group in rows if entry.label == name]
        lacking = [use for part, use in _USES.items() if part in used and part not in dict(mine)]
        if not mine:
            absent.append(name)
        elif lacking:
            count = shown(len({group for _, group in mine}), hide_below)
            # From the shown text: a plural must not reveal a hidden count.
            plural = "" if count == "1" else "s"
            remedy = "give it some in the column split"
            if dealt:
                remedy = (
                    f"it has {count} group{plural} (patients, or images without one), and needs "
                    f"{MIN_GROUPS} that are mostly of this class; label more"
                )
            yield note(f"class {name!r}: no {' and no '.join(lacking)} images", remedy)
    if absent and rows:
        remedy = "the site can neither teach them nor measure them; label some if you have any"
        text = f"no labelled images of class {', '.join(map(repr, absent))}"
        yield note(text, remedy)


def expected(entries: Sequence[Entry], parts: Sequence[str], hide_below: int) -> str:
    """Return how wide the 95 % interval of the accuracy will be, in words.

    Empty if there are no test images, or if the text would reveal a count below hide_below.
    """
    by_class: dict[str, int] = {}
    for entry, part in zip(entries, parts, strict=True):
        if part == TEST:
            by_class[entry.label] = by_class.get(entry.label, 0) + 1
    total = sum(by_class.values())
    if not total or min(by_class.values()) < hide_below:
        return ""
    right = round(0.8 * total)
    low, high = wilson(right, total)
    return (
        f"of {total:,} test images; {right:,} right would mean {100 * low:.0f} to {100 * high:.0f} "
        "% (95 % interval)"
    )


def remarks_on_test(
    entries: Sequence[Entry], parts: Sequence[str], hide_below: int
) -> Iterator[Remark]:
    """Yield where there are too few test images to tell a good model from a bad one.

    hide_below: as of `Counts.table`.
    """
    pairs = zip(entries, parts, strict=True)
    counted = Counter(entry.label for entry, part in pairs if part == TEST)
    if 0 < counted.total() < MIN_TEST_IMAGES:
        remedy = "chance decides which of two models looks better here; label more images"
        yield note(f"fewer than {MIN_TEST_IMAGES} test images", remedy)
    # The limit in the text must not reveal a count below hide_below.
    least = max(FEW_OF_CLASS, hide_below)
    if few := sorted(name for name, count in counted.items() if count < least):
        low, _ = wilson(FEW_OF_CLASS - 1, FEW_OF_CLASS - 1)
        remedy = (
            f"nothing can be said of these by themselves: {FEW_OF_CLASS - 1} of "
            f"{FEW_OF_CLASS - 1} right is {100 * low:.0f} to 100 %; label more"
        )
        yield note(f"fewer than {least} test images of class {', '.join(map(repr, few))}", remedy)


def remarks_on_copies(
    entries: Sequence[Entry],
    parts: Sequence[str],
    contents: Sequence[str],
    hide_below: int,
    table: bool = False,
) -> list[Remark]:
    """Return remarks on images of equal content.

    parts, contents: of each entry; an empty content is unknown. Copies with two labels are faults.
    So are copies in two parts of the site's own split, where a model would be tested on images that
    it has learned. hide_below: as of `Counts.table`. table: whether the entries are rows of a
    table. Two rows may well be equal without being copies, so then everything is a note.
    """
    same, every, kind = (
        ("the same numbers", "rows", note) if table else ("the same image", "images", fault)
    )
    alike: dict[str, list[int]] = {}
    for number, content in enumerate(contents):
        if content:
            alike.setdefault(content, []).append(number)
    faults, tied, unnamed, count = list[Remark](), list[Remark](), list[str](), 0
    for copies in alike.values():
        if len(copies) == 1:
            continue
        count += len(copies)
        names = ", ".join(entries[i].name for i in copies[:_NAMED])
        labels = sorted({entries[i].label for i in copies if entries[i].label})
        apart = sorted({parts[i] for i in copies} - {SET_ASIDE})
        groups = {entries[i].group for i in copies}
        if len(labels) > 1:
            text = f"{same}, labelled {' and '.join(map(repr, labels))}: {names}"
            faults.append(kind(text, "keep the one with the right label"))
        elif len(apart) > 1:
            text = f"{same} in {' and '.join(apart)}: {names}"
            remedy = "keep one, or give all of them one split: the column split is taken as it is"
            faults.append(kind(text, remedy))
        elif len(groups) > 1:
            text = f"{same} in {len(groups)} groups: {names}"
            remedy = "they are dealt as one group; keep one image if they are one patient's"
            tied.append(note(text, remedy))
        else:
            unnamed.append(names)
    found = [*_cut(faults, kind), *_cut(tied, note)]
    if count:
        remedy = "every copy counts; remove those that you do not want"
        if not any(entry.part for entry in entries):
            remedy = f"equal {every} are dealt together, to one part; {remedy}"
        text = f"{shown(count, hide_below)} of {shown(len(entries), hide_below)} {every}"
        if unnamed and count >= hide_below:  # else the names would tell how many there are
            remedy = f"{first_names([f'({names})' for names in unnamed], _NAMED)}; {remedy}"
        found.append(note(f"{text} have an equal copy among them", remedy))
    return found


def _cut(found: Sequence[Remark], kind: Callable[[str, str], Remark]) -> list[Remark]:
    """Return at most `SHOWN` remarks and one more that counts the others."""
    if len(found) <= SHOWN:
        return list(found)
    more = kind(f"{len(found) - SHOWN} more images twice", "fix the first and run again")
    return [*found[:SHOWN], more]


def bags_in_words(listing: Listing, hide_below: int) -> str:
    """Return the number of bags, their sizes and the condition number of their proportions.

    hide_below: as of `Counts.table`.
    """
    sizes = sorted(Counter(entry.bag for entry in listing.entries if entry.bag).values())
    of = " to ".join(dict.fromkeys(shown(size, hide_below) for size in (sizes[0], sizes[-1])))
    return f"{len(sizes)} of {of} images; condition number {_condition(listing):.3g}"


def remarks_on_bags(
    listing: Listing, parts: Sequence[str], experiment: Experiment | None
) -> Iterator[Remark]:
    """Yield why the agreed method cannot learn from the bags, and if they are too much alike.

    A bag is a group of images of which only the class proportions are known. parts: of each entry.
    """
    if not listing.bags:
        return
    if experiment and BAGS not in experiment.method.learns_from:
        what = f"images in bags, but method.name = {experiment.method.name!r} does not use them"
        able = " or ".join(methods_learning_from(BAGS))
        yield fault(what, f"have the preset's method changed to {able}")
    dealt = zip(listing.entries, parts, strict=True)
    filled = {entry.bag for entry, part in dealt if entry.bag and part == TRAIN}
    if filled < set(listing.bags) and (wrong := why_unidentifiable(_proportions(listing, filled))):
        what = f"where a patient is tested, images in bags are set aside; then {wrong[0]}"
        yield fault(what, "keep patients who are tested out of the bags")
    if MOST_CONDITION < _condition(listing) < float("inf"):
        what = f"the bags' proportions are much alike (condition number above {MOST_CONDITION:g})"
        remedy = "they teach little; divide the images so that in each bag another class prevails"
        yield note(what, remedy)


def _condition(listing: Listing) -> float:
    return condition_number(_proportions(listing, listing.bags))


def _proportions(listing: Listing, bags: Collection[str]) -> Tensor:
    """Return the class proportions of these bags, float64 [bags, classes]."""
    rows = [shares for bag, shares in listing.bags.items() if bag in bags]
    classes = len(next(iter(listing.bags.values())))
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), classes)
