"""What each part of the project may hold; `python -m tests.budgets` prints it, the nearest first.

Lines of code count, and not blank lines, comments and docstrings: prose is free, so that nothing is
gained by squeezing a sentence. A budget that is reached is a question first: which concept can go,
or move into a library? Where the answer is "none", raise the number here, with the reason in the
commit. Lower it where a room became smaller.
"""

import ast
import io
import tokenize
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from fedapp.cli import app
from fedapp.experiment.config import Experiment
from fedapp.methods.base import Method
from tests.docs.pages import PAGES

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Budget:
    """One limit. unit: what is counted, in the plural."""

    what: str
    unit: str
    used: int
    most: int

    def __str__(self) -> str:
        return f"{self.what}: {self.used:,} of at most {self.most:,} {self.unit}"


def code_lines(text: str) -> int:
    """Return how many lines of a Python file hold code, by its tokens and its syntax tree."""
    no_code = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if prose and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


ROOMS: Mapping[str, tuple[int, int]] = {
    "fedapp/*": (60, 3),
    "fedapp/core": (1_558, 18),
    "fedapp/privacy": (270, 4),
    "fedapp/protocol": (1_414, 17),
    "fedapp/data": (3_851, 33),
    "fedapp/evaluation": (867, 8),
    "fedapp/learn": (2_982, 41),
    "fedapp/aggregation": (300, 8),
    "fedapp/methods": (6_345, 67),
    "fedapp/experiment": (1_380, 9),
    "fedapp/models": (1_226, 10),
    "fedapp/site": (2_714, 17),
    "fedapp/server": (2_364, 15),
    "fedapp/reports": (4_620, 24),
    "fedapp/simulation": (611, 8),
    "fedapp/tools": (5_566, 46),
    "fedapp/api": (550, 5),
    "fedapp/cli": (717, 8),
    "client_app": (995, 13),
    "server_app": (600, 7),
    "bench": (3_896, 35),
    "tests": (51_578, 411),
}
"""Of each room: lines of code and files, at most. `fedapp/*` are the files of fedapp itself."""
COMMANDS = 20
"""Of `fedapp`."""
MEMBERS = 28
"""Methods, properties and class variables of `Method`, private ones too."""
SETTINGS = 80
"""Of an experiment, without those of one method or one network."""
WORDS = 45_000
"""Of README and the pages under docs/ that are read, tables of results not counted."""
MEGABYTES = 5
"""Of docs/ in the repository."""


def budgets() -> Iterable[Budget]:
    """Yield every budget with what is used of it today."""
    for room, (lines, files) in ROOMS.items():
        found = _files(room)
        used = sum(code_lines(file.read_text(encoding="utf-8")) for file in found)
        yield Budget(room, "lines of code", used, lines)
        yield Budget(room, "files", len(found), files)
    yield Budget("fedapp", "commands", len(app.registered_commands), COMMANDS)
    members = {*vars(Method), *Method.__annotations__}
    own = [name for name in members if not name.startswith(("__", "_abc"))]
    yield Budget("Method", "members", len(own), MEMBERS)
    yield Budget("Experiment", "settings", _settings(), SETTINGS)
    yield Budget("README and docs", "words", _words(), WORDS)
    size = sum(file.stat().st_size for file in (ROOT / "docs").rglob("*") if file.is_file())
    yield Budget("docs", "MB", round(size / 1e6), MEGABYTES)


def _files(room: str) -> list[Path]:
    """Return a room's Python files; without those in folders below where it ends in `/*`."""
    if room.endswith("/*"):
        return sorted((ROOT / room.removesuffix("/*")).glob("*.py"))
    return sorted((ROOT / room).rglob("*.py"))


def _settings() -> int:
    return sum(
        len(fields(section.type)) if is_dataclass(section.type) else 1
        for section in fields(Experiment)
        if section.name not in {"method", "model"}
    )


def _words() -> int:
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    read = [page for page in pages if not page.is_relative_to(ROOT / "docs/results")]
    texts = [page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *read]]
    # Bars and rules of tables, bullets and fences are no words.
    return sum(any(map(str.isalnum, word)) for text in texts for word in text.split())


def main() -> None:
    """Print the budgets, the nearest to its limit first: all, or as many as `--nearest` says."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("--nearest", type=int, metavar="N")
    by_share = sorted(budgets(), key=lambda budget: -budget.used / budget.most)
    for budget in by_share[: parser.parse_args().nearest]:
        print(budget)


if __name__ == "__main__":
    main()
