"""Makes Flower's SuperNode ask the site's approvals before it installs or runs an app.

Flower 1.41 pulls a message, then the run's app, and installs and starts the app after that. The
approvals are asked in between, so that of an app that may not run no file is written where programs
look, and no line is executed. If the site's terms allow it (`stand_in`), the installed app does the
run instead, with the run's presets, provided that the files that decide numbers are the same. The
question is repeated for every message, so that taking an approval back ends the run at this site.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from flwr.app import Error
from flwr.cli.build import build_fab_from_files
from flwr.cli.config_utils import get_fab_metadata
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab

from fedapp.core.errors import FedAppError, one_line
from fedapp.experiment.code_hash import STAND_IN
from fedapp.site.policy import stands_in
from fedapp.site.record import Record
from fedapp.tools.flower_compat import PULL_A_MESSAGE, answer_with_error
from fedapp.tools.node.app_bundle import Bundle, installed, read_fab
from fedapp.tools.node.approvals import Approvals

log = logging.getLogger("flwr")


class _NotApprovedError(Exception):
    """The app of a run may not run here. Its text is the reason."""


def ask_before_running(approvals: Approvals) -> None:
    """Make the SuperNode in this process ask the approvals before it accepts a message.

    Raises RunError if the installed Flower is not the one that this was made for.
    """
    PULL_A_MESSAGE.replace(asking(PULL_A_MESSAGE.original(), approvals))


def asking(pull: Callable[..., int | None], approvals: Approvals) -> Callable[..., int | None]:
    """Return Flower's function that pulls a message, wrapped so that the approvals are asked."""
    gate = _Gate(approvals)

    @wraps(pull)  # with which `flower_compat` finds Flower's own function
    def pulled(**given: Any) -> int | None:
        state, taken, runs = given["state"], [], []

        def receive() -> Any:
            if (received := given["receive"]()) is not None:
                taken.append(message := received[0])
                if (run := state.get_run(message.metadata.run_id)) is not None:
                    gate.known(run.fab_hash, lambda: state.get_fab(run.fab_hash).content)
            return received

        def get_run(run_id: int) -> Any:
            runs.append(run := given["get_run"](run_id))
            if run.primary_task_type == TaskType.AGENT_APP:
                raise _NotApprovedError("this site does no runs of agents")
            return run

        def get_fab(fab_hash: str, run_id: int) -> Any:
            fab = given["get_fab"](fab_hash, run_id)
            if own := gate.new(fab_hash, fab.content, str(run_id)):
                fab = Fab(gate.made(own), own, {})
                run = runs[-1]  # Flower finds the app by what the run says of it
                run.fab_id, run.fab_version = get_fab_metadata(own)
                run.fab_hash = fab.hash_str
            return fab

        asked = {"receive": receive, "get_run": get_run, "get_fab": get_fab}
        try:
            return pull(**{**given, **asked})
        except _NotApprovedError as refused:
            message, why = taken[-1], str(refused)
            log.warning("run %s: refused: %s", message.metadata.run_id, why)
            try:
                facts = {"run": str(message.metadata.run_id), "asked": "to run an app", "why": why}
                Record(approvals.folder).add("refused", **facts)
            except FedAppError as error:  # the app is refused all the same
                log.error("%s", one_line(error))
            answer = Error(ErrorCode.INVALID_FAB, why)
            answer_with_error(message, answer, state, given["object_store"])
            run_id: int = message.metadata.run_id
            return run_id

    return pulled


@dataclass
class _Gate:
    """Decides whether an app may run. Each method raises _NotApprovedError if it may not."""

    approvals: Approvals
    _hash: str = ""  # Flower's, of the archive that was read last
    _app: Bundle | None = None
    _unlike: str = ""
    _made: set[str] = field(default_factory=set)  # Flower's hashes of apps that stand in

    def new(self, fab_hash: str, fab: bytes, run: str) -> bytes:
        """Ask about the app of a run that is new to this SuperNode.

        fab_hash: Flower's hash of the archive. Returns the FAB of the app that does the run
        instead; empty: the run's own app does it.
        """
        self._read(fab_hash, fab)
        if own := self._stand_in(run):
            return own
        self._ask(fab)
        return b""

    def made(self, own: bytes) -> str:
        """Return Flower's hash of an app that stands in for another, and remember it."""
        self._made.add(name := hashlib.sha256(own).hexdigest())
        return name

    def known(self, fab_hash: str, fab: Callable[[], bytes]) -> None:
        """Ask again about the app of a run that goes on."""
        if fab_hash != self._hash:
            self._read(fab_hash, fab())
        self._ask()

    def _read(self, fab_hash: str, fab: bytes) -> None:
        self._hash = ""
        try:
            self._app = read_fab(fab)
        except FedAppError as error:
            raise _NotApprovedError(one_line(error)) from error
        if f"conf/{STAND_IN}" in self._app.files and fab_hash not in self._made:
            raise _NotApprovedError("the app says of itself that it stands in for another")
        self._hash = fab_hash

    def _stand_in(self, run: str) -> bytes:
        """Return the FAB of the installed app to do another app's run; empty: it may not."""
        assert self._app is not None
        app, here, self._unlike = self._app, installed(), ""
        try:
            if app.hash == here.hash or self.approvals.word(app):
                return b""
            if not self._allows_stand_in():
                return b""
            if self.approvals.word(here) in ("refused", "taken back"):
                return b""
            if unlike := app.unlike(here):
                self._unlike = f"; or install it: the code here cannot do its runs: {unlike}"
                return b""
            why = f"the installed app does a run of {app.title} ({app.hash[:16]})"
            Record(self.approvals.folder).add("stood in", run=run, asked="to run an app", why=why)
        except FedAppError as error:
            log.error("%s", one_line(error))
            return b""
        log.info("%s", why)
        try:
            content, _ = build_fab_from_files(here.in_place_of(app))
        except Exception as error:  # Flower's, at presets that are too large for it
            raise _NotApprovedError(f"the app's presets cannot be taken: {error}") from error
        return content

    def _allows_stand_in(self) -> bool:
        return stands_in(self.approvals.folder)

    def _ask(self, fab: bytes = b"") -> None:
        assert self._app is not None
        try:
            why = self.approvals.refusal(self._app)
            if not why and self._hash in self._made and not self._allows_stand_in():
                why = "this site's terms (stand_in): the code installed here does no other's runs"
            if not why:
                return
            if fab:
                self.approvals.keep_waiting(self._app, fab)
        except FedAppError as error:  # a list that cannot be trusted approves no app
            log.error("%s", one_line(error))
            why = "this site cannot say whether it has approved the app; its own log says why"
        raise _NotApprovedError(why + self._unlike)
