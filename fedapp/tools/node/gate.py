"""The seam in Flower's SuperNode at which a site says which app may run.

Flower 1.41 pulls a message, then the run's app, and installs and starts the app only after that.
So the question is asked between: of an app that may not run no file is written where programs
look, and no line is executed. Every further message of a run is asked about too, so that an
approval that was taken back ends the run at this site.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supernode import start_client_internal as flower

from fedapp.ground.errors import FedAppError, one_line
from fedapp.site.record import Record
from fedapp.tools.node.approvals import Approvals
from fedapp.tools.node.bundle import Bundle, read_fab

log = logging.getLogger("flwr")

PULL = "_pull_and_store_message"
"""Flower's function that pulls one message and, for a new run, its app."""


class _NotApprovedError(Exception):
    """A run's app may not run here, and why."""


def ask_before_running(approvals: Approvals) -> None:
    """Have Flower's SuperNode in this process ask a site's approvals before it takes a message."""
    vars(flower)[PULL] = asking(vars(flower)[PULL], approvals)


def asking(pull: Callable[..., int | None], approvals: Approvals) -> Callable[..., int | None]:
    """Return Flower's function `_pull_and_store_message` with the question in it."""
    gate = _Gate(approvals)

    def pulled(**given: Any) -> int | None:
        state, taken = given["state"], []

        def receive() -> Any:
            if (received := given["receive"]()) is not None:
                taken.append(message := received[0])
                if (run := state.get_run(message.metadata.run_id)) is not None:
                    gate.known(run.fab_hash, lambda: state.get_fab(run.fab_hash).content)
            return received

        def get_fab(fab_hash: str, run_id: int) -> Any:
            fab = given["get_fab"](fab_hash, run_id)
            gate.new(fab_hash, fab.content)
            return fab

        try:
            return pull(**{**given, "receive": receive, "get_fab": get_fab})
        except _NotApprovedError as refused:
            message, why = taken[-1], str(refused)
            log.warning("run %s: refused: %s", message.metadata.run_id, why)
            try:
                facts = {"run": str(message.metadata.run_id), "asked": "to run an app", "why": why}
                Record(approvals.folder).add("refused", **facts)
            except FedAppError as error:  # refused it is all the same
                log.error("%s", one_line(error))
            answer = Message(Error(ErrorCode.INVALID_FAB, why), reply_to=message)
            vars(flower)["_insert_message"](answer, state, given["object_store"])
            run_id: int = message.metadata.run_id
            return run_id

    return pulled


@dataclass
class _Gate:
    """approvals: the site's. Each method raises _NotApprovedError where an app may not run."""

    approvals: Approvals
    _hash: str = ""  # Flower's, of the archive that was read last
    _app: Bundle | None = None

    def new(self, fab_hash: str, fab: bytes) -> None:
        """Ask about the app of a run that this SuperNode has not met."""
        self._read(fab_hash, fab)
        self._ask(fab)

    def known(self, fab_hash: str, fab: Callable[[], bytes]) -> None:
        """Ask once more about the app of a run that goes on."""
        if fab_hash != self._hash:
            self._read(fab_hash, fab())
        self._ask()

    def _read(self, fab_hash: str, fab: bytes) -> None:
        self._hash = ""
        try:
            self._app = read_fab(fab)
        except FedAppError as error:
            raise _NotApprovedError(one_line(error)) from error
        self._hash = fab_hash

    def _ask(self, fab: bytes = b"") -> None:
        assert self._app is not None
        try:
            if not (why := self.approvals.refusal(self._app)):
                return
            if fab:
                self.approvals.keep_waiting(self._app, fab)
        except FedAppError as error:  # a list that cannot be trusted approves nothing
            log.error("%s", one_line(error))
            why = "this site cannot say whether it has approved the app; its own log says why"
        raise _NotApprovedError(why)
