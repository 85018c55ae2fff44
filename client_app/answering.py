"""Answer a request in this process, which loads torch, the site's data and its model."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from client_app.identity import simulated_here, stands_for
from client_app.node import locked, open_site, policy_of
from client_app.refusals import refusal_of
from client_app.resident.frames import Frame
from client_app.resident.inputs import inputs_of, stamp_of
from fedapp.core.errors import ProtocolError
from fedapp.core.formatting import size
from fedapp.core.process_tuning import tune_own_process
from fedapp.data.sites import describe_bags_of_sites
from fedapp.data.split.groups import count_test_copies, describe_copies
from fedapp.experiment.config import load_run_config
from fedapp.experiment.preset_files import Scalar, reading_files_once
from fedapp.protocol.codec import decode_origin, decode_request, encode
from fedapp.protocol.messages import Hello, Incoming, Origin, Refusal, Reply, Request, Task
from fedapp.site.federation import display_name
from fedapp.site.policy import SitePolicy
from fedapp.site.site import SiteClient

log = logging.getLogger("flwr")

MAX_OPEN_SITES = 1024
"""Most simulated sites that a process keeps open; those asked least recently are closed."""


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

    allowed: is called when the site's terms allow the run, before its data are read. asked: the
    number of the site that is asked, if the node stands for several. policy: the site's policy;
    None: it is made of the node config. Raises FedAppError if the node cannot take part in the
    run. An error during a task is not raised: the answer is a refusal.
    """
    tune_own_process()
    _log_to_flower()
    policy = policy or policy_of(node_config)
    try:
        with reading_files_once():  # a preset is not read again after the terms allowed it
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
    # A site stays open for one run, which only an identity tells: runs of old versions have none.
    if isinstance(request, Task) and origin.identity and simulated_here(node_config):
        configs = tuple(run_config.items()), tuple(node_config.items())
        site, folder = _simulated(*configs, origin, request.site)
        if not site.shares_pool:  # a store of its own would keep its models in this memory
            _simulated.cache_clear()
    else:
        site, folder = open_site(run_config, node_config, origin, settings, policy, allowed, asked)
    if isinstance(request, Hello):
        if said := describe_bags_of_sites([site.data]):
            log.info("%s: %s", display_name(site.data), said)
        found, of = count_test_copies([site.data])
        if said := describe_copies(found, of, len(site.data.inputs) > 1):
            log.warning("%s: %s", display_name(site.data), said)
        policy.introduced(facts := site.introduction(), origin)
        return Incoming(facts)
    if request.site != (here := site.data.site):
        # Flower knows a node by its key: restarted as another site, it still gets the old tasks.
        raise ProtocolError(f"a task for site {request.site}, but this node is site {here} now")
    with locked(site, folder):
        policy.before(request, site, origin)
        incoming = policy.after(site.handle(request, payloads), site, request, origin)
    if isinstance(incoming.answer, Reply) and not simulated_here(node_config):
        log.info("%s", _progress(request, incoming, site.experiment.rounds.num_rounds, origin))
    # Where the site shares the pool, the server finds the new model there.
    return replace(incoming, payloads={}) if site.shares_pool else incoming


def _progress(task: Task, incoming: Incoming, rounds: int, origin: Origin) -> str:
    """Return a line of a real node's log: how far the run is, and what was just answered."""
    assert isinstance(incoming.answer, Reply)
    when = f"round {task.round} of {rounds}" if task.round else "before round 1"
    step = f"{task.action}, a step of a masked sum" if task.sum is not None else task.action
    sent = size(sum(map(len, incoming.payloads.values())))
    val = incoming.answer.with_repeats().evaluations.get("val")
    right = f", {val.correct} of {val.samples} validation images right" if val else ""
    return f"run {origin.run}, {when}: {step} done, {sent} sent{right}"


@lru_cache(maxsize=MAX_OPEN_SITES)
def _simulated(
    run_config: tuple[tuple[str, Scalar], ...],
    node_config: tuple[tuple[str, Scalar], ...],
    origin: Origin,
    asked: int,
) -> tuple[SiteClient, Path]:
    """Open a simulated site once for all tasks that this process does for it in a run.

    So the site keeps what it computed of its images, as in a loopback run. A real site is opened
    for every task, since its terms and its data may have changed.
    """
    node = dict(node_config)
    return open_site(dict(run_config), node, origin, {}, policy_of(node), lambda: None, asked)


def introductions(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    hello: Hello,
) -> list[Incoming]:
    """Return the facts of each site that a node stands for. Raises as `answer` for the first."""
    policy = policy_of(node_config)
    first = answer(run_config, node_config, origin, hello, {}, policy=policy)
    others = stands_for(node_config, load_run_config(run_config))[1:]
    return [
        first,
        *(_answer_or_refusal(run_config, node_config, origin, hello, k, policy) for k in others),
    ]


def answers(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    requests: Sequence[Request],
) -> list[Incoming]:
    """Answer tasks for several of the sites that a node stands for, one after the other.

    Raises ProtocolError if a request is no task, and if the node is a real site, whose terms and
    record are asked and written task by task.
    """
    tasks = [request for request in requests if isinstance(request, Task)]
    if len(tasks) != len(requests):
        raise ProtocolError("several requests at once must be tasks")
    if not simulated_here(node_config):
        raise ProtocolError("several tasks at once are for simulated sites, and this node is real")
    policy = policy_of(node_config)
    return [
        _answer_or_refusal(run_config, node_config, origin, task, task.site, policy)
        for task in tasks
    ]


def _answer_or_refusal(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    request: Request,
    asked: int,
    policy: SitePolicy,
) -> Incoming:
    """Answer as one of several sites; an error becomes the refusal of this site alone."""
    try:
        return answer(run_config, node_config, origin, request, {}, asked=asked, policy=policy)
    except Exception as error:
        return refusal_of(error)


@lru_cache(maxsize=1)
def _log_to_flower() -> None:
    """Send the log of `fedapp` to the handlers of Flower's log: both are then in the node's log."""
    core = logging.getLogger("fedapp")
    core.setLevel(logging.INFO)
    for handler in logging.getLogger("flwr").handlers:
        core.addHandler(handler)


class SiteWork:
    """The work of a resident worker: it answers while the files that it has read are unchanged."""

    def __init__(self) -> None:
        self._inputs: list[Path] = []
        self._stamp = stamp_of(())

    def stale(self) -> str:
        """Return why this process must not go on; empty: it may."""
        same = stamp_of(self._inputs) == self._stamp
        return "" if same else "data or settings on the disk changed"

    def answer(self, frame: Frame) -> tuple[Frame, bool]:
        """Return the answer to a request, and whether this process may take another.

        After a refusal it may not: an error on a GPU can make every later call of a process fail.
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
            # Only after the terms allow the run: finding its files reads files that it names. And
            # before the data are read, so that a change during the reading is noticed later.
            if not self._inputs:
                self._inputs = inputs_of(node_config, run_config)
                self._stamp = stamp_of(self._inputs)

        return answer(run_config, node_config, origin, request, payloads, allowed)
