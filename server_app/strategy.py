"""The Flower strategy: carries the engine's tasks to the nodes and their answers back.

Model pool, update records and helper requests are the engine's; this class is its transport.
Flower's own round loop presumes one global model, so `start` runs the engine's rounds; each phase
of a round still goes through `configure_train` and `aggregate_train`.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.experiment.config import shared_settings
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.errors import StoreError, one_line
from fedapp.learn.params import digest_of
from fedapp.messages import wire
from fedapp.messages.poolkey import make_key
from fedapp.messages.protocol import (
    Hello,
    Incoming,
    Origin,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.results.endblock import end_block
from fedapp.server.assembly import Assembly, carry_out
from fedapp.server.phases import Fetch
from fedapp.server.standings import Row
from fedapp.site.servers import servers_site
from server_app.introductions import Introductions
from server_app.post import AT_ONCE, NOT_SENT, Post, parsed

log = logging.getLogger(__name__)


class PoolStrategy(Strategy):
    """Runs one experiment over the nodes of a grid.

    everybody: the command that simulates all sites, said to whoever starts fewer.
    """

    def __init__(
        self, experiment: Experiment, origin: Origin, folder: RunFolder, everybody: str
    ) -> None:
        self._experiment = experiment
        self._folder = folder
        self._everybody = everybody
        self._outbox: Sequence[Outgoing] = ()
        self._inbox: list[tuple[int, Incoming]] = []
        self._asked: dict[str, Task] = {}
        self._key = make_key(folder.pool_root)
        self._origin = replace(origin, pool=digest_of(self._key.encode()))
        self.outcome: Row = {}

    def start(  # type: ignore[override]  # Flower's arguments describe one global model
        self, grid: Grid
    ) -> Result:
        """Run the experiment; `outcome` then holds the summary. Flower's result stays empty."""
        self.summary()
        carrier_of = partial(self.use, grid)
        self.outcome = carry_out(
            self._experiment, self._folder, carrier_of, servers_site, end_block
        )
        return Result()

    def use(self, grid: Grid, run: Assembly) -> Self:
        """Carry this run's messages by this grid from now on; nobody on it is known yet."""
        self._progress, self._store = run.progress, run.store
        self._fetch: Fetch = run.store.get
        self._grid = grid
        self._post = Post(grid, self._experiment.rounds.deadline_s)
        self._sites = Introductions(
            self._post,
            self._experiment,
            wire.write_request(self._origin, Hello(shared_settings(self._experiment)), {}),
            self._key,
            self._progress.note,
            self._everybody,
        )
        return self

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
            travels = () if out.task.site in self._sites.neighbours else out.attach
            try:
                payloads = {digest: self._fetch(digest) for digest in travels}
            except StoreError as error:
                lost = _unsent(out.task, f"the server lost a model it needs: {error}")
                self._inbox.append((out.task.site, lost))
                continue
            records = wire.pack_request(self._origin, out.head, payloads)
            node = self._sites.nodes[out.task.site]
            messages.append(self._post.message(node, "train.task", records))
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
        return self._sites.at_start()

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return the sites whose nodes have come, or come back, since the last call."""
        return self._sites.since()

    def leave_out(self, site: int) -> None:
        """Have a site's node asked again at a later call of `newcomers`."""
        self._sites.leave_out(site)

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterator[tuple[int, Incoming]]:
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
                by_node = {self._sites.nodes[out.task.site]: out for out in wave}
                sent = [message.metadata.dst_node_id for message in messages]
                flying.update({node: by_node[node] for node in sent})
            return messages

        for message, reply in self._post.replies(more, deadline_s):
            task = flying.pop(message.metadata.dst_node_id).task
            if reply is None:
                yield task.site, _unsent(task, NOT_SENT)
                continue
            self._asked = {message.metadata.message_id: task}
            self.aggregate_train(number, [reply])
            yield self._inbox.pop()
        yield from self._inbox
        self._inbox.clear()
        for out in queue:
            yield out.task.site, _unsent(out.task, "not sent: the round's time was over")

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
        away = [out for out in under_way if out.task.site not in self._sites.neighbours]
        models = {digest for out in away for digest in out.attach}
        back, near, wave = len(away), len(under_way) - len(away), list[Outgoing]()
        while queue:
            if queue[0].task.site in self._sites.neighbours:
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

    def _read(self, reply: Message) -> tuple[int, Incoming]:
        """Parse the answer to a task; return which site was asked, and it."""
        task = self._asked[reply.metadata.reply_to_message_id]
        incoming = parsed(reply)
        answer = incoming.answer
        if isinstance(answer, Reply) and task.site in self._sites.neighbours:
            incoming = self._with_upload(task, answer, incoming.head_bytes)
        return task.site, incoming

    def _with_upload(self, task: Task, reply: Reply, head_bytes: int) -> Incoming:
        """Read a neighbour's new contents where it put them: in the pool."""
        try:
            uploads = reply.uploads(task.own.digest)
            payloads = {digest: self._store.get(digest) for digest in uploads.values()}
        except StoreError as error:
            return Incoming(Refusal(task.site, task.round, f"its new model is not there: {error}"))
        return Incoming(reply, payloads, head_bytes)


def _unsent(task: Task, reason: str) -> Incoming:
    return Incoming(Refusal(task.site, task.round, one_line(reason)), sent=False)
