"""Who is which site: nodes are asked when a run starts, and those that come later each round."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from flwr.app import Message, RecordDict
from flwr.common.constant import HEARTBEAT_INTERVAL_INF

from fedapp.core.errors import RunError
from fedapp.experiment.experiment import Experiment
from fedapp.protocol.messages import Answer, Incoming, Refusal, SiteFacts
from fedapp.server.checks import preset_mismatch
from server_app.transport import AT_ONCE, FIRST_POLL_S, LAST_POLL_S, NOT_SENT, Post, parsed

MOST_PASSED = 8
"""A node that goes on refusing is asked at every eighth call at last, and at once when it signs on
anew. One whose refusal lasts is asked then alone: each question is a line in its site's record."""
SETTLED_S = 1.0
"""Seconds without a new node after which no more are waited for, where all nodes are simulated."""
PATIENCE_S = 10.0
"""Seconds after which a node that has not said who it is keeps no other from being asked."""


@dataclass
class _Pause:
    """signed_on: when the node did. calls: to let pass before it is asked again."""

    signed_on: str
    refusals: int
    calls: float


@dataclass
class Introductions:
    """hello: the first question. key: of the pool, which only neighbours can read.

    say: tells the person. nodes: by site. neighbours: the sites that work on the server's own
    pool.
    """

    post: Post
    experiment: Experiment
    hello: RecordDict
    key: str
    say: Callable[[str], None]
    nodes: dict[int, int] = field(default_factory=dict)
    neighbours: set[int] = field(default_factory=set)
    _asked: dict[int, tuple[Message, float]] = field(default_factory=dict)
    _last_asked: dict[int, float] = field(default_factory=dict)
    _keys: dict[int, str] = field(default_factory=dict)
    _signed_on: dict[int, str] = field(default_factory=dict)
    _pauses: dict[int, _Pause] = field(default_factory=dict)
    _said: dict[tuple[str, str], None] = field(default_factory=dict)

    def at_start(self) -> list[SiteFacts]:
        """Ask every node and wait for the answers; note which node is which site.

        While sites lack and `rounds.join_wait_s` is not over, nodes that could not answer are asked
        again: one whose power was cut is taken for online for a minute, and its question is lost.
        Raises RunError where there is no node, or where every one that answers refuses.
        """
        end = time.monotonic() + self.experiment.rounds.join_wait_s
        nodes = self._wait_for_nodes(end)
        self._read_keys()
        queue, found = deque(nodes), dict[int, SiteFacts]()

        def more() -> list[Message]:
            now = time.monotonic()
            busy = sum(now < since + PATIENCE_S for _, since in self._asked.values())
            return self._questions(
                [queue.popleft() for _ in range(min(len(queue), AT_ONCE - busy))]
            )

        for message, reply in self.post.replies(more, self.experiment.rounds.hello_s):
            found |= {facts.site: facts for facts in self._met(message, reply)}
        if self._said and not found:
            _, reason = next(iter(self._said))
            raise RunError(f"none of {len(nodes)} nodes can take part: {reason}")
        found |= self._lacking(found, end)
        if len(found) < len(nodes):
            self.say(f"{len(nodes) - len(found)} of {len(nodes)} nodes left out")
        return list(found.values())

    def _lacking(self, found: Mapping[int, SiteFacts], end: float) -> dict[int, SiteFacts]:
        """Return the sites that answer until `end`, where some are lacking that still may come."""
        wanted, later = self.experiment.split.num_clients, dict[int, SiteFacts]()
        if not found or self._simulated():
            return later
        while time.monotonic() < end:
            # Who refuses for good is not waited for.
            final = sum(pause.calls == float("inf") for pause in self._pauses.values())
            if len(found.keys() | later.keys()) + final >= wanted:
                break
            time.sleep(LAST_POLL_S)
            later |= {facts.site: facts for facts in self.since()}
        return later

    def since(self) -> list[SiteFacts]:
        """Return the sites that have answered since the last call; ask nodes that are none.

        Never waits: what is asked now is answered at a later call. A node that cannot take part is
        asked again, it may have been mended, but less and less often; one that says nothing, when
        its question's time is up.
        """
        under_way = {m.metadata.message_id: m for m, _ in self._asked.values()}
        answers = [self._met(message, reply) for message, reply in self.post.pull(under_way)]
        now, here = time.monotonic(), set(self.post.grid.get_node_ids())
        self._asked = {n: q for n, q in self._asked.items() if now < q[1] + self._patience}
        strangers = here - set(self.nodes.values()) - self._asked.keys()
        if strangers:
            self._read_keys()
        due = [node for node in strangers if self._due(node)]
        by_turns = sorted(due, key=lambda node: (self._last_asked.get(node, 0.0), node))
        room = max(AT_ONCE - len(self._asked), 1)
        _, refused = self.post.push(self._questions(by_turns[:room]))
        for message in refused:
            del self._asked[message.metadata.dst_node_id]
        return list(chain.from_iterable(answers))

    def leave_out(self, site: int) -> None:
        """Forget which node a site is, so that it is asked again."""
        if (node := self._forget(site)) is not None:
            self._pause(node, lasting=False)

    def signed_on(self, node: int) -> str:
        """Return when a node has signed on at the server; empty: nobody knows."""
        self._read_keys()
        return self._signed_on.get(node, "")

    def _forget(self, site: int) -> int | None:
        self.neighbours.discard(site)
        return self.nodes.pop(site, None)

    def _pause(self, node: int, *, lasting: bool) -> None:
        """Have a node that refused, or was left out, asked later."""
        known = self._pauses.get(node)
        refusals = known.refusals + 1 if known else 1
        calls = float("inf") if lasting else min(2 ** (refusals - 1), MOST_PASSED) - 1
        self._pauses[node] = _Pause(self._signed_on.get(node, ""), refusals, calls)

    def _due(self, node: int) -> bool:
        """Whether a node may be asked now; each call counts."""
        pause = self._pauses.get(node)
        if pause is None or pause.signed_on != self._signed_on.get(node, ""):
            self._pauses.pop(node, None)
            return True
        pause.calls -= 1
        return pause.calls < 0

    @property
    def _patience(self) -> float:
        """Seconds for which a first question stands: starting a site takes more than a task may."""
        return self.experiment.rounds.hello_s

    def _questions(self, nodes: Sequence[int]) -> list[Message]:
        """Return the first question to each node, noted as under way."""
        now = time.monotonic()
        messages = [
            self.post.message(node, "query.hello", self.hello, self._patience) for node in nodes
        ]
        self._asked |= {m.metadata.dst_node_id: (m, now) for m in messages}
        self._last_asked |= dict.fromkeys(nodes, now)
        return messages

    def _met(self, message: Message, reply: Message | None) -> list[SiteFacts]:
        """Take a node's answer; return what it said of the sites that can take part.

        That is one, itself; a simulated node may stand for several.
        """
        node = message.metadata.dst_node_id
        self._asked.pop(node, None)
        answers = [Incoming(Refusal(-1, 0, NOT_SENT))] if reply is None else parsed(reply, None)
        several = len(answers) > 1
        if several and not self._simulated():
            why = f"{len(answers)} answers when asked who it is"
            answers = [Incoming(Refusal(-1, 0, why))]
        met = [self._took_in(node, incoming.answer) for incoming in answers]
        return [facts for facts in met if facts is not None]

    def _took_in(self, node: int, answer: Answer) -> SiteFacts | None:
        """Take what a node says of a site; return it, None where that site cannot take part."""
        name = self._keys.get(node, "")
        if isinstance(answer, Refusal):
            reason = answer.reason
        elif not isinstance(answer, SiteFacts):
            reason = f"answered with {type(answer).__name__} when asked who it is"
        elif not (reason := self._in_the_way(answer, name)):
            self._forget(answer.site)
            self._pauses.pop(node, None)
            self.nodes[answer.site] = node
            if secrets.compare_digest(answer.pool_key, self.key):
                self.neighbours.add(answer.site)
            return replace(answer, pool_key="")  # of this start, not of the site
        lasting = isinstance(answer, Refusal) and answer.lasting
        who = f"site {name!r} (node {node})" if name else f"node {node}"
        self._pause(node, lasting=lasting)
        if (name, reason) not in self._said:
            self._said[name, reason] = None
            self.say(f"{who} cannot take part: {reason}")
        return None

    def _in_the_way(self, facts: SiteFacts, name: str) -> str:
        """Return why a node cannot be the site that it says it is; empty: it can.

        name: under which the node's key was registered; empty where it was not, as in simulation.
        """
        if name and facts.name and name != facts.name:
            return (
                f"its key is registered for {name!r}, but its site-name is {facts.name!r}; make "
                "the two equal"
            )
        # Before a number is given away: who cannot take part must not keep it from who can.
        if problem := preset_mismatch(facts, self.experiment.data):
            return problem
        known = self.nodes.get(facts.site)
        # One that got a new key is another node to Flower.
        if known is None or known not in set(self.post.grid.get_node_ids()):
            return ""
        if facts.name:
            return f"site {facts.name!r} is here already; give every node its own site-name"
        return f"site number {facts.site} is taken; give every node its own partition-id"

    def _read_keys(self) -> None:
        """Learn under which names the nodes' keys were registered, and when each signed on."""
        nodes = list(self.post.grid.get_nodes())
        self._keys = {node.node_id: node.name for node in nodes if node.name}
        self._signed_on = {node.node_id: node.last_activated_at for node in nodes}

    def _simulated(self) -> bool:
        """Whether all nodes are of Flower's simulation, where one may stand for several sites.

        Only there a node has no registered key and no end: a SuperNode that says nothing is taken
        for offline after a minute.
        """
        self._read_keys()
        nodes = list(self.post.grid.get_nodes())
        return not self._keys and all(
            node.heartbeat_interval >= HEARTBEAT_INTERVAL_INF for node in nodes
        )

    def _wait_for_nodes(self, end: float) -> list[int]:
        """Wait until all the preset's sites are there, or `rounds.join_wait_s` is over.

        Simulated nodes may stand for several each: there, until no more nodes come.
        """
        wanted, wait = self.experiment.split.num_clients, self.experiment.rounds.join_wait_s
        nodes, since = list[int](), time.monotonic()
        while len(here := list(self.post.grid.get_node_ids())) < wanted and time.monotonic() < end:
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
            self.say(f"{len(nodes)} of {wanted} sites are here and will be used")
        return nodes
