"""`fedapp.run` and what it returns: a run, its results, and the models of its sites."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from os import devnull
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedapp.api.data import Federation
from fedapp.api.tensors import Inputs, as_inputs
from fedapp.core import plugins
from fedapp.core.devices import pick_device
from fedapp.core.errors import ConfigError, DataError, RunError, name_suggestion
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import IN_MEMORY, Scalar
from fedapp.experiment.run_folder import RunFolder, find_run
from fedapp.learn.networks import Network
from fedapp.methods import register as give_method
from fedapp.methods.base import Method
from fedapp.models.description import DESCRIPTION
from fedapp.models.model import load_model as load_site_model
from fedapp.server.finished_run import finished_run
from fedapp.simulation.loopback import run_loopback
from fedapp.tools.site_models import checked_models

Data = Federation | str | Path
"""Data in memory, or a preset: its name (`fedapp presets`) or a YAML file."""
OwnNetwork = str | Callable[..., Network | nn.Sequential]
"""The name of a network, or a function of your own (docs/extend/networks.md)."""
OwnMethod = str | type[Method[Any]]
"""A method preset, by name or YAML file, or a class of your own (docs/extend/methods.md)."""


class Model:
    """A site's model, ready to answer.

    folder: the model's folder. device: "auto" (a GPU where there is one), "cpu" or "cuda".
    """

    def __init__(self, folder: Path | str, device: str = "auto") -> None:
        self.folder = Path(folder)
        self._model, description = load_site_model(self.folder, pick_device(device))
        self._recipe = description.model

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or findings, in the order of `probabilities`."""
        return self._recipe.classes

    def probabilities(self, inputs: Inputs) -> Tensor:
        """Return the probability of each class, float32 [n, C].

        Rows sum to 1; for findings each probability stands by itself. inputs: [n, ...], of the
        shape and kind (uint8 images, or numbers) that the model was trained on, neither scaled nor
        standardised. Raises DataError where they are of another shape or kind.
        """
        given = as_inputs(inputs, "inputs")
        kind = "uint8" if self._recipe.images else "float32"
        if tuple(given.shape[1:]) != self._recipe.inputs or str(given.dtype) != f"torch.{kind}":
            shape = ", ".join(map(str, self._recipe.inputs))
            raise DataError(
                f"inputs are {given.dtype} {list(given.shape)}, the model takes {kind} "
                f"[n, {shape}]: convert them"
            )
        return self._model.probabilities(given)

    def predict(self, inputs: Inputs) -> list[str]:
        """Return the name of each input's most probable class.

        inputs: as for `probabilities`. Raises ConfigError where the model answers findings: you
        must decide from which probability on a finding counts as present.
        """
        if self._recipe.finds:
            raise ConfigError("the model answers findings, each by itself: use `probabilities`")
        return [self.classes[c] for c in self.probabilities(inputs).argmax(1).tolist()]


@dataclass(frozen=True)
class Run:
    """The results of a run, read from its folder when they are asked for.

    Accuracies are shares in [0, 1]; None: not measured.
    """

    folder: Path

    @property
    def name(self) -> str:
        """The name of the run, which is also that of its folder."""
        return self.folder.name

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json. Raises RunError while the run is not over."""
        found: dict[str, Any] | None = RunFolder(self.folder).read_json("summary.json")
        if found is None:
            raise RunError(f"{self.folder}: {self._cut()}")
        return found

    @property
    def accuracy(self) -> float | None:
        """Mean over sites of the accuracy on their own test inputs after the last round."""
        value: float | None = self.summary["mean_test_accuracy"]["final"]
        return value

    @property
    def per_site(self) -> list[dict[str, Any]]:
        """A row for each site: its name, share of labels `mu`, counts, accuracies and more."""
        return RunFolder(self.folder).per_site()

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """A row for each round; 0 is the warm-up."""
        return RunFolder(self.folder).metrics()

    def model(self, site: int | str) -> Model:
        """Return the model that a site kept, by the site's number or name.

        If its folder is gone the model is made anew, which needs the data of the run. Raises
        RunError where there is no such site or the run is not over, and DataError where the data
        were in memory and are not there any more.
        """
        root = RunFolder(self.folder).models_root
        folder = root / str(site)
        if not (folder / DESCRIPTION).is_file():
            checked_models(finished_run(self.folder))
        if not (folder / DESCRIPTION).is_file():
            there = sorted(path.name for path in root.iterdir())
            raise RunError(f"{self.folder}: no site {site!r}: {name_suggestion(str(site), there)}")
        return Model(folder)

    def _cut(self) -> str:
        return f"the run is not over: {RunFolder(self.folder).going_on()}"


def run(
    data: Data,
    method: OwnMethod | None = None,
    *,
    network: OwnNetwork | None = None,
    settings: Mapping[str, Scalar] | None = None,
    seed: int | None = None,
    quiet: bool = False,
) -> Run:
    """Run a federation in this process and return its results.

    data: in memory, or a preset. method, network: None: those of the preset. For data in memory
    these are the recommended method, and ResNet-9 for images or a multi-layer perceptron for other
    inputs. settings: other settings by their names on the command line, such as
    {"rounds.num_rounds": 5}. A run that was interrupted is resumed with runtime.resume and
    runtime.run_name. seed: of all random draws; None: that of the preset. quiet: whether to print
    nothing.

    Raises FedAppError with one line for each thing that is wrong.
    """
    experiment = load_experiment(*preset_and_overrides(data, method, network, settings or {}, seed))
    if isinstance(data, Federation) and (rule := experiment.misfit(data.inputs)):
        raise ConfigError(f"inputs of shape {list(data.inputs)}: {rule}")
    with muted(quiet):
        _, folder = run_loopback(experiment)
    return Run(folder.absolute())


def open_run(run: str | Path) -> Run:
    """Return a run by its name among your runs, or by its folder; empty: the newest run.

    Raises RunError where there is no such run.
    """
    folder = find_run(str(run))
    if not (folder / "run.json").is_file():
        raise RunError(f"{folder}: no run (no run.json): name a run's folder")
    return Run(folder.absolute())


def load_model(folder: str | Path, device: str = "auto") -> Model:
    """Return a site's model from its folder; `fedapp site` prints where the folders are.

    device: "auto" (a GPU where there is one), "cpu" or "cuda". Raises RunError where the folder
    holds no model, or a damaged one.
    """
    return Model(folder, device)


def preset_and_overrides(
    data: Data,
    method: OwnMethod | None,
    network: OwnNetwork | None,
    settings: Mapping[str, Scalar],
    seed: int | None,
) -> tuple[str, dict[str, Scalar]]:
    """Return the preset and the overrides to which the arguments of `run` amount."""
    chosen: dict[str, Scalar] = {} if seed is None else {"seed": seed}
    if network is not None:
        chosen["model.name"] = (
            network if isinstance(network, str) else plugins.register_function(network)
        )
    if method is not None:
        chosen |= method_override(method)
    if isinstance(data, Federation):
        given = data.settings
        if network is None and len(data.inputs) != 3:
            chosen["model.name"] = "mlp"
        for key in settings:
            if data.brings_sites and key.startswith(("data.", "split.")):
                raise ConfigError(f"settings: {key}: the sites bring their own data: leave it out")
        preset, chosen = str(IN_MEMORY), {**given, **chosen}
    elif isinstance(data, str | Path):
        preset = str(data)
    else:
        kind = type(data).__name__
        raise ConfigError(f"data: {kind}, must be a fedapp.Federation or a preset: make it one")
    if twice := [key for key in settings if key in chosen]:
        raise ConfigError(f"settings: {twice[0]}: is given by another argument: keep one")
    return preset, {**chosen, **settings}


def method_override(method: OwnMethod) -> dict[str, Scalar]:
    """Return the override that selects a method. Raises ConfigError where a class is no method."""
    if isinstance(method, str):
        return {"method.preset": method}
    return {"method.name": give_method(method)}


@contextmanager
def muted(wanted: bool) -> Iterator[None]:
    """Drop standard output if wanted. Warnings go to standard error, and stay."""
    if not wanted:
        yield
        return
    with open(devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield
