"""The Flower strategy: carries the engine's tasks to the nodes and their answers back.

Model pool, update records and helper requests are the engine's; this class is its transport.
Flower's own round loop presumes one global model, so `start` runs the engine's rounds; each phase
of a round still goes through `configure_train` and `aggregate_train`.
"""

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp import wire
from fedapp.checks import attributed
from fedapp.config import shared_settings
from fedapp.engine import Engine, Fetch
from fedapp.errors import ProtocolError, RunError, StoreError, one_line
from fedapp.ledger import Ledger
from fedapp.params import digest_of
from fedapp.pool import make_key
from fedapp.progress import Progress
from fedapp.protocol import (
    Answer,
    Hello,
    Incoming,
    Origin,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.runfolder import RunFolder
from fedapp.settings import Experiment
from fedapp.standings import Row
from fedapp.store import ModelStore

log = logging.getLogger(__name__)

FIRST_POLL_S, LAST_POLL_S = 0.02, 1.0
"""Polling starts fast and slows down while nothing comes."""

AT_ONCE = max(16, 4 * (os.cpu_count() or 1))
"""Messages under way to sites on the server's own machine: enough for all its cores. Flower's
simulation looks through all messages for every node, time and again: 1,000 under way to as many
nodes keep it from anything else, 10 messages a minute instead of 2,000."""

PATIENCE_S = 10.0
"""Seconds after which a node that has not said who it is keeps no other from being asked."""

NOT_SENT = "not sent; is the node gone?"


class PoolStrategy(Strategy):
    """Runs one experiment over the nodes of a grid.

    everybody: the command that simulates all sites, said to whoever starts fewer.
    """

    def __init__(
        self,
        experiment: Experiment,
        origin: Origin,
        folder: RunFolder,
        progress: Progress,
        everybody: str,
    ) -> None:
        self._experiment = experiment
        self._progress = progress
        self._everybody = everybody
        self._nodes: dict[int, int] = {}
        self._neighbours: set[int] = set()
        self._outbox: Sequence[Outgoing] = ()
        self._inbox: list[Incoming] = []
        self._asked: dict[str, Task] = {}
        self._store = ModelStore(folder.pool_root)
        self._key = make_key(folder.pool_root)
        self._origin = replace(origin, pool=digest_of(self._key.encode()))
        self._fetch: Fetch = self._store.get
        self._engine = Engine(experiment, self, folder, self._store, progress, Ledger())
        self.outcome: Row = {}

    def start(  # type: ignore[override]  # Flower's arguments describe one global model
        self, grid: Grid
    ) -> Result:
        """Run the experiment; `outcome` then holds the summary. Flower's result stays empty."""
        self._grid = grid
        self.summary()
        self.outcome = self._engine.run()
        return Result()

    def summary(self) -> None:
        """Log what will run."""
        log.info("%s: %s", self._experiment.name, self._experiment.method)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per task, with the contents that its site can neither hold nor read.

        A task whose content is damaged in the pool is answered here, in the inbox.
        """
        messages = []
        for out in self._outbox:
            travels = () if out.task.site in self._neighbours else out.attach
            try:
                payloads = {digest: self._fetch(digest) for digest in travels}
            except StoreError as error:
                self._inbox.append(_unsent(out.task, f"the server lost a model it needs: {error}"))
                continue
            records = wire.write_request(self._origin, out.task, payloads)
            messages.append(self._message(self._nodes[out.task.site], "train.task", records))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Read replies into the inbox; where models are averaged, the engine does it."""
        answers = [self._read(reply) for reply in replies]
        self._inbox += answers
        return None, MetricRecord({"answers": len(answers)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: measuring is part of a task, or a task of its own."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing to add up: see `configure_evaluate`."""
        return None

    # --- the engine's transport -------------------------------------------------------------------

    def introduce(self) -> Sequence[SiteFacts]:
        """Ask every node who it is; note which node is which site.

        Raises RunError where there is no node, or where every one that answers refuses.
        """
        nodes = self._wait_for_nodes()
        settings = shared_settings(self._experiment)
        hello = wire.write_request(self._origin, Hello(settings), {})
        queue, asked = deque(nodes), dict[int, float]()
        found: dict[int, SiteFacts] = {}
        reasons: list[str] = []

        def more() -> list[Message]:
            now = time.monotonic()
            busy = sum(now < since + PATIENCE_S for since in asked.values())
            chosen = [queue.popleft() for _ in range(min(len(queue), AT_ONCE - busy))]
            asked.update(dict.fromkeys(chosen, now))
            return [self._message(node, "query.hello", hello) for node in chosen]

        for message, reply in self._replies(more, self._experiment.rounds.hello_s):
            node = message.metadata.dst_node_id
            asked.pop(node, None)
            answer = Refusal(-1, 0, NOT_SENT) if reply is None else self._parse(reply).answer
            if isinstance(answer, SiteFacts) and answer.site not in found:
                found[answer.site] = replace(answer, pool_key="")  # of this start, not of the site
                self._nodes[answer.site] = node
                if secrets.compare_digest(answer.pool_key, self._key):
                    self._neighbours.add(answer.site)
                continue
            reason = _why_not(answer)
            if reason not in reasons:  # a hundred sites may lack the same file
                reasons.append(reason)
                self._progress.note(f"node {node} cannot take part: {reason}")
        if reasons and not found:
            raise RunError(f"none of {len(nodes)} nodes can take part: {reasons[0]}")
        if len(found) < len(nodes):
            self._progress.note(f"{len(nodes) - len(found)} of {len(nodes)} nodes left out")
        return list(found.values())

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterator[Incoming]:
        """Push a phase's tasks, yield answers as they come, stop at the deadline.

        They go in one push where `runtime.in_flight_mib` allows, else as answers make room.
        """
        self._fetch = fetch
        number = outbox[0].task.round if outbox else 0
        limit = self._models_at_once(outbox)
        queue, flying = deque(outbox), dict[int, Outgoing]()

        def more() -> list[Message]:
            messages: list[Message] = []
            while not messages and (wave := self._wave(queue, flying.values(), limit)):
                self._outbox = wave
                nothing = ArrayRecord(), ConfigRecord()
                messages = list(self.configure_train(number, *nothing, self._grid))
                by_node = {self._nodes[out.task.site]: out for out in wave}
                sent = [message.metadata.dst_node_id for message in messages]
                flying.update({node: by_node[node] for node in sent})
            return messages

        for message, reply in self._replies(more, deadline_s):
            task = flying.pop(message.metadata.dst_node_id).task
            if reply is None:
                yield _unsent(task, NOT_SENT)
                continue
            self._asked = {message.metadata.message_id: task}
            self.aggregate_train(number, [reply])
            yield self._inbox.pop()
        yield from self._inbox
        self._inbox.clear()
        for out in queue:
            yield _unsent(out.task, "not sent: the round's time was over")

    def _models_at_once(self, outbox: Sequence[Outgoing]) -> int:
        """Return how many models `runtime.in_flight_mib` has room for."""
        digests = {digest for out in outbox for digest in (out.task.own.digest, *out.attach)}
        known = [self._store.size(digest) for digest in digests if self._store.has(digest)]
        return self._experiment.runtime.in_flight_mib * 2**20 // max(known, default=1)

    def _wave(
        self, queue: deque[Outgoing], flying: Iterable[Outgoing], limit: int
    ) -> list[Outgoing]:
        """Take from the queue what there is room for beside what is under way; one, if nothing is.

        A model that goes to several sites counts once; each task brings one back.
        """
        under_way = list(flying)
        away = [out for out in under_way if out.task.site not in self._neighbours]
        models = {digest for out in away for digest in out.attach}
        back, near, wave = len(away), len(under_way) - len(away), list[Outgoing]()
        while queue:
            if queue[0].task.site in self._neighbours:
                near += 1
                if near > AT_ONCE:
                    break
            else:
                models |= set(queue[0].attach)
                back += 1
                if back > 1 and len(models) + back > limit:
                    break
            wave.append(queue.popleft())
        return wave

    # --- messages ---------------------------------------------------------------------------------

    def _wait_for_nodes(self) -> list[int]:
        """Wait until all the preset's sites are there, or `rounds.join_wait_s` is over."""
        wanted = self._experiment.split.num_clients
        end = time.monotonic() + self._experiment.rounds.join_wait_s
        while len(nodes := list(self._grid.get_node_ids())) < wanted and time.monotonic() < end:
            time.sleep(FIRST_POLL_S)
        if not nodes:
            raise RunError(
                f"no node within rounds.join_wait_s = {self._experiment.rounds.join_wait_s:g} s; "
                "start SuperNodes, or raise the wait"
            )
        if len(nodes) < wanted:
            self._progress.note(
                f"{len(nodes)} of {wanted} sites are here and will be used; in simulation, all: "
                f"{self._everybody}"
            )
        return nodes

    def _message(self, node: int, message_type: str, content: RecordDict) -> Message:
        ttl = self._experiment.rounds.deadline_s
        return Message(content, dst_node_id=node, message_type=message_type, ttl=ttl)

    def _replies(
        self, more: Callable[[], Iterable[Message]], deadline_s: float
    ) -> Iterator[tuple[Message, Message | None]]:
        """Push messages and poll for their replies until all came or the time is over.

        more: returns the messages to push next; it is asked again after each poll. Yields each
        reply with the message that it answers: a reply that Flower makes up for a node that is gone
        does not name the node. None answers a message that Flower did not take.
        """
        end, pause = time.monotonic() + deadline_s, FIRST_POLL_S
        pending: dict[str, Message] = {}
        while time.monotonic() < end:
            messages = list(more())
            taken = set(self._grid.push_messages(messages)) if messages else set()
            for message in messages:
                if (number := message.metadata.message_id) in taken:
                    pending[number] = message
                else:
                    yield message, None
            if not pending:
                if messages:
                    continue
                break
            replies = list(self._grid.pull_messages(list(pending)))
            for reply in replies:
                if (asked := pending.pop(reply.metadata.reply_to_message_id, None)) is not None:
                    yield asked, reply
            pause = FIRST_POLL_S if replies else min(2 * pause, LAST_POLL_S)
            if pending:
                time.sleep(min(pause, max(end - time.monotonic(), 0)))

    def _read(self, reply: Message) -> Incoming:
        """Parse the answer to a task; one that speaks for another site or round is a refusal."""
        task = self._asked[reply.metadata.reply_to_message_id]
        incoming = attributed(task, self._parse(reply))
        answer = incoming.answer
        if isinstance(answer, Reply) and task.site in self._neighbours:
            return self._with_upload(task, answer, incoming.head_bytes)
        return incoming

    def _with_upload(self, task: Task, reply: Reply, head_bytes: int) -> Incoming:
        """Read a neighbour's new model where it put it: in the pool."""
        if reply.model == task.own.digest:
            return Incoming(reply, {}, head_bytes)
        try:
            return Incoming(reply, {reply.model: self._store.get(reply.model)}, head_bytes)
        except StoreError as error:
            return Incoming(Refusal(task.site, task.round, f"its new model is not there: {error}"))

    def _parse(self, reply: Message) -> Incoming:
        """Parse any reply; what cannot be read, or Flower's own error, becomes a refusal."""
        if reply.has_error():
            reason = " ".join(one_line(reply.error.reason).split())[:400]
            return Incoming(Refusal(-1, 0, f"Flower error {reply.error.code}: {reason}"))
        try:
            return wire.read_answer(reply.content)
        except ProtocolError as error:
            return Incoming(Refusal(-1, 0, f"unreadable answer: {error}"))


def _unsent(task: Task, reason: str) -> Incoming:
    return Incoming(Refusal(task.site, task.round, one_line(reason)), sent=False)


def _why_not(answer: Answer) -> str:
    """Return why a node with this answer to "who are you" cannot take part."""
    if isinstance(answer, Refusal):
        return answer.reason
    if isinstance(answer, SiteFacts):
        if answer.name:
            return f"site {answer.name!r} is here already; give every node its own site-name"
        return f"site number {answer.site} is taken; give every node its own partition-id"
    return f"answered with {type(answer).__name__} when asked who it is"
