"""Answer a request in this process: the site's side, with torch, data and model."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from client_app.identity import simulated_here, stands_for
from client_app.node import alone, open_site, policy_of
from client_app.refusals import refusal_of
from client_app.resident.frames import Frame
from client_app.resident.inputs import inputs_of, stamp_of
from fedapp.core.errors import ProtocolError
from fedapp.core.process_tuning import tune_own_process
from fedapp.data.sites import describe_bags_of_sites
from fedapp.data.split.groups import count_test_copies, describe_copies
from fedapp.experiment.config import load_run_config
from fedapp.experiment.preset_files import Scalar, reading_files_once
from fedapp.protocol.codec import decode_origin, decode_request, encode
from fedapp.protocol.messages import Hello, Incoming, Origin, Refusal, Request, Task
from fedapp.site.federation import called
from fedapp.site.policy import SitePolicy
from fedapp.site.site import SiteClient

log = logging.getLogger("flwr")

OPEN = 1024
"""Simulated sites that a process keeps open, those asked last."""


def answer(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    request: Request,
    payloads: Mapping[str, bytes],
    allowed: Callable[[], None] = lambda: None,
    asked: int | None = None,
    policy: SitePolicy | None = None,
) -> Incoming:
    """Answer one request as the site that a node with these settings is.

    allowed: called when the site's terms allow the run, before its data are read. asked: which of
    the sites that the node stands for; policy: whose policy that is. Raises
    FedAppError where the node cannot take part; what goes wrong in a task is an answer.
    """
    tune_own_process()
    _speak()
    policy = policy or policy_of(node_config)
    try:
        # A preset that is changed between question and use changes nothing.
        with reading_files_once():
            return _answer(
                run_config, node_config, origin, request, payloads, policy, allowed, asked
            )
    except Exception as why:
        policy.refused(origin, request, why)
        raise


def _answer(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    request: Request,
    payloads: Mapping[str, bytes],
    policy: SitePolicy,
    allowed: Callable[[], None],
    asked: int | None,
) -> Incoming:
    settings = request.settings if isinstance(request, Hello) else {}
    # An identity tells runs apart, and no earlier version's run has one.
    if isinstance(request, Task) and origin.identity and simulated_here(node_config):
        configs = tuple(run_config.items()), tuple(node_config.items())
        site, folder = _simulated(*configs, origin, request.site)
        if not site.shares_pool:  # its own store would fill this process's memory with its models
            _simulated.cache_clear()
    else:
        site, folder = open_site(run_config, node_config, origin, settings, policy, allowed, asked)
    if isinstance(request, Hello):
        if said := describe_bags_of_sites([site.data]):
            log.info("%s: %s", called(site.data), said)
        found, of = count_test_copies([site.data])
        if said := describe_copies(found, of, len(site.data.inputs) > 1):
            log.warning("%s: %s", called(site.data), said)
        policy.introduced(facts := site.introduction(), origin)
        return Incoming(facts)
    if request.site != (here := site.data.site):
        # Flower knows a node by its key: one restarted with another number still gets its tasks.
        raise ProtocolError(f"a task for site {request.site}, but this node is site {here} now")
    with alone(site, folder):
        policy.before(request, site, origin)
        incoming = policy.after(site.handle(request, payloads), site, request, origin)
    # The server finds the new model where it lies, in the pool.
    return replace(incoming, payloads={}) if site.shares_pool else incoming


@lru_cache(maxsize=OPEN)
def _simulated(
    run_config: tuple[tuple[str, Scalar], ...],
    node_config: tuple[tuple[str, Scalar], ...],
    origin: Origin,
    asked: int,
) -> tuple[SiteClient, Path]:
    """Open a simulated site once for all tasks that this process does for it in a run.

    What it computed of its images stays with it, as in a loopback run. A real site is opened for
    every task: its terms are read anew, and its data are looked at.
    """
    node = dict(node_config)
    return open_site(dict(run_config), node, origin, {}, policy_of(node), lambda: None, asked)


def introductions(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    hello: Hello,
) -> list[Incoming]:
    """Return who the sites are that a node stands for. Raises what the first's `answer` raises."""
    policy = policy_of(node_config)
    first = answer(run_config, node_config, origin, hello, {}, policy=policy)
    others = stands_for(node_config, load_run_config(run_config))[1:]
    return [first, *(_tried(run_config, node_config, origin, hello, k, policy) for k in others)]


def answers(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    requests: Sequence[Request],
) -> list[Incoming]:
    """Answer tasks for several of the sites that a node stands for, one after the other.

    Raises ProtocolError for what is no task, and where the node is a real site: its terms and its
    record are about one task.
    """
    tasks = [request for request in requests if isinstance(request, Task)]
    if len(tasks) != len(requests):
        raise ProtocolError("several requests at once must be tasks")
    if not simulated_here(node_config):
        raise ProtocolError("several tasks at once are for simulated sites, and this node is real")
    policy = policy_of(node_config)
    return [_tried(run_config, node_config, origin, task, task.site, policy) for task in tasks]


def _tried(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    request: Request,
    asked: int,
    policy: SitePolicy,
) -> Incoming:
    """Return the answer of one of several sites; what goes wrong is its answer alone."""
    try:
        return answer(run_config, node_config, origin, request, {}, asked=asked, policy=policy)
    except Exception as error:
        return refusal_of(error)


@lru_cache(maxsize=1)
def _speak() -> None:
    """Send what the core says where Flower's words go: into the node's log."""
    core = logging.getLogger("fedapp")
    core.setLevel(logging.INFO)
    for handler in logging.getLogger("flwr").handlers:
        core.addHandler(handler)


class SiteWork:
    """What a resident worker does: `answer`, for as long as what it has read stays as it is."""

    def __init__(self) -> None:
        self._inputs: list[Path] = []
        self._stamp = stamp_of(())

    def stale(self) -> str:
        """Return why this process must not go on; empty: it may."""
        same = stamp_of(self._inputs) == self._stamp
        return "" if same else "data or settings on the disk changed"

    def answer(self, frame: Frame) -> tuple[Frame, bool]:
        """Return the answer to a request, and whether the process may live on.

        Not after a refusal: an error of a GPU can spoil a process for good.
        """
        try:
            incoming = self._incoming(frame)
        except Exception as error:
            incoming = refusal_of(error)
        torch.cuda.empty_cache()  # other sites may share the GPU
        blobs = {"message": encode(incoming.answer), **incoming.payloads}
        return Frame({}, blobs), not isinstance(incoming.answer, Refusal)

    def _incoming(self, frame: Frame) -> Incoming:
        payloads = dict(frame.blobs)
        origin = decode_origin(payloads.pop("origin", b""))
        request = decode_request(payloads.pop("message", b""))
        run_config, node_config = frame.head["run_config"], frame.head["node_config"]

        def allowed() -> None:
            # Not before the terms allow the run: to name its files is to read what it names.
            # Before they are read: a change while they are read is found later.
            if not self._inputs:
                self._inputs = inputs_of(node_config, run_config)
                self._stamp = stamp_of(self._inputs)

        return answer(run_config, node_config, origin, request, payloads, allowed)
