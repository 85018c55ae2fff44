"""A site's images as a CSV file: `path`, `label` or `bag`, and `split`, `group` or `patient`."""

import difflib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fedapp.data.folder import SUFFIXES, is_image
from fedapp.data.inputs import UNKNOWN
from fedapp.data.own.bags import list_bags
from fedapp.data.own.csvfile import rows
from fedapp.data.own.entries import IMAGE, Entry, Listing, label_fault, outside, outside_fault
from fedapp.data.own.faults import Fault, Kind
from fedapp.data.own.patients import GROUP, PATIENT, alone, lacking
from fedapp.data.own.split import part_fault, part_of, settled

COLUMNS = ("path", "label", "bag", "split", GROUP, PATIENT)
_SAID = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "": UNKNOWN}
"""Of a finding; programs write whole numbers with a point where others of the column lack one."""


def list_table(table: Path, classes: Sequence[str], findings: Sequence[str] = ()) -> Listing:
    """List the images that a CSV file names, and the bags of the file `BAGS` beside it.

    findings: that have a column each, in the place of label and bag; none: each is of one class.
    Paths count from the file's own folder.
    """
    faults: list[Fault] = []
    entries: list[Entry] = []
    seen: set[str] = set()
    strange: set[str] = set()  # labels: each is a fault where it first comes up
    root, by_patient = table.parent.resolve(), False
    first_line = ",".join(("path", *(findings or ("label",))))
    for where, row in rows(table, partial(_columns, findings), faults, first_line):
        label, bag = row.get("label", ""), row.get("bag", "")
        shown = _read(where, row, findings)
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
        if label and classes and label not in {*classes, *strange}:
            strange.add(label)
            faults.append(label_fault(where, label, classes))
        part, path = part_of(row.get("split", "")), _on_disk(table.parent, row["path"])
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
        faults += lacking(f"{where}: {name}", patient) if PATIENT in row else []
        group = patient or row.get(GROUP, "")
        entries.append(Entry(table.parent / path, name, label, part, group, bag, shown))
        by_patient = PATIENT in row
    entries = settled(table.name, entries, faults)
    faults += alone(entries) if by_patient else []
    bags = list_bags(table, entries, classes, faults)
    return Listing(tuple(entries), tuple(faults), bags=bags, by_patient=by_patient)


def _read(where: str, row: Mapping[str, str], findings: Sequence[str]) -> tuple[int, ...] | Fault:
    """Return what a line says of each finding, or what is wrong with it."""
    found = []
    for name in findings:
        if (said := row[name.lower()]) not in _SAID:
            what = f"{said!r} of finding {name!r}"
            remedy = "write 1 (there), 0 (not there) or nothing (not read, or unsure)"
            return Fault(Kind.FINDING, where, what, remedy)
        found.append(_SAID[said])
    return tuple(found)


def _columns(findings: Sequence[str], where: str, fields: Sequence[str]) -> Sequence[str] | Fault:
    """Return the columns that the first line names, or what is wrong with it."""
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
        if "path" in header and (lacking := [n for n in findings if n.lower() not in header]):
            remedy = "add it, with nothing where it was not read"
            return Fault(Kind.FINDING, where, f"no column of finding {lacking[0]!r}", remedy)
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
    """Return a path with its letters taken apart where the folder has it so (`composed`)."""
    apart = unicodedata.normalize("NFD", text)
    return apart if apart != text and not os.path.exists(folder / text) else text


def _path_fault(where: str, text: str, folder: Path, root: Path) -> Fault | None:
    """Return what is wrong with the path of an image."""
    if not text:
        return Fault(Kind.FILE, where, "no path", "name the image's file or remove the line")
    where = f"{where}: {text}"
    if "\\" in text or re.match(r"[A-Za-z]:", text):
        remedy = f"write it from {folder.name or folder}/ on with /, such as scans/1.png"
        return Fault(Kind.FILE, where, "a Windows path", remedy)
    path = Path(text)
    if path.is_absolute():
        remedy = "write it as seen from the CSV file's folder"
        return Fault(Kind.FILE, where, "an absolute path", remedy)
    if ".." in path.parts or outside(folder / path, root):
        return outside_fault(where)
    if not os.path.isfile(folder / path):
        return Fault(Kind.FILE, where, "no such file", "correct the path or remove the line")
    if not is_image(folder / path):
        return Fault(Kind.FILE, where, f"not {IMAGE}", "save the image as one")
    return None
