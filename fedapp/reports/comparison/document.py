"""The report of a comparison: tables.md, tables.html and figures/*.png, made from its files.

`fedapp report OUT` can make it at any time, of the cells that have run; the report begins with what
is missing.
"""

import re
from collections.abc import Iterable, Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from fedapp.core.disk import write_atomic
from fedapp.core.errors import RunError
from fedapp.core.formatting import counted
from fedapp.core.progress import slow_work_notice
from fedapp.reports.comparison.differences import (
    gains_table,
    harm_table,
    paired_table,
    references_of,
)
from fedapp.reports.comparison.figures import (
    accuracy_curves,
    confusion_figure,
    data_figure,
    error_curves,
    gain_by_labels_figure,
    harm_figure,
    png,
    sweep_figure,
)
from fedapp.reports.comparison.paper import PaperNumbers, read_printed
from fedapp.reports.comparison.record import LAST, ComparisonRecord, read_comparison
from fedapp.reports.comparison.style import featured
from fedapp.reports.comparison.summary import in_words
from fedapp.reports.comparison.sweep import sweeps
from fedapp.reports.comparison.tables import (
    TITLES,
    accuracy_table,
    answers_table,
    cost_table,
    fairness_table,
    label_table,
    paper_table,
    summary_table,
    sweep_table,
    value_table,
)
from fedapp.reports.layout import ImageFile, Section, Table, html_page, to_markdown
from fedapp.reports.statistics import compare_with_best

if TYPE_CHECKING:  # pandas is slow to import
    from pandas import DataFrame

MOST_NAMED = 12
"""Number of places with missing cells that are named; further ones are counted."""
REFERENCES = ("um_pfssl_mi_labels", "um_pfssl_mi", "um_pfssl")
"""The reference method is the first of these presets that was run, else the first method."""


def write_report(out: Path, reference: str = "") -> list[Path]:
    """Write the report of the comparison in the folder `out`.

    Args:
        out: the comparison's folder.
        reference: the method that the others are compared with; empty: the one that the grid names,
            else as `REFERENCES` says.

    Returns:
        The files that were written, the tables first.

    Raises:
        RunError: `out` holds no comparison or a damaged one, or there is no such method.
    """
    comparison = read_comparison(out)
    reference = reference or comparison.reference
    if reference and reference not in comparison.methods:
        raise RunError(
            f"reference '{reference}': is not in this comparison; choose one of "
            f"{', '.join(comparison.methods)}"
        )
    numbers = PaperNumbers(comparison, read_printed())
    pictures: dict[str, list[ImageFile]] = {}
    written = []
    with slow_work_notice("drawing the figures, and making the tables"):
        for section, picture, figure in _figures(comparison, numbers):
            path = out / picture.file
            write_atomic(path, png(figure), durable=False)
            written.append(path)
            pictures.setdefault(section, []).append(picture)
        sections = _sections(comparison, numbers, reference or _reference(comparison), pictures)
    texts = {
        "tables.md": to_markdown(comparison.title, sections),
        "tables.html": html_page("comparison", title=comparison.title, sections=sections),
    }
    for name, text in texts.items():
        write_atomic(out / name, text.encode(), durable=False)
    return [*(out / name for name in texts), *written]


SUMMARY, ACCURACY, SWEEPS, DIFFERENCES = "Summary", "Accuracy", "Sweeps", "Paired differences"
HARM, FAIRNESS, COST, MISTAKES = "Harm", "Fairness", "Cost", "Mistakes and features"


def _sections(
    comparison: ComparisonRecord,
    numbers: PaperNumbers,
    reference: str,
    pictures: dict[str, list[ImageFile]],
) -> list[Section]:
    weak = [*_missing(comparison), *_doubts(comparison)]
    first = condition(comparison.results, comparison.seeds)
    made = Section("How the numbers were made", facts(comparison))
    if comparison.results.empty:
        return [Section(SUMMARY, [first, *weak]), made]
    several = len(comparison.methods) > 1
    of_settings = {name: compare_with_best(comparison.units(name)) for name in comparison.settings}
    told = [
        f"{name}: {in_words(found, comparison.label)}"
        for name, found in of_settings.items()
        if found
    ]
    gains = gains_table(comparison)
    harms = [harm_table(comparison, found) for found in references_of(comparison)]
    tables = {
        SUMMARY: [summary_table(comparison)],
        ACCURACY: _accuracy(comparison, numbers),
        SWEEPS: _swept(comparison, numbers),
        DIFFERENCES: [paired_table(comparison, reference)] if several else [],
        HARM: [one for one in (gains, *harms) if one and not one.empty] if several else [],
        FAIRNESS: [fairness_table(comparison), label_table(comparison)],
        COST: [cost_table(comparison)],
        MISTAKES: [],
    }
    found = [
        Section(title, [first, *told, *weak] * (title == SUMMARY), of, pictures.get(title, ()))
        for title, of in tables.items()
        if of or title in pictures
    ]
    return [*found, made]


def _accuracy(comparison: ComparisonRecord, numbers: PaperNumbers) -> list[Table]:
    """Return the tables of accuracy. A sweep over all settings has a section of its own instead."""
    tables = [paper_table(comparison, numbers)]
    given = [sweep.settings for sweep in sweeps(comparison) if sweep.of_the_data]
    if set(comparison.settings) not in given:
        tables.insert(0, accuracy_table(comparison))
    if answers := answers_table(comparison):
        tables.append(answers)
    return tables


def _swept(comparison: ComparisonRecord, numbers: PaperNumbers) -> list[Table]:
    tables: list[Table] = []
    for sweep in sweeps(comparison):
        if sweep.of_the_data:
            tables += [value_table(comparison, sweep, column) for column in TITLES]
        else:
            tables.append(sweep_table(comparison, sweep, numbers))
    return tables


def _figures(
    comparison: ComparisonRecord, numbers: PaperNumbers
) -> Iterator[tuple[str, ImageFile, Figure]]:
    """Yield each figure that there are data for, with the section it belongs to."""
    over_seeds = (
        "Mean over seeds; a band, drawn where there are few methods, is one sample standard "
        "deviation over seeds."
    )
    if figure := accuracy_curves(comparison):
        yield ACCURACY, _picture("curves", "Test accuracy per round", over_seeds), figure
    for sweep in sweeps(comparison):
        if sweep.of_the_data:
            if figure := data_figure(comparison, sweep):
                caption = (
                    "At the round selected on validation images, mean ± sd over seeds. Points of "
                    f"one value of {sweep.parameter} stand side by side."
                )
                title = f"Accuracy by {sweep.parameter}"
                yield SWEEPS, _picture(f"sweep-{sweep.parameter}", title, caption), figure
        elif figure := sweep_figure(comparison, sweep, numbers):
            title = f"Accuracy and cost by {sweep.parameter}"
            caption = (
                "Filled: ours at the round selected on validation images, mean ± sd over seeds. "
                "Dashed: ours at the best round by test accuracy. Hollow: the paper's."
            )
            yield SWEEPS, _picture(f"sweep-{sweep.parameter}", title, caption), figure
    first = featured(comparison.methods, comparison.presets)
    if figure := harm_figure(comparison, first):
        caption = (
            "Each site's test accuracy less that of the model it trains alone, at their selected "
            "rounds; the sites of all seeds, sorted for each method by itself. Left of where a "
            "line meets zero are the sites that are worse off. The axis is even up to 5 points "
            "each way, then logarithmic."
        )
        yield HARM, _picture("harm", "Sites worse and better than alone", caption), figure
    if figure := gain_by_labels_figure(comparison, first):
        caption = (
            "Each site's gain over its best alone, at the selected rounds, by how many of its "
            "training images have labels; sites without labels have nothing to compare. Dotted "
            "lines end the groups of which the means are."
        )
        yield HARM, _picture("gain-by-labels", "Gain by number of labels", caption), figure
    if figure := error_curves(comparison):
        yield (
            COST,
            _picture("pseudo-label-error", "Pseudo-label error per round", over_seeds),
            figure,
        )
    for number, setting in enumerate(comparison.settings, 1):
        if figure := confusion_figure(comparison, setting):
            caption = (
                "Share of each true class's test images, in %, by predicted class; summed over "
                "sites and seeds, after the last round. Shares under 0.5 % are not printed."
            )
            title = f"Confusion matrices, {setting}"
            yield MISTAKES, _picture(f"confusion-{number}-{setting}", title, caption), figure


def _picture(name: str, title: str, caption: str) -> ImageFile:
    """Return a figure's description; its file name has only letters that are safe in URLs."""
    return ImageFile(f"figures/{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.png", title, caption)


def _reference(comparison: ComparisonRecord) -> str:
    there = (found for preset in REFERENCES if (found := comparison.method(preset)))
    return next(there, comparison.methods[0] if comparison.methods else "")


def facts(comparison: ComparisonRecord) -> list[str]:
    """Return the last paragraphs of a report: its size, names and versions."""
    return [_size(comparison), *_names(comparison)]


def _size(comparison: ComparisonRecord) -> str:
    planned = len(comparison.settings) * len(comparison.methods) * len(comparison.seeds)
    return (
        f"Methods: {len(comparison.methods)}; settings: {len(comparison.settings)}. "
        f"{len(comparison.results)} of {counted(planned, 'cells')} have a result."
    )


def condition(cells: "DataFrame", seeds: Iterable[int]) -> str:
    """Return the line that a page of tables begins with: data, sites, rounds, alpha, seeds.

    cells: rows of results.csv, at least their dataset, sites, rounds and alpha; alpha is missing
    where it is not what images are dealt by.
    """
    known = cells[["dataset", "sites", "rounds", "alpha"]].dropna(subset=["dataset", "sites"])
    alphas: dict[str, set[float]] = {}
    for data, sites, rounds, alpha in known.values:
        place = f"{data}, {counted(int(sites), 'sites')}, {counted(int(rounds), 'rounds')}"
        alphas.setdefault(place, set()).update([] if alpha is None or isnan(alpha) else [alpha])
    said = [
        place + f", alpha {', '.join(f'{a:g}' for a in sorted(of))}" * bool(of)
        for place, of in alphas.items()
    ]
    drawn = [str(seed) for seed in seeds]
    by = f"seed{'s' * (len(drawn) > 1)} {', '.join(drawn)}"
    return f"Condition: {'; '.join([*said, by])}."


def _missing(comparison: ComparisonRecord) -> Iterator[str]:
    lost: dict[str, list[str]] = {}
    for setting, method, seed in comparison.missing:
        lost.setdefault(f"{setting}, {comparison.looks[method].label}", []).append(str(seed))
    if lost:
        listed = [f"{place}: seed {', '.join(seeds)}" for place, seeds in lost.items()]
        more = f"; and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
        yield f"Missing: {'; '.join(listed[:MOST_NAMED])}{more}."


def _names(comparison: ComparisonRecord) -> Iterator[str]:
    behind = {comparison.looks[m].label: comparison.presets.get(m, m) for m in comparison.methods}
    other = [f"{label} = {preset}" for label, preset in behind.items() if label != preset]
    if other:
        yield f"Names of the presets: {', '.join(other)}."
    if comparison.answers:
        scored = [
            f"{comparison.looks[m].label}: the {answer} answer of {comparison.presets.get(m, m)}"
            for m, answer in comparison.answers.items()
        ]
        yield (
            f"Scored by another answer than the one in use: {'; '.join(scored)}. Where another row "
            "has the same settings, both are of the same runs."
        )
    if comparison.versions:
        versions = (f"{name} {version}" for name, version in comparison.versions.items())
        yield f"Versions: {', '.join(versions)}."


def _doubts(comparison: ComparisonRecord) -> Iterator[str]:
    cells = comparison.results
    last = set(cells.index.get_level_values("setting")[cells["selected_by"] == LAST])
    if comparison.judged == "last":
        yield (
            "Every run is judged at its last round: wherever a table or a figure says selected, it "
            "is the last round."
        )
    elif last:
        places = "; ".join(setting for setting in comparison.settings if setting in last)
        yield f"There are no validation images in {places}: the selected round is the last one."
    codes = sorted(set(cells["code"]) - {""})
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
