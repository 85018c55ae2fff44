"""Whose an image is: by a column of labels.csv, or by a part of its path (`patients` of site.yaml).

A patient's images are a group: they go to one part of a site together, and a site's intervals draw
patients, not images.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedapp.data.bypatient import patient_in
from fedapp.data.own.entries import Entry, Listing
from fedapp.data.own.faults import Fault, Kind
from fedapp.data.own.split import apart

PATIENT, GROUP = "patient", "group"
_WHOSE = "so nobody knows whose it is"


def by_path(listing: Listing, pattern: str) -> Listing:
    """Return the listing with each image's patient, and what is wrong with that.

    pattern: a regular expression with one group, which is found in an image's path below the data
    and gives the patient; empty: the listing stays as it is.
    """
    if not pattern:
        return listing
    if any(entry.group for entry in listing.entries):
        what = "names patients in a column, and a pattern reads them from paths"
        fault = Fault(Kind.PATIENT, "labels.csv", what, "leave one of the two out")
        return replace(listing, faults=(*listing.faults, fault))
    entries, faults = list[Entry](), list[Fault]()
    for entry in listing.entries:
        patient = patient_in(entry.name, pattern)
        if not patient:
            what = f"its path does not match the pattern of patients {pattern!r}, {_WHOSE}"
            remedy = "rename the file as the others are, or correct the pattern"
            faults.append(Fault(Kind.PATIENT, entry.name, what, remedy))
        else:
            entries.append(replace(entry, group=patient))
    faults += [] if faults else [*alone(entries), *apart("the site's split", entries)]
    return replace(listing, entries=tuple(entries), faults=(*listing.faults, *faults))


def lacking(where: str, patient: str) -> list[Fault]:
    """Return the fault of a line without a patient, where others have one."""
    if patient:
        return []
    what = f"the column {PATIENT} is empty, {_WHOSE}"
    return [Fault(Kind.PATIENT, where, what, f"fill it in each line, or call it {GROUP}")]


def alone(entries: Sequence[Entry]) -> list[Fault]:
    """Return the fault of a site all of whose labelled images are one patient's."""
    of = [entry.group for entry in entries if entry.label]
    if not of or len(set(of)) > 1:
        return []
    what = f"all {len(of)} labelled images are of this one, to learn from and to be tested on"
    remedy = "add images of other patients, or correct the column or the pattern of patients"
    return [Fault(Kind.PATIENT, f"patient {of[0]!r}", what, remedy)]
