"""The paper's Mix (Fig. 11): FixAvg, FixProx and FixBN asked together.

Every site averages the softmax outputs of the three models it ends with. So it costs what all three
cost together: models, bytes and seconds are sums. It is measured once, after the last round: its
"best", "final" and "selected by validation" are all that one measurement.
"""

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import torch
from torch import Tensor

from fedapp.experiment.config import to_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.errors import RunError
from fedapp.ground.foreign import json_file
from fedapp.learn.metrics import evaluation
from fedapp.messages.protocol import SiteFacts
from fedapp.server.standings import Row, Standing, Standings
from fedapp.site.federation import LoadedSites, federation_of
from fedapp.tools.compare.final import FinalModels
from fedapp.tools.compare.grid import MIX

_SUMMED = (
    "models_sent",
    "models_up",
    "bytes_up",
    "bytes_down",
    "bytes_evaluation",
    "wall_seconds",
)


def write_mix(run: Path, parents: Sequence[tuple[Path, Experiment]], digest: str) -> Row:
    """Make Mix's run folder from those of its parents, and return its summary.

    parents: their run folders and experiments, on the same split; they differ in method only.
    digest: of what is mixed. A folder that an earlier try left is replaced.

    Raises RunError where a parent is not over, has no models or another split.
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
    """Return how a site stands with the ensemble of its models, on its val and test images."""
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
        summary: Row = json_file(run / "summary.json")
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
