"""A phase of a round: sends tasks to sites, and checks each answer before anything uses it.

Drivers (loopback, Flower) only carry messages: they implement `Carrier`.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from fedapp.core.errors import DIVERGED_REMEDY, ProtocolError, RunError, StoreError
from fedapp.core.formatting import counted
from fedapp.core.progress import Progress
from fedapp.experiment.experiment import Experiment
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.networks.parts import layers_of
from fedapp.learn.params import Params, Schema, digest_of, from_bytes, part_from_bytes, to_bytes
from fedapp.methods.base import Arrived
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import (
    EVALUATE,
    MEMORY_LOST,
    MODEL,
    SERVER_SITE,
    Incoming,
    Missing,
    ModelRef,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import EVALUATION, MESSAGE, Ledger
from fedapp.server.checks import attribute, check_reply
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]


class Carrier(Protocol):
    """Carries messages to the sites and back."""

    def introduce(self) -> Sequence[SiteFacts]:
        """Ask every node for its sites, and return the facts of all of them."""

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return the sites that came, or came back, since the last call, without waiting."""

    def leave_out(self, site: int) -> None:
        """Note that a site cannot take part; the carrier may ask it again later."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Send tasks with their contents; yield the answers as they come, each with its site.

        It ends when every task is answered or `deadline_s` seconds are over. For a silent site
        nothing is yielded. fetch: returns the bytes of a content by its digest.
        """


class LocalServerSite(Protocol):
    """The server's own site, where the server holds labelled images.

    It gets tasks like any site, but in this process: it works on the server's pool and causes no
    traffic.
    """

    def facts(self) -> SiteFacts:
        """Return the facts of the server's own data."""

    def handle(self, task: Task, payloads: Mapping[str, bytes]) -> Incoming:
        """Return the answer to a task of `SERVER_SITE`."""


NOT_CONNECTED = "not sent: the site is not here"


@dataclass
class Phases:
    """Runs the phases of a run.

    schemas: names, shapes and dtypes of what sites share, by role. here: the sites to which tasks
    can be sent. going_on: returns what the user must do to continue the run after an error.
    """

    experiment: Experiment
    carrier: Carrier
    local_site: LocalServerSite | None
    store: ModelStore
    pool: ModelPool
    schemas: Mapping[str, Schema]
    ledger: Ledger
    progress: Progress
    state: RunState
    here: AbstractSet[int]
    going_on: Callable[[], str]
    server_learned: bool = field(default=False, init=False)
    """Whether the server's own site was given a task."""

    def run(self, tasks: Sequence[Task], skipped: dict[int, str]) -> list[Reply]:
        """Send tasks and return the valid replies, in the order of the sites.

        A site that lacks contents of its task is sent the task once more, with these contents.
        skipped: the reasons of all other sites are added to it, by site.
        """
        by_site = {task.site: task for task in tasks}
        if len(by_site) != len(tasks):
            raise ValueError("two tasks for one site in a phase: give the second in the next one")
        ours = by_site.get(SERVER_SITE)
        here = self.here | {SERVER_SITE}
        absent = {site: NOT_CONNECTED for site in by_site if site not in here}
        phase = _Phase(by_site, absent)
        if ours is not None:
            self._run_local_site(ours, phase)
        outbox = [self._outgoing(t, self.state.held[t.site]) for t in tasks if t.site in self.here]
        # The deadline begins here: what the server's own site took is no time of the others.
        deadline = time.monotonic() + self.experiment.rounds.deadline_s
        while outbox:
            outbox = self._send_and_receive(outbox, phase, deadline)
        self._report_failures(phase)
        skipped |= phase.failed
        replies = [phase.replies[site] for site in sorted(phase.replies)]
        self.state.private |= {reply.site: reply.private for reply in replies if reply.private}
        return replies

    def _run_local_site(self, task: Task, phase: "_Phase") -> None:
        """Let the server's own site do its task. Raises RunError where it fails."""
        if self.local_site is None:
            raise RunError(
                f"method {self.experiment.method.name} has the server learn, and it holds no "
                "labelled images; set split.server_share above 0"
            )
        self.server_learned = True
        if self._handle_answer(task, attribute(task, self.local_site.handle(task, {})), phase):
            phase.failed[SERVER_SITE] = "the pool lost a model it needs"
        if reason := phase.failed.get(SERVER_SITE):
            raise RunError(f"round {self.state.round}: the server's own training failed: {reason}")

    def _send_and_receive(
        self, outbox: Sequence[Outgoing], phase: "_Phase", deadline: float
    ) -> list[Outgoing]:
        """Send tasks and handle the answers; return what must be sent a second time."""
        again: list[Outgoing] = []
        unsent: set[int] = set()
        left = max(deadline - time.monotonic(), 0.0)
        sizes = self._sizes(outbox, phase.failed)
        outbox = [outgoing for outgoing in outbox if outgoing.task.site in sizes]
        for site, answered in self.carrier.exchange(outbox, self.pool.get, left):
            task = phase.expected_task(site)
            if task is None:
                log.warning("an answer that nobody waits for is ignored")
                continue
            incoming = attribute(task, answered)
            if not incoming.sent:
                unsent.add(site)
            self._count_up(task, incoming)
            if repeated := self._handle_answer(task, incoming, phase):
                again.append(repeated)
            else:
                first = next(iter(phase.tasks.values()))
                self.progress.phase(first.action, phase.done, len(phase.tasks))
        for outgoing in outbox:
            if outgoing.task.site not in unsent:
                self._count_down(outgoing, sizes[outgoing.task.site])
        return again

    def _handle_answer(self, task: Task, incoming: Incoming, phase: "_Phase") -> Outgoing | None:
        """Handle an answer; return what to send to its site where the site lacks contents."""
        answer = incoming.answer
        try:
            if isinstance(answer, Missing) and task.site not in phase.resent:
                phase.resent.add(task.site)
                return self._missing_contents(task, answer)
            reply = self.accept(task, incoming)
        except ProtocolError as error:
            phase.failed[task.site] = str(error)
        else:
            phase.replies[task.site] = reply
            if task.sum is None or task.sum.stage == "add":  # other steps concern no contents
                self.state.held[task.site] = list(reply.held)
            if reply.metrics.get(MEMORY_LOST):
                called = self._facts(task.site).display_name
                self.progress.note(f"{called} lost its private state and started it again")
        return None

    def _report_failures(self, phase: "_Phase") -> None:
        """Add the silent sites to those that failed, and print who is skipped and why."""
        for site in phase.tasks.keys() - phase.replies.keys() - phase.failed.keys():
            phase.failed[site] = f"no answer within {self.experiment.rounds.deadline_s:g} s"
        for site, reason in sorted(phase.failed.items()):
            called = self._facts(site).display_name
            self.progress.note(f"{called} skipped in round {self.state.round}: {reason}")

    def check_turnout(
        self, tasks: Sequence[Task], replies: Collection[int], failed: Mapping[int, str]
    ) -> None:
        """Check that enough sites answered, by action (such as "train").

        replies: the sites that answered. failed: reasons by site. Raises RunError where the share
        of sites that answered is below `rounds.min_reply_share`.
        """
        share = self.experiment.rounds.min_reply_share
        for action in sorted({task.action for task in tasks} - self.experiment.method.optional):
            asked = {t.site for t in tasks if t.action == action and t.site != SERVER_SITE}
            answered = asked & set(replies)
            if len(answered) < share * len(asked):
                site = min(asked - answered)
                called = self._facts(site).display_name
                lost = [t for t in tasks if DIVERGED_REMEDY in failed.get(t.site, "")]
                mostly = 2 * len(lost) > len(asked - answered)
                cause = self._newest_uploads_in(lost) if mostly else ""
                raise RunError(
                    f"round {self.state.round}: {len(answered)} of {counted(len(asked), 'sites')} "
                    f"answered ({action}), rounds.min_reply_share = {share:g} asks for more; "
                    f"{cause or f'{called} said: {failed[site]}'.rstrip('.')}. "
                    f"Repair the sites and {self.going_on()}"
                )

    def _newest_uploads_in(self, lost: Sequence[Task]) -> str:
        """Return a text that names the newest uploads in what these sites were sent.

        lost: tasks whose sites diverged (their networks answer NaN), for which these uploads may be
        the cause. Empty where the tasks held nothing of another site.
        """
        sent = {ref for t in lost for ref in t.refs() if ref.site != t.site and ref.version}
        named: dict[int, float] = {}
        if any(ref.site == SERVER_SITE for ref in sent):
            for moves in self.state.moves.values():
                named |= {site: max(far, named.get(site, far)) for site, far in moves.furthest}
        named = named or dict.fromkeys(sorted(self._newest_sites(sent)), 0.0)
        if not named:
            return ""
        who = ", ".join(
            self._facts(site).display_name + (f" ({far:.3g} times the usual change)" if far else "")
            for site, far in sorted(named.items(), key=lambda one: -one[1])
            if site in self.state.standings.sites or site == SERVER_SITE
        )
        return (
            f"{len(lost)} of them answer NaN with the model that they were sent: first check the "
            f"newest uploads in it: {who}"
        )

    def _newest_sites(self, sent: Collection[ModelRef]) -> set[int]:
        """Return the sites of the newest among these models."""
        records = self.pool.contents
        rounds = {
            r.site: records[r.site, r.role].round for r in sent if (r.site, r.role) in records
        }
        return {site for site, when in rounds.items() if when == max(rounds.values())}

    def _outgoing(self, task: Task, held: Collection[str]) -> Outgoing:
        """Return the task with the contents that the site lacks. It makes w_0 itself."""
        w_0 = self.pool.initial.digest
        attach = tuple(r.digest for r in task.refs() if r.digest not in held and r.digest != w_0)
        return Outgoing(task, encode(task), attach)

    def _sizes(
        self, outbox: Sequence[Outgoing], failed: dict[int, str]
    ) -> dict[int, dict[str, int]]:
        """Return the size of each attached content, by digest, for each site.

        A site is left out, and its failure noted, where the pool has lost a content of its task.
        """
        sizes = {}
        for outgoing in outbox:
            try:
                sizes[outgoing.task.site] = {d: self.store.size(d) for d in outgoing.attach}
            except StoreError as error:
                failed[outgoing.task.site] = f"the server lost a model it needs: {error}"
        return sizes

    def _missing_contents(self, task: Task, missing: Missing) -> Outgoing:
        asked = {ref.digest for ref in task.refs()}
        if not missing.digests or not asked.issuperset(missing.digests):
            raise ProtocolError("asked for contents that are not part of its task")
        log.info("site %d lacks %d models; sending them", task.site, len(missing.digests))
        return Outgoing(task, encode(task), tuple(dict.fromkeys(missing.digests)))

    # Traffic is counted in the round that is going on, which need not be that of the task: the
    # warm-up of a late site is a task of round 0.
    def _count_down(self, outgoing: Outgoing, sizes: Mapping[str, int]) -> None:
        task, number = outgoing.task, self.state.round
        self.ledger.add(number, task.site, "down", _kind(task, MESSAGE), 0, len(outgoing.head))
        for ref in task.refs():
            if size := sizes.get(ref.digest):
                self.ledger.add(number, task.site, "down", _kind(task, ref.role), 1, size)

    def _count_up(self, task: Task, incoming: Incoming) -> None:
        kind, answer, number = _kind(task, MESSAGE), incoming.answer, self.state.round
        self.ledger.add(number, task.site, "up", kind, 0, incoming.head_bytes)
        uploads = answer.uploads(task.own.digest) if isinstance(answer, Reply) else {}
        # A content of two roles is counted once, as the model if one of them is that.
        roles = {digest: role for role, digest in reversed(uploads.items())}
        for digest, blob in incoming.payloads.items():
            self.ledger.add(number, task.site, "up", roles.get(digest, MODEL), 1, len(blob))

    def accept(self, task: Task, incoming: Incoming) -> Reply:
        """Check an answer, store its uploads in the pool, and return it as a reply.

        Raises ProtocolError where the answer is refused; the pool is then unchanged.
        """
        reply = incoming.answer
        if isinstance(reply, Refusal):
            raise ProtocolError(f"the site refused: {reply.reason}")
        if not isinstance(reply, Reply):
            raise ProtocolError(f"answered with {type(reply).__name__}, a Reply was due")
        facts = self._facts(task.site)
        finds, scored = bool(self.experiment.data.findings), self.experiment.rounds.pooled_auroc
        check_reply(task, reply, facts, self.schemas, finds, scored)
        if task.sum is None:
            self.experiment.method.check_reply(task, reply, facts)
        uploads, named = reply.uploads(task.own.digest), reply.new_contents(task.own.digest)
        if incoming.payloads.keys() != set(uploads.values()):
            raise ProtocolError("its new contents did not come along, or more than those came")
        contents: dict[str, _Content] = {}
        for role, digest in uploads.items():
            payload, model = incoming.payloads[digest], contents.get(MODEL)
            contents[role] = self._checked_content(task, reply, role, payload, model)
        arrived = {role: content.arrived for role, content in contents.items()}
        if task.sum is None:  # otherwise only the sum can be checked (`server.masked_sums`)
            self.experiment.method.check_contents(task, reply, arrived, facts)
        # The pool refuses a wrong content. Of several, those before it must not be stored either.
        if len(contents) > 1 and any(digest_of(c.blob) != named[r] for r, c in contents.items()):
            raise ProtocolError("one of its uploads is not the content it names")
        for role, content in contents.items():
            # Cached as parsed only after the pool has compared digest and content.
            self.pool.upload(task.site, named[role], content.blob, self.state.round, role)
            PARSED_MODELS.put(
                named[role], content.arrived.whole, self.schemas[role], self.experiment.transport
            )
        for role, content in contents.items():
            if content.bytes_saved and task.site != SERVER_SITE:
                layers = layers_of(content.arrived.came)
                self.ledger.add_part(self.state.round, task.site, role, layers, content.bytes_saved)
        return reply.with_repeats() if reply.equal else reply

    def _checked_content(
        self, task: Task, reply: Reply, role: str, blob: bytes, model: "_Content | None"
    ) -> "_Content":
        """Check an upload, and complete it where only a part of it was sent.

        model: the new model of the same reply, to which the part of another role may belong.
        """
        owner, transport = f"site {task.site}'s upload", self.experiment.transport
        schema, part = self.schemas[role], reply.parts.get(role)
        if part is None:
            whole = from_bytes(blob, schema, owner, transport)
            as_model = role != MODEL and reply.contents[role] == reply.model
            came = frozenset[str]() if as_model else frozenset(whole)
            arrived = Arrived(whole, came, partial(self._previous_content, task.site, role))
            return _Content(blob, arrived, len(blob) if as_model and model else 0)
        sent = part_from_bytes(blob, schema, owner, transport)
        try:
            of_model = model is not None and part.base == reply.model
            base = model.blob if model and of_model else self.pool.get(part.base)
        except StoreError as error:  # the pool lost a content that the site may still have
            raise ProtocolError(
                f"the server lost the model its part belongs to: {error}"
            ) from error
        whole = {**from_bytes(base, schema, "its base", transport), **sent}
        made = to_bytes(whole, transport)
        arrived = Arrived(whole, frozenset(sent), partial(self._previous_content, task.site, role))
        return _Content(made, arrived, max(len(made) - len(blob), 0))

    def _previous_content(self, site: int, role: str) -> Params | None:
        """Return a site's last content of a role; None where there is none, or it was lost."""
        record = self.pool.contents.get((site, role))
        if record is None:
            return None
        owner, transport = f"{role} of site {site}", self.experiment.transport
        try:
            return PARSED_MODELS.get(
                record.digest, self.pool.get, self.schemas[role], owner, transport
            )
        except StoreError as error:  # the site is not to blame
            log.warning("%s cannot be compared with what it sent before: %s", owner, error)
            return None

    def _facts(self, site: int) -> SiteFacts:
        if site == SERVER_SITE and self.local_site is not None:
            return self.local_site.facts()
        return self.state.standings.sites[site].facts


@dataclass(frozen=True)
class _Content:
    """A new content: its bytes, what arrived, and how many bytes did not have to be sent."""

    blob: bytes
    arrived: Arrived
    bytes_saved: int


@dataclass
class _Phase:
    """The tasks of a phase by site, and what became of each: a reply, or the reason of a failure.

    resent: the sites that were sent missing contents; that is done once.
    """

    tasks: Mapping[int, Task]
    failed: dict[int, str]
    replies: dict[int, Reply] = field(default_factory=dict)
    resent: set[int] = field(default_factory=set)

    @property
    def done(self) -> int:
        """Number of sites that answered or failed."""
        return len(self.replies) + len(self.failed)

    def expected_task(self, site: int) -> Task | None:
        """Return the task to which a site's answer belongs; None: no answer is expected."""
        return None if site in self.replies or site in self.failed else self.tasks.get(site)


def _kind(task: Task, usual: str) -> str:
    return EVALUATION if task.action == EVALUATE else usual
