"""Messages pushed to nodes and polled for, through Flower's grid."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedapp.ground.errors import ProtocolError, one_line
from fedapp.messages import wire
from fedapp.messages.protocol import Incoming, Refusal

FIRST_POLL_S, LAST_POLL_S = 0.02, 1.0
"""Polling starts fast and slows down while nothing comes."""

AT_ONCE = max(16, 4 * (os.cpu_count() or 1))
"""Messages under way to sites on the server's own machine: enough for all its cores. Flower's
simulation looks through all messages again for every node. With 1,000 messages under way to as many
nodes it does nothing else: 10 messages a minute instead of 2,000."""

NOT_SENT = "not sent; is the node gone?"
"""Of a message that Flower did not take."""


@dataclass(frozen=True)
class Post:
    """ttl: seconds after which Flower gives a message up."""

    grid: Grid
    ttl: float

    def message(self, node: int, message_type: str, content: RecordDict) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id=node, message_type=message_type, ttl=self.ttl)

    def replies(
        self, more: Callable[[], Iterable[Message]], deadline_s: float
    ) -> Iterator[tuple[Message, Message | None]]:
        """Push messages and poll for their replies until all came or the time is over.

        more: returns the messages to push next; it is asked again after each poll. Yields each
        message with its reply, or with None where Flower did not take the message. The message
        tells which node it was: a reply that Flower makes up for a lost node does not.
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
            replies = list(self.pull(pending))
            for asked, reply in replies:
                del pending[asked.metadata.message_id]
                yield asked, reply
            pause = FIRST_POLL_S if replies else min(2 * pause, LAST_POLL_S)
            if pending:
                time.sleep(min(pause, max(end - time.monotonic(), 0)))

    def push(self, messages: list[Message]) -> tuple[dict[str, Message], list[Message]]:
        """Send messages; return those that Flower took, by their ids, and the others."""
        ids = set(self.grid.push_messages(messages)) if messages else set()
        taken = {m.metadata.message_id: m for m in messages if m.metadata.message_id in ids}
        return taken, [m for m in messages if m.metadata.message_id not in ids]

    def pull(self, pending: dict[str, Message]) -> list[tuple[Message, Message]]:
        """Look once for replies to these messages; return each message with its reply, once."""
        if not pending:
            return []
        found = {
            reply.metadata.reply_to_message_id: reply
            for reply in self.grid.pull_messages(list(pending))
        }
        return [(pending[number], reply) for number, reply in found.items() if number in pending]


def parsed(reply: Message) -> Incoming:
    """Parse any reply; what cannot be read, or Flower's own error, becomes a refusal."""
    if reply.has_error():
        reason = " ".join(one_line(reply.error.reason).split())[:400]
        return Incoming(Refusal(-1, 0, f"Flower error {reply.error.code}: {reason}"))
    try:
        return wire.read_answer(reply.content)
    except ProtocolError as error:
        return Incoming(Refusal(-1, 0, f"unreadable answer: {error}"))
