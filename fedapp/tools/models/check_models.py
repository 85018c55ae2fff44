"""`fedapp site --check`: checks each site's model of a finished run, or makes it anew if gone."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedapp.core.devices import pick_device, torch_threads
from fedapp.core.errors import RunError
from fedapp.core.formatting import size
from fedapp.core.progress import slow_work_notice
from fedapp.evaluation.model_selection import USED, candidates
from fedapp.experiment.run_folder import RunFolder, find_run
from fedapp.models.description import (
    DESCRIPTION,
    TENSORS,
    Description,
    ModelChoice,
    read_description,
)
from fedapp.models.folder import write_all_sites_summaries, write_model
from fedapp.models.maker import INEXACT_NOTE, ModelMaker, measure_test_answers
from fedapp.models.model import load_model
from fedapp.protocol.messages import EVALUATE, Task
from fedapp.server.finished_run import FinishedRun, finished_run
from fedapp.site.federation import LoadedSites, federation_of

LAST = "the last answer that the site used: what it kept during the run is gone"
"""Why it is this model, where the run's own choice is lost: only the last one is in the pool."""


@dataclass(frozen=True)
class Exported:
    """A site's model in its folder. size: bytes of its tensors."""

    folder: Path
    description: Description
    size: int


def export(run: FinishedRun) -> list[Exported]:
    """Check the model that every site of a run kept; make it from the run's last where it is gone.

    The sites' data, and for a model made anew what they keep to themselves, must be here, as in
    simulation: a model is measured on its site's images. Raises RunError where the run is not over,
    the data are others or its models are gone, and as reading the data does.
    """
    last = run.experiment.rounds.num_rounds
    if run.state.round != last:
        raise RunError(
            f"{run.path}: round {run.state.round} of {last}: finish the run with "
            "runtime.resume=true"
        )
    with slow_work_notice("reading the sites' data"):
        federation = federation_of(run.experiment)
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
        Exported(folder, read_description(folder), (folder / TENSORS).stat().st_size)
        for folder in folders.values()
    ]


def write_models(run: str, console: Console) -> None:
    """Write the models of the run of this name or folder, and say where they are."""
    finished = finished_run(find_run(run))
    notes = set()
    for done in export(finished):
        console.print(_line(done), highlight=False, soft_wrap=True, markup=False)
        notes.add(done.description.results.note)
    for note in sorted(notes - {""}):
        console.print(f"Note: {note}", highlight=False, soft_wrap=True, markup=False)


def _check(folder: Path, federation: LoadedSites, number: int) -> None:
    """Ask a kept model again; write down where it does not answer as it was measured."""
    model, description = load_model(folder, pick_device("auto"))
    data = federation.dealt.site(number)
    found = measure_test_answers(model.probabilities(data.test), data)
    results = description.results
    if found != results.test:
        results = replace(results, exact=False, note=INEXACT_NOTE, test=found)
        write_model(folder, replace(description, results=results))


def _make(folder: Path, run: FinishedRun, federation: LoadedSites, number: int) -> None:
    """Write what a site answers with after the last round."""
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
        models=run.pool.made_here(),
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
    why = ModelChoice(USED, LAST, None, tuple(used))
    maker = ModelMaker(run.path.name, experiment, facts, federation.are_images)
    networks = experiment.method.used(task, context)
    made = maker.make(context, networks, reported, task.round, why)
    write_model(folder, made.description, made.blob, experiment.model.files)


def _line(done: Exported) -> str:
    test = done.description.results.test
    worth = "no test images"
    if test.images:
        what = "findings in test images" if done.description.model.finds else "test images"
        worth = f"{test.right} of {test.images} {what} right, {test.ends}"
    return f"{done.folder}  {size(done.size)}  {worth}"
