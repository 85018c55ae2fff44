"""The engine's transport over a Flower grid: tasks to the nodes, their answers back."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from flwr.app import Message
from flwr.serverapp import Grid

from fedapp.core.errors import StoreError, one_line
from fedapp.experiment.config import shared_settings
from fedapp.learn.params import digest_of
from fedapp.protocol import flower_records
from fedapp.protocol.messages import (
    EVALUATE,
    Hello,
    Incoming,
    Origin,
    Outgoing,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.protocol.pool_key import make_key
from fedapp.server.assembly import Assembly
from fedapp.server.phases import Fetch
from server_app.node_registry import NodeRegistry
from server_app.transport import MAX_POOL_MESSAGES, NOT_SENT, GridTransport, parsed

MAX_TASKS, MIN_MESSAGES = 64, 4
"""Most tasks in one message, and fewest messages to a node in a phase (unless it has fewer tasks).
Several tasks share a message because one of Flower's messages costs as much time as 10 to 20 tiny
sites. A node gets several messages so that its processes stay busy: each takes the next when it is
free."""

TaskBatch = Sequence[Outgoing]
"""The tasks of one message: at least one, all for sites of the same node."""


class GridCarrier:
    """Carries one run's messages by a grid (`fedapp.server.phases.Carrier`).

    A node that simulates many sites gets the tasks of several of them in one message.
    """

    def __init__(self, grid: Grid, origin: Origin, run: Assembly) -> None:
        key = make_key(run.folder.pool_root)
        self._origin = replace(origin, pool=digest_of(key.encode()))
        self._store, self._settings = run.store, run.experiment
        self._transport = GridTransport(grid, run.experiment.rounds.deadline_s)
        self.sites = NodeRegistry(
            self._transport,
            run.experiment,
            flower_records.write_request(self._origin, Hello(shared_settings(run.experiment)), {}),
            key,
            run.progress.note,
        )
        self._declined: dict[int, tuple[str, str]] = {}

    def introduce(self) -> Sequence[SiteFacts]:
        """Ask every node who it is; note which node is which site.

        Raises RunError where there is no node, or where every one that answers refuses.
        """
        return self.sites.at_start()

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return the sites whose nodes have come, or come back, since the last call."""
        return self.sites.newcomers()

    def leave_out(self, site: int) -> None:
        """Forget a site's node, so that a later call of `newcomers` asks the node again."""
        self.sites.leave_out(site)

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterator[tuple[int, Incoming]]:
        """Push a phase's tasks, yield the answers as they come, and stop at the deadline.

        All tasks are pushed at once if `runtime.in_flight_mib` has room for their models; otherwise
        the next tasks follow when answers have come.
        """
        limit = self._models_at_once(outbox)
        declined = {out.task.site: self._reason_to_skip(out.task) for out in outbox}
        queue = deque(self._batches([out for out in outbox if not declined[out.task.site]]))
        lost = [(out.task, why) for out in outbox if (why := declined[out.task.site])]
        flying = dict[int, TaskBatch]()

        def more() -> list[Message]:
            messages: list[Message] = []
            while not messages and (wave := self._wave(queue, list(flying.values()), limit)):
                for batch in wave:
                    try:
                        messages.append(self._message(batch, fetch))
                    except StoreError as error:  # a damaged content: only its own sites are skipped
                        why = f"the server lost a model it needs: {error}"
                        lost.extend((out.task, why) for out in batch)
                    else:
                        flying[id(messages[-1])] = batch
            return messages

        for message, reply in self._transport.replies(more, deadline_s):
            batch = flying.pop(id(message))
            if reply is None:
                yield from ((out.task.site, _not_sent(out.task, NOT_SENT)) for out in batch)
                continue
            for out, incoming in zip(batch, self._read(batch, reply), strict=True):
                self._note_refusal(message.metadata.dst_node_id, out.task, incoming)
                yield out.task.site, incoming
        for task, reason in lost:
            yield task.site, _not_sent(task, reason)
        for out in chain.from_iterable(queue):
            yield out.task.site, _not_sent(out.task, "not sent: the round's time was over")

    def _batches(self, outbox: Sequence[Outgoing]) -> Iterator[TaskBatch]:
        """Group tasks into messages: one task each, or several for a node that simulates many."""
        nodes, near = self.sites.nodes, self.sites.sharing_pool
        several = {node for node, sites in Counter(nodes.values()).items() if sites > 1}
        of_node = defaultdict[int, list[Outgoing]](list)
        for out in outbox:
            node = nodes[out.task.site]
            if node in several and out.task.site in near:
                of_node[node].append(out)
            else:
                yield (out,)
        batches = []
        for tasks in of_node.values():
            size = max(1, min(MAX_TASKS, len(tasks) // MIN_MESSAGES))
            batches.append([tasks[at : at + size] for at in range(0, len(tasks), size)])
        yield from filter(
            None, chain.from_iterable(zip_longest(*batches))
        )  # one message for each node, in turns

    def _note_refusal(self, node: int, task: Task, incoming: Incoming) -> None:
        """Note why a site refuses to train, where that will not change during the run."""
        answer = incoming.answer
        if isinstance(answer, Refusal) and answer.lasting and task.action != EVALUATE:
            self._declined[task.site] = answer.reason, self.sites.signed_on(node)

    def _reason_to_skip(self, task: Task) -> str:
        """Return why a site is not asked to do a task; empty if it is asked.

        A site whose refusal lasts is not asked again to train, only to evaluate. When its node
        connects anew, the refusal is forgotten.
        """
        if task.action == EVALUATE or task.site not in self._declined:
            return ""
        why, since = self._declined[task.site]
        if self.sites.signed_on(self.sites.nodes[task.site]) != since:
            del self._declined[task.site]
            return ""
        return f"not asked again: {why}"

    def _models_at_once(self, outbox: Sequence[Outgoing]) -> int:
        """Return how many models of the size of the largest fit into `runtime.in_flight_mib`."""
        digests = {digest for out in outbox for digest in (out.task.own.digest, *out.attach)}
        known = [self._store.size(digest) for digest in digests if self._store.has(digest)]
        return self._settings.runtime.in_flight_mib * 2**20 // max(known, default=1)

    def _wave(
        self, queue: deque[TaskBatch], flying: Iterable[TaskBatch], limit: int
    ) -> list[TaskBatch]:
        """Take from the queue the batches that there is room for beside those under way.

        limit: most models under way. A model that goes to several sites counts once, and each task
        brings one model back. If nothing is under way, at least one batch is taken.
        """
        under_way = list(flying)
        away = [
            batch[0] for batch in under_way if batch[0].task.site not in self.sites.sharing_pool
        ]
        models = {digest for out in away for digest in out.attach}
        back, near, wave = len(away), len(under_way) - len(away), list[TaskBatch]()
        while queue:
            if (first := queue[0][0]).task.site in self.sites.sharing_pool:
                near += 1
                if near > MAX_POOL_MESSAGES:
                    break
            else:
                models |= set(first.attach)
                back += 1
                if back > 1 and len(models) + back > limit:
                    break
            wave.append(queue.popleft())
        return wave

    def _message(self, batch: TaskBatch, fetch: Fetch) -> Message:
        """Return tasks as a message, with the contents that the site neither holds nor can read."""
        out, *others = batch
        if others:  # their sites share the pool, so that no content travels
            heads = flower_records.pack_tasks(self._origin, [one.head for one in batch])
            return self._transport.message(self.sites.nodes[out.task.site], "train.lot", heads)
        travels = () if out.task.site in self.sites.sharing_pool else out.attach
        payloads = {digest: fetch(digest) for digest in travels}
        records = flower_records.pack_request(self._origin, out.head, payloads)
        return self._transport.message(self.sites.nodes[out.task.site], "train.task", records)

    def _read(self, batch: TaskBatch, reply: Message) -> Iterator[Incoming]:
        """Yield the answer to each task of a message."""
        for out, incoming in zip(batch, parsed(reply, len(batch)), strict=True):
            answer = incoming.answer
            if isinstance(answer, Reply) and out.task.site in self.sites.sharing_pool:
                yield self._with_upload(out.task, answer, incoming.head_bytes)
            else:
                yield incoming

    def _with_upload(self, task: Task, reply: Reply, head_bytes: int) -> Incoming:
        """Return a reply with its new contents, which a site that shares the pool has put there."""
        try:
            uploads = reply.uploads(task.own.digest)
            payloads = {digest: self._store.get(digest) for digest in uploads.values()}
        except StoreError as error:
            return Incoming(Refusal(task.site, task.round, f"its new model is not there: {error}"))
        return Incoming(reply, payloads, head_bytes)


def _not_sent(task: Task, reason: str) -> Incoming:
    return Incoming(Refusal(task.site, task.round, one_line(reason)), sent=False)
