"""A model's folder as it is written, and what all folders of a run tell together."""

from collections.abc import Sequence
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from shutil import copy2

from fedapp.core.disk import remove_stale, write_atomic, write_error
from fedapp.core.errors import RunError
from fedapp.evaluation.model_selection import Choice
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
"""New tensors, from when they are written until the description that names them is."""


def write_model(
    folder: Path,
    description: Description,
    blob: bytes | None = None,
    files: Sequence[str] = (),
) -> None:
    """Write a model's folder. blob: its tensors; None: they are there. Raises StoreError.

    files: that the network cannot be built without; the folder gets them too.

    Killed anywhere, it leaves the old model or the new one, as `read_consistent` finds it: the
    description alone says which tensors count.
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
    """Give a folder the files that a network cannot be built without. Raises StoreError.

    They are many MB and equal for all sites: on one disk they are links.
    """
    for source in (Path(file).expanduser().resolve() for file in files):
        target = folder / f"{ENCODER_STEM}{source.suffix}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if target.exists() and cmp(source, target):
                continue
            target.unlink(missing_ok=True)
            try:
                target.hardlink_to(source)
            except OSError:  # another disk
                copy2(source, target)
        except OSError as error:
            raise write_error(target, error) from error


def read_consistent(folder: Path) -> tuple[Description, bytes]:
    """Return a model's description and its tensors, which may be replaced meanwhile.

    Raises RunError where there is no model, or it is damaged.
    """
    why = other = f"its SHA-256 is not the one in {DESCRIPTION}"
    for _ in range(3):  # between one file and the other a run may have kept a better model
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
    """Give new tensors their name, where the description is of them."""
    path = folder / PENDING_TENSORS
    try:
        if digest_of(path.read_bytes()) == read_description(folder).model.sha256:
            path.replace(folder / TENSORS)
    except (FileNotFoundError, RunError):
        return  # there are none, or nobody can tell of which model they are
    except OSError as error:
        raise write_error(path, error) from error


def model_folders(root: Path) -> list[Path]:
    """Return the folders of models that lie in a folder, by name; none where there is none."""
    return sorted(path.parent for path in root.glob(f"*/{DESCRIPTION}"))


def write_all_sites_summaries(root: Path) -> None:
    """Write into each model's folder in `root` what the models of all sites are worth.

    Raises RunError where one of them is damaged, StoreError.
    """
    found = {folder: read_description(folder) for folder in model_folders(root)}
    others = summarise_sites(list(found.values()))
    for folder, description in found.items():
        write_model(folder, replace(description, others=others))


def summarise_sites(models: Sequence[Description]) -> AllSitesSummary:
    """Return what the models of all sites of a run are worth on their own test images."""
    groups: list[list[Description]] = [[] for _ in LABEL_GROUPS]
    compared = harmed = 0
    for one in models:
        origin, choice = one.origin, one.choice
        groups[label_group(origin.labelled / max(origin.labelled + origin.unlabelled, 1))].append(
            one
        )
        alone = Choice(choice.candidates).alone
        if alone and alone.test_images and not all(c.alone for c in choice.candidates):
            compared += 1
            harmed += one.results.test.right < alone.test_right
    return AllSitesSummary(
        groups=tuple(
            LabelShareGroup(
                labels,
                len(group),
                sum(one.results.test.right for one in group),
                sum(one.results.test.images for one in group),
            )
            for labels, group in zip(LABEL_GROUPS, groups, strict=True)
        ),
        compared=compared,
        harmed=harmed,
    )
