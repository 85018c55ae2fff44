"""Makes a model for use of the networks that give a site's answer: its bytes and description.

The model is read back from its bytes and measured on the site's images, so that what is described
is what will be used.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedapp.core.devices import pick_dtype
from fedapp.core.settings import PrivacySettings
from fedapp.data.sites import SiteData
from fedapp.experiment.code_hash import code_hash, versions
from fedapp.experiment.config import MACHINE_KEYS
from fedapp.experiment.experiment import Experiment
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import NetworkSettings
from fedapp.learn.params import digest_of
from fedapp.learn.predictors import Predictor
from fedapp.methods.base import SiteContext
from fedapp.models.conformal import Calibration, calibrate
from fedapp.models.description import (
    ENCODER_STEM,
    FORMAT_VERSION,
    Description,
    MeasuredAccuracy,
    ModelChoice,
    Origin,
    Precision,
    Recipe,
    Results,
)
from fedapp.models.model import SiteModel, pack_networks
from fedapp.protocol.messages import Evaluation, SiteFacts

INEXACT_NOTE = (
    "it does not answer as the run measured: the run did not keep what it measured, or this "
    "machine computes other bits; val and test are of this model"
)


class BuiltModel(NamedTuple):
    """A model for use. tested: its answers to the site's test images, float32 [n, C]."""

    description: Description
    blob: bytes
    tested: Tensor


@dataclass(frozen=True)
class ModelMaker:
    """Makes the models of one site of a run. are_images: whether the site's inputs are images."""

    run: str
    experiment: Experiment
    facts: SiteFacts
    are_images: bool

    def make(
        self,
        site: SiteContext,
        networks: Mapping[str, Predictor],
        reported: Mapping[str, Evaluation],
        number: int,
        choice: ModelChoice,
    ) -> BuiltModel:
        """Return the model that these networks form.

        networks: by the name of the answer that each gives. reported: what the run measured of this
        model, by part ("val", "test"). number: the round after which the model was taken. choice:
        why it is this model.
        """
        model, blob = self._model(site, networks)
        answers = _answers(model, site)
        results = _results(answers, reported, site.data)
        calibration = Calibration() if site.data.finds else calibrate(*answers["val"])
        origin = self.origin(number)
        claim = privacy_note(self.experiment.privacy)
        made = Description(
            FORMAT_VERSION, model.recipe, origin, results, choice, calibration, claim=claim
        )
        return BuiltModel(made, blob, answers["test"][0])

    def tested(self, site: SiteContext, networks: Mapping[str, Predictor]) -> Tensor:
        """Return the answers of these networks to the site's test images, float32 [n, C]."""
        return self._model(site, networks)[0].probabilities(site.labelled_part("test")[0])

    def _model(
        self, site: SiteContext, networks: Mapping[str, Predictor]
    ) -> tuple[SiteModel, bytes]:
        blob, parts = pack_networks(networks)
        recipe = Recipe(
            network=_network(self.experiment.model),
            classes=self.facts.classes,
            inputs=self.facts.inputs,
            images=self.are_images,
            mean=site.data.mean,
            std=site.data.std,
            precision=_name_of(pick_dtype(self.experiment.runtime.precision, site.device)),
            parts=parts,
            sha256=digest_of(blob),
            window=self.experiment.data.window,
            encoder=self.experiment.data.encoder,
            finds=site.data.finds,
        )
        [weights, *_] = self.experiment.model.files or ("",)
        return SiteModel(recipe, blob, site.device, weights), blob

    def origin(self, number: int) -> Origin:
        """Return the origin of a model that is taken after round `number`."""
        code, used = _here()
        return Origin(
            run=self.run,
            preset=self.experiment.name,
            method=self.experiment.method.called,
            round=number,
            seed=self.experiment.seed,
            site=self.facts.site,
            name=self.facts.name,
            labelled=self.facts.labelled,
            unlabelled=self.facts.unlabelled,
            split=self.facts.split_digest,
            code=code,
            versions=used,
        )


def privacy_note(privacy: PrivacySettings) -> str:
    """Return a note that the run's epsilon does not protect the kept model; "": no epsilon is set.

    The privacy account covers what left the site, not what the site keeps.
    """
    if not privacy.epsilon:
        return ""
    return (
        f"Not covered by epsilon: epsilon = {privacy.epsilon:g} (delta = {privacy.delta:g}) of the "
        "run covers what left the site and what the server made of it, the common answer. This "
        "model was made or chosen at the site by labels without noise. Whoever passes it on passes "
        "it on without that protection."
    )


@lru_cache(maxsize=1)
def _here() -> tuple[str, dict[str, str]]:
    """Return the hash of this code and the versions of its libraries, read once per process."""
    return code_hash()[1], versions()


def _answers(model: SiteModel, site: SiteContext) -> dict[str, tuple[Tensor, Tensor]]:
    """Return, for "val" and "test", the model's answers to the site's images, and the labels."""
    parts = {part: site.labelled_part(part) for part in ("val", "test")}
    return {part: (model.probabilities(images), labels) for part, (images, labels) in parts.items()}


def _results(
    answers: Mapping[str, tuple[Tensor, Tensor]],
    reported: Mapping[str, Evaluation],
    data: SiteData,
) -> Results:
    """Compare what the model answers with what the run reported, and return both parts' results."""
    found = {part: evaluation(*both) for part, both in answers.items()}
    measured = reported["test"].plain if "test" in reported else None
    exact = found["test"] == measured if found["test"].samples else None
    if exact is not False and "val" in reported:
        # The weights of a mixture are fitted on these images. The run cross-fitted them, each half
        # measured with the weights of the other, so its number is the honest one.
        found["val"] = reported["val"]
    val, test = MeasuredAccuracy.of(found["val"]), measure_test_answers(answers["test"][0], data)
    return Results(exact, INEXACT_NOTE if exact is False else "", val, test)


def measure_test_answers(answers: Tensor, data: SiteData) -> MeasuredAccuracy:
    """Return the accuracy of answers [n, C] to a site's test images, with its interval.

    The interval goes by patient where the site's patients are known.
    """
    labels, groups = data.test_labels.cpu(), data.test_groups
    found = MeasuredAccuracy.of(evaluation(answers, labels))
    if groups is None or not found.images or data.finds:
        return found
    return found.by_patient((answers.argmax(1) == labels).numpy(), groups.numpy())


def _name_of(precision: torch.dtype) -> Precision:
    return "bfloat16" if precision == torch.bfloat16 else "float32"


def _network(settings: NetworkSettings) -> dict[str, bool | int | float | str]:
    """Return a network's name and settings as they are written into its recipe.

    A setting that names a file of this machine is replaced by the name of the copy in the model's
    folder.
    """
    fields = asdict(settings)  # type: ignore[call-overload]
    beside = f"{ENCODER_STEM}{Path(settings.files[0]).suffix}" if settings.files else ""
    return {
        "name": settings.name,
        **{key: beside if f"model.{key}" in MACHINE_KEYS else of for key, of in fields.items()},
    }
