"""What a site knows of its bags: a CSV file with a line of class proportions for each."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from fedapp.data.bags import too_little
from fedapp.data.own.csvfile import rows
from fedapp.data.own.entries import Entry, label_fault
from fedapp.data.own.faults import Fault, Kind

BAGS = "bags.csv"
"""Its name, beside the table of images."""
_NAME = ""
"""Its first column here: a class may be called bag."""
ROUNDING = 0.005 + 1e-9
"""How far a proportion rounded to two digits may be from its own, and the computer's error."""


def list_bags(
    table: Path, entries: Sequence[Entry], classes: Sequence[str], faults: list[Fault]
) -> Mapping[str, tuple[float, ...]]:
    """Return the proportions of each bag, by name, in the order of the classes; each sums to 1.

    table: the images' own. classes: the agreed ones; empty: those that the file names. faults:
    takes what is wrong. Where no image lies in a bag, nothing is read.
    """
    sizes = Counter(entry.bag for entry in entries if entry.bag)
    path, found = table.parent / BAGS, dict[str, tuple[float, ...]]()
    if not sizes:
        return found
    first_line = ",".join(("bag", *(classes or ("CLASS", "CLASS"))))
    if not path.is_file():
        what = f"names bags, but there is no {BAGS} beside it"
        remedy = f"write it, and begin it with the line {first_line}"
        faults.append(Fault(Kind.BAGS, table.name, what, remedy))
        return found
    before, named = len(faults), set[str]()
    for where, row in rows(path, partial(_columns, classes), faults, first_line):
        bag = row.pop(_NAME)
        if not bag:
            remedy = "name it in the first field, or remove the line"
            faults.append(Fault(Kind.BAGS, where, "a bag without a name", remedy))
            continue
        if bag in named:
            faults.append(Fault(Kind.BAGS, where, f"bag {bag!r} stands twice", "keep one line"))
        elif not sizes[bag]:
            remedy = f"name them in the column bag of {table.name}, or remove the line"
            faults.append(Fault(Kind.BAGS, where, f"bag {bag!r} has no images", remedy))
        elif isinstance(shares := _shares(where, bag, row, classes or [*row]), Fault):
            faults.append(shares)
        else:
            found[bag] = shares
        named.add(bag)
    for bag in sorted(sizes.keys() - named) if named else ():  # else its first line is at fault
        what, remedy = f"bag {bag!r} is not in {BAGS}", "add a line with its proportions"
        faults.append(Fault(Kind.BAGS, table.name, what, remedy))
    rows_found = torch.tensor(list(found.values()), dtype=torch.float64)
    if len(faults) == before and (wrong := too_little(rows_found)):
        what, remedy = wrong
        if equal := _first_equal(found):
            what += f" ({equal[0]!r} and {equal[1]!r} have the same)"
        faults.append(Fault(Kind.BAGS, BAGS, what, remedy))
    return found


def _first_equal(found: Mapping[str, tuple[float, ...]]) -> tuple[str, str] | None:
    """Return the names of two bags with the same proportions; None where all differ."""
    first = dict[tuple[float, ...], str]()
    for bag, shares in found.items():
        if (other := first.setdefault(shares, bag)) != bag:
            return other, bag
    return None


def _columns(classes: Sequence[str], where: str, fields: Sequence[str]) -> Sequence[str] | Fault:
    """Return the columns that the first line names, or what is wrong with it."""
    if not fields or fields[0].lower() != "bag":
        remedy = "begin the first line with bag, then a comma and the classes"
        return Fault(Kind.BAGS, where, "no column 'bag' in the first place", remedy)
    named = fields[1:]
    if classes and (strange := [name for name in named if name not in classes]):
        return label_fault(where, strange[0], classes, "class")
    if absent := [name for name in classes if name not in named]:
        remedy = "add it, with 0 where a bag has none"
        return Fault(Kind.BAGS, where, f"no column of class {absent[0]!r}", remedy)
    if twice := [name for name, count in Counter(named).items() if count > 1]:
        return Fault(Kind.BAGS, where, f"class {twice[0]!r} stands twice", "keep one column of it")
    return [_NAME, *named]


def _shares(
    where: str, bag: str, row: Mapping[str, str], classes: Sequence[str]
) -> tuple[float, ...] | Fault:
    """Return a bag's proportions in the order of the classes, or what is wrong with them."""
    shares = []
    for name in classes:
        try:
            share = float(row[name])
        except ValueError:
            share = math.nan
        if not 0 <= share <= 1:
            what = f"proportion {row[name]!r} of class {name!r}"
            remedy = "write a number from 0 to 1, such as 0.25"
            return Fault(Kind.BAGS, where, what, remedy)
        shares.append(share)
    total = math.fsum(shares)
    if abs(total - 1) > ROUNDING * len(shares):
        what = f"the proportions of bag {bag!r} sum to {total:.4g}, must sum to 1"
        remedy = "divide the number of images of each class by that of all images in the bag"
        return Fault(Kind.BAGS, where, what, remedy)
    return tuple(share / total for share in shares)
