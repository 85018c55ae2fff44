"""A site's vectors: their width, and whether their numbers lie where the sites agreed they do."""

from torch import Tensor

from fedapp.data.copies import content_of
from fedapp.ground.settings import DataSettings
from fedapp.tools.datacheck.findings import Finding, note

FAR = 3.0
"""How many agreed standard deviations a site's mean may be from the agreed one."""
OTHER_SCALE = 10.0
"""By which factor a site's standard deviation may differ from the agreed one."""
UNEVEN = 1000.0
"""By which factor columns' scales may differ: beyond, the smaller says nothing to a network."""


def look_at_vectors(
    values: Tensor, settings: DataSettings | None
) -> tuple[list[str], list[tuple[str, str]], list[Finding]]:
    """Return the vectors' contents, what they are in words, and what is odd about them.

    values: float32 [n, D], n >= 1, finite.
    """
    numbers = values.double()
    mean, std = float(numbers.mean()), float(numbers.std(correction=0))
    said = f"{values.shape[1]} numbers each, mean {mean:.3g}, standard deviation {std:.3g}"
    contents = [content_of(row) for row in values]
    facts = [("vectors", f"{said}; below each is called an image")]
    return contents, facts, _odd(numbers, mean, std, settings)


def _odd(numbers: Tensor, mean: float, std: float, settings: DataSettings | None) -> list[Finding]:
    """Return which numbers a network would learn little from."""
    columns, found = numbers.std(0, correction=0), list[Finding]()
    moving = columns[columns > 0]
    if len(moving) and moving.max() > UNEVEN * moving.min():
        what = f"columns have standard deviations from {moving.min():.3g} to {moving.max():.3g}"
        remedy = "the largest outweigh all others; agree on a scale of each, and divide by it"
        found.append(note(what, remedy))
    if len(moving) < len(columns):
        what = f"{len(columns) - len(moving)} columns have one value in all rows"
        found.append(note(what, "they say nothing here; the other sites' may"))
    if settings is None:
        return found
    far = abs(mean - settings.mean) > FAR * settings.std
    if far or not settings.std / OTHER_SCALE <= std <= settings.std * OTHER_SCALE:
        what = f"agreed are data.mean = {settings.mean:g} and data.std = {settings.std:g}"
        remedy = f"your numbers have {mean:.3g} and {std:.3g}; have both settings changed for all"
        found.append(note(what, remedy))
    return found
