"""A site's data as folders: `labelled/<class>/*.png` and `unlabelled/*.png`."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from fedapp.data.folder import composed, is_image, passed_over
from fedapp.data.own.entries import IMAGE, Entry, Listing, label_fault, outside, outside_fault
from fedapp.data.own.faults import Fault, Kind

LABELLED, UNLABELLED = "labelled", "unlabelled"


def list_folders(data: Path, classes: Sequence[str]) -> Listing:
    """List the images in a folder; the label is the name of the folder they lie in."""
    walk = _Walk(data)
    for folder in walk.folders(data, keep=(LABELLED, UNLABELLED)):
        if folder.name == UNLABELLED:
            walk.images(folder, "")
            continue
        for inner in walk.folders(folder):
            label = composed(inner.name)
            if classes and label not in classes:
                walk.faults.append(label_fault(f"{LABELLED}/{label}", label, classes))
            else:
                walk.images(inner, label)
    return Listing(tuple(walk.entries), tuple(walk.faults), tuple(walk.passed_over))


class _Walk:
    """Collects entries and faults on the way through the folders."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._root = data.resolve()
        self.entries: list[Entry] = []
        self.faults: list[Fault] = []
        self.passed_over: list[str] = []

    def folders(self, folder: Path, keep: Sequence[str] = ()) -> list[Path]:
        """Return the folders in a folder; files there are passed over.

        keep: the only names allowed; empty: any.
        """
        found = []
        for path in self._inside(folder):
            if not os.path.isdir(path):
                self.passed_over.append(self._name(path))
            elif keep and path.name not in keep:
                near = difflib.get_close_matches(path.name, keep, 1)
                remedy = f"did you mean {near[0]!r}?" if near else "move it elsewhere"
                if any(os.path.isdir(path / name) for name in keep):
                    remedy = "it is laid out as a site's own data: name that folder instead"
                elif not near and any(map(is_image, self._inside(path))):
                    remedy = f"if it is a class, move it to {LABELLED}/{path.name}/"
                what = f"only {' and '.join(keep)} are read here"
                self.faults.append(Fault(Kind.LAYOUT, f"{path.name}/", what, remedy))
            else:
                found.append(path)
        return found

    def images(self, folder: Path, label: str) -> None:
        """Take the images of a folder; other files are passed over, folders in it are a fault."""
        for path in self._inside(folder):
            name = self._name(path)
            if os.path.isdir(path):
                what = "a folder inside, which is not read"
                remedy = "move its images up, or write a labels.csv with a column group"
                self.faults.append(Fault(Kind.LAYOUT, f"{name}/", what, remedy))
            elif not is_image(path):
                self.passed_over.append(name)
            elif not os.path.isfile(path):
                self.faults.append(Fault(Kind.FILE, name, "no file", f"put there {IMAGE}"))
            else:
                self.entries.append(Entry(path, composed(name), label))

    def _inside(self, folder: Path) -> list[Path]:
        """Return what lies in a folder, by name.

        But for what is hidden, a machine's own, or leads elsewhere.
        """
        try:
            found = sorted(path for path in folder.iterdir() if not passed_over(path.name))
        except OSError as error:
            what = f"cannot be listed ({error.strerror})"
            remedy = "let the user who runs the node read it"
            self.faults.append(Fault(Kind.LAYOUT, self._name(folder), what, remedy))
            return []
        strayed = {path for path in found if path.is_symlink() and outside(path, self._root)}
        self.faults += [outside_fault(self._name(path)) for path in sorted(strayed)]
        return [path for path in found if path not in strayed]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._data).as_posix() if path != self._data else str(path)
