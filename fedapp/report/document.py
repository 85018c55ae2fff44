"""The report of a comparison: tables.md, tables.html and figures/*.png, made from its files.

`fedapp report OUT` makes it anew, at any time, of what is there; what is missing
is said first.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from fedapp.disk import write_atomic
from fedapp.errors import RunError
from fedapp.report.confusion import confusion_figure
from fedapp.report.cost import cost_table, sweep_table
from fedapp.report.facts import facts
from fedapp.report.fairness import fairness_table, label_table
from fedapp.report.figures import accuracy_curves, error_curves, png, variance_bars
from fedapp.report.layout import Best, Picture, Section, to_markdown
from fedapp.report.paper import PaperNumbers, read_printed
from fedapp.report.reading import read_comparison
from fedapp.report.records import Comparison
from fedapp.report.significance import paired_table
from fedapp.report.sweep import sweeps
from fedapp.report.sweep_figure import sweep_figure
from fedapp.report.tables import accuracy_table, paper_table
from fedapp.report.tsne import latent_figure

REFERENCES = ("um_pfssl_mi_labels", "um_pfssl_mi", "um_pfssl")
"""What the others are compared with: the first of these that is there, else the first method."""


def write_report(out: Path, reference: str = "") -> list[Path]:
    """Write the report of the comparison in `out`; return the files, the tables first.

    reference: the method that the others are compared with; empty: as `REFERENCES` says.
    Raises RunError where `out` holds no comparison or a damaged one, or there is no such method.
    """
    comparison = read_comparison(out)
    if reference and reference not in comparison.methods:
        raise RunError(
            f"reference '{reference}': is not in this comparison; choose one of "
            f"{', '.join(comparison.methods)}"
        )
    numbers = PaperNumbers(comparison, read_printed())
    pictures: dict[str, list[Picture]] = {}
    written = []
    for section, picture, figure in _figures(comparison, numbers):
        path = out / picture.file
        write_atomic(path, png(figure), durable=False)
        written.append(path)
        pictures.setdefault(section, []).append(picture)
    sections = _sections(comparison, numbers, reference or _reference(comparison), pictures)
    texts = {
        "tables.md": to_markdown(comparison.title, sections),
        "tables.html": _html(comparison.title, sections),
    }
    for name, text in texts.items():
        write_atomic(out / name, text.encode(), durable=False)
    return [*(out / name for name in texts), *written]


ACCURACY, DIFFERENCES, FAIRNESS = "Accuracy", "Paired differences", "Fairness"
COST, SWEEPS, MISTAKES = "Cost", "Sweeps", "Mistakes and features"


def _sections(
    comparison: Comparison,
    numbers: PaperNumbers,
    reference: str,
    pictures: dict[str, list[Picture]],
) -> list[Section]:
    sections = [Section("What was compared", facts(comparison))]
    if not comparison.cells:
        return sections
    swept = [sweep_table(comparison, sweep, numbers) for sweep in sweeps(comparison)]
    accuracy = [accuracy_table(comparison), paper_table(comparison, numbers)]
    sections.append(Section(ACCURACY, (), accuracy, pictures.get(ACCURACY, ())))
    if swept:
        sections.append(Section(SWEEPS, (), swept, pictures.get(SWEEPS, ())))
    if len(comparison.methods) > 1:
        sections.append(Section(DIFFERENCES, (), [paired_table(comparison, reference)]))
    fairness = [fairness_table(comparison), label_table(comparison)]
    sections.append(Section(FAIRNESS, (), fairness, pictures.get(FAIRNESS, ())))
    sections.append(Section(COST, (), [cost_table(comparison)], pictures.get(COST, ())))
    if MISTAKES in pictures:
        sections.append(Section(MISTAKES, (), (), pictures[MISTAKES]))
    return sections


def _figures(
    comparison: Comparison, numbers: PaperNumbers
) -> Iterator[tuple[str, Picture, Figure]]:
    """Yield every figure that there is data for, and the section it belongs to."""
    over_seeds = (
        "Mean over seeds; a band, drawn where there are few methods, is one sample standard "
        "deviation over seeds."
    )
    if figure := accuracy_curves(comparison):
        yield ACCURACY, _picture("curves", "Test accuracy per round", over_seeds), figure
    for sweep in sweeps(comparison):
        if figure := sweep_figure(comparison, sweep, numbers):
            title = f"Accuracy and cost by {sweep.parameter}"
            caption = (
                "Filled: ours at the round selected on validation images, mean ± sd over seeds. "
                "Dashed: ours at the best round by test accuracy. Hollow: the paper's."
            )
            yield SWEEPS, _picture(f"sweep-{sweep.parameter}", title, caption), figure
    if figure := variance_bars(comparison):
        caption = (
            "Variance of test accuracy over sites at the selected round: mean over seeds, the line "
            "one sample standard deviation over seeds. Shorter is fairer."
        )
        yield FAIRNESS, _picture("variance", "Variance over sites", caption), figure
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
        if figure := latent_figure(comparison, setting):
            caption = (
                "t-SNE of the network's last hidden features; colour is the class, marker the "
                "site. Distances between clusters mean nothing."
            )
            title = f"Latent features, {setting}"
            yield MISTAKES, _picture(f"latent-{number}-{setting}", title, caption), figure


def _picture(name: str, title: str, caption: str) -> Picture:
    """Name a figure's file after what it shows, in letters that every file system and URL takes."""
    return Picture(f"figures/{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.png", title, caption)


def _reference(comparison: Comparison) -> str:
    there = (found for preset in REFERENCES if (found := comparison.method(preset)))
    return next(there, comparison.methods[0] if comparison.methods else "")


def _html(title: str, sections: list[Section]) -> str:
    """Return the report as one page that needs nothing but its figures."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["best"] = lambda entry: isinstance(entry, Best)
    return environment.get_template("page.html.j2").render(title=title, sections=sections)
