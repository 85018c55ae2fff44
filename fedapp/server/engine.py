"""The round loop of every run: phases of the method, the model pool, records and checkpoints."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedapp.aggregation import rule_of
from fedapp.aggregation.base import Rule
from fedapp.core.devices import torch_threads
from fedapp.core.errors import ConfigError, RunError, StoreError
from fedapp.core.process_tuning import rare_garbage_collection
from fedapp.core.progress import Progress
from fedapp.core.rng import numpy_stream
from fedapp.core.settings import members_of
from fedapp.experiment.config import experiment_digest
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.params import Schema, to_bytes
from fedapp.methods.base import Round, schemas
from fedapp.protocol.messages import (
    ALL_SITES,
    COHORT,
    EPSILON,
    MODEL,
    SERVER_SITE,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.accuracy_drop import accuracy_drop_warning
from fedapp.server.checkpoint import Checkpoint
from fedapp.server.checks import (
    DataKind,
    agreeing_sites,
    check_same_sites,
    check_server_images,
    joinable_sites,
    kind_of,
)
from fedapp.server.history import sites_row
from fedapp.server.participation import Arrivals
from fedapp.server.phases import Carrier, LocalServerSite, Phases
from fedapp.server.pool import ModelPool
from fedapp.server.round_pool import RoundPool
from fedapp.server.run_state import RunState, state_of
from fedapp.server.standings import Row, Standing, Standings

if TYPE_CHECKING:  # imports cryptography, which only runs with masked sums need
    from fedapp.server.masked_sums import SummedPhases


@dataclass
class Engine:
    """One run at the server. `run` carries it out.

    carrier: brings tasks to the sites and answers back. store: of the model pool. local_site: the
    server's own site, where it holds labelled images. summary_extras: further entries of the
    summary, which the driver knows of the data. pool, schemas (names, shapes and dtypes of what
    sites share, by role) and phases are set by `prepare`.
    """

    experiment: Experiment
    carrier: Carrier
    folder: RunFolder
    store: ModelStore
    progress: Progress
    ledger: Ledger = field(default_factory=Ledger)
    local_site: LocalServerSite | None = None
    summary_extras: Mapping[str, Any] = field(default_factory=dict)
    pool: ModelPool = field(init=False)
    schemas: dict[str, Schema] = field(init=False)
    phases: Phases = field(init=False)
    _summed: "SummedPhases | None" = field(init=False, default=None)

    def run(self) -> Row:
        """Run the warm-up and all rounds, or those that are left; return the summary."""
        # Checking and averaging models is bound by memory bandwidth. While simulated sites keep all
        # cores busy, more threads only wait for each other: checking a model of 26 MB takes 0.48 s
        # instead of 0.05 s.
        with torch_threads(1), rare_garbage_collection():
            try:
                return self._run()
            except StoreError as error:
                raise StoreError(f"{error}; then {self.folder.going_on()}") from error

    def _run(self) -> Row:
        began = time.monotonic()
        state = self.prepare(self.carrier.introduce())
        earlier = state.wall_seconds
        rounds = self.experiment.rounds.num_rounds
        self.progress.started(
            self.experiment.name, rounds, len(self._arrivals.here), self.experiment.method.begins
        )
        before: Row = {}
        for number in range(state.round + 1, rounds + 1):
            state.round = number
            row, sites = self._round(number, state)
            if warning := accuracy_drop_warning(row, before):
                self.progress.note(warning)
            if number == 1 and self.local_site and not self.phases.server_learned:
                self.progress.note(_unused_images_note(self.experiment))
            before = row
            state.wall_seconds = earlier + time.monotonic() - began
            row |= {
                **self._traffic(),
                **state.server.shown(),
                "wall_seconds": round(state.wall_seconds, 3),
            }
            self._record(row, sites, state)
            self.progress.round_done(row)
        return self._finish(state)

    # --- before the first round -------------------------------------------------------------------

    def prepare(self, introduced: Sequence[SiteFacts]) -> RunState:
        """Check that the sites fit together; begin a new run, or continue from the checkpoint.

        introduced: the facts of the sites that are here.
        """
        clients, data = self.experiment.split.num_clients, self.experiment.data
        say = self.progress.note
        checkpoint = self.folder.load_checkpoint() if self.experiment.runtime.resume else None
        if checkpoint is None:
            state = RunState(-1, self.experiment.method.state(), Standings({}), {})
            facts = agreeing_sites(introduced, clients, data, say, self.experiment.misfit)
            kind = kind_of(facts[0])
        else:
            state = state_of(checkpoint, self.experiment.method)
            kind = kind_of(next(iter(state.standings.sites.values())).facts)
            facts = joinable_sites(introduced, clients, data, kind, say)
            check_same_sites(state.standings, facts)
        for site in {f.site for f in introduced} - {f.site for f in facts}:
            self.carrier.leave_out(site)
        if facts[0].name:
            say(f"sites: {', '.join(f'{site.site} {site.name}' for site in facts)}")
        if self.local_site:
            check_server_images(self.local_site.facts(), kind)
        inputs, classes, split_digest = kind
        self.folder.note_manifest(split_digest)
        self._rule = self._averaging_rule()
        finds = bool(self.experiment.data.findings)
        network = build_model(self.experiment.model, inputs, len(classes), finds=finds)
        self.schemas = schemas(self.experiment.method, network)
        trained = {name for name, _ in network.named_parameters()}
        self._weights = frozenset(trained & self.schemas[MODEL].keys())
        self._arrivals = Arrivals(clients, data, kind, say)
        if checkpoint is None:
            self._begin(state, facts, kind)
        else:
            self._continue(state, facts, checkpoint)
        self._checkpoint = Checkpoint(self.folder)
        self.phases = Phases(
            experiment=self.experiment,
            carrier=self.carrier,
            local_site=self.local_site,
            store=self.store,
            pool=self.pool,
            schemas=self.schemas,
            ledger=self.ledger,
            progress=self.progress,
            state=state,
            here=self._arrivals.here,
            going_on=self.folder.going_on,
        )
        if self.experiment.privacy.masked:
            self._use_masked_sums(state, facts[0])
        return state

    def _key_fingerprints(self) -> Mapping[int, str]:
        """Return the fingerprints of the sites' keys for masked sums, by site."""
        settings, sites = self.experiment, self.experiment.split.num_clients
        real = members_of(settings.privacy.members, settings.data.site_names, sites)
        if real:
            return real
        from fedapp.protocol.secure_aggregation.simulated_keys import simulated_agreed

        return simulated_agreed(settings.seed, sites)

    def _use_masked_sums(self, state: RunState, like: SiteFacts) -> None:
        """Put masked sums between the method and the sites: the method sees sums only.

        like: the facts of one site, for what is equal at all sites.
        """
        from fedapp.server.masked_sums import SummedPhases, as_single_site

        privacy = self.experiment.privacy
        real = bool(privacy.members)
        self._summed = SummedPhases(
            phases=self.phases,
            run_name=self.folder.path.name if real else "",
            identity=self.folder.identity if real else "",
            experiment=experiment_digest(self.experiment) if real else "",
            agreed=self._key_fingerprints(),
            least=privacy.least_members,
            like=like,
            root=self.folder.path / "sums",
        )
        if state.together is None:
            together = Standing(as_single_site(self._summed.facts[ALL_SITES]))
            state.together = Standings({ALL_SITES: together})
        self.progress.note(
            MASKED_SUMS_NOTE if real else f"{MASKED_SUMS_NOTE} {SIMULATED_KEYS_NOTE}"
        )

    def _averaging_rule(self) -> Rule[Any]:
        """Return the averaging rule, which the method may wrap in another. Raises ConfigError."""
        name = self.experiment.rounds.robust
        try:
            return self.experiment.method.averaging(rule_of(name))
        except ConfigError as error:
            raise ConfigError(f"rounds.robust = {name!r}: {error}") from error

    def _begin(self, state: RunState, facts: Sequence[SiteFacts], kind: DataKind) -> None:
        """Make the initial model, w_0, and admit the sites."""
        settings, (inputs, classes, _) = self.experiment, kind
        w_0 = initial_params(settings.model, inputs, len(classes), settings.seed)
        shared = {name: w_0[name] for name in self.schemas[MODEL]}
        self.pool = ModelPool(self.store)
        self.pool.start((), to_bytes(shared, settings.transport))
        self._arrivals.waiting = facts
        self._admit(state, 0, ())
        if not self._arrivals.here:
            raise RunError("no site is here that can take part; see above why each is left out")

    def _continue(
        self, state: RunState, facts: Sequence[SiteFacts], checkpoint: Mapping[str, Any]
    ) -> None:
        """Restore the pool and the ledger from the checkpoint."""
        self.pool = ModelPool.from_plain(self.store, checkpoint["pool"])
        self.ledger = Ledger.from_totals(checkpoint["ledger"])
        known = state.standings.sites.keys()
        self._arrivals.here = {f.site for f in facts} & known
        self._arrivals.waiting = [f for f in facts if f.site not in known]
        self.progress.note(f"resuming after round {state.round}")
        if absent := sorted(known - self._arrivals.here):
            self.progress.note(f"not here yet: site {_listed(absent)}; the others go on")

    def _admit(self, state: RunState, number: int, found: Sequence[SiteFacts]) -> None:
        """Admit the sites that came. Those that cannot take part may be asked again later."""
        for site in sorted(self._arrivals.admit(found, state, self.pool, number)):
            self.carrier.leave_out(site)

    # --- one round --------------------------------------------------------------------------------

    def _round(self, number: int, state: RunState) -> tuple[Row, Row]:
        """Run a round; return its rows for `metrics.jsonl` and `sites.jsonl`."""
        began = time.monotonic()
        seconds: dict[str, float] = {}
        self._admit(state, number, self.carrier.newcomers())
        standings = state.standings.sites
        sites = tuple(sorted(standings))
        cohort = self._cohort(number, sites)
        summed = self._summed
        if summed:
            summed.cohort = cohort & self._arrivals.here
            cohort, sites = frozenset({COHORT}), (ALL_SITES,)
        beyond: dict[int, float] = {}

        def left_out(site: int, times: float) -> None:
            beyond[site] = max(round(times, 1), beyond.get(site, 0.0))

        rnd = Round(
            number=number,
            seed=self.experiment.seed,
            sites=sites,
            cohort=cohort,
            pool=RoundPool(
                self.pool,
                self.schemas,
                self._weights,
                self.experiment.transport,
                number,
                self._rule,
                state.averaging,
                state.moves,
                left_out,
            ),
            facts=summed.facts
            if summed
            else {
                **{site: standing.facts for site, standing in standings.items()},
                **({SERVER_SITE: self.local_site.facts()} if self.local_site else {}),
            },
            private={} if summed else state.private,
            joined={} if summed else {site: of.joined for site, of in standings.items()},
            masked=summed is not None,
            protection=self.experiment.protection,
            warmup_rounds=self.experiment.training.warmup_rounds,
            server_learns=self.local_site is not None,
            last=self.experiment.rounds.num_rounds,
            finds=bool(self.experiment.data.findings),
            say=self.progress.note,
        )
        every: list[Reply] = []
        skipped: dict[int, str] = {}
        if welcome := self.experiment.method.welcome(rnd) if rnd.newcomers else ():
            every += self._timed(welcome, skipped, seconds)
        phases = self.experiment.method.server_round(state.server, rnd)
        try:
            tasks = next(phases)
            while True:
                replies = self._timed(tasks, skipped, seconds)
                (summed or self.phases).check_turnout(tasks, {r.site for r in replies}, skipped)
                every += replies
                tasks = phases.send(replies)
        except StopIteration as stop:
            state.server = stop.value
        of_sites = [reply for reply in every if reply.site != SERVER_SITE]
        seconds["server"] = time.monotonic() - began - sum(seconds.values())
        joins_at = self.experiment.method.joins_at
        of_round = state.standings
        if summed:
            from fedapp.server.masked_sums import as_single_site

            of_sites = [replace(reply, site=ALL_SITES) for reply in of_sites]
            assert state.together is not None
            of_round, counted = state.together, summed.facts[ALL_SITES]
            of_round.sites[ALL_SITES] = replace(
                of_round.sites[ALL_SITES], facts=as_single_site(counted)
            )
        rounds = self.experiment.rounds
        by = rounds.chosen_by, rounds.min_sensitivity
        row = of_round.close_round(number, of_sites, skipped, joins_at, *by)
        if beyond:
            row["left_out"] = beyond
            for site, times in sorted(beyond.items()):
                who = (
                    rnd.facts[site].display_name
                    if site in rnd.facts
                    else "a model of the server's own"
                )
                self.progress.note(_left_out_note(number, who, times))
        return row, sites_row(number, of_sites, seconds)

    def _timed(
        self, tasks: Sequence[Task], skipped: dict[int, str], seconds: dict[str, float]
    ) -> list[Reply]:
        """Run a phase, and add its duration to the seconds of its kind."""
        began = time.monotonic()
        replies = (self._summed or self.phases).run(tasks, skipped)
        if tasks:  # a method may yield a phase without tasks
            kind = " and ".join(sorted({task.action for task in tasks}))
            seconds[kind] = seconds.get(kind, 0.0) + time.monotonic() - began
        return replies

    def _cohort(self, number: int, sites: Sequence[int]) -> frozenset[int]:
        """Return the cohort: ceil(tau K) sites drawn at random, in the warm-up all sites."""
        if number == 0:
            return frozenset(sites)
        share = self.experiment.rounds.sample_rate * len(sites)
        size = max(math.ceil(share - 1e-9), 1)  # 0.07 * 100 is a little above 7
        stream = numpy_stream(self.experiment.seed, "cohort", number)
        return frozenset(stream.permutation(sites)[:size].tolist())

    # --- records ----------------------------------------------------------------------------------

    def _traffic(self) -> Row:
        return dict(self.ledger.totals())

    def _record(self, row: Row, sites: Row, state: RunState) -> None:
        needs = state.server.needs()
        self.pool.sync(needs)
        self.folder.append_metrics(row)
        self.folder.append_sites(sites)
        self.folder.append_traffic(self.ledger.close_round())
        self._checkpoint.save(state, self.pool, self.ledger)
        # Only after the records are saved: what saved records name must never be missing.
        self.pool.collect_garbage(needs, more_come=True)
        if self._summed:
            self._summed.forget(state.round + 1)

    def _finish(self, state: RunState) -> Row:
        rounds, sites = self.experiment.rounds, len(state.standings.sites)
        standings = state.together or state.standings
        summary = {
            "preset": self.experiment.name,
            "method": self.experiment.method.called,
            "begins": self.experiment.method.begins,
            "lone_model": self.experiment.method.lone_model,
            "seed": self.experiment.seed,
            "sites": sites,
            "sites_expected": max(sites, self.experiment.split.num_clients),
            "manifest": state.standings.sites[min(state.standings.sites)].facts.split_digest,
            "rounds": rounds.num_rounds,
            **standings.summary(),
            **self._traffic(),
            **state.server.shown(),
            **state.server.in_summary(),
            **self.experiment.method.costs(sites, rounds.sample_rate, rounds.num_rounds),
            "wall_seconds": round(state.wall_seconds, 3),
            **self.summary_extras,
        }
        privacy = self.experiment.privacy
        delta = privacy.delta
        if privacy.epsilon:  # it holds for every site, also where only sums are known
            summary[EPSILON] = privacy.epsilon
            of = summary["epsilon_of"] = state.standings.epsilon_of
            self.progress.note(f"epsilon of {of} at delta = {delta:g}: {privacy.epsilon:g}")
        self.folder.write_evaluations(standings.evaluations())
        self.folder.write_per_site(standings.per_site(state.server.column))
        self._checkpoint.save_whole(state, self.pool, self.ledger)
        self.pool.collect_garbage(state.server.needs())
        self.folder.write_summary(summary)
        return summary


MASKED_SUMS_NOTE = (
    "sums are masked: the server learns the sums over all sites and no site's answer. It has no "
    "table by site, leaves nobody out of an average, and knows no site's number of images."
)
SIMULATED_KEYS_NOTE = (
    "The keys follow from the seed: this is a simulation, and whoever knows the seed can look "
    "behind the masks."
)
"""Notes that are printed when a run starts."""


def _unused_images_note(experiment: Experiment) -> str:
    share, data = experiment.split.server_share, experiment.runtime.server_data
    whose = f"split.server_share = {share}" if share else f"runtime.server_data = {data}"
    return f"{whose}: {experiment.method.name} does not train the server on it: it is unused"


def _left_out_note(number: int, called: str, times: float) -> str:
    return (
        f"round {number}: {called} left out of the average: its upload changed {times:.3g} "
        "times as much as is usual; look at its training and its images"
    )


def _listed(sites: Iterable[int]) -> str:
    return ", ".join(map(str, sites))
