"""A program with all that it starts, which can be killed as a power cut would: all at once."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedapp.core import processes
from fedapp.core.processes import alive, read_proc, with_environment_variable
from tests.deployment import started

MARK = "FEDAPP_FAULTS_PROGRAM"
"""Environment variable that a program and all that it starts carry; value: its folder."""


@dataclass
class Program:
    """One of the federation's programs. folder: its FLWR_HOME and place."""

    folder: Path
    command: Sequence[str]
    more: Mapping[str, str] = field(default_factory=dict)
    restart_s: float | None = None
    """Seconds after which it is started again when it has ended, as systemd would; None: never."""
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _keeper: threading.Thread | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _launching: threading.Lock = field(default_factory=threading.Lock)

    @property
    def log(self) -> Path:
        """Where its words go, and those of all that it starts."""
        return self.folder.with_suffix(".log")

    def said(self) -> str:
        """Return what it has said."""
        return self.log.read_text(errors="replace")

    def start(self) -> None:
        """Start it, and again whenever it ends where `restart_s` says so."""
        self.folder.mkdir(exist_ok=True)
        self._over.clear()
        self._launch()
        if self.restart_s is not None:
            self._keeper = threading.Thread(target=self._keep, daemon=True)
            self._keeper.start()

    def pids(self, word: str = "") -> set[int]:
        """Return its living processes whose command line holds `word`."""
        found = alive(with_environment_variable(MARK, str(self.folder)))
        return {pid for pid in found if word.encode() in read_proc(pid, "cmdline")}

    def signal(self, number: int, word: str = "") -> set[int]:
        """Send a signal to its processes with `word` in their command line; return them."""
        found = self.pids(word)
        for pid in found:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return found

    def kill(self) -> None:
        """Kill all its processes without a word, as a power cut would, and wait for their end."""
        self._give_up()
        killed = self.signal(signal.SIGKILL)
        while alive(killed):  # one that is just ending has lost its mark already
            killed |= self.signal(signal.SIGKILL)
        self._collect()

    def end(self) -> None:
        """Ask it to end, then see to it that nothing of it is left."""
        self._give_up()
        self.signal(signal.SIGCONT)
        processes.terminate(self.pids)
        self._collect()

    def _launch(self) -> None:
        mark = {MARK: str(self.folder)}
        self._process = started(self.command, self.folder, self.log, {**self.more, **mark})
        self.starts += 1

    def _keep(self) -> None:
        while not self._over.is_set():
            assert self._process is not None
            self._process.wait()
            self._over.wait(self.restart_s)
            with self._launching:
                if not self._over.is_set():
                    self._launch()

    def _give_up(self) -> None:
        """Stop restarting."""
        with self._launching:
            self._over.set()

    def _collect(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None
