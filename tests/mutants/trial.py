"""One mutant tried: a process apart, in which one module's code is another, runs the tests."""

import importlib
import multiprocessing
import os
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType

import pytest

from tests.mutants.mutators import changed

WARM = (
    "numpy", "torch", "pydantic", "scipy.stats", "scipy.optimize", "sklearn", "yaml",
    "safetensors.torch", "rich.console", "rich.progress", "PIL.Image", "torchvision", "unittest",
    "matplotlib", "torch._dynamo", "torch.distributed", "torch.onnx", "typer",
)  # fmt: skip
"""Imported once, before processes are forked off: nothing of the project."""
ROOM = 8 * 2**30
"""Bytes of addresses that a mutant may take beside those of its parent."""
FIRST = 8
"""Tests tried before the files of the others are read."""
OUTCOMES = {100: "survived", 101: "killed", 102: "killed", 103: "killed", 104: "killed"}
"""By pytest's exit code + 100: 2 and 3, where not even the tests could be read; 4, where what they
are given has changed, so that they have other names."""


def warm() -> None:
    """Import what all trials need."""
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)


@dataclass
class Trial:
    """A mutant's process. seconds: of CPU time, after which it is taken to hang."""

    file: Path
    place: int
    tests: Sequence[str]
    seconds: float
    away: Path
    process: BaseProcess = field(init=False)

    def __post_init__(self) -> None:
        shutil.rmtree(self.away, ignore_errors=True)  # of a run that was killed
        self.process = multiprocessing.get_context("fork").Process(target=self._try)
        self.process.start()

    def outcome(self) -> str:
        """Return what became of the mutant that ended: killed, survived, or endless."""
        shutil.rmtree(self.away, ignore_errors=True)
        code = self.process.exitcode
        if code is None or code < 0:
            return "endless"
        if code not in OUTCOMES:
            raise RuntimeError(f"a trial ended with {code}: {self.file}, place {self.place}")
        return OUTCOMES[code]

    def _try(self) -> None:
        """Run the tests until one fails; exit as pytest does."""
        self.away.mkdir(parents=True)
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        os.environ.update(HOME=str(self.away), TMPDIR=str(self.away))
        resource.setrlimit(resource.RLIMIT_CPU, (int(self.seconds),) * 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        put_in(self.file, self.place)
        own = ["-p", "no:cacheprovider", f"--basetemp={self.away / 'tests'}"]
        for some in (self.tests[:FIRST], self.tests[FIRST:]):  # most need no more than the first
            code = int(pytest.main(["-x", "-q", "-m", "", *own, *some])) if some else 0
            if code:
                break
        os._exit(100 + code)  # nothing is tidied up


def put_in(file: Path, place: int) -> None:
    """Have this file's module be the mutant wherever it is imported from now on."""
    code = compile(changed(file.read_text(), place), str(file), "exec")
    plain = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        return code if self.get_filename(name) == str(file) else plain(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
