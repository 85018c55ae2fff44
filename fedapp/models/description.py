"""The file `model.json`: how a site's model answers, where it comes from, and how good it is.

Its dataclasses are the format of the file: a field that is renamed here is renamed in the file.
"""

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedapp.core.errors import ConfigError, RunError, one_line
from fedapp.core.formatting import counted, percent
from fedapp.core.names import SITE_NAME, class_name, one_visible_line
from fedapp.core.settings import CLOSED, window_ends
from fedapp.core.untrusted_files import first_fault, parse_json
from fedapp.evaluation.confidence_intervals import bootstrap_weights, widened_interval, wilson
from fedapp.evaluation.model_selection import Candidate
from fedapp.evaluation.verdict import Verdict
from fedapp.learn.linear_head import FeatureHead
from fedapp.learn.metrics import calibration_error
from fedapp.learn.networks import Network, build_model, network_settings
from fedapp.learn.prototypes import Distance
from fedapp.models.conformal import Calibration
from fedapp.protocol.messages import Evaluation

FORMAT_VERSION: Final = 1
"""Version of the format of model.json."""
DESCRIPTION = "model.json"
ENCODER_STEM = "encoder"
"""Name, without its ending, of a file in the folder that the network cannot be built without."""
TENSORS = "model.safetensors"

_NUMBERS = re.compile(r"(?<=: )\[[-+.,\seE\d]*\]")

Precision = Literal["float32", "bfloat16"]

_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]
_Size = Annotated[int, Field(ge=1)]
_Plain = Annotated[str, AfterValidator(one_visible_line)]


@dataclass(frozen=True, config=CLOSED)
class ModelPart:
    """One network of a model; the fields are those of `learn.predictors.Predictor`.

    name: "own", or the answer that it gives ("common", "tuned", "alone"). prefix: how the names of
    its tensors begin in the file. Files of earlier versions have no distance and no form.
    """

    name: str
    prefix: str
    weight: _Share
    class_mix: tuple[_Share, ...] | None
    distance: Distance | None = None
    form: FeatureHead | None = None


@dataclass(frozen=True, config=CLOSED)
class Recipe:
    """All that a model needs to answer, beside its tensors.

    network: name and settings of the network. classes: names, [C]. inputs: shape of one input.
    images: whether the inputs are images. mean, std: by channel, of pixels / 255; of inputs that
    are numbers, of the numbers as they are. precision: number format of convolutions. parts: the
    networks. sha256: of the file of tensors. window: as the setting `data.window`, for images.
    encoder: as `data.encoder`, for vectors. finds: whether the classes are findings, of which an
    image may show several.
    """

    network: dict[str, bool | int | float | str]
    classes: Annotated[tuple[Annotated[str, AfterValidator(class_name)], ...], Field(min_length=1)]
    inputs: Annotated[tuple[_Size, ...], Field(min_length=1, max_length=3)]
    images: bool
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]
    precision: Precision
    parts: Annotated[tuple[ModelPart, ...], Field(min_length=1)]
    sha256: str
    window: str = ""
    encoder: str = ""
    finds: bool = False

    def __post_init__(self) -> None:
        window_ends(self.window)
        if {len(self.mean), len(self.std)} != {self.inputs[0]}:
            raise ValueError(f"mean and std must have {self.inputs[0]} numbers, one per channel")
        size = len(self.classes) * (1 + self.finds)
        if any(len(part.class_mix) != size for part in self.parts if part.class_mix):
            each = "two per finding" if self.finds else "one per class"
            raise ValueError(f"a class mix must have {size} numbers, {each}")

    def build(self, weights: str = "") -> Network:
        """Return one network with arbitrary weights, which may be NaN: all are to be replaced.

        weights: path of the file that the network cannot be built without; empty: it needs none.
        Raises ConfigError where it cannot be built.
        """
        fields = dict(self.network) | ({"weights": weights} if weights else {})
        try:
            settings = network_settings(str(fields.pop("name", "")), fields)
        except ValidationError as error:
            raise ConfigError(one_line(error, 300)) from error
        precision = getattr(torch, self.precision)
        # A network of one's own is asked for answers when it is built, so it needs sound weights.
        with nullcontext() if ":" in settings.name else _NothingDrawn():
            return build_model(settings, self.inputs, len(self.classes), precision, self.finds)


class _NothingDrawn(TorchFunctionMode):
    """Leaves tensors as they are where random numbers would be drawn into them.

    Drawing first weights takes nearly all of the time of building a network.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        of_init = getattr(func, "__module__", "") == torch.nn.init.__name__
        if of_init or func in (Tensor.normal_, Tensor.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@dataclass(frozen=True, config=CLOSED)
class Origin:
    """Where a model comes from.

    run, preset, method: names. round: the round after which the model was taken; 0: the warm-up.
    site, name: number and name of the site; the name is empty where it has none. labelled,
    unlabelled: number of the site's training images. split: digest of the split, that is, of which
    site holds which image. code: hash of the code. versions: of the libraries that a result may
    depend on.
    """

    run: _Plain
    preset: _Plain
    method: _Plain
    round: _Count
    seed: int
    site: _Count
    name: Annotated[str, Field(pattern=f"^({SITE_NAME})?$")]
    labelled: _Count
    unlabelled: _Count
    split: str
    code: str
    versions: dict[str, str]

    @property
    def called(self) -> str:
        """The site's name, or its number; also the name of the model's folder."""
        return self.name or str(self.site)


@dataclass(frozen=True, config=CLOSED)
class MeasuredAccuracy:
    """Accuracy on a site's labelled images, with a 95 % interval.

    images, right: number of images, and of right answers. accuracy: None without images. interval:
    Wilson's. calibration_error: the expected calibration error (Guo et al. 2017), in [0, 1].
    patients: number of patients that the images are of, in which case the interval is at least as
    wide as that of resampled patients; 0: not known, so that images count as independent.
    """

    images: _Count
    right: _Count
    accuracy: _Share | None
    interval: tuple[_Share, _Share]
    calibration_error: _Share | None
    patients: _Count = 0

    @property
    def ends(self) -> str:
        """The interval as text for people, in percent."""
        said = " to ".join(map(percent, self.interval))
        whose = f", by {counted(self.patients, 'patients')}"
        return said + whose * bool(self.patients)

    @classmethod
    def of(cls, found: Evaluation) -> Self:
        """Return the accuracy that an evaluation has measured."""
        images, right = found.samples, found.correct
        ends, error = wilson(right, images), calibration_error([found])
        return cls(images, right, found.accuracy, ends, error)

    def by_patient(self, right: NDArray[np.bool_], patients: NDArray[np.int64]) -> Self:
        """Return the same accuracy with an interval that counts patients, not images.

        right: whether each image is answered rightly, [n]. patients: the number of each image's
        patient, [n]. n >= 1.
        """
        drawn = bootstrap_weights(len(right), "own page", groups=patients)
        ends = widened_interval(self.interval, drawn @ right / drawn.sum(1))
        return replace(self, interval=ends, patients=len(np.unique(patients)))


@dataclass(frozen=True, config=CLOSED)
class Results:
    """How good a model is on the validation and test images of its site.

    exact: whether its answers to the test images are, to the bit, those that the run measured;
    None: there are no test images. note: why they are not. val, test: the run's numbers or, where
    `exact` is False, those of the model as it was read back.
    """

    exact: bool | None
    note: str
    val: MeasuredAccuracy
    test: MeasuredAccuracy


@dataclass(frozen=True, config=CLOSED)
class ModelChoice:
    """Why the site keeps this model, by the rule of `fedapp.evaluation.model_selection`.

    answer: which of the site's answers it gives. rule: the rule as a text. helped: whether the rule
    prefers a model that other sites had a part in to those that the site trained alone; None: it
    had no choice. candidates: those that the rule still needs. verdict: whether joining paid, on
    the test images; None in files of earlier versions.
    """

    answer: str
    rule: str
    helped: bool | None
    candidates: tuple[Candidate, ...]
    verdict: Verdict | None = None


@dataclass(frozen=True, config=CLOSED)
class LabelShareGroup:
    """The sites whose share of labelled images lies in one interval, taken together.

    labels: the interval, as text. sites: how many. right, images: right answers of their models to
    their own test images, and number of these images.
    """

    labels: str
    sites: _Count
    right: _Count
    images: _Count


@dataclass(frozen=True, config=CLOSED)
class AllSitesSummary:
    """Summary of the models of all sites of a run. Only a simulation knows it, not a real site.

    compared: number of sites that have test images, and candidates of both kinds: trained alone and
    with a part of other sites. harmed: number of those whose kept model has fewer right answers
    than the one trained alone.
    """

    groups: tuple[LabelShareGroup, ...]
    compared: _Count = 0
    harmed: _Count = 0


@dataclass(frozen=True, config=CLOSED)
class Description:
    """The content of model.json.

    calibration: empty in files of earlier versions. others: None where only this site's model is
    known. lights: warnings about the model, a sentence each (`evaluation.reliability_warnings`).
    cautions: what to know before it is used, likewise; empty in files of earlier versions.
    claim: a note that the run's epsilon does not protect this model; empty: the run had no epsilon.
    """

    format: Literal[1]
    model: Recipe
    origin: Origin
    results: Results
    choice: ModelChoice
    calibration: Calibration = field(default_factory=Calibration)
    others: AllSitesSummary | None = None
    lights: tuple[str, ...] = ()
    claim: str = ""
    cautions: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the file; a list of numbers stands on one line."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        return _NUMBERS.sub(lambda row: " ".join(row[0].split()), text)


def read_description(folder: Path) -> Description:
    """Read a model's folder. Raises RunError where there is no such model, or it is damaged."""
    path = folder / DESCRIPTION
    try:
        text = path.read_bytes()
        plain: Any = parse_json(text)
    except OSError as error:
        raise RunError(
            f"{folder}: no model ({DESCRIPTION}: {error.strerror}): name a folder that "
            "holds one; `fedapp site` names them"
        ) from error
    except ValueError as error:
        raise damaged_model(path, "not JSON") from error
    found = plain.get("format") if isinstance(plain, Mapping) else None
    if found != FORMAT_VERSION:
        raise damaged_model(path, f"format is {found!r}, must be {FORMAT_VERSION}")
    try:
        return TypeAdapter(Description).validate_json(text)
    except ValidationError as error:
        raise damaged_model(path, first_fault(error)) from error


def damaged_model(path: Path, why: str) -> RunError:
    """Return the error to raise for a model's file that was damaged after it was written."""
    return RunError(f"{path}: damaged ({one_line(why, 300)}): copy the model's folder again, whole")
