"""The cells of a comparison: one experiment each, where it lies, and how far it is.

A cell's folder is an ordinary run folder, OUT/cells/<setting>/<method>/seed-<n>; its
log lies beside. What lies there from before is kept where it belongs to this comparison.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

from fedapp.core.errors import OVERRIDE, ConfigError, Problem, RunError
from fedapp.core.untrusted_files import read_json
from fedapp.data.split.manifest import Manifest
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import experiment_digest, load_experiment, to_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.resume import differences
from fedapp.experiment.run_folder import RunFolder
from fedapp.tools.compare.grid import ANSWER, MIX, Grid, Setting

State = Literal["new", "begun", "done"]
NAMED = 3
"""Cells named where there may be many."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One setting, method and seed.

    experiment: what runs, its run folder included. Mix runs nothing: it has its first parent's, and
    measures on that one's data. parents: the cells whose models Mix asks; else empty. answer: the
    one that the method is scored by; empty: the one that it uses. Cells of several methods may be
    one run, in one folder, scored by different answers.
    """

    setting: str
    method: str
    seed: int
    preset: str
    overrides: dict[str, Scalar]
    experiment: Experiment
    folder: Path
    parents: tuple["Cell", ...] = ()
    answer: str = ""

    @property
    def name(self) -> str:
        """How a person reads it."""
        return f"{self.setting} / {self.method} / seed {self.seed}"

    @property
    def log(self) -> Path:
        """What its process says."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def has_models(self) -> bool:
        """Whether the final models are still there."""
        return (self.folder / "pool").is_dir()

    @property
    def digest(self) -> str:
        """What makes it this cell and no other: of its settings, or of its parents'."""
        if not self.parents:
            return experiment_digest(self.experiment)
        digests = " ".join([MIX, *(parent.digest for parent in self.parents)])
        return hashlib.sha256(digests.encode()).hexdigest()

    def state(self) -> State:
        """Return how far it is; a folder that was never made whole counts as new."""
        if not (self.folder / "run.json").is_file():
            return "new"
        return "done" if (self.folder / "summary.json").is_file() else "begun"

    def run_facts(self) -> dict[str, Any]:
        """Return run.json. Raises RunError where it is damaged."""
        path = self.folder / "run.json"
        try:
            facts = read_json(path)
            if not isinstance(facts, dict):
                raise ValueError("no JSON object")
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path}: cannot be read ({error}): remove {self.folder} to run the cell again"
            ) from error
        return facts

    def make_ready(self) -> str:
        """Remove what it cannot go on from; return why, where a person should know; else empty."""
        if self.state() == "begun" and not self.parents:
            try:
                RunFolder(self.folder).load_checkpoint()
            except RunError:
                rmtree(self.folder)
                return f"{self.name}: its checkpoint is damaged; it starts again"
        if self.state() == "new" and self.folder.exists():  # cut while it was being made
            rmtree(self.folder)
        return ""

    def remove_models(self) -> None:
        """Remove its models, where nothing needs them any more."""
        for name in ("pool", "sites"):
            rmtree(self.folder / name, ignore_errors=True)


def build_cells(grid: Grid, out: Path) -> tuple[Cell, ...]:
    """Return all cells in the order they are to run: a seed is compared wholly before the next.

    A method that is scored by another answer shares the cell of one with the same settings.
    Raises ConfigError, each problem once.
    """
    lines: dict[str, None] = {}
    cells: list[Cell] = []
    for seed in grid.seeds:
        for setting in grid.settings:
            here, wrong = _cells(grid, setting, seed, out)
            lines |= dict.fromkeys(wrong)
            if MIX in grid.methods and not lines:
                here[MIX] = _mix(tuple(here[label] for label in grid.parents()), out)
            cells += here.values()
    if lines:
        raise ConfigError(*lines)
    return tuple(cells)


def _cells(grid: Grid, setting: Setting, seed: int, out: Path) -> tuple[dict[str, Cell], list[str]]:
    """Return the cells of one setting and seed, by method, and what is wrong with others."""
    here: dict[str, Cell] = {}
    lines: list[str] = []
    for method in grid.methods:
        if method == MIX:
            continue
        try:
            here[method] = _cell(grid, setting, method, seed, out)
        except ConfigError as error:
            lines += _located(error, grid, setting, method)
    runs: dict[str, Cell] = {}
    for cell in here.values():
        if not cell.answer:
            runs.setdefault(cell.digest, cell)
    for label, cell in here.items():
        if cell.answer and (run := runs.setdefault(cell.digest, cell)) is not cell:
            here[label] = replace(cell, folder=run.folder, experiment=run.experiment)
    return here, lines


def _mix(parents: tuple[Cell, ...], out: Path) -> Cell:
    first = parents[0]
    folder = _folder(out, first.setting, MIX, first.seed)
    return replace(first, method=MIX, overrides={}, folder=folder, parents=parents)


def _cell(grid: Grid, setting: Setting, method: str, seed: int, out: Path) -> Cell:
    folder = _folder(out, setting.name, method, seed)
    overrides = {
        **grid.overrides(setting, method),
        "seed": seed,
        "runtime.out": str(folder.parent),
        "runtime.run_name": folder.name,
        "runtime.models": False,
    }
    experiment = load_experiment(setting.preset, overrides)
    answer = str(grid.methods[method].get(ANSWER, ""))
    return Cell(
        *(setting.name, method, seed, setting.preset, overrides, experiment, folder), answer=answer
    )


def runs_of(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that run: of those in one folder the one that the folder is named after."""
    found: dict[Path, Cell] = {}
    for cell in cells:
        if cell.folder not in found or not cell.answer:
            found[cell.folder] = cell
    return list(found.values())


def _folder(out: Path, setting: str, method: str, seed: int) -> Path:
    return out / "cells" / _safe(setting) / _safe(method) / f"seed-{seed}"


def _safe(name: str) -> str:
    """Return a folder's name; other names never share one."""
    safe = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name)
    if safe == name and not name.startswith((".", "-")):
        return name
    return f"{safe.strip('.-') or 'cell'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _located(error: ConfigError, grid: Grid, setting: Setting, method: str) -> list[str]:
    """Return the lines of a ConfigError with the place in the grid where the value stands."""
    lines = []
    for problem in error.problems:
        if isinstance(problem, Problem) and problem.where == OVERRIDE:
            where = grid.where(next(iter(problem.settings)), setting, method)
            lines.append(str(replace(problem, where=where)))
        else:
            lines.append(f"{grid.origin}: {setting.name} / {method}: {problem}")
    return lines


def check_cells(cells: Sequence[Cell]) -> list[str]:
    """Compare what lies in the cells' folders with the grid; return what deserves a warning.

    Raises RunError where a cell was run with other settings or on another split, or where Mix's
    parents have no models any more.
    """
    begun = [cell for cell in cells if cell.state() != "new"]
    facts = {cell: cell.run_facts() for cell in begun}
    lines = [_changed(cell) for cell in begun if facts[cell].get("experiment") != cell.digest]
    lines += [
        f"{cell.folder}: was run on another split than split.manifest holds: give another --out, "
        "or remove that folder to run it again"
        for cell in begun
        if _other_split(cell, facts[cell].get("manifest"))
    ]
    gone = [
        parent
        for cell in cells
        if cell.state() != "done"
        for parent in cell.parents
        if parent.state() == "done" and not parent.has_models
    ]
    lines += [
        f"{parent.folder}: its models were removed, and {MIX} needs them: remove that folder to "
        "run it again, or give another --out"
        for parent in gone
    ]
    if lines:
        more = [f"and {len(lines) - NAMED} more cells like these"] if len(lines) > NAMED else []
        raise RunError("\n".join(lines[:NAMED] + more))
    here = code_hash()[1]
    other = [cell for cell in begun if facts[cell].get("code") != here]
    if not other:
        return []
    return [
        f"{len(other)} of {len(cells)} cells were begun with other code than this "
        f"({facts[other[0]].get('code')}, now {here}), such as {other[0].name}; they are kept: "
        "remove their folders to run them again"
    ]


def _changed(cell: Cell) -> str:
    if cell.parents:
        what = "other settings of the methods it asks"
    else:
        plain = to_plain(cell.experiment)
        what = differences(cell.folder, plain) or "another version of this software"
    return (
        f"{cell.folder}: was run with other settings ({what}): give another --out, or remove that "
        "folder to run it again"
    )


def _other_split(cell: Cell, manifest: object) -> bool:
    """Whether the split that `split.manifest` names is another than the one that was run on."""
    split = cell.experiment.split
    if not split.manifest or manifest is None:
        return False
    return Manifest.load(split.manifest).showing(split.labels).digest() != manifest
