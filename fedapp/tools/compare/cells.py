"""The cells of a comparison: the experiment, folder and state of each.

A cell's folder is an ordinary run folder, OUT/cells/<setting>/<method>/seed-<n>, with its log
beside it. Results of an earlier call are kept if they belong to this comparison.
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
"""How many cells an error names at most."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One setting, method and seed.

    experiment: the experiment that runs, with its run folder. Mix runs nothing; it has the
    experiment of its first parent, on whose data it is measured. parents: the cells whose models
    Mix uses; else empty. answer: the answer that the method is scored by; empty: the one that it
    uses. Cells of several methods may share one run and folder, scored by different answers.
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
        """The cell's name in messages."""
        return f"{self.setting} / {self.method} / seed {self.seed}"

    @property
    def log(self) -> Path:
        """The file with the output of its process."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def has_models(self) -> bool:
        """Whether its final models are still on disk."""
        return (self.folder / "pool").is_dir()

    @property
    def digest(self) -> str:
        """SHA-256 of its settings, or for Mix of its parents' digests: identifies the cell."""
        if not self.parents:
            return experiment_digest(self.experiment)
        digests = " ".join([MIX, *(parent.digest for parent in self.parents)])
        return hashlib.sha256(digests.encode()).hexdigest()

    def state(self) -> State:
        """Return its state. A folder whose making was interrupted counts as new."""
        if not (self.folder / "run.json").is_file():
            return "new"
        return "done" if (self.folder / "summary.json").is_file() else "begun"

    def run_facts(self) -> dict[str, Any]:
        """Return the content of run.json. Raises RunError if it is damaged."""
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
        """Remove files that it cannot go on from; return a note for the user, or an empty text."""
        if self.state() == "begun" and not self.parents:
            try:
                RunFolder(self.folder).load_checkpoint()
            except RunError:
                rmtree(self.folder)
                return f"{self.name}: its checkpoint is damaged; it starts again"
        if self.state() == "new" and self.folder.exists():  # interrupted while it was being made
            rmtree(self.folder)
        return ""

    def remove_models(self) -> None:
        """Remove its models and the state that its sites kept."""
        for name in ("pool", "sites"):
            rmtree(self.folder / name, ignore_errors=True)


def build_cells(grid: Grid, out: Path) -> tuple[Cell, ...]:
    """Return all cells in the order in which they run: all cells of one seed before the next seed.

    A method that is scored by another answer shares the run of a method with the same settings.
    Raises ConfigError with each problem once.
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
    """Return the cells of one setting and seed by method, and the problems of the others."""
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
    """Return the cells that run: of those that share a folder, the one that it is named after."""
    found: dict[Path, Cell] = {}
    for cell in cells:
        if cell.folder not in found or not cell.answer:
            found[cell.folder] = cell
    return list(found.values())


def _folder(out: Path, setting: str, method: str, seed: int) -> Path:
    return out / "cells" / _safe(setting) / _safe(method) / f"seed-{seed}"


def _safe(name: str) -> str:
    """Return a folder's name for a name, different for different names."""
    safe = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name)
    if safe == name and not name.startswith((".", "-")):
        return name
    return f"{safe.strip('.-') or 'cell'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _located(error: ConfigError, grid: Grid, setting: Setting, method: str) -> list[str]:
    """Return the lines of a ConfigError, each with the place of the value in the grid."""
    lines = []
    for problem in error.problems:
        if isinstance(problem, Problem) and problem.where == OVERRIDE:
            where = grid.where(next(iter(problem.settings)), setting, method)
            lines.append(str(replace(problem, where=where)))
        else:
            lines.append(f"{grid.origin}: {setting.name} / {method}: {problem}")
    return lines


def check_cells(cells: Sequence[Cell]) -> list[str]:
    """Compare the cells' folders with the grid; return warnings.

    Raises RunError if a cell was run with other settings or on another split, or if models that Mix
    needs were removed.
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
    """Return whether `split.manifest` names another split than the run was done on."""
    split = cell.experiment.split
    if not split.manifest or manifest is None:
        return False
    return Manifest.load(split.manifest).showing(split.labels).digest() != manifest
