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
from server_app.node_registry import Introductions
from server_app.transport import AT_ONCE, NOT_SENT, Post, parsed

MOST_TASKS, MESSAGES = 64, 4
"""Tasks in one message at most: a message of Flower's costs as much as 10 to 20 tiny sites. A node
gets at least so many messages, or one for each task: whoever is free first takes the next."""

Lot = Sequence[Outgoing]
"""Tasks that go in one message, at least one."""


class GridCarrier:
    """Carries one run's messages by a grid (`fedapp.server.phases.Carrier`).

    A node that simulates many sites gets the tasks of several of them in one message.
    """

    def __init__(self, grid: Grid, origin: Origin, run: Assembly) -> None:
        key = make_key(run.folder.pool_root)
        self._origin = replace(origin, pool=digest_of(key.encode()))
        self._store, self._settings = run.store, run.experiment
        self._post = Post(grid, run.experiment.rounds.deadline_s)
        self.sites = Introductions(
            self._post,
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
        return self.sites.since()

    def leave_out(self, site: int) -> None:
        """Have a site's node asked again at a later call of `newcomers`."""
        self.sites.leave_out(site)

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterator[tuple[int, Incoming]]:
        """Push a phase's tasks, yield answers as they come, stop at the deadline.

        They go in one push where `runtime.in_flight_mib` allows, else as answers make room.
        """
        limit = self._models_at_once(outbox)
        declined = {out.task.site: self._declines(out.task) for out in outbox}
        queue = deque(self._lots([out for out in outbox if not declined[out.task.site]]))
        lost = [(out.task, why) for out in outbox if (why := declined[out.task.site])]
        flying = dict[int, Lot]()

        def more() -> list[Message]:
            messages: list[Message] = []
            while not messages and (wave := self._wave(queue, list(flying.values()), limit)):
                for lot in wave:
                    try:
                        messages.append(self._message(lot, fetch))
                    except StoreError as error:  # a damaged content, which only its sites need
                        why = f"the server lost a model it needs: {error}"
                        lost.extend((out.task, why) for out in lot)
                    else:
                        flying[id(messages[-1])] = lot
            return messages

        for message, reply in self._post.replies(more, deadline_s):
            lot = flying.pop(id(message))
            if reply is None:
                yield from ((out.task.site, _unsent(out.task, NOT_SENT)) for out in lot)
                continue
            for out, incoming in zip(lot, self._read(lot, reply), strict=True):
                self._noted(message.metadata.dst_node_id, out.task, incoming)
                yield out.task.site, incoming
        for task, reason in lost:
            yield task.site, _unsent(task, reason)
        for out in chain.from_iterable(queue):
            yield out.task.site, _unsent(out.task, "not sent: the round's time was over")

    def _lots(self, outbox: Sequence[Outgoing]) -> Iterator[Lot]:
        """Cut tasks into what goes in one message: one, or several for a node of many sites."""
        nodes, near = self.sites.nodes, self.sites.neighbours
        several = {node for node, sites in Counter(nodes.values()).items() if sites > 1}
        of_node = defaultdict[int, list[Outgoing]](list)
        for out in outbox:
            node = nodes[out.task.site]
            if node in several and out.task.site in near:
                of_node[node].append(out)
            else:
                yield (out,)
        lots = []
        for tasks in of_node.values():
            size = max(1, min(MOST_TASKS, len(tasks) // MESSAGES))
            lots.append([tasks[at : at + size] for at in range(0, len(tasks), size)])
        yield from filter(None, chain.from_iterable(zip_longest(*lots)))  # each node in its turn

    def _noted(self, node: int, task: Task, incoming: Incoming) -> None:
        """Note a refusal that lasts."""
        answer = incoming.answer
        if isinstance(answer, Refusal) and answer.lasting and task.action != EVALUATE:
            self._declined[task.site] = answer.reason, self.sites.signed_on(node)

    def _declines(self, task: Task) -> str:
        """Return why a site is not asked for a task: it has declined one in this run for good.

        It still measures models. When its node signs on anew it is asked again.
        """
        if task.action == EVALUATE or task.site not in self._declined:
            return ""
        why, since = self._declined[task.site]
        if self.sites.signed_on(self.sites.nodes[task.site]) != since:
            del self._declined[task.site]
            return ""
        return f"not asked again: {why}"

    def _models_at_once(self, outbox: Sequence[Outgoing]) -> int:
        """Return how many models `runtime.in_flight_mib` has room for."""
        digests = {digest for out in outbox for digest in (out.task.own.digest, *out.attach)}
        known = [self._store.size(digest) for digest in digests if self._store.has(digest)]
        return self._settings.runtime.in_flight_mib * 2**20 // max(known, default=1)

    def _wave(self, queue: deque[Lot], flying: Iterable[Lot], limit: int) -> list[Lot]:
        """Take from the queue what there is room for beside what is under way; one, if nothing is.

        A model that goes to several sites counts once; each task brings one back.
        """
        under_way = list(flying)
        away = [lot[0] for lot in under_way if lot[0].task.site not in self.sites.neighbours]
        models = {digest for out in away for digest in out.attach}
        back, near, wave = len(away), len(under_way) - len(away), list[Lot]()
        while queue:
            if (first := queue[0][0]).task.site in self.sites.neighbours:
                near += 1
                if near > AT_ONCE:
                    break
            else:
                models |= set(first.attach)
                back += 1
                if back > 1 and len(models) + back > limit:
                    break
            wave.append(queue.popleft())
        return wave

    def _message(self, lot: Lot, fetch: Fetch) -> Message:
        """Return tasks as a message, with the contents that a site can neither hold nor read."""
        out, *others = lot
        if others:  # all of neighbours
            heads = flower_records.pack_tasks(self._origin, [one.head for one in lot])
            return self._post.message(self.sites.nodes[out.task.site], "train.lot", heads)
        travels = () if out.task.site in self.sites.neighbours else out.attach
        payloads = {digest: fetch(digest) for digest in travels}
        records = flower_records.pack_request(self._origin, out.head, payloads)
        return self._post.message(self.sites.nodes[out.task.site], "train.task", records)

    def _read(self, lot: Lot, reply: Message) -> Iterator[Incoming]:
        """Parse the answers to tasks."""
        for out, incoming in zip(lot, parsed(reply, len(lot)), strict=True):
            answer = incoming.answer
            if isinstance(answer, Reply) and out.task.site in self.sites.neighbours:
                yield self._with_upload(out.task, answer, incoming.head_bytes)
            else:
                yield incoming

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
