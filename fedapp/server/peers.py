"""The models of a finished run, for the sites of a new one to start from (`runtime.peers`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.experiment.config import from_plain, shared_settings
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import RunFolder
from fedapp.experiment.runpaths import peers_path
from fedapp.ground.errors import ConfigError, ProtocolError, RunError, StoreError
from fedapp.ground.foreign import ForeignError, yaml_file
from fedapp.ground.settings import OWN
from fedapp.learn.networks import build_model
from fedapp.learn.params import Schema, from_bytes
from fedapp.messages.protocol import SERVER_SITE, ModelRef, SiteFacts
from fedapp.messages.store import ModelStore
from fedapp.methods import method_class, method_names
from fedapp.server.checks import Kind, kind_of
from fedapp.server.pool import ModelPool
from fedapp.server.runstate import RunState, state_of
from fedapp.server.samesplit import check_same_split

_SAME_DATA = tuple(
    f"data.{key}"
    for key in "name classes channels image_size window mean std vector_size encoder".split()
)
"""Settings of the data that decide what a model's input and output mean."""


@dataclass(frozen=True)
class Finished:
    """A run as its folder tells it: config.yaml, checkpoint.json and pool/ are enough."""

    path: Path
    plain: Mapping[str, Any]
    experiment: Experiment
    state: RunState
    pool: ModelPool

    @property
    def facts(self) -> dict[int, SiteFacts]:
        """What each site whose model is here said of itself, by number."""
        known = {k: standing.facts for k, standing in self.state.standings.sites.items()}
        return {**self.state.peers, **known}


def finished_run(path: Path) -> Finished:
    """Read a run's folder. Raises RunError where there is none, ConfigError as presets do."""
    checkpoint = RunFolder(path).load_checkpoint()
    if checkpoint is None:
        raise RunError(
            f"{path}: no run with a finished round (no checkpoint.json); name a run's folder that "
            "holds config.yaml, checkpoint.json and pool/"
        )
    config = path / "config.yaml"
    try:
        plain = yaml_file(config)
        if not isinstance(plain, dict):
            raise ForeignError("it holds no settings")
    except (OSError, ForeignError) as error:
        raise RunError(f"{config}: cannot be read ({error}); copy it from the run again") from error
    experiment = from_plain(plain, str(config))
    pool = ModelPool.from_plain(ModelStore(path / "pool"), checkpoint["pool"])
    return Finished(path, plain, experiment, state_of(checkpoint, experiment.method), pool)


def adopt_peers(
    pool: ModelPool,
    experiment: Experiment,
    kind: Kind,
    schemas: Mapping[str, Schema],
    folder: Path,
) -> Finished:
    """Take models of the run that `runtime.peers` names into a new run's pool, each checked.

    A method whose sites ask peers (`asks_peers`) gets the latest model of every site that has
    trained. A method whose new sites start from what the server made (`starts_common`) gets that
    alone (`common_roles`), under `SERVER_SITE`; the run's other models need not be there.

    kind, schemas, folder: the new run's, schemas by role. Returns the earlier run. Raises
    ConfigError where the two runs do not fit together, RunError where the other's files are not
    whole or its models may have learned from what is for testing here (`check_same_split`).
    """
    run = finished_run(peers_path(experiment))
    _check_fit(run, experiment, kind)
    if experiment.data.name != OWN:
        # Its own sites', not its peers': those were compared with its own when it began.
        theirs = next(iter(run.state.standings.sites.values())).facts.split_digest
        check_same_split(run.path, theirs, kind[2], folder)
    for ref in _needed(run, experiment):
        owner = f"common {ref.role}" if ref.site == SERVER_SITE else f"model of site {ref.site}"
        try:
            blob = run.pool.get(ref.digest)
            from_bytes(blob, schemas[ref.role], owner, experiment.transport)
        except (ProtocolError, StoreError) as error:
            raise RunError(
                f"runtime.peers {run.path}: {error}; copy that run's pool/ again, whole"
            ) from error
        pool.adopt(ref.site, ref.version, blob, ref.role)
    return run


def _needed(run: Finished, experiment: Experiment) -> list[ModelRef]:
    """Return the run's models that this experiment starts from, one at least. Raises RunError."""
    if experiment.method.starts_common:
        known = [r for r in experiment.method.common_roles if (SERVER_SITE, r) in run.pool.contents]
        refs = [run.pool.latest(SERVER_SITE, role) for role in known]
    else:
        refs = [run.pool.latest(site) for site in run.pool.trained()]
    refs = [ref for ref in refs if ref.version]
    if not refs:
        raise RunError(f"runtime.peers {run.path}: that run has no trained model; name another")
    return refs


def _check_fit(run: Finished, experiment: Experiment, kind: Kind) -> None:
    """Check that sites can start from that run's models here. Raises ConfigError."""
    where = f"runtime.peers {run.path}"
    here, there = experiment.method, run.experiment.method
    if not (here.asks_peers or here.starts_common):
        every = map(method_class, method_names())
        able = " or ".join(one.name for one in every if one.asks_peers or one.starts_common)
        raise ConfigError(
            f"{where}: method {here.name} has no use for an earlier run's models; use {able}"
        )
    # What a common model's answers mean is the method's: these are for equally frequent classes.
    if (here.starts_common or there.starts_common) and here.name != there.name:
        raise ConfigError(
            f"{where}: that run's method is {there.name}, here it is {here.name}: their models "
            f"answer different questions; use {there.name} here, or name a run of {here.name}"
        )
    first = next(iter(run.facts.values()))
    inputs, classes, _ = kind_of(first)
    network = build_model(
        run.experiment.model, inputs, len(classes), finds=bool(run.experiment.data.findings)
    )
    if run.experiment.method.kept_private(network):
        raise ConfigError(
            f"{where}: method {run.experiment.method.name} keeps parts of every model at its site: "
            "the run holds no whole model; name a run of another method"
        )
    ours, theirs = _what_models_need(experiment, kind), _what_models_need(run.experiment, None)
    theirs |= {"input shape": inputs, "classes": classes}
    for key, value in ours.items():
        if value != theirs[key]:
            raise ConfigError(
                f"{where}: its {key} is {theirs[key]!r}, here {value!r}; make the two equal"
            )


def _what_models_need(experiment: Experiment, kind: Kind | None) -> dict[str, object]:
    """Return all that two runs must share for one to use the other's models."""
    shared: dict[str, object] = {
        key: value
        for key, value in shared_settings(experiment).items()
        if key in _SAME_DATA or key.startswith(("model.", "transport."))
    }
    return shared | ({"input shape": kind[0], "classes": kind[1]} if kind else {})
