"""The folder of one run -> `RunRecord`: finished or under way, of this version or an older one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedapp.core.errors import RunError
from fedapp.evaluation.confidence_intervals import wilson
from fedapp.evaluation.findings import COUNTS_NOTE, two_class_names
from fedapp.experiment.preset_files import read_yaml
from fedapp.experiment.run_folder import Row, RunFolder
from fedapp.learn.metrics import SHARES_OF_LABELS, label_group
from fedapp.protocol.messages import Evaluation
from fedapp.server.standings import Standing, Standings

GROUPS = tuple(f"{share} labels" for share in SHARES_OF_LABELS)
"""Sites by share of training images that have a label, as `metrics.label_group` counts them."""


@dataclass(frozen=True)
class Right:
    """Right answers: `right` of `of` images."""

    right: int
    of: int

    @property
    def share(self) -> float:
        """Accuracy, in [0, 1]; needs one image."""
        return self.right / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy, both ends in [0, 1]."""
        return wilson(self.right, self.of)

    def __str__(self) -> str:
        return f"{self.right} of {self.of}"


@dataclass(frozen=True)
class SiteRecord:
    """What the server knows of one site. name: its own, else `site 3`."""

    number: int
    name: str
    standing: Standing

    @property
    def group(self) -> int:
        """Index in `GROUPS`."""
        return label_group(self.standing.facts.mu)

    @property
    def before(self) -> Right | None:
        """On its test images after the warm-up; None where that was not measured."""
        accuracy, images = self.standing.warmup_accuracy, self.standing.facts.test
        if (tested := self.standing.latest.get("test")) is not None:
            images = tested.samples  # of findings: those that were read
        return None if accuracy is None or not images else Right(round(accuracy * images), images)

    def now(self, part: str = "test") -> Right | None:
        """On the images of an evaluation, as last measured; None where it was not."""
        found = self.standing.latest.get(part)
        return Right(found.correct, found.samples) if found and found.samples else None


@dataclass(frozen=True)
class RunRecord:
    """A run as its files tell it.

    settings: config.yaml. facts: run.json. rounds: of metrics.jsonl. history: of sites.jsonl, by
    round; empty for a run by a version that did not write it. summary: None until the run is over.
    """

    path: Path
    settings: Mapping[str, Any]
    facts: Row
    rounds: Sequence[Row]
    history: Mapping[int, Row]
    summary: Row | None
    sites: Sequence[SiteRecord]
    standings: Standings
    state: Row

    @property
    def name(self) -> str:
        """The run's name: its folder's."""
        return self.path.name

    @property
    def last(self) -> int:
        """The last round; 0 is the warm-up."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; of findings, of each the two (`evaluation.findings`)."""
        names = self.sites[0].standing.facts.classes
        return two_class_names(names) if self.setting("data", "findings") else names

    @property
    def counted(self) -> list[str]:
        """How images are counted, where they are of findings: for a page's head."""
        return [COUNTS_NOTE] if self.setting("data", "findings") else []

    def setting(self, group: str, key: str) -> Any:
        """Return a setting of config.yaml; None where it has none of that name."""
        values = self.settings.get(group)
        return values.get(key) if isinstance(values, Mapping) else None

    def evaluations(self, part: str = "test") -> list[Evaluation]:
        """Every site's last evaluation of a part, of sites that have images of it."""
        found = (site.standing.latest.get(part) for site in self.sites)
        return [one for one in found if one is not None and one.samples]

    @cached_property
    def by_group(self) -> dict[int, list[SiteRecord]]:
        """The sites by share of labels, groups without sites left out; fewest labels first."""
        order = sorted(self.sites, key=lambda s: (s.standing.facts.mu, s.number))
        groups = {g: [s for s in order if s.group == g] for g in range(len(GROUPS))}
        return {group: sites for group, sites in groups.items() if sites}

    def said(self, site: int) -> Iterator[tuple[int, Row]]:
        """Yield each round in which a site answered, and what it said of itself."""
        for number, row in sorted(self.history.items()):
            if (found := row.get("sites", {}).get(str(site))) is not None:
                yield number, found

    def curve(self, site: int, part: str = "test") -> dict[int, Right]:
        """Return a site's results by round; it keeps its last until it is measured again."""
        found: dict[int, Right] = {}
        last: Right | None = None
        said = dict(self.said(site))
        for number in sorted(self.history):
            if (counts := said.get(number, {}).get(part)) and counts[1]:
                last = Right(*counts)
            if last is not None:
                found[number] = last
        return found


def is_run(path: Path) -> bool:
    """Say whether a folder holds a run."""
    return (path / "run.json").is_file() or (path / "checkpoint.json").is_file()


def read_run(path: Path) -> RunRecord:
    """Read a run's folder.

    Raises RunError where it holds none, or none that can be told of; ConfigError as `read_yaml`.
    """
    records = RunFolder(path)
    checkpoint = records.load_checkpoint()
    if checkpoint is None:
        raise RunError(
            f"{path}: no run with a finished round (no checkpoint.json): name a run's folder, or "
            "wait for its warm-up"
        )
    try:
        state = checkpoint["state"]
        known = state.get("together") or state["standings"]  # masked sums: all sites as one
        standings = TypeAdapter(Standings).validate_python(known, strict=False)
    except (KeyError, TypeError, ValidationError) as error:
        raise RunError(
            f"{path}/checkpoint.json: of another version of this program: make the report with "
            "the version that ran it (run.json names it)"
        ) from error
    sites = [
        SiteRecord(number, standing.facts.name or f"site {number}", standing)
        for number, standing in sorted(standings.sites.items())
    ]
    if not sites:
        raise RunError(f"{path}: a run without sites: there is nothing to report")
    return RunRecord(
        path=path,
        settings=read_yaml(path / "config.yaml"),
        facts=records.read_json("run.json") or {},
        rounds=records.metrics(),
        history={
            row["round"]: row for row in records.sites() if isinstance(row.get("sites"), dict)
        },
        summary=records.read_json("summary.json"),
        sites=sites,
        standings=standings,
        state=state,
    )
