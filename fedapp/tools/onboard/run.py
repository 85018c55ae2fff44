"""Onboard a site: a few rounds of it alone from a finished run's models, and what they brought."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.drivers.calls import Loopback
from fedapp.experiment.runfolder import RunFolder, check_run, open_run
from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import FedAppError
from fedapp.ground.progress import Progress
from fedapp.learn.params import to_bytes
from fedapp.messages.ledger import Ledger
from fedapp.messages.protocol import SiteFacts
from fedapp.messages.store import ModelStore
from fedapp.server.engine import Engine
from fedapp.server.peers import Finished
from fedapp.server.pool import ModelPool
from fedapp.site.federation import Keeps, federation_of
from fedapp.tools.onboard import among_peers, from_common
from fedapp.tools.onboard.measure import Compared, Ended
from fedapp.tools.onboard.plan import Plan

RESULT = "onboarding.json"


@dataclass(frozen=True)
class Onboarded:
    """rounds: the site's accuracy on its test images after each round, the warm-up first.

    files: names of the models in the folder.
    """

    folder: Path
    facts: SiteFacts
    comparison: Compared
    rounds: tuple[float | None, ...]
    files: tuple[str, ...]


def onboard(run: Finished, plan: Plan, progress: Progress) -> Onboarded:
    """Onboard the plan's site without Flower; return what came of it.

    Its run folder gets its models and the comparison. Raises FedAppError as any run does; a folder
    without a finished round is removed then.
    """
    experiment, site = plan.experiment, plan.site
    check_run(experiment)
    federation = federation_of(experiment, {site: plan.place} if plan.place else {})
    data = federation.dealt.site(site)  # what is wrong with the data is said before a run begins
    folder: RunFolder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    try:
        progress.note(f"run folder {folder.path}")
        transport = Loopback(
            experiment,
            federation,
            store,
            folder.sites_root,
            only=[site],
            keeps=Keeps(folder.models_root, folder.path.name),
        )
        [facts] = transport.introduce()
        Engine(experiment, transport, folder, store, progress, Ledger()).run()
    except FedAppError:
        folder.discard_unless_begun()
        raise
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None  # the run came to its end
    pool = ModelPool.from_plain(store, checkpoint["pool"])
    [row] = folder.per_site()
    progress.note("measuring the models")
    kind = from_common if experiment.method.starts_common else among_peers
    gained = kind.measured(Ended(experiment, run, data, pool, row))
    rounds = tuple(row["mean_test_accuracy"] for row in folder.metrics())
    done = Onboarded(folder.path, facts, gained.comparison, rounds, tuple(gained.models))
    for name, params in gained.models.items():
        write_atomic(folder.path / name, to_bytes(params), durable=True)
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
