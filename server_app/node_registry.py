"""Which of Flower's nodes is which site.

All nodes are asked when a run starts. Those that come later are asked between two rounds.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from flwr.app import Message, RecordDict
from flwr.common.constant import HEARTBEAT_INTERVAL_INF

from fedapp.core.errors import RunError
from fedapp.core.formatting import counted
from fedapp.experiment.experiment import Experiment
from fedapp.protocol.messages import Answer, Incoming, Refusal, SiteFacts
from fedapp.server.checks import preset_mismatch
from server_app.transport import (
    FIRST_POLL_S,
    LAST_POLL_S,
    MAX_POOL_MESSAGES,
    NOT_SENT,
    GridTransport,
    parsed,
)

MAX_CALLS_SKIPPED = 8
"""The pause between two questions to a node that keeps refusing doubles, up to every eighth call of
`newcomers`. When the node connects to Flower again, it is asked at once. A node whose refusal lasts
is asked only then, because each question adds a line to its site's record."""
SETTLED_S = 1.0
"""Where all nodes are simulated, the server stops waiting for more nodes when none has come for so
many seconds."""
PATIENCE_S = 10.0
"""After so many seconds a node that has not answered no longer takes up the place of another."""


@dataclass
class _Pause:
    """How long a node that refused is left alone.

    signed_on: when the node had last connected to Flower. calls: calls of `newcomers` to let pass
    before it is asked again.
    """

    signed_on: str
    refusals: int
    calls: float


@dataclass
class NodeRegistry:
    """The nodes of a run and the sites that they stand for.

    hello: the question that asks a node which site it is. key: a secret in the folder of the
    server's pool: a site that knows it reads that folder itself. say: prints a line for the person
    who runs the server. nodes: a site's node, by the site's number. sharing_pool: the sites that
    work on the server's own pool, so that no model must be sent to them.
    """

    transport: GridTransport
    experiment: Experiment
    hello: RecordDict
    key: str
    say: Callable[[str], None]
    nodes: dict[int, int] = field(default_factory=dict)
    sharing_pool: set[int] = field(default_factory=set)
    _asked: dict[int, tuple[Message, float]] = field(default_factory=dict)
    _last_asked: dict[int, float] = field(default_factory=dict)
    _keys: dict[int, str] = field(default_factory=dict)
    _signed_on: dict[int, str] = field(default_factory=dict)
    _pauses: dict[int, _Pause] = field(default_factory=dict)
    _said: dict[tuple[str, str], None] = field(default_factory=dict)

    def at_start(self) -> list[SiteFacts]:
        """Ask every node which site it is, and wait for the answers.

        While sites are missing and `rounds.join_wait_s` is not over, nodes that did not answer are
        asked again: for a minute Flower takes a node whose power was cut for online, and a question
        to it is lost. Raises RunError if there is no node, or if every node that answers refuses.
        """
        end = time.monotonic() + self.experiment.rounds.join_wait_s
        nodes = self._wait_for_nodes(end)
        if self._simulated():  # this also reads the keys, by which answers are judged
            self.say("Ray starts: usually 10 to 30 s, but up to two minutes the first time")
        queue, found = deque(nodes), dict[int, SiteFacts]()

        def more() -> list[Message]:
            now = time.monotonic()
            busy = sum(now < since + PATIENCE_S for _, since in self._asked.values())
            return self._questions(
                [queue.popleft() for _ in range(min(len(queue), MAX_POOL_MESSAGES - busy))]
            )

        for message, reply in self.transport.replies(more, self.experiment.rounds.hello_s):
            found |= {facts.site: facts for facts in self._take_answer(message, reply)}
        if self._said and not found:
            _, reason = next(iter(self._said))
            raise RunError(f"none of {counted(len(nodes), 'nodes')} can take part: {reason}")
        found |= self._wait_for_missing(found, end)
        if len(found) < len(nodes):
            self.say(f"{len(nodes) - len(found)} of {counted(len(nodes), 'nodes')} left out")
        return list(found.values())

    def _wait_for_missing(self, found: Mapping[int, SiteFacts], end: float) -> dict[int, SiteFacts]:
        """Wait until `end` for the missing sites that may still come; return those that do."""
        wanted, later = self.experiment.split.num_clients, dict[int, SiteFacts]()
        if not found or self._simulated():
            return later
        while time.monotonic() < end:
            # A node whose refusal lasts is not waited for.
            final = sum(pause.calls == float("inf") for pause in self._pauses.values())
            if len(found.keys() | later.keys()) + final >= wanted:
                break
            time.sleep(LAST_POLL_S)
            later |= {facts.site: facts for facts in self.newcomers()}
        return later

    def newcomers(self) -> list[SiteFacts]:
        """Return the sites that have answered since the last call; ask the nodes that have no site.

        This never waits: a question of this call is answered at a later call. A node that cannot
        take part is asked again, since somebody may have repaired it, but less and less often. A
        node that does not answer is asked again when the time for its question is over.
        """
        under_way = {m.metadata.message_id: m for m, _ in self._asked.values()}
        answers = [
            self._take_answer(message, reply) for message, reply in self.transport.pull(under_way)
        ]
        now, here = time.monotonic(), set(self.transport.grid.get_node_ids())
        self._asked = {n: q for n, q in self._asked.items() if now < q[1] + self._patience}
        strangers = here - set(self.nodes.values()) - self._asked.keys()
        if strangers:
            self._read_keys()
        due = [node for node in strangers if self._due(node)]
        by_turns = sorted(due, key=lambda node: (self._last_asked.get(node, 0.0), node))
        room = max(MAX_POOL_MESSAGES - len(self._asked), 1)
        _, refused = self.transport.push(self._questions(by_turns[:room]))
        for message in refused:
            del self._asked[message.metadata.dst_node_id]
        return list(chain.from_iterable(answers))

    def leave_out(self, site: int) -> None:
        """Forget which node a site belongs to, so that the node is asked again."""
        if (node := self._forget(site)) is not None:
            self._pause(node, lasting=False)

    def signed_on(self, node: int) -> str:
        """Return when a node last connected to Flower; empty where Flower does not say."""
        self._read_keys()
        return self._signed_on.get(node, "")

    def _forget(self, site: int) -> int | None:
        self.sharing_pool.discard(site)
        return self.nodes.pop(site, None)

    def _pause(self, node: int, *, lasting: bool) -> None:
        """Leave a node that refused, or that was left out, alone for some calls of `newcomers`."""
        known = self._pauses.get(node)
        refusals = known.refusals + 1 if known else 1
        calls = float("inf") if lasting else min(2 ** (refusals - 1), MAX_CALLS_SKIPPED) - 1
        self._pauses[node] = _Pause(self._signed_on.get(node, ""), refusals, calls)

    def _due(self, node: int) -> bool:
        """Whether a node may be asked now. Each call shortens its pause by one."""
        pause = self._pauses.get(node)
        if pause is None or pause.signed_on != self._signed_on.get(node, ""):
            self._pauses.pop(node, None)
            return True
        pause.calls -= 1
        return pause.calls < 0

    @property
    def _patience(self) -> float:
        """Seconds that a node has to say who it is: opening a site may take longer than a task."""
        return self.experiment.rounds.hello_s

    def _questions(self, nodes: Sequence[int]) -> list[Message]:
        """Return a message to each node that asks who it is, and note that it is under way."""
        now = time.monotonic()
        messages = [
            self.transport.message(node, "query.hello", self.hello, self._patience)
            for node in nodes
        ]
        self._asked |= {m.metadata.dst_node_id: (m, now) for m in messages}
        self._last_asked |= dict.fromkeys(nodes, now)
        return messages

    def _take_answer(self, message: Message, reply: Message | None) -> list[SiteFacts]:
        """Take a node's answer; return the facts of those of its sites that can take part.

        A real node is one site. A simulated node may stand for several.
        """
        node = message.metadata.dst_node_id
        self._asked.pop(node, None)
        answers = [Incoming(Refusal(-1, 0, NOT_SENT))] if reply is None else parsed(reply, None)
        several = len(answers) > 1
        if several and not self._simulated():
            why = f"{len(answers)} answers when asked who it is"
            answers = [Incoming(Refusal(-1, 0, why))]
        met = [self._register(node, incoming.answer) for incoming in answers]
        return [facts for facts in met if facts is not None]

    def _register(self, node: int, answer: Answer) -> SiteFacts | None:
        """Note a node as a site's; return the site's facts, or None if it cannot take part."""
        name = self._keys.get(node, "")
        if isinstance(answer, Refusal):
            reason = answer.reason
        elif not isinstance(answer, SiteFacts):
            reason = f"answered with {type(answer).__name__} when asked who it is"
        elif not (reason := self._conflict(answer, name)):
            self._forget(answer.site)
            self._pauses.pop(node, None)
            self.nodes[answer.site] = node
            if secrets.compare_digest(answer.pool_key, self.key):
                self.sharing_pool.add(answer.site)
            return replace(answer, pool_key="")  # of this start, not of the site
        lasting = isinstance(answer, Refusal) and answer.lasting
        who = f"site {name!r} (node {node})" if name else f"node {node}"
        self._pause(node, lasting=lasting)
        if (name, reason) not in self._said:
            self._said[name, reason] = None
            self.say(f"{who} cannot take part: {reason}")
        return None

    def _conflict(self, facts: SiteFacts, name: str) -> str:
        """Return why a node cannot be the site that it says it is; empty if it can.

        name: the name under which the node's key was registered; empty where no key is registered,
        as in a simulation.
        """
        if name and facts.name and name != facts.name:
            return (
                f"its key is registered for {name!r}, but its site-name is {facts.name!r}; make "
                "the two equal"
            )
        # First of all: a node that cannot take part must not occupy the number of one that can.
        if problem := preset_mismatch(facts, self.experiment.data):
            return problem
        known = self.nodes.get(facts.site)
        # To Flower, a node that has got a new key is another node.
        if known is None or known not in set(self.transport.grid.get_node_ids()):
            return ""
        if facts.name:
            return f"site {facts.name!r} is here already; give every node its own site-name"
        return f"site number {facts.site} is taken; give every node its own partition-id"

    def _read_keys(self) -> None:
        """Read under which names the nodes' keys were registered, and when each node connected."""
        nodes = list(self.transport.grid.get_nodes())
        self._keys = {node.node_id: node.name for node in nodes if node.name}
        self._signed_on = {node.node_id: node.last_activated_at for node in nodes}

    def _simulated(self) -> bool:
        """Whether all nodes belong to Flower's simulation, where one may stand for several sites.

        Only a simulated node has no registered key and sends no heartbeats: a SuperNode that falls
        silent is offline for Flower after a minute.
        """
        self._read_keys()
        nodes = list(self.transport.grid.get_nodes())
        return not self._keys and all(
            node.heartbeat_interval >= HEARTBEAT_INTERVAL_INF for node in nodes
        )

    def _wait_for_nodes(self, end: float) -> list[int]:
        """Wait until all the preset's sites are there, or `rounds.join_wait_s` is over.

        A simulated node may stand for several sites: there the wait ends when no more nodes come.
        """
        wanted, wait = self.experiment.split.num_clients, self.experiment.rounds.join_wait_s
        nodes, since = list[int](), time.monotonic()
        while (
            len(here := list(self.transport.grid.get_node_ids())) < wanted
            and time.monotonic() < end
        ):
            if len(here) != len(nodes):
                nodes, since = here, time.monotonic()
            elif here and time.monotonic() > since + SETTLED_S and self._simulated():
                break
            time.sleep(FIRST_POLL_S)
        nodes = here
        if not nodes:
            raise RunError(
                f"no node within rounds.join_wait_s = {wait:g} s; start SuperNodes, or raise the "
                "wait"
            )
        if len(nodes) < wanted and not self._simulated():
            self.say(f"{len(nodes)} of {counted(wanted, 'sites')} are here and will be used")
        return nodes
