"""What a comparison found: its cells, sites and rounds.

Accuracies are shares in [0, 1]; None: not measured. Cells that never ran are simply absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedapp.results.statistics import Mean, mean_sd

Key = tuple[str, str, int]
"""Setting, method, seed: one cell."""

SELECTED, BEST, FINAL = "selected_test_accuracy", "best_test_accuracy", "final_test_accuracy"
"""Columns of results.csv: accuracy at the round chosen on validation images, at the one with the
best test accuracy, and at the last."""
LAST = "last round"
"""What `selected_by` says of a cell without validation images: its selected round is the last."""
WORST_DECILE = "selected_worst_decile"
"""Column of results.csv: mean of the worst tenth of the sites, at the first of those rounds."""
SITE_SELECTED, SITE_FINAL = "selected_accuracy", "final_accuracy"
"""Columns of sites.csv: a site's accuracy at the first and the last of those rounds."""


@dataclass(frozen=True)
class CellResult:
    """One row of results.csv: the result of one cell.

    selected: at the round with the best mean *validation* accuracy, or without validation images
    at the last; selected_by says which. best: at the round with the
    best mean test accuracy. std, worst decile: over sites. last5: mean of the last five
    rounds. largest_fall: from one round to the next. common, tuned, alone: of these answers of the
    sites (`protocol.ANSWERS`), each at its own selected round. steps, images per site: what a site
    learned by in the whole run, repeats counted; files of earlier versions lack them. cell: its
    folder, under the comparison's.
    """

    setting: str
    method: str
    seed: int
    dataset: str
    alpha: float | None
    sites: float | None
    rounds: float | None
    best_test_accuracy: float | None
    final_test_accuracy: float | None
    selected_test_accuracy: float | None
    selected_by: str
    selected_std: float | None
    selected_worst_decile: float | None
    final_std: float | None
    final_worst_decile: float | None
    last5_test_accuracy: float | None
    largest_fall: float | None
    calibration_error: float | None
    common_selected_test_accuracy: float | None
    common_final_test_accuracy: float | None
    tuned_selected_test_accuracy: float | None
    tuned_final_test_accuracy: float | None
    alone_selected_test_accuracy: float | None
    alone_final_test_accuracy: float | None
    pseudo_label_error: float | None
    models_down: float | None
    models_up: float | None
    bytes_down: float | None
    bytes_up: float | None
    bytes_evaluation: float | None
    cost_bound_models: float | None
    wall_seconds: float | None
    manifest: str
    code: str
    cell: str
    steps_per_site: float | None = None
    images_per_site: float | None = None

    @property
    def models(self) -> float | None:
        """Models sent, both ways."""
        if self.models_down is None or self.models_up is None:
            return None
        return self.models_down + self.models_up

    @property
    def models_per_site_round(self) -> float | None:
        """Models sent, both ways, over all sites and rounds."""
        if self.models is None or not self.sites or not self.rounds:
            return None
        return self.models / (self.sites * self.rounds)


@dataclass(frozen=True)
class SiteResult:
    """One row of sites.csv: one site in one cell. mu: share of its training images with a label."""

    setting: str
    method: str
    seed: int
    site: int
    mu: float | None
    train: float | None
    labelled: float | None
    selected_accuracy: float | None
    final_accuracy: float | None


@dataclass(frozen=True)
class RoundResult:
    """One row of rounds.csv: one round of one cell; 0 is the warm-up."""

    setting: str
    method: str
    seed: int
    round: int
    mean_test_accuracy: float | None
    pseudo_label_error: float | None


@dataclass(frozen=True)
class Comparison:
    """All of a comparison. settings, methods, seeds: as planned, whether they ran or not.

    presets: the method preset behind each method's name, where it is another. answers: which answer
    of its sites a method is scored by, where that is not the one it uses. paper: which of the
    paper's tables to read beside ours, as comparison.json has it. reference: the method that the
    grid wants the others compared with; empty: it does not say. judged: at which round the grid
    wants every run judged, `validation` or `last`.
    """

    folder: Path
    title: str
    settings: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    cells: Mapping[Key, CellResult]
    sites: Mapping[Key, Mapping[int, SiteResult]]
    rounds: Mapping[Key, Sequence[RoundResult]]
    presets: Mapping[str, str] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    judged: str = "validation"

    def of(self, setting: str, method: str) -> dict[int, CellResult]:
        """Return the cells that ran, by seed, in the order of the plan."""
        keys = ((setting, method, seed) for seed in self.seeds)
        return {key[2]: self.cells[key] for key in keys if key in self.cells}

    def by_seed(self, setting: str, method: str, column: str) -> dict[int, float]:
        """Return a number of results.csv by seed, where it was measured."""
        found = {s: getattr(cell, column) for s, cell in self.of(setting, method).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, setting: str, method: str, column: str) -> Mean | None:
        """Return mean and sd over seeds of a number of results.csv; None where unmeasured."""
        return mean_sd(self.by_seed(setting, method, column).values())

    def method(self, preset: str) -> str | None:
        """Return the method that is this preset, by name or behind its name; None without one."""
        names = (m for m in self.methods if preset in (m, self.presets.get(m)))
        return preset if preset in self.methods else next(names, None)

    def ran(self, setting: str) -> list[str]:
        """Return the methods with at least one cell in this setting, in the order of the plan."""
        return [method for method in self.methods if self.of(setting, method)]

    @property
    def missing(self) -> list[Key]:
        """Cells that were planned and have no result."""
        planned = ((s, m, seed) for s in self.settings for m in self.methods for seed in self.seeds)
        return [key for key in planned if key not in self.cells]

    @cached_property
    def label_share(self) -> dict[tuple[str, int, int], float]:
        """Mu of every (setting, seed, site), as the semi-supervised methods have it.

        A method that is given every label sees mu = 1 on the same split: the least mu counts.
        """
        found: dict[tuple[str, int, int], float] = {}
        for (setting, _, seed), sites in self.sites.items():
            for row in sites.values():
                if row.mu is not None:
                    place = (setting, seed, row.site)
                    found[place] = min(found.get(place, row.mu), row.mu)
        return found

    @property
    def split_twice(self) -> list[tuple[str, int]]:
        """(setting, seed) whose cells were not all dealt the same split, so cannot be paired.

        Methods that are given every label have a split of their own, of the same images.
        """
        found: dict[tuple[str, int], set[str]] = {}
        for (setting, method, seed), cell in self.cells.items():
            if cell.manifest and not self.has_all_labels(setting, method):
                found.setdefault((setting, seed), set()).add(cell.manifest)
        return [place for place, manifests in found.items() if len(manifests) > 1]

    def site_pairs(
        self,
        setting: str,
        method: str,
        other: str,
        column: str = SITE_SELECTED,
        seeds: Sequence[int] | None = None,
    ) -> list[tuple[float, float, float]]:
        """Return (mu, accuracy, the other method's accuracy) of every site and seed with both.

        column: of sites.csv, which accuracy. seeds: of these runs; None: of all. Sites without test
        images have none and are left out.
        """
        found = []
        for seed in self.seeds if seeds is None else seeds:
            theirs = self.sites.get((setting, other, seed), {})
            for site, row in self.sites.get((setting, method, seed), {}).items():
                mu = self.label_share.get((setting, seed, site))
                our = getattr(row, column)
                their = getattr(theirs[site], column) if site in theirs else None
                if mu is not None and our is not None and their is not None:
                    found.append((mu, our, their))
        return found

    def has_all_labels(self, setting: str, method: str) -> bool:
        """Tell whether a method learned from labels that others in this setting do not see."""
        cells = (self.sites.get((setting, method, seed), {}) for seed in self.seeds)
        own = [row for sites in cells for row in sites.values()]
        more = any(
            row.mu is not None and row.mu > self.label_share[setting, row.seed, row.site]
            for row in own
        )
        return more and all(row.labelled == row.train for row in own)
