"""A site's data as CSV files: labels.csv, with a line for each image, and bags.csv, for each bag.

labels.csv has the columns `path`, `label` or `bag`, and optionally `split`, and `group` or
`patient`. bags.csv has the class proportions of the bags.
"""

import csv
import difflib
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from fedapp.core.names import from_csv_cell
from fedapp.data.bag_proportions import why_unidentifiable
from fedapp.data.folder import SUFFIXES, is_image, nfc
from fedapp.data.inputs import UNKNOWN
from fedapp.data.own.entries import (
    GROUP,
    IMAGE,
    PATIENT,
    Entry,
    Fault,
    Kind,
    Listing,
    check_label,
    label_fault,
    leads_outside,
    missing_patient_faults,
    outside_fault,
    part_fault,
    part_named,
    single_patient_faults,
    with_settled_parts,
)

Columns = Callable[[str, Sequence[str]], Sequence[str] | Fault]
"""(location of the first line, its fields) -> the names of the columns, or the fault in them."""
COLUMNS = ("path", "label", "bag", "split", GROUP, PATIENT)
_FINDING_VALUES = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "": UNKNOWN}
"""Values of a finding. Programs write integers with a decimal point if other cells of the column
are empty.
"""
BAGS_FILE = "bags.csv"
"""Name of the file of bags, beside the table of images."""
_BAG_COLUMN = ""
"""Internal name of its first column, because a class may be called "bag"."""
_ROUNDING_ERROR = 0.005 + 1e-9
"""Error of a proportion that was rounded to two digits, plus the floating-point error."""


def list_table(table: Path, classes: Sequence[str], findings: Sequence[str] = ()) -> Listing:
    """List the images in a CSV file, and the bags in the file `BAGS_FILE` beside it.

    findings: each has a column, in place of label and bag; none: each image has one class. Paths
        are relative to the folder of the file.
    """
    faults: list[Fault] = []
    entries: list[Entry] = []
    seen: set[str] = set()
    strange: set[str] = set()
    root, by_patient = table.parent.resolve(), False
    first_line = ",".join(("path", *(findings or ("label",))))
    for where, row in csv_rows(table, partial(_image_columns, findings), faults, first_line):
        label, bag = row.get("label", ""), row.get("bag", "")
        shown = _findings_of(where, row, findings)
        if isinstance(shown, Fault):
            faults.append(shown)
            continue
        if findings and any(one != UNKNOWN for one in shown):
            there = [name for name, one in zip(findings, shown, strict=True) if one == 1]
            label = " + ".join(there) or "none of them"
        if label and bag:
            remedy = "clear one of them: an image in a bag counts in its proportions alone"
            faults.append(Fault(Kind.BAGS, where, "both a label and a bag", remedy))
            continue
        check_label(where, label, classes, strange, faults)
        part, path = part_named(row.get("split", "")), _on_disk(table.parent, row["path"])
        if fault := (
            part_fault(where, part, label) or _path_fault(where, path, table.parent, root)
        ):
            faults.append(fault)
            continue
        name = Path(row["path"]).as_posix()
        if name in seen:
            faults.append(Fault(Kind.LAYOUT, where, f"{name} stands twice", "keep one line"))
            continue
        seen.add(name)
        patient = row.get(PATIENT, "")
        faults += missing_patient_faults(f"{where}: {name}", patient) if PATIENT in row else []
        group = patient or row.get(GROUP, "")
        entries.append(Entry(table.parent / path, name, label, part, group, bag, shown))
        by_patient = PATIENT in row
    entries = with_settled_parts(table.name, entries, faults)
    faults += single_patient_faults(entries) if by_patient else []
    bags = list_bags(table, entries, classes, faults)
    return Listing(tuple(entries), tuple(faults), bags=bags, by_patient=by_patient)


def _findings_of(
    where: str, row: Mapping[str, str], findings: Sequence[str]
) -> tuple[int, ...] | Fault:
    """Return what a line says of each finding, or the fault in it."""
    found = []
    for name in findings:
        if (said := row[name.lower()]) not in _FINDING_VALUES:
            what = f"{said!r} of finding {name!r}"
            remedy = "write 1 (there), 0 (not there) or nothing (not read, or unsure)"
            return Fault(Kind.FINDING, where, what, remedy)
        found.append(_FINDING_VALUES[said])
    return tuple(found)


def _image_columns(
    findings: Sequence[str], where: str, fields: Sequence[str]
) -> Sequence[str] | Fault:
    """Return the columns that the first line names, or the fault in it."""
    header = [field.lower() for field in fields]
    rule = "columns must be path, label or bag and, if wanted, split, group or patient"
    needed: Sequence[str] = ("path",) if "bag" in header else ("path", "label")
    possible: Sequence[str] = COLUMNS
    if findings:
        needed = ("path", *(name.lower() for name in findings))
        possible = (*needed, "split", GROUP, PATIENT)
        rule = (
            f"columns must be path, {', '.join(findings)} and, if wanted, split, group or patient"
        )
        if "path" in header and (absent := [n for n in findings if n.lower() not in header]):
            remedy = "add it, with nothing where it was not read"
            return Fault(Kind.FINDING, where, f"no column of finding {absent[0]!r}", remedy)
    missing = [name for name in needed if name not in header]
    other = [name for name in header if name not in possible]
    if missing and any(field.endswith(SUFFIXES) for field in header):
        remedy = "put a line path,label before the first image"
        return Fault(Kind.LAYOUT, where, "no header, but an image", remedy)
    if missing:
        return Fault(Kind.LAYOUT, where, f"no column {missing[0]!r}", f"name it; {rule}")
    if other:
        near = difflib.get_close_matches(other[0], possible, 1, cutoff=0.7)
        remedy = f"did you mean {near[0]!r}?" if near else f"remove it; {rule}"
        return Fault(Kind.LAYOUT, where, f"column {other[0]!r}", remedy)
    if PATIENT in header and GROUP in header:
        remedy = "keep one: a patient's images stay together as a group's do"
        return Fault(Kind.LAYOUT, where, f"columns {PATIENT} and {GROUP}", remedy)
    if len(set(header)) < len(header):
        return Fault(Kind.LAYOUT, where, "a column stands twice", f"keep one; {rule}")
    return header


def _on_disk(folder: Path, text: str) -> str:
    """Return a path, in Unicode's decomposed form if the file has that form (see `folder.nfc`)."""
    apart = unicodedata.normalize("NFD", text)
    return apart if apart != text and not os.path.exists(folder / text) else text


def _path_fault(where: str, text: str, folder: Path, root: Path) -> Fault | None:
    """Return what is wrong with the path of an image; None: nothing."""
    if not text:
        return Fault(Kind.FILE, where, "no path", "name the image's file or remove the line")
    where = f"{where}: {text}"
    if "\\" in text or re.match(r"[A-Za-z]:", text):
        remedy = f"write it from {folder.name or folder}/ on with /, such as scans/1.png"
        return Fault(Kind.FILE, where, "a Windows path", remedy)
    path = Path(text)
    if path.is_absolute():
        remedy = "write it relative to the CSV file's folder"
        return Fault(Kind.FILE, where, "an absolute path", remedy)
    if ".." in path.parts or leads_outside(folder / path, root):
        return outside_fault(where)
    if not os.path.isfile(folder / path):
        return Fault(Kind.FILE, where, "no such file", "correct the path or remove the line")
    if not is_image(folder / path):
        return Fault(Kind.FILE, where, f"not {IMAGE}", "save the image as one")
    return None


def list_bags(
    table: Path, entries: Sequence[Entry], classes: Sequence[str], faults: list[Fault]
) -> Mapping[str, tuple[float, ...]]:
    """Return the proportions of each bag, by name, in the order of the classes; they sum to 1.

    table: the images' own table.
    classes: the agreed classes; empty: those that the file names.
    faults: receives what is wrong. Nothing is read if no image lies in a bag.
    """
    sizes = Counter(entry.bag for entry in entries if entry.bag)
    path, found = table.parent / BAGS_FILE, dict[str, tuple[float, ...]]()
    if not sizes:
        return found
    first_line = ",".join(("bag", *(classes or ("CLASS", "CLASS"))))
    if not path.is_file():
        what = f"names bags, but there is no {BAGS_FILE} beside it"
        remedy = f"write it, and begin it with the line {first_line}"
        faults.append(Fault(Kind.BAGS, table.name, what, remedy))
        return found
    before, named = len(faults), set[str]()
    for where, row in csv_rows(path, partial(_bag_columns, classes), faults, first_line):
        bag = row.pop(_BAG_COLUMN)
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
    for bag in (
        sorted(sizes.keys() - named) if named else ()
    ):  # otherwise the first line is at fault
        what, remedy = f"bag {bag!r} is not in {BAGS_FILE}", "add a line with its proportions"
        faults.append(Fault(Kind.BAGS, table.name, what, remedy))
    rows_found = torch.tensor(list(found.values()), dtype=torch.float64)
    if len(faults) == before and (wrong := why_unidentifiable(rows_found)):
        what, remedy = wrong
        if equal := _first_equal(found):
            what += f" ({equal[0]!r} and {equal[1]!r} have the same)"
        faults.append(Fault(Kind.BAGS, BAGS_FILE, what, remedy))
    return found


def _first_equal(found: Mapping[str, tuple[float, ...]]) -> tuple[str, str] | None:
    """Return the names of two bags with the same proportions; None if all differ."""
    first = dict[tuple[float, ...], str]()
    for bag, shares in found.items():
        if (other := first.setdefault(shares, bag)) != bag:
            return other, bag
    return None


def _bag_columns(
    classes: Sequence[str], where: str, fields: Sequence[str]
) -> Sequence[str] | Fault:
    """Return the columns that the first line names, or the fault in it."""
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
    return [_BAG_COLUMN, *named]


def _shares(
    where: str, bag: str, row: Mapping[str, str], classes: Sequence[str]
) -> tuple[float, ...] | Fault:
    """Return the proportions of a bag in the order of the classes, or the fault in them."""
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
    if abs(total - 1) > _ROUNDING_ERROR * len(shares):
        what = f"the proportions of bag {bag!r} sum to {total:.4g}, must sum to 1"
        remedy = "divide the number of images of each class by that of all images in the bag"
        return Fault(Kind.BAGS, where, what, remedy)
    return tuple(share / total for share in shares)


def csv_rows(
    table: Path, columns: Columns, faults: list[Fault], first_line: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location of each valid line of a CSV file, and its fields by column.

    columns: returns the names of the columns that the first line names, or the fault in it.
    first_line: what the file should begin with, for the remedy.
    faults: receives what is wrong.
    """
    text = _text(table, faults)
    if text is None:
        return
    reader = csv.reader(text.splitlines(), strict=True)
    header: Sequence[str] = ()
    while True:
        where = f"{table.name}, line {reader.line_num + 1}"
        try:
            fields = [nfc(from_csv_cell(field.strip())) for field in next(reader)]
        except StopIteration:
            break
        except csv.Error as error:
            remedy = "put fields with commas or quotes in double quotes"
            faults.append(Fault(Kind.LAYOUT, where, f"not CSV ({error})", remedy))
            return
        if not any(fields):
            continue
        if not header:
            named = _separated(where, fields) or columns(where, fields)
            if isinstance(named, Fault):
                faults.append(named)
                return
            header = named
        elif len(fields) != len(header):
            what = f"{len(fields)} fields, the header has {len(header)}"
            remedy = "write one for each column; put a field that holds a comma in double quotes"
            faults.append(Fault(Kind.LAYOUT, where, what, remedy))
        else:
            yield where, dict(zip(header, fields, strict=True))
    if not header:
        remedy = f"begin it with the line {first_line}"
        faults.append(Fault(Kind.LAYOUT, table.name, "empty", remedy))


def _separated(where: str, fields: Sequence[str]) -> Fault | None:
    """Return the fault of a first line whose fields are not separated by commas."""
    found = re.search(r"[;\t|]", fields[0]) if len(fields) == 1 else None
    if found is None:
        return None
    what = f"fields are separated by {found[0]!r}"
    return Fault(Kind.LAYOUT, where, what, "save the file with commas between them")


def _text(table: Path, faults: list[Fault]) -> str | None:
    """Return the text of a CSV file without the byte order mark; None if it cannot be read."""
    try:
        text = table.read_bytes().decode("utf-8-sig")
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        remedy = "let the user who runs the node read it"
        faults.append(Fault(Kind.LAYOUT, table.name, what, remedy))
        return None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        what, remedy = "not UTF-8 text", "save it as 'CSV UTF-8 (comma delimited)'"
        faults.append(Fault(Kind.LAYOUT, table.name, what, remedy))
        return None
    return text
