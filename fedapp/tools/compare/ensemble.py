"""The paper's Mix (Fig. 11): an ensemble of the final models of FixAvg, FixProx and FixBN.

Every site averages the softmax outputs of the three models that it ends with. Its costs are the
sums of the three runs' models, bytes and seconds. It is measured once, after the last round, so its
"best", "final" and "selected by validation" accuracies are the same number.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree

import torch
from torch import Tensor

from fedapp.core.devices import pick_device, pick_dtype
from fedapp.core.errors import RunError
from fedapp.core.untrusted_files import read_json
from fedapp.data.inputs import normalise
from fedapp.experiment.config import to_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.metrics import evaluation, predict
from fedapp.learn.networks import Network, build_model, initial_params
from fedapp.learn.params import Params, Schema, from_bytes, schema_of
from fedapp.protocol.messages import SERVER_SITE, SiteFacts
from fedapp.protocol.store import ModelStore
from fedapp.server.pool import ModelPool
from fedapp.server.standings import Row, Standing, Standings
from fedapp.site.federation import LoadedSites, federation_of
from fedapp.site.private_state import stored_schema
from fedapp.tools.compare.grid import MIX

_SUMMED = (
    "models_sent",
    "models_up",
    "bytes_up",
    "bytes_down",
    "bytes_evaluation",
    "wall_seconds",
)


class FinalModels:
    """Loads the model that each site of a finished run used after the last round.

    For a method that averages it is the server's model, for others the site's own, together with
    the part that the site keeps private. Of pFedMe, which keeps no theta, and of a method with a
    second model at the site (`Method.memory`), it is the server's model w.

    Raises RunError if the run is not finished or its models are gone, StoreError if one of them is.
    """

    def __init__(self, run: Path, experiment: Experiment, federation: LoadedSites) -> None:
        folder = RunFolder(run)
        checkpoint = folder.load_checkpoint()
        if checkpoint is None or checkpoint["round"] != experiment.rounds.num_rounds:
            raise RunError(f"{run}: its run is not over: run the cell again")
        if not folder.pool_root.is_dir():
            raise RunError(f"{run}: its models were removed: remove the folder to run it again")
        self._experiment, self._federation = experiment, federation
        self._sites_root = folder.sites_root
        self._pool = ModelPool.from_plain(ModelStore(folder.pool_root), checkpoint["pool"])
        self._private: Mapping[str, str] = checkpoint["state"]["private"]
        self.device = pick_device(experiment.runtime.device)
        classes = len(federation.classes)
        inputs = federation.dealt.site(0).inputs
        dtype = pick_dtype(experiment.runtime.precision, self.device)
        self.network = build_model(
            experiment.model, inputs, classes, dtype, bool(experiment.data.findings)
        )
        kept = experiment.method.kept_private(self.network)
        whole = schema_of(self.network.state_dict())
        self._shared: Schema = {name: of for name, of in whole.items() if name not in kept}
        self._kept: Schema = {name: whole[name] for name in kept}
        memory = schema_of(experiment.method.memory(self.network, self.network.state_dict()))
        self._stored = stored_schema(kept, whole, memory)
        self._w_0 = initial_params(experiment.model, inputs, classes, experiment.seed)
        self.network.to(self.device)

    def load(self, site: int) -> Network:
        """Load a site's final model into the one network and return it."""
        ref = self._pool.latest(SERVER_SITE)
        if ref.version == 0 or self._experiment.method.joins_at > 0:  # there is no common model
            ref = self._pool.latest(site)
        owner, transport = f"final model of site {site}", self._experiment.transport
        shared = from_bytes(self._pool.get(ref.digest), self._shared, owner, transport)
        self.network.load_state_dict({**shared, **self._private_part(site)})
        return self.network

    def probabilities(self, site: int, part: str) -> tuple[Tensor, Tensor]:
        """Return a site's probabilities [n, C] and labels [n] on its "val" or "test" images.

        They are on the CPU, and made without dropout.
        """
        data = self._federation.dealt.site(site)
        of = data.parts[part]
        answers = predict(self.load(site), of.inputs.to(self.device), self._normalise)
        return answers, of.labels.cpu()

    def _private_part(self, site: int) -> Params:
        digest = self._private.get(str(site), "")
        if not digest or not self._kept:
            return {name: self._w_0[name] for name in self._kept}
        # Not by `PrivateParts.load`, which would replace a lost part by w_0: a wrong result.
        store = ModelStore(self._sites_root / f"site-{site}" / "private", memory_bytes=0)
        stored = from_bytes(store.get(digest), self._stored, f"private part of site {site}")
        return {name: stored[name] for name in self._kept}

    def _normalise(self, images: Tensor) -> Tensor:
        data = self._federation.dealt.site(0)
        data = data.raw() if self._experiment.model.raw else data
        return normalise(images, data.mean, data.std)


def write_mix(run: Path, parents: Sequence[tuple[Path, Experiment]], digest: str) -> Row:
    """Make Mix's run folder from its parents' and return its summary.

    parents: run folders and experiments on the same split, which differ only in the method.
    digest: the cell's. A folder that an earlier, interrupted call left is replaced.

    Raises RunError if a parent is not finished, has no models or was run on another split.
    """
    experiment = parents[0][1]
    federation = federation_of(experiment)
    summaries = [_summary(path, federation.digest) for path, _ in parents]
    models = [FinalModels(path, of, federation) for path, of in parents]
    rmtree(run, ignore_errors=True)
    plain = {
        "name": experiment.name,
        "seed": experiment.seed,
        MIX: [to_plain(e) for _, e in parents],
    }
    folder = RunFolder.create(run.parent, run.name, plain, federation.manifest, digest)

    sites = range(experiment.split.num_clients)
    standings = Standings({k: _standing(k, models, federation) for k in sites})
    rounds = experiment.rounds.num_rounds
    costs = {key: sum(summary[key] for summary in summaries) for key in _SUMMED}
    folder.append_metrics({**standings.close_round(rounds, [], {}), **costs})
    summary = {
        "preset": experiment.name,
        "method": MIX,
        "seed": experiment.seed,
        "sites": len(sites),
        "manifest": federation.digest,
        "rounds": rounds,
        **standings.summary(),
        **costs,
    }
    folder.write_evaluations(standings.evaluations())
    folder.write_per_site(standings.per_site(experiment.method.state().column))
    folder.write_summary(summary)
    return summary


def ensemble(answers: Sequence[Tensor]) -> Tensor:
    """Return the mean of several models' probabilities, each float32 [n, C] with rows of sum 1."""
    return torch.stack(list(answers)).mean(0)


def _standing(site: int, models: Sequence[FinalModels], federation: LoadedSites) -> Standing:
    """Return the evaluation of a site's ensemble on its validation and test images."""
    data = federation.dealt.site(site)
    facts = SiteFacts(
        site=site,
        inputs=data.inputs,
        classes=federation.classes,
        split_digest=federation.digest,
        pool_key="",
        name="",
        **data.counts,
    )
    latest = {}
    for part in ("val", "test"):
        asked = [model.probabilities(site, part) for model in models]
        latest[part] = evaluation(ensemble([answers for answers, _ in asked]), asked[0][1])
    return Standing(facts, latest)


def _summary(run: Path, manifest: str) -> Row:
    try:
        summary: Row = read_json(run / "summary.json")
    except (OSError, ValueError) as error:
        raise RunError(
            f"{run}: its summary.json cannot be read ({error}): remove the folder to run it again"
        ) from error
    if summary.get("manifest") != manifest:
        raise RunError(
            f"{run}: was run on another split than the data give now: restore the data, or remove "
            "the folder to run it again"
        )
    return summary
