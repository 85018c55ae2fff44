"""Machines of a federation, each a home folder with the project in it, and a document's commands.

What stands in place of real machines: a HOME each, free ports on 127.0.0.1, a folder for `/data`.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedapp.core.processes import alive, descendants, terminate, with_environment_variable

ROOT = Path(__file__).parents[2]
MARK = "FEDAPP_DOCUMENT_TEST"
"""Environment variable that only these machines' programs carry."""

_FENCE = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`((?:flwr|fedapp|cp) [^`]+)`")


@dataclass
class Document:
    """The commands of a document, by heading; `left` are the blocks that nobody has taken yet."""

    sections: Mapping[str, str]
    left: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Document":
        parts = re.split(r"^##+ (.+)$", path.read_text(), flags=re.MULTILINE)[1:]
        made = cls(dict(zip(parts[::2], parts[1::2], strict=True)))
        for heading, text in made.sections.items():
            made.left += [(heading, number) for number, _ in enumerate(_FENCE.findall(text))]
        return made

    def block(self, heading: str, number: int = 0) -> str:
        """Return a block of commands."""
        if (heading, number) in self.left:
            self.left.remove((heading, number))
        return str(_FENCE.findall(self.sections[heading])[number])

    def inline(self, heading: str, start: str) -> str:
        """Return the one command within a section's text that begins so."""
        [found] = {code for code in _CODE.findall(self.sections[heading]) if code.startswith(start)}
        return str(found)


@dataclass
class Machine:
    """A user's home on a machine of its own. words: what to put in place of names and ports."""

    home: Path
    before: str
    words: Mapping[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.home / "fedapp"

    def text(self, commands: str) -> str:
        for word, here in self.words.items():
            commands = re.sub(rf"(?<![\w./-]){re.escape(word)}(?![\w./-])", here, commands)
        return commands

    def run(self, commands: str, code: int = 0) -> str:
        """Run commands as written; return what they say. code: the exit code that is due."""
        done = subprocess.run(**self._call(commands), stdout=subprocess.PIPE, text=True)
        assert done.returncode == code, f"{commands}\n{done.stdout}"
        return str(done.stdout)

    def start(self, name: str, commands: str) -> subprocess.Popen[bytes]:
        """Start what stays; its words go to NAME.log."""
        with self.log_path(name).open("ab") as sink:
            started = subprocess.Popen(**self._call(commands), stdout=sink, start_new_session=True)
        self.running[name] = started
        return started

    def interrupt(self, name: str) -> int:
        """Press Ctrl-C where a program runs; return its exit code."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGINT)
        return process.wait()

    def log(self, name: str) -> str:
        return self.log_path(name).read_text(errors="replace")

    def log_path(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _call(self, commands: str) -> dict[str, object]:
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env = {
            **keep,
            "HOME": str(self.home),
            "PYTHONPATH": str(self.project),
            "NO_PROXY": "localhost,127.0.0.1",
            "COLUMNS": "200",
            MARK: str(self.home.parent),
        }
        # exec: a program that stays takes the shell's place, as it would in a terminal.
        return {
            "args": ["bash", "-e", "-c", self.text(f"{self.before}\n{commands}")],
            "cwd": self.project,
            "env": env,
            "stdin": subprocess.DEVNULL,
            "stderr": subprocess.STDOUT,
        }


@contextmanager
def machines(
    folder: Path, before: str, words: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, Machine]]:
    """Hold machines by name; in the end no program of theirs is left.

    before: commands before all others. words: replacements for each machine.
    """
    made = {name: Machine(folder / name, before, own) for name, own in words.items()}
    for machine in made.values():
        for part in ("fedapp", "server_app", "client_app", "conf", "docker"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, machine.project / part, ignore=ignored)
        for part in ("pyproject.toml", "LICENSE", "README.md"):
            shutil.copy(ROOT / part, machine.project / part)
        (machine.project / ".venv").symlink_to(sys.prefix)
    try:
        yield made
    finally:
        started = {p.pid for machine in made.values() for p in machine.running.values()}
        # nginx writes its title over its environment.
        terminate(
            lambda: alive(
                started | with_environment_variable(MARK, str(folder)) | descendants(started)
            )
        )
        for machine in made.values():
            for process in machine.running.values():
                process.wait()


def until(condition: Callable[[], object]) -> None:
    """Wait for something; pytest's time limit ends this."""
    while not condition():
        time.sleep(0.5)


def listens(port: str) -> bool:
    """Return whether a program of this machine takes connections on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0
