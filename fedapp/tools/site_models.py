"""`fedapp site`: the models that a site keeps of its runs, shown and, for a simulation, checked."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedapp.core.devices import pick_device, torch_threads
from fedapp.core.disk import write_atomic
from fedapp.core.errors import DataError, RunError
from fedapp.core.formatting import percent, size
from fedapp.core.progress import slow_work_notice
from fedapp.evaluation.model_selection import USED, Choice, candidates
from fedapp.experiment.run_folder import RunFolder, find_run
from fedapp.models.card import ANSWER_NAMES, joining_verdict, when
from fedapp.models.description import (
    DESCRIPTION,
    TENSORS,
    Description,
    MeasuredAccuracy,
    ModelChoice,
    read_description,
)
from fedapp.models.folder import model_folders, write_all_sites_summaries, write_model
from fedapp.models.maker import INEXACT_NOTE, ModelMaker, measure_test_answers
from fedapp.models.model import load_model
from fedapp.protocol.messages import EVALUATE, Task
from fedapp.server.finished_run import FinishedRun, finished_run
from fedapp.site.federation import LoadedSites, federation_of

_MODEL_ROOTS = ("models", "models/*", "*/models")
"""Where the folders of models are, relative to a run, to a node's store-path or to all runs."""


def kept_models(folder: Path) -> list[Path]:
    """Return the folders of all models below a folder, sorted by path.

    folder: a run, a node's store-path or the folder of all runs. Raises RunError if there are none.
    """
    roots = {folder, *(root for place in _MODEL_ROOTS for root in folder.glob(place))}
    found = {path for root in roots for path in model_folders(root)}
    if not found:
        is_run = (folder / "run.json").is_file()
        elsewhere = RunFolder(folder).models_elsewhere if is_run else ""
        raise RunError(
            f"{folder}: no models of a site: "
            + (elsewhere or "name a node's FEDAPP_SITES, a run, or the folder that holds your runs")
        )
    return sorted(found)


def show_site(folder: Path, console: Console, pages: Path | None, at: float) -> None:
    """Print of every model which run it is from, why it was kept and how good it is.

    folder: as of `kept_models`, or the name of a run. pages: folder that gets a page about each
    model (`reports.site_report`); None: no pages. at: the specificity, in [0, 1], at which these
    pages give sensitivities. Raises RunError if there is no model or one is damaged, StoreError if
    a page cannot be written.
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
    """Return the description of one model as lines of text."""
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
        ("validation", _accuracy_in_words(results.val, what)),
        ("test", _accuracy_in_words(results.test, what)),
    ]
    if alone is not None:
        counts = (
            f"{alone.val_right} of {alone.val_images} validation and {alone.test_right} of "
            f"{alone.test_images} test {what} right"
        )
        table.append(("trained alone", f"round {alone.round}: {counts}"))
    title = f"{origin.run}: site {origin.called}, {origin.method}"
    return [title, *(f"  {name:14}{text}" for name, text in table)]


def _accuracy_in_words(found: MeasuredAccuracy, what: str) -> str:
    if not found.images:
        return (
            "not measured: no image is labelled, or the site's terms withheld them (least_count in "
            "site.yaml)"
        )
    return (
        f"{found.right} of {found.images} {what} right, {percent(found.accuracy)} % "
        f"(95 % interval {found.ends})"
    )


WHY_REMADE = "the last answer that the site used: what it kept during the run is gone"
"""The reason given for a model that is made anew. The run's own choice is lost with the kept model,
and the pool holds only the models of the last round."""


@dataclass(frozen=True)
class CheckedModel:
    """A site's model in its folder. size: bytes of its tensors."""

    folder: Path
    description: Description
    size: int


def checked_models(run: FinishedRun) -> list[CheckedModel]:
    """Check the kept model of every site of a simulated run; make it anew where it is gone.

    A model is checked on its site's test images, so the sites' data must be on this machine; to
    make a model anew also the state that a method keeps private at the site. Raises RunError if the
    run is not finished, the data have changed or the run's models are gone, and what reading the
    data raises.
    """
    last = run.experiment.rounds.num_rounds
    if run.state.round != last:
        raise RunError(
            f"{run.path}: round {run.state.round} of {last}: finish the run with "
            "runtime.resume=true"
        )
    try:
        with slow_work_notice("reading the sites' data"):
            federation = federation_of(run.experiment)
    except DataError as error:
        if elsewhere := RunFolder(run.path).models_elsewhere:
            raise RunError(f"{run.path}: the sites' data are not here: {elsewhere}") from error
        raise
    if {facts.split_digest for facts in run.facts.values()} != {federation.digest}:
        raise RunError(
            f"{run.path}: its sites held other images than data.root has now: restore the data"
        )
    root = RunFolder(run.path).models_root
    folders = {k: root / run.facts[k].folder for k in sorted(run.state.standings.sites)}
    with torch_threads(run.experiment.runtime.threads):
        for number, folder in folders.items():
            with slow_work_notice(f"the model of site {number}, of {len(folders)}"):
                if (folder / DESCRIPTION).exists():
                    _check(folder, federation, number)
                else:
                    _make(folder, run, federation, number)
    write_all_sites_summaries(root)
    return [
        CheckedModel(folder, read_description(folder), (folder / TENSORS).stat().st_size)
        for folder in folders.values()
    ]


def check_models(run: str, console: Console) -> None:
    """Check the models of a run, given by name or folder, and print one line for each."""
    finished = finished_run(find_run(run))
    notes = set()
    for done in checked_models(finished):
        console.print(_line(done), highlight=False, soft_wrap=True, markup=False)
        notes.add(done.description.results.note)
    for note in sorted(notes - {""}):
        console.print(f"Note: {note}", highlight=False, soft_wrap=True, markup=False)


def _check(folder: Path, federation: LoadedSites, number: int) -> None:
    """Evaluate a kept model again; note in its description if it answers otherwise than before."""
    model, description = load_model(folder, pick_device("auto"))
    data = federation.dealt.site(number)
    found = measure_test_answers(model.probabilities(data.test), data)
    results = description.results
    if found != results.test:
        results = replace(results, exact=False, note=INEXACT_NOTE, test=found)
        write_model(folder, replace(description, results=results))


def _make(folder: Path, run: FinishedRun, federation: LoadedSites, number: int) -> None:
    """Write the model that a site answers with after the last round."""
    if not run.pool.store.root.is_dir():
        raise RunError(f"{run.path}: its models were removed: run it again")
    experiment, facts = run.experiment, run.facts[number]
    own = RunFolder(run.path).sites_root / f"site-{number}"
    site = federation.site(number, experiment, run.pool.store, own, shares_pool=True)
    task = Task(
        site=number,
        round=run.state.round,
        action=EVALUATE,
        own=run.pool.latest(number),
        models=run.pool.server_contents(),
        private=run.state.private.get(number, ""),
    )
    context, lost = site.context(task)
    if lost:
        raise RunError(
            f"{run.path}: sites/site-{number}, what the site kept to itself, is gone: restore it "
            "from a copy or run again"
        )
    reported = run.state.standings.sites[number].latest
    used = [
        one
        for one in candidates(task.round, reported, task.round < experiment.method.joins_at)
        if one.answer == USED
    ]
    why = ModelChoice(USED, WHY_REMADE, None, tuple(used))
    maker = ModelMaker(run.path.name, experiment, facts, federation.are_images)
    networks = experiment.method.used(task, context)
    made = maker.make(context, networks, reported, task.round, why)
    write_model(folder, made.description, made.blob, experiment.model.files)


def _line(done: CheckedModel) -> str:
    test = done.description.results.test
    worth = "no test images"
    if test.images:
        what = "findings in test images" if done.description.model.finds else "test images"
        worth = f"{test.right} of {test.images} {what} right, {test.ends}"
    return f"{done.folder}  {size(done.size)}  {worth}"
