"""A model's folder as it is written, and what all folders of a run tell together."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedapp.ground.disk import write_atomic
from fedapp.learn.keeping import Choice
from fedapp.learn.metrics import LABEL_GROUPS, label_group
from fedapp.models.card import CARD, card
from fedapp.models.description import (
    DESCRIPTION,
    TENSORS,
    Description,
    Group,
    Others,
    read_description,
)


def write_model(folder: Path, description: Description, blob: bytes | None = None) -> None:
    """Write a model's folder. blob: its tensors; None: they are there. Raises StoreError.

    The tensors come first: a folder whose writer was killed between the two is known as damaged.
    """
    if blob is not None:
        write_atomic(folder / TENSORS, blob, durable=True)
    write_atomic(folder / DESCRIPTION, description.to_json().encode(), durable=blob is not None)
    write_atomic(folder / CARD, card(description).encode(), durable=False)


def model_folders(root: Path) -> list[Path]:
    """Return the folders of models that lie in a folder, by name; none where there is none."""
    return sorted(path.parent for path in root.glob(f"*/{DESCRIPTION}"))


def tell_of_others(root: Path) -> None:
    """Write into each model's folder in `root` what the models of all sites are worth.

    Raises RunError where one of them is damaged, StoreError.
    """
    found = {folder: read_description(folder) for folder in model_folders(root)}
    others = together(list(found.values()))
    for folder, description in found.items():
        write_model(folder, replace(description, others=others))


def together(models: Sequence[Description]) -> Others:
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
    return Others(
        groups=tuple(
            Group(
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
