"""`fedapp site`: what a site has of the runs that it took part in, from its own folder alone."""

from pathlib import Path

from rich.console import Console

from fedapp.core.disk import write_atomic
from fedapp.core.errors import RunError
from fedapp.core.formatting import percent
from fedapp.core.progress import slow_work_notice
from fedapp.evaluation.model_selection import Choice
from fedapp.experiment.run_folder import find_run
from fedapp.models.card import ANSWER_NAMES, joining_verdict, when
from fedapp.models.description import Description, MeasuredAccuracy, read_description
from fedapp.models.folder import model_folders

_PLACES = ("models", "models/*", "*/models")
"""Where folders of models lie, as seen from a run, a node's store-path and a folder of runs."""


def kept_models(folder: Path) -> list[Path]:
    """Return the folders of the models that lie below a folder, by name.

    Raises RunError where there are none.
    """
    roots = {folder, *(root for place in _PLACES for root in folder.glob(place))}
    found = {path for root in roots for path in model_folders(root)}
    if not found:
        raise RunError(
            f"{folder}: no models of a site: name a node's store-path, a run's folder, or the "
            "folder that holds your runs"
        )
    return sorted(found)


def show_site(folder: Path, console: Console, pages: Path | None, at: float) -> None:
    """Print every model that is kept below a folder, or a run of this name: which, why, how good.

    pages: folder for a page of each (`reports.site_report`), where they are wanted. at: specificity
    of the sensitivities there. Raises RunError where there is no model or one is damaged,
    StoreError.
    """
    for path in kept_models(folder if folder.is_dir() else find_run(str(folder))):
        description = read_description(path)
        lines = lines_of(path, description)
        if pages is not None:
            origin = description.origin
            page = pages / f"{origin.run}-{origin.called}.html"
            with slow_work_notice(f"page of {origin.called}"):
                # Matplotlib and scikit-learn take seconds to import.
                from fedapp.reports.site_report import site_page, view_of_model

                text = site_page(view_of_model(path, at))
                write_atomic(page, text.encode(), durable=False)
            lines.append(f"  {'page':14}{page}")
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        console.print()


def lines_of(folder: Path, description: Description) -> list[str]:
    """Return what a person reads of one model."""
    origin, choice, results = description.origin, description.choice, description.results
    alone = Choice(choice.candidates).alone
    what = "findings in images" if description.model.finds else "images"
    table = [
        ("joining", joining_verdict(description)),
        *(("warning", light) for light in description.lights),
        *([("privacy", description.claim)] if description.claim else []),
        ("model", str(folder)),
        ("kept", f"{ANSWER_NAMES[choice.answer]}, {when(description)}"),
        ("why", choice.rule),
        ("validation", _worth(results.val, what)),
        ("test", _worth(results.test, what)),
    ]
    if alone is not None:
        counts = (
            f"{alone.val_right} of {alone.val_images} validation and {alone.test_right} of "
            f"{alone.test_images} test {what} right"
        )
        table.append(("trained alone", f"round {alone.round}: {counts}"))
    title = f"{origin.run}: site {origin.called}, {origin.method}"
    return [title, *(f"  {name:14}{text}" for name, text in table)]


def _worth(found: MeasuredAccuracy, what: str) -> str:
    if not found.images:
        return "no labelled images: how good it is cannot be measured here"
    return (
        f"{found.right} of {found.images} {what} right, {percent(found.accuracy)} % "
        f"(95 % interval {found.ends})"
    )
