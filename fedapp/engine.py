"""The one round loop: a method's phases, the pool, the records, the checkpoints.

Drivers (loopback, Flower) only carry messages: they implement `Transport`.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from fedapp.codec import encode
from fedapp.costs import cost_greedy
from fedapp.errors import FedAppError, ProtocolError, RunError
from fedapp.ledger import Ledger
from fedapp.methods.base import Method, Round, ServerState
from fedapp.models import build_model, initial_params
from fedapp.params import Schema, digest_of, from_bytes, schema_of, to_bytes
from fedapp.pool import ModelPool
from fedapp.progress import Progress
from fedapp.protocol import (
    Incoming,
    Missing,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.rng import numpy_stream
from fedapp.runfolder import RunFolder
from fedapp.settings import Experiment
from fedapp.standings import Row, Standing, Standings
from fedapp.store import ModelStore

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]


class Transport(Protocol):
    """Carries messages to the sites and back."""

    def introduce(self) -> Sequence[SiteFacts]:
        """Ask every node who it is; return the sites there are."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[Incoming]:
        """Send the tasks with their contents; yield answers as they come.

        Ends when every task is answered or `deadline_s` seconds are over; silent sites are absent.
        """


@dataclass
class RunState:
    """All that a run must remember between rounds; the checkpoint is this, as JSON."""

    round: int
    server: ServerState
    standings: Standings
    held: dict[int, list[str]]
    wall_seconds: float = 0.0


@dataclass
class Engine:
    """One run. `run` does it; everything else is its parts."""

    experiment: Experiment
    transport: Transport
    folder: RunFolder
    store: ModelStore
    progress: Progress
    ledger: Ledger = field(default_factory=Ledger)

    def run(self) -> Row:
        """Run warm-up and rounds, or the rest of them; return the summary."""
        began = time.monotonic()
        facts = sorted(self.transport.introduce(), key=lambda f: f.site)
        state = self._prepare(facts)
        earlier = state.wall_seconds
        rounds = self.experiment.rounds.num_rounds
        self.progress.started(self.experiment.name, rounds, len(facts))
        for number in range(state.round + 1, rounds + 1):
            state.round = number
            row = self._round(number, state)
            state.wall_seconds = earlier + time.monotonic() - began
            row |= {**self._traffic(), "wall_seconds": round(state.wall_seconds, 3)}
            self._record(row, state)
            self.progress.round_done(row)
        return self._finish(state)

    # --- before the first round -------------------------------------------------------------------

    def _prepare(self, facts: Sequence[SiteFacts]) -> RunState:
        first = check_agreement(facts)
        settings, seed = self.experiment.model, self.experiment.seed
        self._classes = len(first.classes)
        self._schema: Schema = schema_of(
            build_model(settings, first.channels, self._classes).state_dict()
        )
        sites = tuple(f.site for f in facts)
        checkpoint = self.folder.load_checkpoint() if self.experiment.runtime.resume else None
        if checkpoint is None:
            self._pool = ModelPool(self.store)
            w_0 = to_bytes(initial_params(settings, first.channels, self._classes, seed))
            self._pool.start(sites, w_0)
            standings = Standings({f.site: Standing(f) for f in facts})
            return RunState(-1, ServerState(), standings, {site: [] for site in sites})
        state = _state_of(checkpoint)
        check_same_sites(state.standings, facts)
        self._pool = ModelPool.from_plain(self.store, checkpoint["pool"])
        self.ledger = Ledger.from_plain(checkpoint["ledger"])
        self.progress.note(f"resuming after round {state.round}")
        return state

    # --- one round --------------------------------------------------------------------------------

    def _round(self, number: int, state: RunState) -> Row:
        sites = tuple(sorted(state.standings.sites))
        rnd = Round(number, self.experiment.seed, sites, self._cohort(number, sites), self._pool)
        method: Method = self.experiment.method
        phases = method.server_round(state.server, rnd)
        every: list[Reply] = []
        skipped: dict[int, str] = {}
        try:
            tasks = next(phases)
            while True:
                replies = self._phase(tasks, state.held, skipped)
                every += replies
                tasks = phases.send(replies)
        except StopIteration as stop:
            state.server = stop.value
        return state.standings.close_round(number, every, skipped)

    def _cohort(self, number: int, sites: Sequence[int]) -> frozenset[int]:
        """Draw ceil(tau K) sites; the warm-up is everybody's."""
        if number == 0:
            return frozenset(sites)
        size = math.ceil(self.experiment.rounds.sample_rate * len(sites) - 1e-9)
        stream = numpy_stream(self.experiment.seed, "cohort", number)
        return frozenset(stream.permutation(sites)[:size].tolist())

    def _phase(
        self, tasks: Sequence[Task], held: dict[int, list[str]], skipped: dict[int, str]
    ) -> list[Reply]:
        """Send tasks, take answers; a site that lacks contents is sent them once more."""
        deadline = time.monotonic() + self.experiment.rounds.deadline_s
        tasks_by_site = {task.site: task for task in tasks}
        replies: dict[int, Reply] = {}
        failed: dict[int, str] = {}
        healed: set[int] = set()
        outbox = [self._outgoing(task, held[task.site]) for task in tasks]
        while outbox:
            again: list[Outgoing] = []
            left = max(deadline - time.monotonic(), 0.0)
            for incoming in self.transport.exchange(outbox, self._pool.get, left):
                answer = incoming.answer
                task = tasks_by_site.get(getattr(answer, "site", -1))
                if task is None:
                    log.warning("an answer from a site that was not asked is ignored")
                    continue
                self._count_up(task, incoming)
                try:
                    if isinstance(answer, Missing) and task.site not in healed:
                        healed.add(task.site)
                        again.append(self._healing(task, answer))
                        continue
                    replies[task.site] = self._accept(task, incoming)
                    held[task.site] = list(replies[task.site].held)
                except FedAppError as error:
                    failed[task.site] = str(error)
                self.progress.phase(tasks[0].action, len(replies) + len(failed), len(tasks))
            outbox = again
        for site in tasks_by_site.keys() - replies.keys() - failed.keys():
            failed[site] = f"no answer within {self.experiment.rounds.deadline_s:g} s"
        for site, reason in sorted(failed.items()):
            self.progress.note(
                f"site {site} skipped in round {tasks_by_site[site].round}: {reason}"
            )
        skipped |= failed
        self._check_turnout(tasks, replies, failed)
        return [replies[site] for site in sorted(replies)]

    def _check_turnout(
        self, tasks: Sequence[Task], replies: Collection[int], failed: Mapping[int, str]
    ) -> None:
        share = self.experiment.rounds.min_reply_share
        if len(replies) < share * len(tasks):
            site, reason = min(failed.items())
            raise RunError(
                f"round {tasks[0].round}: {len(replies)} of {len(tasks)} sites answered, "
                f"rounds.min_reply_share = {share:g} asks for more; site {site} said: {reason}. "
                "Mend the sites and run again with runtime.resume=true"
            )

    def _outgoing(self, task: Task, held: Collection[str]) -> Outgoing:
        """Attach what the site does not hold; w_0 it makes itself."""
        w_0 = self._pool.initial.digest
        attach = tuple(r.digest for r in task.refs() if r.digest not in held and r.digest != w_0)
        return self._counted(Outgoing(task, attach))

    def _healing(self, task: Task, missing: Missing) -> Outgoing:
        asked = {ref.digest for ref in task.refs()}
        if not missing.digests or not asked.issuperset(missing.digests):
            raise ProtocolError("asked for contents that are not part of its task")
        log.info("site %d lacks %d models; sending them", task.site, len(missing.digests))
        return self._counted(Outgoing(task, missing.digests))

    def _counted(self, outgoing: Outgoing) -> Outgoing:
        task, count = outgoing.task, len(outgoing.attach)
        size = sum(map(self.store.size, outgoing.attach))
        self.ledger.add(task.round, task.site, "down", "message", 0, len(encode(task)))
        if count:
            self.ledger.add(task.round, task.site, "down", "model", count, size)
        return outgoing

    def _count_up(self, task: Task, incoming: Incoming) -> None:
        self.ledger.add(task.round, task.site, "up", "message", 0, incoming.head_bytes)
        if incoming.payloads:
            size = sum(map(len, incoming.payloads.values()))
            self.ledger.add(task.round, task.site, "up", "model", len(incoming.payloads), size)

    def _accept(self, task: Task, incoming: Incoming) -> Reply:
        """Check a reply and take its upload into the pool. Raises ProtocolError."""
        reply = incoming.answer
        if isinstance(reply, Refusal):
            raise ProtocolError(f"the site refused: {reply.reason}")
        if not isinstance(reply, Reply):
            raise ProtocolError(f"answered with {type(reply).__name__}, a Reply was due")
        if reply.round != task.round:
            raise ProtocolError(f"answer for round {reply.round} in round {task.round}")
        known = {ref.digest: ref for ref in task.refs()}
        if any(known.get(h.model.digest) != h.model for h in reply.helpers):
            raise ProtocolError("its helper list names a model that it was not offered")
        for part, result in reply.evaluations.items():
            rows = [len(row) for row in result.confusion]
            if rows != [self._classes] * self._classes:
                raise ProtocolError(f"confusion matrix {part} is not {self._classes} x the same")
        if reply.model == task.own.digest:
            return reply
        if incoming.payloads.keys() != {reply.model}:
            raise ProtocolError("its new model did not come along, or more than that came")
        blob = incoming.payloads[reply.model]
        from_bytes(blob, self._schema, f"site {task.site}'s upload")
        if digest_of(blob) != reply.model:
            raise ProtocolError("its upload is not the content it names")
        self._pool.upload(task.site, blob, task.round)
        return reply

    # --- records ----------------------------------------------------------------------------------

    def _traffic(self) -> Row:
        return dict(self.ledger.totals())

    def _record(self, row: Row, state: RunState) -> None:
        self.folder.append_metrics(row)
        plain: dict[str, Any] = {
            "round": state.round,
            "state": TypeAdapter(RunState).dump_python(state, mode="json"),
            "pool": self._pool.to_plain(),
            "ledger": self.ledger.to_plain(),
        }
        self.folder.save_checkpoint(plain)
        listed = (h.model.digest for helpers in state.server.helpers.values() for h in helpers)
        self._pool.keep(set(listed))  # only now: what the saved records name must never be gone

    def _finish(self, state: RunState) -> Row:
        rounds, sites = self.experiment.rounds, len(state.standings.sites)
        summary = {
            "preset": self.experiment.name,
            "method": self.experiment.method.name,
            "seed": self.experiment.seed,
            "sites": sites,
            "manifest": state.standings.sites[min(state.standings.sites)].facts.manifest,
            "rounds": rounds.num_rounds,
            **state.standings.summary(),
            **self._traffic(),
            "cost_bound_models": self.experiment.method.cost_bound(
                sites, rounds.sample_rate, rounds.num_rounds
            ),
            "cost_greedy_models": cost_greedy(
                num_clients=sites,
                sample_rate=rounds.sample_rate,
                num_rounds=rounds.num_rounds,
            ),
            "wall_seconds": round(state.wall_seconds, 3),
        }
        self.folder.write_per_site(state.standings.per_site(state.server.helpers))
        self.folder.write_summary(summary)
        return summary


def _state_of(checkpoint: Mapping[str, Any]) -> RunState:
    try:
        text = json.dumps(checkpoint["state"])
        state: RunState = TypeAdapter(RunState).validate_json(text)
    except (KeyError, ValidationError) as error:
        raise RunError(
            f"checkpoint.json does not hold a state of this version ({error!r:.200}); "
            "resume with the version that wrote it, or start anew"
        ) from error
    return state


def check_same_sites(standings: Standings, facts: Sequence[SiteFacts]) -> None:
    """Check that a run resumes with the sites and the data that it had."""
    before = {k: standing.facts for k, standing in standings.sites.items()}
    now = {f.site: f for f in facts}
    if before.keys() != now.keys():
        raise RunError(
            f"checkpoint of sites {sorted(before)}, but sites {sorted(now)} are here; "
            "start the same sites to resume"
        )
    changed = sorted(k for k in now if now[k] != before[k])
    if changed:
        raise RunError(
            f"site {changed[0]} holds other data than before: {now[changed[0]]}, was "
            f"{before[changed[0]]}; restore its data to resume, or start anew"
        )


def check_agreement(facts: Sequence[SiteFacts]) -> SiteFacts:
    """Check that the sites hold the same kind of data; return the first's facts."""
    if not facts:
        raise RunError("no site answered; start at least one node and run again")
    first = facts[0]
    for other in facts[1:]:
        for name in ("channels", "classes", "manifest"):
            if getattr(other, name) != getattr(first, name):
                raise RunError(
                    f"site {other.site} has {name} {getattr(other, name)!r}, site {first.site} "
                    f"{getattr(first, name)!r}; all sites need the same"
                )
    if len({f.site for f in facts}) != len(facts):
        raise RunError("two nodes say that they are the same site; give each its own number")
    return first
