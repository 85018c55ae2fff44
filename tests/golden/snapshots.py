"""What users see, as text files in `snapshots/`: messages, pages, tables, help, presets' settings.

`python -m tests.golden.snapshots` rewrites them all, with names after it those alone. Pages and
tables are made of finished runs in `kept/`, so that they hang on no processor: their README says
how these were made.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import ConfigError
from fedapp.experiment.config import (
    config_keys,
    experiment_digest,
    load_experiment,
    parse_overrides,
    to_plain,
)
from fedapp.experiment.preset_files import method_presets, presets
from fedapp.models.card import model_card
from fedapp.models.description import read_description
from fedapp.reports.comparison.record import read_comparison
from fedapp.reports.comparison.summary import in_words, overview
from fedapp.reports.statistics import compare_with_best
from tests.golden.messages import RUNS, of_each_kind, of_run
from tests.golden.numbers import BAGS

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("snapshots")
KEPT = Path(__file__).with_name("kept")
COMMAND = "python -m tests.golden.snapshots"
PLAIN = {
    "COLUMNS": "100", "TERMINAL_WIDTH": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONUTF8": "1",
}  # fmt: skip
COLOURED = ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "LINES")
"""What makes a terminal of something that is none, or another one."""
SHORTER = {
    r"<style>.*?</style>": "<style/>",
    r"(<svg[^>]*)>.*?</svg>": r"\1/>",
    r"\n(?=<(td|th|/tr)\b)": "",
}
"""Of pages: how they look, and rows of tables in several lines."""


def said(folder: Path, words: Sequence[str]) -> str:
    """Return what a command prints, and the pages and tables that it writes below `folder`.

    The folder stands where the words have `{}`; it holds a copy of what is kept.
    """
    shutil.copytree(KEPT, folder, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    env = {**PLAIN, **dict.fromkeys(COLOURED), "FEDAPP_OUT": str(folder)}
    placed = [word.format(folder) for word in words]
    done = CliRunner().invoke(app, placed, env=env, catch_exceptions=False)
    new = (p for p in sorted(folder.rglob("*")) if p.stat().st_mtime_ns != before.get(p))
    parts = [f"$ fedapp {' '.join(words)}", done.stdout]
    for path in filter(Path.is_file, new):
        parts += [f"==== {path.relative_to(folder)}{_size(path)}", _text(path)]
    return "\n".join(parts).replace(str(folder), "{}").replace(str(ROOT), "(checkout)")


def _size(path: Path) -> str:
    if path.suffix != ".png":
        return ""
    with Image.open(path) as image:
        return ": {} x {} pixels".format(*image.size)


def _text(path: Path) -> str:
    if path.suffix not in {".html", ".md", ".csv", ".tex", ".txt"}:
        return ""
    text = path.read_text(encoding="utf-8")
    for pattern, instead in SHORTER.items():
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    return text


def compared(_: Path) -> str:
    """Return what `fedapp compare` says at its end."""
    found = read_comparison(KEPT / "grid")
    told = [(name, compare_with_best(found.units(name, "accuracy"))) for name in found.settings]
    lines = [overview(found, by) for by in ("accuracy", "balanced_accuracy")]
    return "\n".join([*lines, *(f"{name}: {in_words(of)}" for name, of in told if of)]) + "\n"


def helps(_: Path) -> str:
    """Return `--help` of `fedapp` and of every command, without colours and frames."""
    env = {k: v for k, v in os.environ.items() if k not in COLOURED} | PLAIN
    names = ["", *sorted(get_command(app).commands)]
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom fedapp.cli import app\n"
        "for name in sys.argv[1:]:\n    words = [*filter(None, [name]), '--help']\n"
        "    print('$ fedapp', *words)\n"
        "    print(CliRunner().invoke(app, words, prog_name='fedapp').stdout)\n"
    )
    run = [sys.executable, "-c", code, *names]
    done = subprocess.run(run, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
    return "\n".join(line.strip(" ─│╭╮╰╯") for line in done.stdout.decode().splitlines()) + "\n"


def cases() -> Iterator[str]:
    """Yield a preset and one override each: those of the file, else 200 that are drawn.

    So a setting that goes stays a case, and a new one draws no others.
    """
    file = FOLDER / "overrides.txt"
    if file.is_file():
        yield from (line for line in file.read_text().splitlines() if line[:1].strip())
        return
    draw, kinds = random.Random(0), config_keys()
    of_kind = {
        "bool": ["true", "false"],
        "int": ["-1", "0", "1", "2", "3", "5", "20", "64", "1.5"],
        "float": ["-0.5", "0", "0.01", "0.05", "0.3", "0.5", "1", "2.5", ".nan"],
        "str": ["", "none", "own", "a, b", "filtered", "7"],
    }
    for _ in range(200):
        base = draw.choice(["digits_demo", draw.choice(presets())])
        base += draw.choice(["", f" method.preset={draw.choice(method_presets())}"])
        known = [key for key in resolved(base)[0] if key in kinds]
        key = draw.choice(known if known and draw.random() < 0.9 else sorted(kinds))
        values = of_kind.get(kinds[key]) or [*re.findall(r"'(\w+)'", kinds[key]), "other"]
        yield f"{base} {key}={draw.choice(values)}"


@cache
def resolved(case: str) -> tuple[dict[str, Any], str]:
    """Return the settings of a case by dotted key, and their digest; or why there are none."""
    preset, *texts = re.split(r" (?=[\w.]+=)", case)
    try:
        found = load_experiment(preset, parse_overrides(texts))
    except ConfigError as error:
        return {}, f"refused: {error}".replace(str(ROOT), "(checkout)")
    flat: dict[str, Any] = {}
    for group, value in to_plain(found).items():
        one = {group: value} if not isinstance(value, dict) else value
        flat |= {key if key == group else f"{group}.{key}": value for key, value in one.items()}
    return flat, experiment_digest(found)


def _beside(case: str, other: str) -> str:
    """Return a case and the settings in which it is not as another one, or why it is refused."""
    (mine, why), (theirs, _) = resolved(case), resolved(other)
    new = [f"    {key}: {value!r}" for key, value in mine.items() if theirs.get(key, ...) != value]
    refused = [f"    {line}" for line in why.splitlines()]
    return "\n".join([case, *(new if mine else refused)])


def preset_cases() -> list[str]:
    """Return each preset, and each method preset over the demo's."""
    over = (
        f"digits_demo method.preset={name}" + (f" split.bags={BAGS[name]}" if name in BAGS else "")
        for name in method_presets()
    )
    return [*presets(), *over]


def preset_settings(_: Path) -> str:
    """Return the demo's settings, and of each other preset those that are not the demo's."""
    others = (case for case in preset_cases() if case != "digits_demo")
    told = [_beside("digits_demo", ""), *(_beside(case, "digits_demo") for case in others)]
    return "\n".join(told) + "\n"


def overridden(_: Path) -> str:
    """Return what each override changes, or why it is refused."""
    return "\n".join(_beside(case, case.rpartition(" ")[0]) for case in cases()) + "\n"


def digests(_: Path) -> str:
    """Return the digest of each preset and of each override that is none's refusal."""
    every = [*preset_cases(), *cases()]
    return "".join(f"{resolved(case)[1]}  {case}\n" for case in every if resolved(case)[0])


PAGES = {
    "report_run": ("report", "wards"),
    "report_runs": ("report", "wards", "together", "--out", "{}"),
    "report_site": ("report", "wards", "--site", "east"),
    "report_comparison": ("report", "grid", "--reference", "fedavg"),
    "watch": ("watch", "wards"),
    "watch_together": ("watch", "together"),
    "site": ("site", "{}", "--page", "{}/pages"),
}
"""By the snapshot's name: a command, and its words."""
SNAPSHOTS: dict[str, Callable[[Path], str]] = {
    "messages": of_each_kind,
    **{f"messages_{name}": partial(of_run, name) for name in RUNS},
    **{name: partial(said, words=words) for name, words in PAGES.items()},
    "compare": compared,
    "model_card": lambda _: model_card(read_description(KEPT / "wards/models/west")),
    "help": helps,
    "presets": preset_settings,
    "overrides": overridden,
    "digests": digests,
}
"""By name, what makes each in an empty folder."""


def main(names: Sequence[str]) -> int:
    """Rewrite the files; say which changed."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for name in names or SNAPSHOTS:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            new = SNAPSHOTS[name](Path(folder).resolve())
        file = FOLDER / f"{name}.txt"
        if not file.is_file() or file.read_text(encoding="utf-8") != new:
            file.write_text(new, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: changed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
