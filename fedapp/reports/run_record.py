"""Reads the folder of one run, finished or under way, of this version or an older one."""

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
"""Names of the groups of sites by share of labelled training images (`metrics.label_group`)."""


@dataclass(frozen=True)
class RightAnswers:
    """How many images were answered right, and of how many."""

    right: int
    of: int

    @property
    def share(self) -> float:
        """The accuracy, in [0, 1]. There must be at least one image."""
        return self.right / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy, two_class_names ends in [0, 1]."""
        return wilson(self.right, self.of)

    def __str__(self) -> str:
        return f"{self.right} of {self.of}"


@dataclass(frozen=True)
class SiteRecord:
    """What the server knows of one site. Its name is the site's own, else such as `site 3`."""

    number: int
    name: str
    standing: Standing

    @property
    def group(self) -> int:
        """Index of the site's group in `GROUPS`."""
        return label_group(self.standing.facts.mu)

    @property
    def labels(self) -> str:
        """How many of its training images have a label, as text."""
        return f"{self.standing.facts.labelled} of {self.standing.facts.training}"

    @property
    def after_warm_up(self) -> RightAnswers | None:
        """The result on the site's test images after the warm-up; None where it is not known."""
        accuracy, images = self.standing.warmup_accuracy, self.standing.facts.test
        if (tested := self.standing.latest.get("test")) is not None:
            images = tested.samples  # with findings: how many of them were read
        return (
            None
            if accuracy is None or not images
            else RightAnswers(round(accuracy * images), images)
        )

    def latest(self, part: str = "test") -> RightAnswers | None:
        """Return the last result on the images of a part; None where it was not measured."""
        found = self.standing.latest.get(part)
        return RightAnswers(found.correct, found.samples) if found and found.samples else None


@dataclass(frozen=True)
class RunRecord:
    """A run as its files describe it.

    Attributes:
        path: the run's folder.
        settings: content of config.yaml.
        facts: content of run.json.
        rounds: rows of metrics.jsonl.
        history: rows of sites.jsonl by round; empty where the run's version did not write the file.
        summary: content of summary.json; None until the run is over.
        sites: all sites by number.
        standings: the server's statistics of all sites.
        state: the engine's state in the checkpoint.
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
        """The run's name, which is its folder's."""
        return self.path.name

    @property
    def lone(self) -> str:
        """What the model is that a site makes alone; empty where the run does not say."""
        return str((self.summary or {}).get("lone_model", ""))

    @property
    def last_round(self) -> int:
        """Number of the last finished round; 0 is the warm-up."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes. A finding has two: that it is absent, and that it is there."""
        names = self.sites[0].standing.facts.classes
        return two_class_names(names) if self.setting("data", "findings") else names

    @property
    def counting_notes(self) -> list[str]:
        """How images are counted, for the head of a page; empty unless labels are findings."""
        return [COUNTS_NOTE] if self.setting("data", "findings") else []

    def setting(self, group: str, key: str) -> Any:
        """Return a setting of config.yaml; None where the file lacks it."""
        values = self.settings.get(group)
        return values.get(key) if isinstance(values, Mapping) else None

    def evaluations(self, part: str = "test") -> list[Evaluation]:
        """Return the last evaluation of a part of every site that has images of it."""
        found = (site.standing.latest.get(part) for site in self.sites)
        return [one for one in found if one is not None and one.samples]

    @cached_property
    def by_labels(self) -> list[SiteRecord]:
        """The sites, that with the smallest number of labels first."""
        return sorted(self.sites, key=lambda s: (s.standing.facts.labelled, s.number))

    @cached_property
    def by_group(self) -> dict[int, list[SiteRecord]]:
        """The sites by index in `GROUPS`, fewest labels first; groups without sites are absent."""
        groups = {g: [s for s in self.by_labels if s.group == g] for g in range(len(GROUPS))}
        return {group: sites for group, sites in groups.items() if sites}

    def replies_of(self, site: int) -> Iterator[tuple[int, Row]]:
        """Yield each round in which a site answered, with what sites.jsonl has of its answer."""
        for number, row in sorted(self.history.items()):
            if (found := row.get("sites", {}).get(str(site))) is not None:
                yield number, found

    def curve(self, site: int, part: str = "test") -> dict[int, RightAnswers]:
        """Return a site's results by round; a round without a measurement repeats the last one."""
        found: dict[int, RightAnswers] = {}
        last: RightAnswers | None = None
        replies = dict(self.replies_of(site))
        for number in sorted(self.history):
            if (counts := replies.get(number, {}).get(part)) and counts[1]:
                last = RightAnswers(*counts)
            if last is not None:
                found[number] = last
        return found


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run."""
    return (path / "run.json").is_file() or (path / "checkpoint.json").is_file()


def read_run(path: Path) -> RunRecord:
    """Read a run's folder.

    Raises:
        RunError: the folder holds no run, no finished round, or a run of an unreadable version.
        ConfigError: config.yaml cannot be read.
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
        # With masked sums the server knows all sites together as one.
        known = state.get("together") or state["standings"]
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
