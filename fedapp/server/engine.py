"""The one round loop: a method's phases, the pool, the records, the checkpoints.

Drivers (loopback, Flower) only carry messages: they implement `Transport`.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.devices import torch_threads
from fedapp.ground.errors import ProtocolError, RunError, StoreError
from fedapp.ground.progress import Progress
from fedapp.ground.rng import numpy_stream
from fedapp.ground.settings import Experiment
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.params import Schema, from_bytes, schema_of, to_bytes, without
from fedapp.messages.codec import encode
from fedapp.messages.ledger import Kind, Ledger
from fedapp.messages.protocol import (
    EVALUATE,
    Answer,
    Incoming,
    Missing,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.messages.store import ModelStore
from fedapp.methods.base import Method, Round, ServerState
from fedapp.methods.um_pfssl.costs import cost_greedy
from fedapp.server.arrivals import Arrivals
from fedapp.server.checks import agreed, check_reply, check_same_sites, joinable, kind_of
from fedapp.server.peers import adopt_peers
from fedapp.server.pool import ModelPool
from fedapp.server.roundpool import RoundPool
from fedapp.server.runstate import RunState, state_of
from fedapp.server.standings import Row, Standings, fallen

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]


class Transport(Protocol):
    """Carries messages to the sites and back."""

    def introduce(self) -> Sequence[SiteFacts]:
        """Ask every node who it is; return the sites there are."""

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return the sites that came, or came back, since the last call; never wait for any."""

    def leave_out(self, site: int) -> None:
        """Take note that a site found cannot take part; it may be asked again later."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[Incoming]:
        """Send the tasks with their contents; yield answers as they come.

        Ends when every task is answered or `deadline_s` seconds are over; silent sites are absent.
        """


NOT_HERE = "not sent: the site is not here"


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
        # Checking and averaging models is memory's work; beside busy sites more threads only wait
        # for each other: 0.48 s instead of 0.05 to check a model of 26 MB.
        with torch_threads(1):
            try:
                return self._run()
            except StoreError as error:
                raise StoreError(f"{error}; then {self.folder.going_on()}") from error

    def _run(self) -> Row:
        began = time.monotonic()
        state = self._prepare(self.transport.introduce())
        earlier = state.wall_seconds
        rounds = self.experiment.rounds.num_rounds
        self.progress.started(self.experiment.name, rounds, len(self._arrivals.here))
        before: Row = {}
        for number in range(state.round + 1, rounds + 1):
            state.round = number
            row = self._round(number, state)
            if warning := fallen(row, before):
                self.progress.note(warning)
            before = row
            state.wall_seconds = earlier + time.monotonic() - began
            row |= {**self._traffic(), "wall_seconds": round(state.wall_seconds, 3)}
            self._record(row, state)
            self.progress.round_done(row)
        return self._finish(state)

    # --- before the first round -------------------------------------------------------------------

    def _prepare(self, introduced: Sequence[SiteFacts]) -> RunState:
        clients, say = self.experiment.split.num_clients, self.progress.note
        checkpoint = self.folder.load_checkpoint() if self.experiment.runtime.resume else None
        state = RunState(-1, ServerState(), Standings({}), {})
        if checkpoint is None:
            facts = agreed(introduced, clients, self.experiment.data, say)
            kind = kind_of(facts[0])
        else:
            state = state_of(checkpoint)
            kind = kind_of(next(iter(state.standings.sites.values())).facts)
            facts = joinable(introduced, clients, self.experiment.data, kind, say)
            check_same_sites(state.standings, facts)
        for site in {f.site for f in introduced} - {f.site for f in facts}:
            self.transport.leave_out(site)
        if facts[0].name:
            say(f"sites: {', '.join(f'{site.site} {site.name}' for site in facts)}")
        inputs, classes, manifest = kind
        self.folder.note_manifest(manifest)
        settings, seed = self.experiment.model, self.experiment.seed
        self._classes = len(classes)
        network = build_model(settings, inputs, self._classes)
        private = self.experiment.method.kept_private(network)
        self._schema: Schema = schema_of(without(network.state_dict(), private))
        self._weights = frozenset(name for name, _ in network.named_parameters()) - private
        self._arrivals = Arrivals(clients, self.experiment.data, kind, say)
        if checkpoint is None:
            self._pool = ModelPool(self.store)
            w_0 = initial_params(settings, inputs, self._classes, seed)
            self._pool.start((), to_bytes(without(w_0, private), self.experiment.transport))
            if self.experiment.runtime.peers:
                earlier = adopt_peers(
                    self._pool, self.experiment, kind, self._schema, self.folder.path
                )
                state.peers = earlier.facts
                state.server = ServerState(numbers=earlier.state.server.numbers)
                common = self.experiment.method.starts_common
                named = ", ".join(map(str, sorted(state.peers) if common else self._pool.trained()))
                if common:
                    say(f"common model of an earlier run (sites {named})")
                else:
                    say(f"peers: sites {named} of an earlier run")
            self._arrivals.waiting = facts
            self._admit(state, 0, ())
            if not self._arrivals.here:
                raise RunError("no site is here that can take part; see above why each is left out")
            return state
        self._pool = ModelPool.from_plain(self.store, checkpoint["pool"])
        self.ledger = Ledger.from_totals(checkpoint["ledger"])
        known = state.standings.sites.keys()
        self._arrivals.here = {f.site for f in facts} & known
        self._arrivals.waiting = [f for f in facts if f.site not in known]
        say(f"resuming after round {state.round}")
        if absent := sorted(known - self._arrivals.here):
            say(f"not here yet: site {', '.join(map(str, absent))}; the others go on")
        return state

    def _admit(self, state: RunState, number: int, found: Sequence[SiteFacts]) -> None:
        """Take in the sites that came; who cannot take part may be asked again later."""
        for site in sorted(self._arrivals.admit(found, state, self._pool, number)):
            self.transport.leave_out(site)

    # --- one round --------------------------------------------------------------------------------

    def _round(self, number: int, state: RunState) -> Row:
        self._admit(state, number, self.transport.newcomers())
        standings = state.standings.sites
        sites = tuple(sorted(standings))
        rnd = Round(
            number=number,
            seed=self.experiment.seed,
            sites=sites,
            cohort=self._cohort(number, sites),
            pool=RoundPool(
                self._pool,
                self._schema,
                self._weights,
                self.experiment.transport,
                number,
                self.experiment.rounds.robust,
                state.agreement,
            ),
            facts={site: standing.facts for site, standing in standings.items()},
            private=state.private,
            joined={site: standing.joined for site, standing in standings.items()},
            warmup_rounds=self.experiment.training.warmup_rounds,
            common_fixed=bool(state.peers),  # not runtime.peers: a run is resumed without it
        )
        method: Method = self.experiment.method
        every: list[Reply] = []
        skipped: dict[int, str] = {}
        if welcome := method.welcome(rnd) if rnd.newcomers else ():
            every += self._phase(welcome, state, skipped)
        phases = method.server_round(state.server, rnd)
        try:
            tasks = next(phases)
            while True:
                replies = self._phase(tasks, state, skipped)
                self._check_turnout(tasks, {r.site for r in replies}, skipped, state)
                every += replies
                tasks = phases.send(replies)
        except StopIteration as stop:
            state.server = stop.value
        return state.standings.close_round(number, every, skipped)

    def _cohort(self, number: int, sites: Sequence[int]) -> frozenset[int]:
        """Draw ceil(tau K) sites; the warm-up is everybody's."""
        if number == 0:
            return frozenset(sites)
        share = self.experiment.rounds.sample_rate * len(sites)
        size = max(math.ceil(share - 1e-9), 1)  # 0.07 * 100 is a little above 7
        stream = numpy_stream(self.experiment.seed, "cohort", number)
        return frozenset(stream.permutation(sites)[:size].tolist())

    def _phase(
        self, tasks: Sequence[Task], state: RunState, skipped: dict[int, str]
    ) -> list[Reply]:
        """Send tasks, take answers; a site that lacks contents is sent them once more."""
        deadline = time.monotonic() + self.experiment.rounds.deadline_s
        here = self._arrivals.here
        absent = {task.site: NOT_HERE for task in tasks if task.site not in here}
        phase = _Phase({task.site: task for task in tasks}, absent)
        outbox = [self._outgoing(t, state.held[t.site]) for t in tasks if t.site in here]
        while outbox:
            outbox = self._wave(outbox, phase, state, deadline)
        self._close(phase, state)
        skipped |= phase.failed
        replies = [phase.replies[site] for site in sorted(phase.replies)]
        state.private |= {reply.site: reply.private for reply in replies if reply.private}
        return replies

    def _wave(
        self, outbox: Sequence[Outgoing], phase: "_Phase", state: RunState, deadline: float
    ) -> list[Outgoing]:
        """Send what can be sent, take the answers; return what must be sent once more."""
        again: list[Outgoing] = []
        unsent: set[int] = set()
        left = max(deadline - time.monotonic(), 0.0)
        sizes = self._sizes(outbox, phase.failed)
        outbox = [outgoing for outgoing in outbox if outgoing.task.site in sizes]
        for incoming in self.transport.exchange(outbox, self._pool.get, left):
            task = phase.awaits(incoming.answer)
            if task is None:
                log.warning("an answer that nobody waits for is ignored")
                continue
            if not incoming.sent:
                unsent.add(task.site)
            self._count_up(task.site, state.round, _kind(task, "message"), incoming)
            if healing := self._take(task, incoming, phase, state):
                again.append(healing)
            else:
                first = next(iter(phase.tasks.values()))
                self.progress.phase(first.action, phase.done, len(phase.tasks))
        for outgoing in outbox:
            if outgoing.task.site not in unsent:
                self._count_down(outgoing, state.round, sizes[outgoing.task.site])
        return again

    def _take(
        self, task: Task, incoming: Incoming, phase: "_Phase", state: RunState
    ) -> Outgoing | None:
        """Take an answer in; return what its site must be sent first, where it lacks contents."""
        answer = incoming.answer
        try:
            if isinstance(answer, Missing) and task.site not in phase.healed:
                phase.healed.add(task.site)
                return self._healing(task, answer)
            reply = self._accept(task, incoming, state)
        except ProtocolError as error:
            phase.failed[task.site] = str(error)
        else:
            phase.replies[task.site] = reply
            state.held[task.site] = list(reply.held)
        return None

    def _close(self, phase: "_Phase", state: RunState) -> None:
        """Note down the sites that were silent; say who is skipped and why."""
        for site in phase.tasks.keys() - phase.replies.keys() - phase.failed.keys():
            phase.failed[site] = f"no answer within {self.experiment.rounds.deadline_s:g} s"
        for site, reason in sorted(phase.failed.items()):
            called = state.standings.sites[site].facts.called
            self.progress.note(f"{called} skipped in round {state.round}: {reason}")

    def _check_turnout(
        self,
        tasks: Sequence[Task],
        replies: Collection[int],
        failed: Mapping[int, str],
        state: RunState,
    ) -> None:
        """Check that enough sites answered, of those that train and of the others."""
        share = self.experiment.rounds.min_reply_share
        for action in sorted({task.action for task in tasks}):
            asked = {task.site for task in tasks if task.action == action}
            answered = asked & set(replies)
            if len(answered) < share * len(asked):
                site = min(asked - answered)
                called = state.standings.sites[site].facts.called
                raise RunError(
                    f"round {state.round}: {len(answered)} of {len(asked)} sites answered "
                    f"({action}), rounds.min_reply_share = {share:g} asks for more; "
                    f"{called} said: {failed[site].rstrip('.')}. "
                    f"Mend the sites and {self.folder.going_on()}"
                )

    def _outgoing(self, task: Task, held: Collection[str]) -> Outgoing:
        """Attach what the site does not hold; w_0 it makes itself."""
        w_0 = self._pool.initial.digest
        attach = tuple(r.digest for r in task.refs() if r.digest not in held and r.digest != w_0)
        return Outgoing(task, attach)

    def _sizes(self, outbox: Sequence[Outgoing], failed: dict[int, str]) -> dict[int, int]:
        """Return the bytes of contents for each site that can be sent its task.

        A task whose content the pool lacks fails its site.
        """
        sizes = {}
        for outgoing in outbox:
            try:
                sizes[outgoing.task.site] = sum(map(self.store.size, outgoing.attach))
            except StoreError as error:
                failed[outgoing.task.site] = f"the server lost a model it needs: {error}"
        return sizes

    def _healing(self, task: Task, missing: Missing) -> Outgoing:
        asked = {ref.digest for ref in task.refs()}
        if not missing.digests or not asked.issuperset(missing.digests):
            raise ProtocolError("asked for contents that are not part of its task")
        log.info("site %d lacks %d models; sending them", task.site, len(missing.digests))
        return Outgoing(task, tuple(dict.fromkeys(missing.digests)))

    # The ledger goes by the round under way: the warm-up of a site that comes late is of round 0.
    def _count_down(self, outgoing: Outgoing, number: int, size: int) -> None:
        task, count = outgoing.task, len(outgoing.attach)
        self.ledger.add(number, task.site, "down", _kind(task, "message"), 0, len(encode(task)))
        if count:
            self.ledger.add(number, task.site, "down", _kind(task, "model"), count, size)

    def _count_up(self, site: int, number: int, kind: Kind, incoming: Incoming) -> None:
        self.ledger.add(number, site, "up", kind, 0, incoming.head_bytes)
        if incoming.payloads:
            size = sum(map(len, incoming.payloads.values()))
            self.ledger.add(number, site, "up", "model", len(incoming.payloads), size)

    def _accept(self, task: Task, incoming: Incoming, state: RunState) -> Reply:
        """Check a reply and take its upload into the pool. Raises ProtocolError."""
        reply = incoming.answer
        if isinstance(reply, Refusal):
            raise ProtocolError(f"the site refused: {reply.reason}")
        if not isinstance(reply, Reply):
            raise ProtocolError(f"answered with {type(reply).__name__}, a Reply was due")
        check_reply(task, reply, state.standings.sites[task.site].facts)
        if reply.model == task.own.digest:
            return reply
        if incoming.payloads.keys() != {reply.model}:
            raise ProtocolError("its new model did not come along, or more than that came")
        blob = incoming.payloads[reply.model]
        owner = f"site {task.site}'s upload"
        from_bytes(blob, self._schema, owner, self.experiment.transport)
        self._pool.upload(task.site, reply.model, blob, state.round)
        return reply

    # --- records ----------------------------------------------------------------------------------

    def _traffic(self) -> Row:
        return dict(self.ledger.totals())

    def _record(self, row: Row, state: RunState) -> None:
        self.folder.append_metrics(row)
        self.folder.append_traffic(self.ledger.close_round())
        plain: dict[str, Any] = {
            "round": state.round,
            "state": state.to_plain(),
            "pool": self._pool.to_plain(),
            "ledger": self.ledger.totals(),
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
        spent = [(k, s.epsilon) for k, s in sorted(state.standings.sites.items()) if s.epsilon]
        if spent:
            every = ", ".join(f"site {site} {epsilon:.3g}" for site, epsilon in spent)
            delta = self.experiment.privacy.delta
            self.progress.note(f"epsilon of each site's models at delta = {delta:g}: {every}")
        self.folder.write_evaluations(state.standings.evaluations())
        self.folder.write_per_site(state.standings.per_site(state.server.helpers))
        self.folder.write_summary(summary)
        return summary


@dataclass
class _Phase:
    """By site: the tasks of a phase, and what became of each: a reply, or why there is none."""

    tasks: Mapping[int, Task]
    failed: dict[int, str]
    replies: dict[int, Reply] = field(default_factory=dict)
    healed: set[int] = field(default_factory=set)

    @property
    def done(self) -> int:
        """How many sites are done with."""
        return len(self.replies) + len(self.failed)

    def awaits(self, answer: Answer) -> Task | None:
        """Return the task that an answer belongs to; None where nobody waits for it."""
        site = getattr(answer, "site", -1)
        return None if site in self.replies or site in self.failed else self.tasks.get(site)


def _kind(task: Task, usual: Kind) -> Kind:
    return "evaluation" if task.action == EVALUATE else usual
