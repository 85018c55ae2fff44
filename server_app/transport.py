"""Messages pushed to nodes and polled for, through Flower's grid.

A registered node can make Flower raise an exception while the server sends or fetches: the node
confirms a message before all of it has arrived, or answers with pieces that make up no message.
Then only this node loses its turn, and the run goes on.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedapp.core.errors import ProtocolError, one_line
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Incoming, Refusal

FIRST_POLL_S, LAST_POLL_S = 0.02, 1.0
"""Shortest and longest pause between two polls; the pause doubles while nothing comes."""

MAX_POOL_MESSAGES = max(16, 4 * (os.cpu_count() or 1))
"""Most messages under way to sites that share the server's pool, and so its machine: enough for all
its cores. Flower's simulation looks through all messages again for every node. With 1,000 messages
under way to as many nodes it does nothing else: 10 messages a minute instead of 2,000."""

NOT_SENT = "not sent; is the node gone?"
"""The reason that is given for a message which Flower did not accept."""


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GridTransport:
    """Sends messages through Flower's grid and polls for the replies.

    ttl: seconds after which Flower drops a message, where `message` is given no time of its own.
    """

    grid: Grid
    ttl: float

    def message(
        self, node: int, message_type: str, content: RecordDict, ttl: float | None = None
    ) -> Message:
        """Return a message to a node."""
        seconds = self.ttl if ttl is None else ttl
        return Message(content, dst_node_id=node, message_type=message_type, ttl=seconds)

    def replies(
        self, more: Callable[[], Iterable[Message]], deadline_s: float
    ) -> Iterator[tuple[Message, Message | None]]:
        """Push messages and poll for their replies until all came or the time is over.

        more: returns the messages to push next; it is called again after each poll. Yields each
        message with its reply, or with None where Flower did not accept the message. Only the
        message says which node it was sent to: the error reply that Flower makes for a lost node
        does not.
        """
        end, pause = time.monotonic() + deadline_s, FIRST_POLL_S
        pending: dict[str, Message] = {}
        while time.monotonic() < end:
            messages = list(more())
            taken, refused = self.push(messages)
            pending |= taken
            for message in refused:
                yield message, None
            if not pending:
                if messages:
                    continue
                break
            began = time.monotonic()
            replies = self.pull(pending)
            took = time.monotonic() - began
            for asked, reply in replies:
                del pending[asked.metadata.message_id]
                yield asked, reply
            pause = FIRST_POLL_S if replies else min(2 * pause, LAST_POLL_S)
            if (
                pending
            ):  # polling for many replies takes long: leave as much time for them to arrive
                time.sleep(min(max(pause, took), max(end - time.monotonic(), 0)))

    def push(self, messages: list[Message]) -> tuple[dict[str, Message], list[Message]]:
        """Send messages; return those that Flower accepted, by their ids, and the others.

        Each message is pushed by itself: if several were pushed together, one that fails would make
        the others fail too. Content that they share is still sent only once.
        """
        taken, refused = dict[str, Message](), list[Message]()
        for message in messages:
            try:
                ids = set(self.grid.push_messages([message]))
            except ObjectPushError as error:
                log.warning("node %d confirmed too early: %s", message.metadata.dst_node_id, error)
                ids = set()
            if message.metadata.message_id in ids:
                taken[message.metadata.message_id] = message
            else:
                refused.append(message)
        return taken, refused

    def pull(self, pending: dict[str, Message]) -> list[tuple[Message, Message]]:
        """Poll once for replies to these messages; return each message that has one, with it.

        Each reply is fetched by itself: if several were fetched together, Flower would forget all
        of them before it reads the first, and one that cannot be read would lose the others.
        """
        found = list[tuple[Message, Message]]()
        for number, asked in pending.items():
            try:
                replies = self.grid.pull_messages([number])
                by_question = {reply.metadata.reply_to_message_id: reply for reply in replies}
            except httpx.HTTPError:  # the SuperLink is gone
                raise
            except Exception as error:  # Flower's parsers raise many kinds for a node's bytes
                reason = f"the answer's pieces make up no message: {one_line(repr(error))}"
                by_question = {number: Message(Error(ErrorCode.UNKNOWN, reason), reply_to=asked)}
            if number in by_question:
                found.append((asked, by_question[number]))
        return found


def parsed(reply: Message, number: int | None = 1) -> list[Incoming]:
    """Return the answers in a reply. What cannot be read becomes a refusal, as does Flower's error.

    number: how many tasks the message had; each of them gets an answer. None: the message asked a
    node who it is, which may bring several answers.
    """
    if reply.has_error():
        reason = " ".join(one_line(reply.error.reason).split())[:400]
        return _refused(f"Flower error {reply.error.code}: {reason}", number)
    try:
        answers = flower_records.read_answers(reply.content)
    except ProtocolError as error:
        return _refused(f"unreadable answer: {error}", number)
    if number in (None, len(answers)):
        return answers
    if len(answers) == 1 and isinstance(refusal := answers[0].answer, Refusal):
        return _refused(refusal.reason, number)
    return _refused(f"{len(answers)} answers to {number} tasks", number)


def _refused(reason: str, number: int | None) -> list[Incoming]:
    return [Incoming(Refusal(-1, 0, reason))] * (1 if number is None else number)
