"""From a finished run's folder to a model of every site that can be used without the run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedapp.experiment.codehash import versions
from fedapp.experiment.config import MACHINE_KEYS
from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.devices import pick_dtype, torch_threads
from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import RunError
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import NetworkSettings
from fedapp.learn.params import digest_of
from fedapp.learn.predictors import Predictor
from fedapp.learn.scores import ScoreStore
from fedapp.messages.protocol import EVALUATE, SERVER_SITE, Evaluation, Task
from fedapp.models.card import CARD, card
from fedapp.models.conformal import calibrated
from fedapp.models.description import (
    DESCRIPTION,
    FORMAT,
    TENSORS,
    Description,
    Measured,
    Origin,
    Precision,
    Recipe,
    Results,
)
from fedapp.models.model import SiteModel, in_parts
from fedapp.server.peers import Finished
from fedapp.site.federation import Federation, federation_of
from fedapp.site.private import PrivateParts
from fedapp.site.site import Site

MODELS = "models"
"""Folder, in a run's folder, of the models for use."""
INEXACT = (
    "it does not answer as the run measured: the run did not keep what it measured (pFedMe's "
    "theta; transport.precision=float16), or this machine computes other bits; val and test are of "
    "this model"
)


@dataclass(frozen=True)
class Exported:
    """A site's model in its folder. size: bytes of its tensors."""

    folder: Path
    description: Description
    size: int


def export(run: Finished) -> Iterator[Exported]:
    """Write the model of every site of a run that is over, one by one, in the run's folder.

    The sites' data and what they keep to themselves must be here, as in simulation: a site's answer
    depends on them, and it is measured again. Raises RunError where the run is not over, its models
    are gone or the data are others, and as reading the data does.
    """
    last = run.experiment.rounds.num_rounds
    if run.state.round != last:
        raise RunError(
            f"{run.path}: round {run.state.round} of {last}: finish the run with "
            "runtime.resume=true"
        )
    if not run.pool.store.root.is_dir():
        raise RunError(f"{run.path}: its models were removed: run it again")
    federation = federation_of(run.experiment)
    if {facts.split_digest for facts in run.facts.values()} != {federation.digest}:
        raise RunError(
            f"{run.path}: its sites held other images than data.root has now: restore the data"
        )
    begun = RunFolder(run.path).read_json("run.json") or {}
    for number in sorted(run.state.standings.sites):
        yield _exported(run, federation, number, str(begun.get("code", "")))


def _exported(run: Finished, federation: Federation, number: int, code: str) -> Exported:
    """Measure a site's model as it will be read back, and write it."""
    experiment, facts = run.experiment, run.facts[number]
    private = PrivateParts(RunFolder(run.path).sites_root / f"site-{number}" / "private")
    store = run.pool.store
    site = federation.site(number, experiment, store, ScoreStore(), private, shares_pool=True)
    with torch_threads(experiment.runtime.threads):
        blob, parts = in_parts(_used(run, site))
        recipe = Recipe(
            network=_network(experiment.model),
            classes=facts.classes,
            inputs=facts.inputs,
            images=federation.are_images,
            mean=site.data.mean,
            std=site.data.std,
            precision=_name_of(pick_dtype(experiment.runtime.precision, site.device)),
            parts=parts,
            sha256=digest_of(blob),
            window=experiment.data.window,
        )
        model, val = SiteModel(recipe, blob, site.device), site.data.parts["val"]
        results = _results(model, site, run.state.standings.sites[number].latest)
        calibration = calibrated(model.probabilities(val.inputs), val.labels.cpu())
    origin = Origin(
        run=run.path.name,
        preset=experiment.name,
        method=experiment.method.name,
        round=run.state.round,
        seed=experiment.seed,
        site=number,
        name=facts.name,
        labelled=facts.labelled,
        unlabelled=facts.unlabelled,
        split=facts.split_digest,
        code=code,
        versions=versions(),
    )
    description = Description(FORMAT, recipe, origin, results, calibration)
    folder = run.path / MODELS / origin.called
    write_atomic(folder / TENSORS, blob, durable=True)
    write_atomic(folder / DESCRIPTION, description.to_json().encode(), durable=True)
    write_atomic(folder / CARD, card(description).encode(), durable=True)
    return Exported(folder, description, len(blob))


def _used(run: Finished, site: Site) -> Mapping[str, Predictor]:
    """Return what a site answers with after the last round."""
    number = site.data.site
    task = Task(
        site=number,
        round=run.state.round,
        action=EVALUATE,
        own=run.pool.latest(number),
        models={"server": (run.pool.latest(SERVER_SITE),)},
        private=run.state.private.get(number, ""),
    )
    context, lost = site.context(task)
    if lost:
        raise RunError(
            f"{run.path}: sites/site-{number}, what the site kept to itself, is gone: restore it "
            "from a copy or run again"
        )
    return run.experiment.method.used(task, context)


def _results(model: SiteModel, site: Site, reported: Mapping[str, Evaluation]) -> Results:
    """Measure a model on the site's images, beside what the run reported of it."""
    found = {}
    for part in ("val", "test"):
        data = site.data.parts[part]
        found[part] = evaluation(model.probabilities(data.inputs), data.labels.cpu())
    exact = found["test"] == reported.get("test") if found["test"].samples else None
    if exact is not False and "val" in reported:
        # These images decide a mixture's weights; the run measured it on halves of them in turn.
        found["val"] = reported["val"]
    val, test = Measured.of(found["val"]), Measured.of(found["test"])
    return Results(exact, INEXACT if exact is False else "", val, test)


def _name_of(precision: torch.dtype) -> Precision:
    return "bfloat16" if precision == torch.bfloat16 else "float32"


def _network(settings: NetworkSettings) -> dict[str, bool | int | float | str]:
    """Return a network's name and settings, without what is of this machine alone."""
    fields = asdict(settings)  # type: ignore[call-overload]
    return {
        "name": settings.name,
        **{key: "" if f"model.{key}" in MACHINE_KEYS else of for key, of in fields.items()},
    }
