"""The one round loop: a method's phases, the pool, the records, the checkpoints.

Drivers (loopback, Flower) only carry messages: they implement `Carrier`.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.devices import torch_threads
from fedapp.ground.errors import ProtocolError, RunError, StoreError
from fedapp.ground.progress import Progress
from fedapp.ground.rng import numpy_stream
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.params import from_bytes, part_from_bytes, to_bytes
from fedapp.messages.codec import encode
from fedapp.messages.ledger import EVALUATION, MESSAGE, Ledger
from fedapp.messages.protocol import (
    EVALUATE,
    MEMORY_LOST,
    MODEL,
    SERVER_SITE,
    Incoming,
    Missing,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.messages.store import ModelStore
from fedapp.methods.base import Method, Round, schemas
from fedapp.server.arrivals import Arrivals
from fedapp.server.checks import (
    Kind,
    agreed,
    attributed,
    check_reply,
    check_same_sites,
    joinable,
    kind_of,
)
from fedapp.server.peers import adopt_peers
from fedapp.server.pool import ModelPool
from fedapp.server.roundpool import RoundPool
from fedapp.server.runstate import RunState, state_of
from fedapp.server.standings import Row, Standings, fallen

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]


class Carrier(Protocol):
    """Carries messages to the sites and back."""

    def introduce(self) -> Sequence[SiteFacts]:
        """Ask every node who it is; return the sites there are."""

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return the sites that came, or came back, since the last call; never wait for any."""

    def leave_out(self, site: int) -> None:
        """Take note that a site found cannot take part; it may be asked again later."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Send the tasks with their contents; yield answers as they come, each with who was asked.

        Ends when every task is answered or `deadline_s` seconds are over; silent sites are absent.
        """


class Learner(Protocol):
    """The server's own site, where it holds labelled images: asked as any site, but not by message.

    What it reads and sends costs no traffic. It works on the server's pool.
    """

    def facts(self) -> SiteFacts:
        """Return what there is to learn from."""

    def handle(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Do a task of `SERVER_SITE`."""


NOT_HERE = "not sent: the site is not here"


@dataclass
class Engine:
    """One run. `run` does it; everything else is its parts."""

    experiment: Experiment
    carrier: Carrier
    folder: RunFolder
    store: ModelStore
    progress: Progress
    ledger: Ledger = field(default_factory=Ledger)
    learner: Learner | None = None

    @property
    def method(self) -> Method[Any]:
        """The experiment's method."""
        method: Method[Any] = self.experiment.method
        return method

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
        state = self._prepare(self.carrier.introduce())
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
        """Agree with the sites upon what they hold; begin, or go on from the checkpoint."""
        clients, data, say = (
            self.experiment.split.num_clients,
            self.experiment.data,
            self.progress.note,
        )
        checkpoint = self.folder.load_checkpoint() if self.experiment.runtime.resume else None
        if checkpoint is None:
            state = RunState(-1, self.method.state(), Standings({}), {})
            facts = agreed(introduced, clients, data, say, self.experiment.model.misfit)
            kind = kind_of(facts[0])
        else:
            state = state_of(checkpoint, self.method)
            kind = kind_of(next(iter(state.standings.sites.values())).facts)
            facts = joinable(introduced, clients, data, kind, say)
            check_same_sites(state.standings, facts)
        for site in {f.site for f in introduced} - {f.site for f in facts}:
            self.carrier.leave_out(site)
        if facts[0].name:
            say(f"sites: {', '.join(f'{site.site} {site.name}' for site in facts)}")
        inputs, classes, manifest = kind
        self.folder.note_manifest(manifest)
        network = build_model(self.experiment.model, inputs, len(classes))
        self._schemas = schemas(self.method, network)
        trained = {name for name, _ in network.named_parameters()}
        self._weights = frozenset(trained & self._schemas[MODEL].keys())
        self._arrivals = Arrivals(clients, data, kind, say)
        if checkpoint is None:
            self._begin(state, facts, kind)
        else:
            self._go_on(state, facts, checkpoint)
        return state

    def _begin(self, state: RunState, facts: Sequence[SiteFacts], kind: Kind) -> None:
        """Make w_0; take in models of an earlier run, where there is one, and the sites."""
        settings, (inputs, classes, _) = self.experiment, kind
        w_0 = initial_params(settings.model, inputs, len(classes), settings.seed)
        shared = {name: w_0[name] for name in self._schemas[MODEL]}
        self._pool = ModelPool(self.store)
        self._pool.start((), to_bytes(shared, settings.transport))
        if settings.runtime.peers:
            schema = self._schemas[MODEL]
            earlier = adopt_peers(self._pool, settings, kind, schema, self.folder.path)
            state.peers = earlier.facts
            if self.method.starts_common:
                state.server = earlier.state.server
                whose = f"common model of an earlier run (sites {_listed(sorted(state.peers))})"
            else:
                whose = f"peers: sites {_listed(self._pool.trained())} of an earlier run"
            self.progress.note(whose)
        self._arrivals.waiting = facts
        self._admit(state, 0, ())
        if not self._arrivals.here:
            raise RunError("no site is here that can take part; see above why each is left out")

    def _go_on(
        self, state: RunState, facts: Sequence[SiteFacts], checkpoint: Mapping[str, Any]
    ) -> None:
        """Take up pool and ledger where the checkpoint left them."""
        self._pool = ModelPool.from_plain(self.store, checkpoint["pool"])
        self.ledger = Ledger.from_totals(checkpoint["ledger"])
        known = state.standings.sites.keys()
        self._arrivals.here = {f.site for f in facts} & known
        self._arrivals.waiting = [f for f in facts if f.site not in known]
        self.progress.note(f"resuming after round {state.round}")
        if absent := sorted(known - self._arrivals.here):
            self.progress.note(f"not here yet: site {_listed(absent)}; the others go on")

    def _admit(self, state: RunState, number: int, found: Sequence[SiteFacts]) -> None:
        """Take in the sites that came; who cannot take part may be asked again later."""
        for site in sorted(self._arrivals.admit(found, state, self._pool, number)):
            self.carrier.leave_out(site)

    # --- one round --------------------------------------------------------------------------------

    def _round(self, number: int, state: RunState) -> Row:
        self._admit(state, number, self.carrier.newcomers())
        standings = state.standings.sites
        sites = tuple(sorted(standings))
        rnd = Round(
            number=number,
            seed=self.experiment.seed,
            sites=sites,
            cohort=self._cohort(number, sites),
            pool=RoundPool(
                self._pool,
                self._schemas[MODEL],
                self._weights,
                self.experiment.transport,
                number,
                self.experiment.rounds.robust,
                state.agreement,
            ),
            facts=self._facts(state),
            private=state.private,
            joined={site: standing.joined for site, standing in standings.items()},
            warmup_rounds=self.experiment.training.warmup_rounds,
            common_fixed=bool(state.peers),  # not runtime.peers: a run is resumed without it
            server_learns=self.learner is not None,
        )
        every: list[Reply] = []
        skipped: dict[int, str] = {}
        if welcome := self.method.welcome(rnd) if rnd.newcomers else ():
            every += self._phase(welcome, state, skipped)
        phases = self.method.server_round(state.server, rnd)
        try:
            tasks = next(phases)
            while True:
                replies = self._phase(tasks, state, skipped)
                self._check_turnout(tasks, {r.site for r in replies}, skipped, state)
                every += replies
                tasks = phases.send(replies)
        except StopIteration as stop:
            state.server = stop.value
        of_sites = [reply for reply in every if reply.site != SERVER_SITE]
        return state.standings.close_round(number, of_sites, skipped)

    def _facts(self, state: RunState) -> dict[int, SiteFacts]:
        """Return what every site said of its data, the server's own included."""
        facts = {site: standing.facts for site, standing in state.standings.sites.items()}
        return facts | ({SERVER_SITE: self.learner.facts()} if self.learner else {})

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
        by_site = {task.site: task for task in tasks}
        if len(by_site) != len(tasks):
            raise ValueError("two tasks for one site in a phase: give the second in the next one")
        ours = by_site.get(SERVER_SITE)
        absent = {site: NOT_HERE for site in by_site if site not in here | {SERVER_SITE}}
        phase = _Phase(by_site, absent)
        if ours is not None:
            self._learn(ours, phase, state)
        outbox = [self._outgoing(t, state.held[t.site]) for t in tasks if t.site in here]
        while outbox:
            outbox = self._wave(outbox, phase, state, deadline)
        self._close(phase, state)
        skipped |= phase.failed
        replies = [phase.replies[site] for site in sorted(phase.replies)]
        state.private |= {reply.site: reply.private for reply in replies if reply.private}
        return replies

    def _learn(self, task: Task, phase: "_Phase", state: RunState) -> None:
        """Have the server's own site do its task. Raises RunError where it fails."""
        if self.learner is None:
            raise RunError(
                f"method {self.method.name} has the server learn, and it holds no labelled images; "
                "set split.server_share above 0"
            )
        self._take(task, attributed(task, self.learner.handle(task, {})), phase, state)
        if reason := phase.failed.get(SERVER_SITE):
            raise RunError(f"round {state.round}: the server's own training failed: {reason}")

    def _wave(
        self, outbox: Sequence[Outgoing], phase: "_Phase", state: RunState, deadline: float
    ) -> list[Outgoing]:
        """Send what can be sent, take the answers; return what must be sent once more."""
        again: list[Outgoing] = []
        unsent: set[int] = set()
        left = max(deadline - time.monotonic(), 0.0)
        sizes = self._sizes(outbox, phase.failed)
        outbox = [outgoing for outgoing in outbox if outgoing.task.site in sizes]
        for site, answered in self.carrier.exchange(outbox, self._pool.get, left):
            task = phase.awaits(site)
            if task is None:
                log.warning("an answer that nobody waits for is ignored")
                continue
            incoming = attributed(task, answered)
            if not incoming.sent:
                unsent.add(site)
            self._count_up(task, state.round, incoming)
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
            if reply.metrics.get(MEMORY_LOST):
                self.progress.note(
                    f"site {task.site} had lost what it keeps to itself; it began that anew"
                )
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
            asked = {t.site for t in tasks if t.action == action and t.site != SERVER_SITE}
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

    def _sizes(
        self, outbox: Sequence[Outgoing], failed: dict[int, str]
    ) -> dict[int, dict[str, int]]:
        """Return the bytes of each content, by digest, for each site that can be sent its task.

        A task whose content the pool lacks fails its site.
        """
        sizes = {}
        for outgoing in outbox:
            try:
                sizes[outgoing.task.site] = {d: self.store.size(d) for d in outgoing.attach}
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
    def _count_down(self, outgoing: Outgoing, number: int, sizes: Mapping[str, int]) -> None:
        task = outgoing.task
        self.ledger.add(number, task.site, "down", _kind(task, MESSAGE), 0, len(encode(task)))
        for ref in task.refs():
            if size := sizes.get(ref.digest):
                self.ledger.add(number, task.site, "down", _kind(task, ref.role), 1, size)

    def _count_up(self, task: Task, number: int, incoming: Incoming) -> None:
        kind, answer = _kind(task, MESSAGE), incoming.answer
        self.ledger.add(number, task.site, "up", kind, 0, incoming.head_bytes)
        roles = answer.uploads(task.own.digest) if isinstance(answer, Reply) else {}
        for digest, blob in incoming.payloads.items():
            self.ledger.add(number, task.site, "up", roles.get(digest, MODEL), 1, len(blob))

    def _accept(self, task: Task, incoming: Incoming, state: RunState) -> Reply:
        """Check a reply and take its upload into the pool. Raises ProtocolError."""
        reply = incoming.answer
        if isinstance(reply, Refusal):
            raise ProtocolError(f"the site refused: {reply.reason}")
        if not isinstance(reply, Reply):
            raise ProtocolError(f"answered with {type(reply).__name__}, a Reply was due")
        check_reply(task, reply, self._facts(state)[task.site], self._schemas)
        self.method.check_reply(task, reply)
        uploads = reply.uploads(task.own.digest)
        if incoming.payloads.keys() != uploads.keys():
            raise ProtocolError("its new contents did not come along, or more than those came")
        contents = {
            role: self._content(task, reply, role, incoming.payloads[digest])
            for digest, role in uploads.items()
        }
        for role, blob in contents.items():
            named = reply.model if role == MODEL else reply.contents[role]
            self._pool.upload(task.site, named, blob, state.round, role)
        return reply

    def _content(self, task: Task, reply: Reply, role: str, blob: bytes) -> bytes:
        """Check an upload; return it, or the whole model where a part was sent."""
        owner, transport = f"site {task.site}'s upload", self.experiment.transport
        schema = self._schemas[role]
        if role != MODEL or reply.part is None:
            from_bytes(blob, schema, owner, transport)
            return blob
        part = part_from_bytes(blob, schema, owner, transport)
        base = from_bytes(self._pool.get(reply.part.base), schema, "its base", transport)
        return to_bytes({**base, **part}, transport)

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
        self._pool.keep(
            state.server.needs()
        )  # only now: what the saved records name must never be gone

    def _finish(self, state: RunState) -> Row:
        rounds, sites = self.experiment.rounds, len(state.standings.sites)
        summary = {
            "preset": self.experiment.name,
            "method": self.experiment.method.name,
            "seed": self.experiment.seed,
            "sites": sites,
            "manifest": state.standings.sites[min(state.standings.sites)].facts.split_digest,
            "rounds": rounds.num_rounds,
            **state.standings.summary(),
            **self._traffic(),
            **self.method.costs(sites, rounds.sample_rate, rounds.num_rounds),
            "wall_seconds": round(state.wall_seconds, 3),
        }
        spent = [(k, s.epsilon) for k, s in sorted(state.standings.sites.items()) if s.epsilon]
        if spent:
            every = ", ".join(f"site {site} {epsilon:.3g}" for site, epsilon in spent)
            delta = self.experiment.privacy.delta
            self.progress.note(f"epsilon of each site's models at delta = {delta:g}: {every}")
        self.folder.write_evaluations(state.standings.evaluations())
        self.folder.write_per_site(state.standings.per_site(state.server.column))
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

    def awaits(self, site: int) -> Task | None:
        """Return the task that a site's answer belongs to; None where nobody waits for it."""
        return None if site in self.replies or site in self.failed else self.tasks.get(site)


def _kind(task: Task, usual: str) -> str:
    return EVALUATION if task.action == EVALUATE else usual


def _listed(sites: Iterable[int]) -> str:
    return ", ".join(map(str, sites))
