"""Flower's two halves joined in one process: the real ClientApp behind a grid in memory."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_INTERVAL_INF
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from client_app import identity
from client_app.app import app as client
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import experiment_digest, load_experiment, to_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.resume import open_run
from fedapp.experiment.run_folder import RunFolder
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Incoming, Origin
from fedapp.site.policy import NO_TERMS, SITE_FOLDER
from server_app.strategy import PoolStrategy

Node = Callable[[Message], Message | None]
"""Answers a message; None: says nothing."""


class MemoryGrid(Grid):
    """Nodes are functions. What they answer waits until it is pulled, in the order `order` gives.

    pushes: the messages between one look for replies and the next.
    unsendable: nodes at whose messages Flower raises; unreadable: those at whose replies it does,
    when their messages and all others of that look are already gone from its store.

    gone: nodes whose messages Flower does not take: a simulation leaves their ids out, a SuperLink
    puts None in their place (`says_none`). simulated: whether the nodes are of a simulation.
    """

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.pushes: list[list[Message]] = []
        self.pulls = 0
        self._looked = True
        self.unsendable: dict[int, Exception] = {}
        self.unreadable: dict[int, Exception] = {}
        self.gone: set[int] = set()
        self.says_none = False
        self.simulated = False
        self.order: Callable[[list[Message]], list[Message]] = list
        self._waiting: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        every = HEARTBEAT_INTERVAL_INF if self.simulated else HEARTBEAT_DEFAULT_INTERVAL
        return [NodeInfo(node_id=n, heartbeat_interval=every) for n in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        if self._looked:
            self.pushes.append([])
            self._looked = False
        ids: list[Any] = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number  # as both of Flower's grids do
            if message.metadata.dst_node_id in self.unsendable:
                raise self.unsendable[message.metadata.dst_node_id]
            if message.metadata.dst_node_id in self.gone:
                ids += [None] if self.says_none else []
                continue
            ids.append(number)
            self.pushes[-1].append(message)
            reply = self.nodes[message.metadata.dst_node_id](message)
            if reply is not None:
                self._waiting[number] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        self._looked = True
        asked = set(message_ids)
        assert None not in asked
        ready = [number for number in self._waiting if number in asked]
        replies = [self._waiting.pop(number) for number in ready]
        for reply in replies:
            if reply.metadata.src_node_id in self.unreadable:
                raise self.unreadable[reply.metadata.src_node_id]
        return self.order(replies)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *arguments: Any, **named: Any) -> Iterable[Message]:
        raise NotImplementedError


def preset(experiment: Experiment, folder: Path) -> str:
    """Write the experiment as a preset file named after it; return its path."""
    plain = to_plain(experiment)
    path = folder / f"{plain.pop('name')}.yaml"
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    assert load_experiment(str(path)) == experiment
    return str(path)


def node(run_config: Mapping[str, Any], **node_config: Any) -> Node:
    """Return a node that runs the real ClientApp; every message meets it with an empty memory.

    With the node config of a simulated node it runs as in one of Ray's processes. A real one that
    has no site folder says that it has no terms.
    """
    simulated = identity.NODES in node_config
    if not simulated and SITE_FOLDER not in node_config:
        node_config = {NO_TERMS: True, **node_config}

    def answer(message: Message) -> Message:
        context = Context(
            run_id=1,
            node_id=message.metadata.dst_node_id,
            node_config=node_config,
            state=RecordDict(),
            run_config=dict(run_config),
        )
        with patch.object(identity, "in_ray", lambda: simulated):
            return client(message, context)

    return answer


def sites(run_config: Mapping[str, Any], count: int, simulated: bool = False) -> dict[int, Node]:
    """Return nodes 100, 101, ... that are sites 0, 1, ...; simulated: as Flower simulates them."""
    parts = {"num-partitions": count} if simulated else {}
    return {100 + k: node(run_config, **{"partition-id": k, **parts}) for k in range(count)}


def asked(answer: Node, records: RecordDict, message_type: str = "query.hello") -> Incoming:
    """Return what a node answers to these records."""
    message = Message(records, dst_node_id=7, message_type=message_type, ttl=60.0)
    message.metadata.__dict__["_message_id"] = "asked"
    reply = answer(message)
    assert reply is not None and not reply.has_error()
    assert reply.metadata.reply_to_message_id == "asked"
    return flower_records.read_answer(reply.content)


def origin_of(experiment: Experiment, run: str = "run") -> Origin:
    return Origin(run, code_hash()[1], experiment_digest(experiment))


def serve(experiment: Experiment, grid: Grid) -> tuple[dict[str, Any], RunFolder]:
    """Run the experiment over the grid as the ServerApp does; return its summary and folder."""
    folder = open_run(experiment)
    origin = replace(origin_of(experiment, folder.path.name), identity=folder.identity)
    strategy = PoolStrategy(experiment, origin, folder)
    strategy.start(grid)
    return strategy.outcome, folder
