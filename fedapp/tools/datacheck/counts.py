"""How many images of which class are for what, with small numbers hidden where asked."""

from collections import Counter
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fedapp.data.own import Entry
from fedapp.data.own.deal import ASIDE, TEST, TRAIN, VAL
from fedapp.tools.datacheck.findings import Finding, fault, note, shown

UNLABELLED = "(no label)"
BAGGED = "(in a bag)"
_PARTS = (TRAIN, VAL, TEST)
_Cell = tuple[str, str]


class Counts:
    """Counts of images by class and part."""

    def __init__(
        self,
        entries: Sequence[Entry],
        parts: Sequence[str],
        classes: Sequence[str],
        sums: bool = True,
    ):
        """Count; classes: the agreed ones, shown even where there are none of their images.

        sums: whether each image is of one class, so that sums over classes say something.
        """
        self._sums = sums
        pairs = zip(entries, parts, strict=True)
        self.cells = Counter[_Cell]((_row(entry), part) for entry, part in pairs)
        others = {label for label, _ in self.cells} - {*classes, UNLABELLED, BAGGED}
        bagged = [BAGGED] if any(entry.bag for entry in entries) else []
        self._rows = [*classes, *sorted(others), *bagged, UNLABELLED]

    def table(self, hide_below: int) -> Table:
        """Return the counts for the screen.

        hide_below: N; counts from 1 to N - 1 read "< N". A sum with one such part is left out:
            the part could be computed from it.
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

    def findings(self) -> list[Finding]:
        """Return what is missing; no number is in it."""
        by_part = Counter[str]()
        for (_, part), count in self.cells.items():
            by_part[part] += count
        no_label = (UNLABELLED, BAGGED)
        labelled = sum(n for (label, _), n in self.cells.items() if label not in no_label)
        found = []
        if not by_part[TRAIN]:
            found.append(fault("no training images", "add images, or change the column split"))
        elif by_part[TRAIN] == self.cells[UNLABELLED, TRAIN]:
            remedy = "the site learns from its helpers alone; label some if you can"
            found.append(note("no labelled training images", remedy))
        learns = by_part[TRAIN] > self.cells[UNLABELLED, TRAIN] + self.cells[BAGGED, TRAIN]
        for part, use in ((VAL, "validation"), (TEST, "test")):
            if labelled and not by_part[part]:
                remedy = "label more images, or write a column split that has some"
                # A site may keep its few labels for one purpose, but not by accident.
                found.append((fault if learns else note)(f"no {use} images", remedy))
        if not labelled:
            remedy = "nobody will know how good the site's model is; label some if you can"
            found.append(note("no labels: no validation and no test images", remedy))
        if self.cells[UNLABELLED, ASIDE] or self.cells[BAGGED, ASIDE]:
            text = "some images without a label are set aside"
            remedy = "their groups are for validation or testing, where labels are needed"
            found.append(note(text, remedy))
        return found


def _row(entry: Entry) -> str:
    return entry.label or (BAGGED if entry.bag else UNLABELLED)


def _total(counts: Sequence[int], hide_below: int) -> str:
    hidden = [n for n in counts if 0 < n < hide_below]
    return "-" if hidden else f"{sum(counts):,}"
