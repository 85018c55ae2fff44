"""Onboard a site: a few rounds of it alone among a finished run's models, and what they brought."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.disk import write_atomic
from fedapp.engine import Engine
from fedapp.errors import FedAppError
from fedapp.federation import federation_of
from fedapp.ledger import Ledger
from fedapp.loopback import Loopback
from fedapp.models import build_model
from fedapp.onboard.measure import Comparison, compare
from fedapp.onboard.plan import Plan
from fedapp.params import Params, from_bytes, schema_of, to_bytes, weighted_mean
from fedapp.peers import Finished
from fedapp.pool import ModelPool
from fedapp.progress import Progress
from fedapp.protocol import ModelRef, SiteFacts
from fedapp.runfolder import RunFolder, check_run, open_run
from fedapp.store import ModelStore

MODEL = "model.safetensors"
AVERAGE = "average.safetensors"
"""The plain average of all peers, for a site where that is the better model."""
RESULT = "onboarding.json"


@dataclass(frozen=True)
class Onboarded:
    """rounds: the site's accuracy on its test images after each round, the warm-up first."""

    folder: Path
    facts: SiteFacts
    comparison: Comparison
    rounds: tuple[float | None, ...]


def onboard(run: Finished, plan: Plan, progress: Progress) -> Onboarded:
    """Onboard the plan's site without Flower; return what came of it.

    Its run folder gets its model, the peers' average and the comparison. Raises FedAppError as any
    run does; a folder without a finished round is removed then.
    """
    experiment, site = plan.experiment, plan.site
    check_run(experiment)
    federation = federation_of(experiment, {site: plan.place} if plan.place else {})
    data = federation.dealt.site(site)  # what is wrong with the data is said before a run begins
    folder: RunFolder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    try:
        progress.note(f"run folder {folder.path}")
        transport = Loopback(experiment, federation, store, folder.sites_root, only=[site])
        [facts] = transport.introduce()
        Engine(experiment, transport, folder, store, progress, Ledger()).run()
    except FedAppError:
        folder.discard_unless_begun()
        raise
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None  # the run came to its end
    pool = ModelPool.from_plain(store, checkpoint["pool"])
    schema = schema_of(
        build_model(experiment.model, facts.channels, len(facts.classes)).state_dict()
    )

    def params(ref: ModelRef) -> Params:
        return from_bytes(pool.get(ref.digest), schema, f"site {ref.site}", experiment.transport)

    refs = [pool.latest(k) for k in run.pool.trained()]
    peers = {ref: (run.facts[ref.site].name, params(ref)) for ref in refs}
    own = params(pool.latest(site))
    average = weighted_mean(((1.0, params(ref)) for ref in refs), params(refs[0]))
    [row] = folder.per_site()
    known = row["before_training_accuracy"], row["warmup_accuracy"]
    progress.note("measuring the peers")
    comparison = compare(experiment, data, peers, own, average, known)
    rounds = tuple(row["mean_test_accuracy"] for row in folder.metrics())
    done = Onboarded(folder.path, facts, comparison, rounds)
    write_atomic(folder.path / MODEL, to_bytes(own), durable=True)
    write_atomic(folder.path / AVERAGE, to_bytes(average), durable=True)
    text = json.dumps(_plain(done, run), indent=2) + "\n"
    write_atomic(folder.path / RESULT, text.encode(), durable=True)
    return done


def _plain(done: Onboarded, run: Finished) -> Mapping[str, Any]:
    facts = done.facts
    return {
        "run": run.path.name,
        "site": facts.site,
        "name": facts.name,
        "labelled": facts.labelled,
        "unlabelled": facts.unlabelled,
        "test": facts.test,
        "accuracy_by_round": list(done.rounds),
        "accuracy": done.comparison.to_plain(),
    }
