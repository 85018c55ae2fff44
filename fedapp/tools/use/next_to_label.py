"""`fedapp next-to-label`: chooses the images that a person should label first."""

from collections.abc import Sequence
from pathlib import Path

from fedapp.core.devices import pick_device
from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, DataError
from fedapp.core.formatting import counted, csv_text
from fedapp.core.progress import image_progress
from fedapp.models.listing import list_images
from fedapp.models.model import load_model
from fedapp.models.predict import Prediction, PredictionOptions, predictions

COLUMNS = ("rank", "file", "class", "probability", "entropy", "lead")


def next_to_label(folder: Path, images: Path, count: int, out: Path) -> list[str]:
    """Write the images to label first as a CSV file; return the lines to print.

    This is margin sampling (Scheffer, Decomain, Wrobel 2001): first come the images whose most
    probable class is ahead of the second by the least probability. docs/results/using.md says what
    it saves. Images with a label, from the CSV file or their folder, are skipped.

    count: how many images to choose. Raises DataError if no image without a label can be used, and
    what `list_images` and `load_model` raise.
    """
    model, description = load_model(folder, pick_device("auto"))
    if not description.model.images:
        raise DataError(f"{folder}: the model takes no images, and a person labels what is seen")
    if description.model.finds:
        raise ConfigError(
            f"{folder}: answers findings, and images are chosen by their classes: label by hand"
        )
    listed = list_images(images)
    open_ones = [image for image in listed if not image.label]
    asked: list[Prediction] = []
    with image_progress("images", len(open_ones)) as done:
        for found in predictions(model, description.calibration, open_ones, PredictionOptions()):
            asked += [one for one in found if isinstance(one, Prediction)]
            done(len(found))
    if not asked:
        raise DataError(f"{images}: no image without a label that can be used: name others")
    chosen = sorted(asked, key=lambda one: one.lead)[:count]  # ties keep the images' order
    write_atomic(out, _table(chosen).encode(), durable=False)
    lines = [
        f"{out}: {len(chosen)} of {counted(len(asked), 'images')} without a label chosen",
    ]
    if passed := len(listed) - len(open_ones):
        lines.append(f"images with a label, ignored: {passed:,}")
    if unread := len(open_ones) - len(asked):
        lines.append(f"images that cannot be used: {unread:,}; `fedapp predict` names the first")
    return lines


def _table(chosen: Sequence[Prediction]) -> str:
    rows: list[tuple[object, ...]] = [COLUMNS]
    for rank, one in enumerate(chosen, start=1):
        numbers = (one.probability, one.entropy, one.lead)
        rows.append((rank, one.image.name, one.label, *(f"{n:.6f}" for n in numbers)))
    return csv_text(rows)
