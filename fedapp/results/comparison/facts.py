"""What a reader must know before the tables: what ran, what is missing, what cannot be compared."""

from collections.abc import Iterator

from fedapp.results.comparison.looks import looks
from fedapp.results.comparison.record import LAST, Comparison

MOST_NAMED = 12
"""Methods of a setting with missing cells that are named; more are counted."""


def facts(comparison: Comparison) -> list[str]:
    """Return what stands at the head of a report, a paragraph each."""
    return [_size(comparison), *_missing(comparison), *_names(comparison), *_doubts(comparison)]


def _size(comparison: Comparison) -> str:
    cells = comparison.cells.values()
    planned = len(comparison.settings) * len(comparison.methods) * len(comparison.seeds)
    sized = {
        f"{cell.dataset}: {cell.sites:g} sites, {cell.rounds:g} rounds"
        for cell in cells
        if cell.sites is not None and cell.rounds is not None
    }
    counts = (
        f"Methods: {len(comparison.methods)}; settings: {len(comparison.settings)}; seeds: "
        f"{', '.join(map(str, comparison.seeds))}. {len(cells)} of {planned} cells have a result."
    )
    return " ".join([counts, *(f"{text}." for text in sorted(sized))])


def _missing(comparison: Comparison) -> Iterator[str]:
    names = looks(comparison.methods, comparison.presets)
    lost: dict[str, list[str]] = {}
    for setting, method, seed in comparison.missing:
        lost.setdefault(f"{setting}, {names[method].label}", []).append(str(seed))
    if lost:
        listed = [f"{place}: seed {', '.join(seeds)}" for place, seeds in lost.items()]
        more = f"; and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
        yield f"Missing: {'; '.join(listed[:MOST_NAMED])}{more}."


def _names(comparison: Comparison) -> Iterator[str]:
    names = looks(comparison.methods, comparison.presets)
    behind = {names[m].label: comparison.presets.get(m, m) for m in comparison.methods}
    other = [f"{label} = {preset}" for label, preset in behind.items() if label != preset]
    if other:
        yield f"Names of the presets: {', '.join(other)}."
    if comparison.answers:
        scored = [
            f"{names[m].label}: the {answer} answer of {comparison.presets.get(m, m)}"
            for m, answer in comparison.answers.items()
        ]
        yield (
            f"Scored by another answer than the one in use: {'; '.join(scored)}. Where another row "
            "has the same settings, both are of the same runs."
        )
    if comparison.versions:
        versions = (f"{name} {version}" for name, version in comparison.versions.items())
        yield f"Versions: {', '.join(versions)}."


def _doubts(comparison: Comparison) -> Iterator[str]:
    last = {key[0] for key, cell in comparison.cells.items() if cell.selected_by == LAST}
    if comparison.judged == "last":
        yield (
            "Every run is judged at its last round: wherever a table or a figure says selected, it "
            "is the last round."
        )
    elif last:
        places = "; ".join(setting for setting in comparison.settings if setting in last)
        yield f"There are no validation images in {places}: the selected round is the last one."
    codes = sorted({cell.code for cell in comparison.cells.values() if cell.code})
    if len(codes) > 1:
        yield (
            f"The cells were run by {len(codes)} versions of the code ({', '.join(codes)}): "
            "differences may come from that."
        )
    if differ := comparison.split_twice:
        places = "; ".join(f"{setting}, seed {seed}" for setting, seed in differ)
        yield (
            f"Not all methods ran on the same split in {places}: their paired differences mean "
            "nothing."
        )
