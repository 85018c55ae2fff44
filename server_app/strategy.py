"""The Flower strategy: carries the engine's tasks to the nodes and their answers back.

Model pool, update records and helper requests are the engine's; this class is its transport.
Flower's own round loop presumes one global model, so `start` runs the engine's rounds; each phase
of a round still goes through `configure_train` and `aggregate_train`.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp import wire
from fedapp.engine import Engine, Fetch
from fedapp.errors import ProtocolError, RunError
from fedapp.ledger import Ledger
from fedapp.progress import Progress
from fedapp.protocol import Answer, Hello, Incoming, Origin, Outgoing, Refusal, SiteFacts, Task
from fedapp.runfolder import RunFolder
from fedapp.settings import Experiment
from fedapp.standings import Row
from fedapp.store import ModelStore

log = logging.getLogger(__name__)

FIRST_POLL_S, LAST_POLL_S = 0.02, 1.0
"""Polling starts fast and slows down while nothing comes."""


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
        self._origin = origin
        self._progress = progress
        self._everybody = everybody
        self._nodes: dict[int, int] = {}
        self._outbox: Sequence[Outgoing] = ()
        self._inbox: list[Incoming] = []
        self._asked: dict[str, Task] = {}
        store = ModelStore(folder.pool_root)
        self._fetch: Fetch = store.get
        self._engine = Engine(experiment, self, folder, store, progress, Ledger())
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
        """Return one message per task of the phase, with the contents its site does not hold."""
        return [
            self._message(
                self._nodes[out.task.site],
                "train.task",
                wire.write_request(self._origin, out.task, {d: self._fetch(d) for d in out.attach}),
            )
            for out in self._outbox
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Read replies into the inbox; averaging models is the sites' work, not the server's."""
        answers = [self._read(reply) for reply in replies]
        self._inbox += answers
        return None, MetricRecord({"answers": len(answers)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: an evaluation rides in the reply of the task that changed the model."""
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
        hello = wire.write_request(self._origin, Hello(), {})
        messages = [self._message(node, "query.hello", hello) for node in nodes]
        found: dict[int, SiteFacts] = {}
        reasons: list[str] = []
        for message, reply in self._replies(messages, self._experiment.rounds.hello_s):
            node, answer = message.metadata.dst_node_id, self._parse(reply).answer
            if isinstance(answer, SiteFacts) and answer.site not in found:
                found[answer.site] = answer
                self._nodes[answer.site] = node
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
        """Push a phase's tasks in one call, yield answers as they come, stop at the deadline."""
        self._outbox, self._fetch = outbox, fetch
        number = outbox[0].task.round
        messages = self.configure_train(number, ArrayRecord(), ConfigRecord(), self._grid)
        tasks = {self._nodes[out.task.site]: out.task for out in outbox}
        for message, reply in self._replies(messages, deadline_s):
            self._asked = {message.metadata.message_id: tasks[message.metadata.dst_node_id]}
            self.aggregate_train(number, [reply])
            yield self._inbox.pop()

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
        self, messages: Iterable[Message], deadline_s: float
    ) -> Iterator[tuple[Message, Message]]:
        """Push the messages and poll for their replies until all came or the time is over.

        Yields each reply with the message that it answers: a reply that Flower makes up for a node
        that is gone does not name the node. What Flower does not take is answered with an error.
        """
        messages = list(messages)
        end, pause = time.monotonic() + deadline_s, FIRST_POLL_S
        taken = set(self._grid.push_messages(messages))
        pending = {m.metadata.message_id: m for m in messages if m.metadata.message_id in taken}
        for message in messages:
            if message.metadata.message_id not in pending:
                yield message, Message(Error(0, "not sent; is the node gone?"), reply_to=message)
        while pending and time.monotonic() < end:
            replies = list(self._grid.pull_messages(list(pending)))
            for reply in replies:
                message = pending.pop(reply.metadata.reply_to_message_id, None)
                if message is not None:
                    yield message, reply
            pause = FIRST_POLL_S if replies else min(2 * pause, LAST_POLL_S)
            if pending:
                time.sleep(min(pause, max(end - time.monotonic(), 0)))

    def _read(self, reply: Message) -> Incoming:
        """Parse the answer to a task; one that speaks for another site or round is a refusal."""
        task = self._asked[reply.metadata.reply_to_message_id]
        incoming = self._parse(reply)
        answer = incoming.answer
        if isinstance(answer, SiteFacts):
            return Incoming(Refusal(task.site, task.round, "introduced itself instead of working"))
        if isinstance(answer, Refusal):
            return Incoming(Refusal(task.site, task.round, answer.reason))
        if (answer.site, answer.round) != (task.site, task.round):
            reason = f"answered as site {answer.site}, round {answer.round}"
            return Incoming(Refusal(task.site, task.round, reason))
        return incoming

    def _parse(self, reply: Message) -> Incoming:
        """Parse any reply; what cannot be read, or Flower's own error, becomes a refusal."""
        if reply.has_error():
            reason = " ".join(str(reply.error.reason).split())[:400]
            return Incoming(Refusal(-1, 0, f"Flower error {reply.error.code}: {reason}"))
        try:
            return wire.read_answer(reply.content)
        except ProtocolError as error:
            return Incoming(Refusal(-1, 0, f"unreadable answer: {error}"[:4000]))


def _why_not(answer: Answer) -> str:
    """Return why a node with this answer to "who are you" cannot take part."""
    if isinstance(answer, Refusal):
        return answer.reason
    if isinstance(answer, SiteFacts):
        return f"site number {answer.site} is taken; give every node its own partition-id"
    return f"answered with {type(answer).__name__} when asked who it is"
