"""Writing and reading a model's folder, and the summary over all sites of a run.

A folder is never seen in between: whoever reads it while it is written, or after the writer was
killed, finds the old model or the new one (`write_model`, `read_consistent`).
"""

from collections.abc import Sequence
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from shutil import copy2

from fedapp.core.disk import remove_stale, write_atomic, write_error
from fedapp.core.errors import RunError
from fedapp.learn.metrics import LABEL_GROUPS, label_group
from fedapp.learn.params import digest_of
from fedapp.models.card import CARD, model_card
from fedapp.models.description import (
    DESCRIPTION,
    ENCODER_STEM,
    TENSORS,
    AllSitesSummary,
    Description,
    LabelShareGroup,
    damaged_model,
    read_description,
)

PENDING_TENSORS = f"{TENSORS}.next"
"""File of new tensors, until the description that names their hash is written. Then it is renamed
to `TENSORS`."""


def write_model(
    folder: Path,
    description: Description,
    blob: bytes | None = None,
    files: Sequence[str] = (),
) -> None:
    """Write a model's folder. Raises StoreError where the disk refuses.

    blob: the bytes of its tensors; None: they are already there. files: paths of the files that the
    network cannot be built without; they are added to the folder.

    If the process is killed at any point, `read_consistent` finds the old model or the new one: the
    hash in the description decides which tensors count.
    """
    if blob is not None:
        remove_stale(folder)
        _settle(folder)
        add_network_files(folder, files)
        write_atomic(folder / PENDING_TENSORS, blob, durable=True)
    write_atomic(folder / DESCRIPTION, description.to_json().encode(), durable=blob is not None)
    _settle(folder)
    write_atomic(folder / CARD, model_card(description).encode(), durable=False)


def add_network_files(folder: Path, files: Sequence[str]) -> None:
    """Add to a folder the files that its network cannot be built without. Raises StoreError.

    These files have many MB and are equal for all sites of a run, so the first folder beside this
    one has a copy, and the others hard links to it where the disk can. None links to the source,
    which may belong to an installed package: whoever changed its bytes or its rights in a run's
    folder would change them there, and in all other runs.
    """
    for source in (Path(file).expanduser().resolve() for file in files):
        target = folder / f"{ENCODER_STEM}{source.suffix}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if target.exists() and cmp(source, target):
                continue
            target.unlink(missing_ok=True)
            beside = next((one for one in folder.parent.glob(f"*/{target.name}")), source)
            if beside == source or not cmp(source, beside) or not _linked(target, beside):
                copy2(source, target)
        except OSError as error:
            raise write_error(target, error) from error


def _linked(target: Path, source: Path) -> bool:
    """Make a hard link, and return whether the disk can."""
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True


def read_consistent(folder: Path) -> tuple[Description, bytes]:
    """Return a model's description and the bytes of its tensors, which belong together.

    Another process may replace the model meanwhile. Raises RunError where there is no model, or it
    is damaged.
    """
    why = other = f"its SHA-256 is not the one in {DESCRIPTION}"
    for _ in range(3):  # a run may replace the model between the reading of the two files
        description = read_description(folder)
        for name in (PENDING_TENSORS, TENSORS):
            try:
                blob = (folder / name).read_bytes()
            except OSError as error:
                why = str(error.strerror)
                continue
            if digest_of(blob) == description.model.sha256:
                return description, blob
            why = other
    raise damaged_model(folder / TENSORS, why)


def _settle(folder: Path) -> None:
    """Rename new tensors to `TENSORS` if the description is theirs.

    A writer that was killed may have left them; they are then of the new model, and the old
    tensors are replaced.
    """
    path = folder / PENDING_TENSORS
    try:
        if digest_of(path.read_bytes()) == read_description(folder).model.sha256:
            path.replace(folder / TENSORS)
    except (FileNotFoundError, RunError):
        return  # there are no new tensors, or no description says whose they are
    except OSError as error:
        raise write_error(path, error) from error


def model_folders(root: Path) -> list[Path]:
    """Return the models' folders inside a folder, sorted by name."""
    return sorted(path.parent for path in root.glob(f"*/{DESCRIPTION}"))


def write_all_sites_summaries(root: Path) -> None:
    """Write into each model's folder in `root` the summary over the models of all sites.

    Raises RunError where one of the models is damaged, and StoreError where the disk refuses.
    """
    found = {folder: read_description(folder) for folder in model_folders(root)}
    others = summarise_sites(list(found.values()))
    for folder, description in found.items():
        write_model(folder, replace(description, others=others))


def summarise_sites(models: Sequence[Description]) -> AllSitesSummary:
    """Return the summary of the models of all sites of a run on their own test images."""
    groups: list[list[Description]] = [[] for _ in LABEL_GROUPS]
    for one in models:
        origin = one.origin
        groups[label_group(origin.labelled / max(origin.labelled + origin.unlabelled, 1))].append(
            one
        )
    return AllSitesSummary(
        groups=tuple(
            LabelShareGroup(
                labels,
                len(group),
                sum(one.results.test.right for one in group),
                sum(one.results.test.images for one in group),
            )
            for labels, group in zip(LABEL_GROUPS, groups, strict=True)
        )
    )
