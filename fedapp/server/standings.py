"""How every site stands: its latest evaluations, and the rows and sums made of them.

Where a site's model changes only when it trains, the evaluation it sent then stays exact until it
trains again; where the server averages, every site measures anew. Either way every round's mean
counts all sites that were ever evaluated.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from fedapp.evaluation.classification_metrics import (
    MIN_CLASS_IMAGES,
    Counts,
    Metric,
    none_if_nan,
    sensitivity,
    specificity,
)
from fedapp.evaluation.findings import metric_over_findings
from fedapp.evaluation.model_selection import Choice, candidates
from fedapp.evaluation.ranking_metrics import PooledScores, class_means
from fedapp.evaluation.verdict import Outcome, Verdict, verdict_of_counts
from fedapp.learn.metrics import worst_decile
from fedapp.methods._summed import MEAN, SITES, SQUARE, TRAINED
from fedapp.protocol.messages import (
    ALL_SITES,
    ANSWERS,
    EPSILON,
    EPSILON_OF_PATIENTS,
    IMAGES,
    STEPS,
    Evaluation,
    Measured,
    Reply,
    Scored,
    SiteFacts,
)

Row = dict[str, Any]

POOLED_METRICS: tuple[Metric, ...] = ("balanced_accuracy", "f1", "kappa")
"""Metrics beside accuracy that follow from what sites send."""


@dataclass(frozen=True)
class SummedAccuracies:
    """Of the accuracies of sites that are known by sums alone: mean, mean square, how many."""

    mean: float
    square: float
    sites: int


@dataclass(frozen=True)
class Standing:
    """One site's record; `latest` holds the last evaluation of each part.

    It is replaced, never changed: by that a checkpoint tells which sites have something new.
    joined: the round before which it came; 0: it was here from the start. steps, images: what it
    has learned by so far, as it says (`protocol.STEPS`). of_patients: whether its epsilon is of a
    patient. means: by part, where it stands for all
    sites (`ALL_SITES`).
    """

    facts: SiteFacts
    latest: Mapping[str, Measured] = field(default_factory=dict)
    warmup_accuracy: float | None = None
    best_round_accuracy: float | None = None
    by_validation_accuracy: float | None = None
    rounds_trained: int = 0
    rounds_skipped: int = 0
    epsilon: float | None = None
    of_patients: bool = False
    joined: int = 0
    choice: Choice = field(default_factory=Choice)
    steps: float = 0.0
    images: float = 0.0
    means: Mapping[str, SummedAccuracies] = field(default_factory=dict)

    def accuracy(self, part: str) -> float | None:
        """Accuracy on "val", "test" or "test_before"; None without images."""
        return self.latest[part].accuracy if part in self.latest else None

    def worth(self, metric: Metric) -> float | None:
        """Return a metric of its test images; None where it cannot be said."""
        if "test" not in self.latest:
            return None
        return metric_over_findings(metric, np.array(self.latest["test"].confusion), self._names)

    @property
    def _names(self) -> int:
        return len(self.facts.classes)

    @property
    def test_classes(self) -> int | None:
        """Number of classes with test images; None before the first evaluation of any."""
        if "test" not in self.latest:
            return None if self.facts.test else 0
        rows = self.latest["test"].confusion
        return sum(any(row) for row in (rows[1::2] if len(rows) > self._names else rows))

    @property
    def verdict(self) -> Verdict:
        """Whether joining paid, as far as counts of right test images tell."""
        joined, alone = self.choice.joined, self.choice.alone
        tested = self.latest.get("test")
        if tested is not None and len(tested.confusion) > self._names:
            why = "from counts of findings, of which an image has several; the site's own page can"
            return Verdict("unknown", "accuracy", self.facts.test, why=why)
        if joined is None or alone is None or joined.test_images != alone.test_images:
            return Verdict(
                "unknown", "accuracy", self.facts.test, why="without a model of each kind"
            )
        return verdict_of_counts(joined.test_right, alone.test_right, joined.test_images)

    def after(
        self, reply: Reply, joins_at: float, metric: Metric = "accuracy", least: float = 0.0
    ) -> "Standing":
        """Return the record with a reply in it; metric, least: by what its site keeps a model."""
        apart = reply.learned and reply.round < joins_at
        one = reply.site != ALL_SITES  # all together keep no model
        by = metric, least, self._names
        found = candidates(reply.round, reply.evaluations, apart, *by) if one else ()
        now = replace(
            self,
            choice=self.choice.after(found) if found else self.choice,
            latest={**self.latest, **reply.evaluations},
            means={**self.means, **_means(reply)},
            epsilon=reply.metrics.get(EPSILON, self.epsilon),
            of_patients=self.of_patients or bool(reply.metrics.get(EPSILON_OF_PATIENTS, 0)),
            steps=self.steps + reply.metrics.get(STEPS, 0),
            images=self.images + reply.metrics.get(IMAGES, 0),
        )
        if reply.round == 0:
            return replace(now, warmup_accuracy=now.accuracy("test"))
        return replace(now, rounds_trained=now.rounds_trained + reply.learned)


@dataclass
class Standings:
    """All sites, and the best rounds so far by mean test and by mean validation accuracy.

    by_answer: for each answer that sites can give, the round that is best by its own validation.
    by_metric: the same for each metric of all sites' images together (`_pooled_row`).
    """

    sites: dict[int, Standing]
    best: Row | None = None
    best_by_validation: Row | None = None
    pseudo_label_error: float | None = None
    by_answer: dict[str, Row] = field(default_factory=dict)
    by_metric: dict[str, Row] = field(default_factory=dict)

    @property
    def epsilon_of(self) -> str:
        """Say whom the run's epsilon protects, as far as sites told it."""
        told = {site: one.of_patients for site, one in self.sites.items() if one.epsilon}
        if not told:  # masked sums tell nothing of single sites
            return "an image, or of a patient at sites that know whose their images are"
        if len(set(told.values())) == 1:
            return "a patient" if any(told.values()) else "an image"
        whose = ", ".join(str(site) for site, of_patients in sorted(told.items()) if of_patients)
        return f"a patient at sites {whose}, and of an image at the others"

    @cached_property
    def _measured(self) -> dict[str, dict[int, float]]:
        """Accuracies by part and site. Kept: few of all sites answer in a round."""
        found: dict[str, dict[int, float]] = {}
        for site, standing in self.sites.items():
            _note(found, site, standing.latest, standing.means)
        return found

    def _spread(self) -> Row:
        """As `spread` of the test accuracies; of sites that are one, as far as sums tell."""
        tested = self.accuracies().get("test", [])
        together = self.sites.get(ALL_SITES)
        of = together.means.get("test") if together else None
        if of is None:
            return spread(tested)
        deviation = math.sqrt(max(of.square - of.mean**2, 0.0))
        none = {"worst_decile_accuracy": None}
        return {"mean_test_accuracy": of.mean, "std_test_accuracy": deviation, **none}

    @cached_property
    def _pooled(self) -> dict[str, Counts]:
        """The sum of all sites' latest confusion matrices by part: integers, so in any order."""
        found: dict[str, Counts] = {}
        for standing in self.sites.values():
            _pool(found, {}, standing.latest)
        return found

    def accuracies(self) -> dict[str, list[float]]:
        """Return by part the accuracies of all sites that have images of it, in any order."""
        return {part: list(by_site.values()) for part, by_site in self._measured.items() if by_site}

    def of_answer(self, part: str, answer: str) -> list[float]:
        """Return an answer's accuracy at every site that has images of this part, in any order.

        A site that lacks the answer counts with what it would have in its place. In the place of
        the "tuned" answer that is the common one. In the place of the one "alone" it is an even
        guess among the classes (of a finding: there or not): who has no label cannot learn alone.
        So means of answers are over the same sites, and can be compared.
        """
        own = self._measured.get(f"{part}_{answer}", {})
        common = self._measured.get(f"{part}_common", {})
        found = []
        for site, used in self._measured.get(part, {}).items():
            instead = {
                "tuned": common.get(site, used),
                "alone": 1 / self._choices(site),
            }
            found.append(own[site] if site in own else instead.get(answer, used))
        return found

    def _choices(self, site: int) -> int:
        """Among how many answers a site's model chooses."""
        standing = self.sites[site]
        names = len(standing.facts.classes)
        return 2 if any(len(of.confusion) > names for of in standing.latest.values()) else names

    def sites_without(self, answer: str) -> int:
        """Return how many sites with test images count with what stands in an answer's place."""
        measured = self._measured
        return len(measured.get("test", {}).keys() - measured.get(f"test_{answer}", {}).keys())

    def close_round(
        self,
        number: int,
        replies: Sequence[Reply],
        skipped: Mapping[int, str],
        joins_at: float = 0,
        metric: Metric = "accuracy",
        least: float = 0.0,
    ) -> Row:
        """Record a round's replies and return its row of `metrics.jsonl`.

        joins_at: as `Method.joins_at`. metric, least: by what sites keep a model.
        """
        measured, pooled = self._measured, self._pooled
        for reply in replies:
            _pool(pooled, self.sites[reply.site].latest, reply.evaluations)
            before = self.sites[reply.site]
            self.sites[reply.site] = before.after(reply, joins_at, metric, least)
            _note(measured, reply.site, reply.evaluations, _means(reply))
        for site in skipped.keys() & self.sites.keys():
            standing = self.sites[site]
            self.sites[site] = replace(standing, rounds_skipped=standing.rounds_skipped + 1)
        error = _pseudo_label_error(replies)
        self.pseudo_label_error = error if error is not None else self.pseudo_label_error
        accuracies = self.accuracies()
        row: Row = {
            "round": number,
            **self._spread(),
            "mean_val_accuracy": _mean(accuracies.get("val", [])),
            "mean_test_accuracy_before_training": _mean(
                [a for r in replies if (a := _accuracy(r, "test_before")) is not None]
            ),
            "sites_evaluated": sum(self._sites(site, "test") for site in measured.get("test", {})),
            "pseudo_label_error": error,
            # Not the warm-up of a site that joins now: it is of round 0.
            "trained": sum(_trained(replies, number).values()),
            "skipped": {str(site): reason for site, reason in sorted(skipped.items())},
        }
        for answer in ANSWERS:
            if accuracies.get(f"test_{answer}"):
                row[f"mean_test_accuracy_{answer}"] = _mean(self.of_answer("test", answer))
                row[f"mean_val_accuracy_{answer}"] = _mean(self.of_answer("val", answer))
                if number and _better(
                    row, self.by_answer.get(answer), f"mean_val_accuracy_{answer}"
                ):
                    self.by_answer[answer] = row
        row |= self._pooled_row()
        for name in POOLED_METRICS:
            if number and _better(row, self.by_metric.get(name), f"pooled_val_{name}"):
                self.by_metric[name] = row
        if late := [k for k, s in sorted(self.sites.items()) if s.joined == number > 0]:
            row["joined"] = late
        if number > 0 and _better(row, self.best, "mean_test_accuracy"):
            self.best = row
            self._mark("best_round_accuracy")
        if number > 0 and _better(row, self.best_by_validation, "mean_val_accuracy"):
            self.best_by_validation = row
            self._mark("by_validation_accuracy")
        return row

    def _sites(self, site: int, part: str) -> int:
        """How many sites a measured one stands for."""
        of = self.sites[site].means.get(part)
        return of.sites if of else 1

    @property
    def _find(self) -> bool:
        """Whether sites answer findings, as far as they have answered."""
        return any(len(of) > self._names for of in self._pooled.values())

    @property
    def _names(self) -> int:
        return len(next(iter(self.sites.values())).facts.classes)

    def _pooled_row(self) -> Row:
        """Return the metrics of all sites' images together, by part; None: they cannot be said.

        Not means over sites: a site with two images of a class has a sensitivity of 0, 50 or 100 %,
        and would count like one with two hundred.
        """
        return {
            f"pooled_{part}_{name}": metric_over_findings(name, self._pooled[part], self._names)
            if part in self._pooled
            else None
            for name in POOLED_METRICS
            for part in ("test", "val")
        }

    def _by_class(self) -> list[Row]:
        """Return what all sites' models find of each class, of its images at all sites together.

        Shares are None where there are too few images (`MIN_CLASS_IMAGES`). sites_with_few: which
        have images of the class, but too few to be ranked by. Findings are told likewise: images
        that show one, of those in which it was `read`.
        """
        counts = self._pooled.get("test")
        if counts is None:
            return []
        names = next(iter(self.sites.values())).facts.classes
        finds, scores = len(counts) > len(names), self._scores()
        found, spared = sensitivity(counts), specificity(counts)
        images, read = counts.sum(1), np.full(len(names), counts.sum())
        of_sites = np.array(
            [
                np.sum(s.latest["test"].confusion, 1)
                for s in self.sites.values()
                if "test" in s.latest
            ]
        )
        few = ((of_sites > 0) & (of_sites < MIN_CLASS_IMAGES)).sum(0)
        if finds:
            found, spared, read = found[1::2], found[::2], images[::2] + images[1::2]
            images, few = images[1::2], few[1::2]
        return [
            {
                "class": name,
                "images": int(images[c]),
                "sensitivity": none_if_nan(float(found[c]))
                if images[c] >= MIN_CLASS_IMAGES
                else None,
                "specificity": none_if_nan(float(spared[c]))
                if read[c] - images[c] >= MIN_CLASS_IMAGES
                else None,
                **({"read": int(read[c])} if finds else {}),
                "sites_with_few": int(few[c]),
                **(scores[c] if scores else {}),
            }
            for c, name in enumerate(names)
        ]

    def _scores(self) -> list[Row]:
        """Return by class how well all sites' scores rank their images; [] without score counts.

        As `PooledScores.rows`; of all sites as one, which masked sums know alone, without means
        over sites.
        """
        pooled = PooledScores()
        for number, site in self.sites.items():
            if isinstance(found := site.latest.get("test"), Scored):
                pooled.add(np.array(found.scores, dtype=np.int64), number != ALL_SITES)
        return pooled.rows()

    def _mark(self, name: str) -> None:
        """Note every site's accuracy on test images under this name; most have it already."""
        for site, standing in self.sites.items():
            if getattr(standing, name) != (accuracy := standing.accuracy("test")):
                noted: dict[str, Any] = {name: accuracy}
                self.sites[site] = replace(standing, **noted)

    def evaluations(self) -> Row:
        """Return every site's latest evaluation sums, as JSON can hold them."""
        return {
            str(number): {part: _sums(result) for part, result in sorted(site.latest.items())}
            for number, site in sorted(self.sites.items())
        }

    def per_site(self, helpers: Callable[[int], str]) -> list[Row]:
        """Return one row per site for `per_site.csv`. helpers: what it shows of them."""
        measured = {part for site in self.sites.values() for part in site.latest}
        return [
            {
                "site": number,
                **({"name": site.facts.name} if site.facts.name else {}),
                "mu": round(site.facts.mu, 6),
                "train": site.facts.training,
                "labelled": site.facts.labelled,
                "val": site.facts.val,
                "test": site.facts.test,
                "classes": len(site.facts.classes),
                **({"findings": len(site.facts.classes)} if self._find else {}),
                "test_classes": site.test_classes,
                "warmup_accuracy": site.warmup_accuracy,
                "final_accuracy": site.accuracy("test"),
                "best_round_accuracy": site.best_round_accuracy,
                "by_validation_accuracy": site.by_validation_accuracy,
                "before_training_accuracy": site.accuracy("test_before"),
                "val_accuracy": site.accuracy("val"),
                **{name: site.worth(name) for name in POOLED_METRICS},
                **{
                    f"{answer}_accuracy": site.accuracy(f"test_{answer}")
                    for answer in ANSWERS
                    if f"test_{answer}" in measured
                },
                "rounds_trained": site.rounds_trained,
                "rounds_skipped": site.rounds_skipped,
                "helpers": helpers(number),
                **({} if site.epsilon is None else {"epsilon": site.epsilon}),
                **({"epsilon_of": "patient"} if site.of_patients else {}),
                **({"joined": site.joined} if site.joined else {}),
            }
            for number, site in sorted(self.sites.items())
        ]

    def kept(self) -> Row:
        """Return what the models are worth that sites keep by their validation images.

        As far as the server can tell: a site keeps its model as it was before noise. mean: of
        their accuracies on the sites' test images. told: sites whose images tell whether joining
        helped. alone: those of them, with the round of the better model, that it did not.
        verdicts: how many sites' test images say that joining paid, that it did harm, that it
        changed little, or nothing (`verdict_of_counts`): a site itself, which knows which images
        were right, can say more.
        """
        choices = {k: site.choice for k, site in sorted(self.sites.items()) if k != ALL_SITES}
        tested = [kept for c in choices.values() if (kept := c.kept) and kept.test_images]
        return {
            "mean": _mean([kept.test_right / kept.test_images for kept in tested]),
            "told": sum(c.helped is not None for c in choices.values()),
            "alone": {
                str(k): kept.round
                for k, c in choices.items()
                if c.helped is False and (kept := c.kept)
            },
            "verdicts": {
                kind: sum(self.sites[k].verdict.said == kind for k in choices)
                for kind in get_args(Outcome)
            },
        }

    def summary(self) -> Row:
        """Return the accuracy part of `summary.json`.

        "best" is by test accuracy over the rounds from 1, as the paper reports it.
        """
        final = self._spread()
        best, chosen = self.best or {}, self.best_by_validation or {}
        classes = self._by_class()
        return {
            "mean_test_accuracy": {
                "best": best.get("mean_test_accuracy"),
                "best_round": best.get("round"),
                "final": final["mean_test_accuracy"],
                "best_by_validation": chosen.get("mean_test_accuracy"),
                "best_by_validation_round": chosen.get("round"),
            },
            "std_test_accuracy": final["std_test_accuracy"],
            "worst_decile_accuracy": final["worst_decile_accuracy"],
            "best_std_test_accuracy": best.get("std_test_accuracy"),
            "best_worst_decile_accuracy": best.get("worst_decile_accuracy"),
            "by_validation_std_test_accuracy": chosen.get("std_test_accuracy"),
            "by_validation_worst_decile_accuracy": chosen.get("worst_decile_accuracy"),
            "answers": {
                answer: {
                    "final": _mean(self.of_answer("test", answer)),
                    "best_by_validation": row[f"mean_test_accuracy_{answer}"],
                    "best_by_validation_round": row["round"],
                    "sites_without": self.sites_without(answer),
                }
                for answer, row in self.by_answer.items()
            },
            "pooled": {
                name: {
                    "final": self._pooled_row().get(f"pooled_test_{name}"),
                    "best_by_validation": row.get(f"pooled_test_{name}"),
                    "best_by_validation_round": row.get("round"),
                }
                for name in POOLED_METRICS
                for row in [self.by_metric.get(name, {})]
            },
            "by_class": classes,
            **class_means(classes),
            "kept": self.kept(),
            "steps_per_site": _mean([site.steps for site in self.sites.values()]),
            "images_per_site": _mean([site.images for site in self.sites.values()]),
            "pseudo_label_error": self.pseudo_label_error,
            "sites_without_test_images": [
                k for k, site in sorted(self.sites.items()) if not site.facts.test
            ],
        }


def spread(accuracies: Sequence[float]) -> Row:
    """Mean, population standard deviation and worst decile over sites; None without sites."""
    return {
        "mean_test_accuracy": _mean(accuracies),
        "std_test_accuracy": statistics.pstdev(accuracies) if accuracies else None,
        "worst_decile_accuracy": worst_decile(accuracies) if accuracies else None,
    }


def _note(
    measured: dict[str, dict[int, float]],
    site: int,
    evaluations: Mapping[str, Evaluation],
    means: Mapping[str, SummedAccuracies],
) -> None:
    """Take a site's accuracies into a table by part and site; of all sites as one, the means."""
    for part, result in evaluations.items():
        of_part = measured.setdefault(part, {})
        if result.accuracy is None:
            of_part.pop(site, None)
        else:
            of_part[site] = means[part].mean if part in means else result.accuracy


def _means(reply: Reply) -> dict[str, SummedAccuracies]:
    """Return what a masked sum says of the accuracies of its sites, by part."""
    said = reply.metrics
    return {
        part: SummedAccuracies(said[MEAN + part], said[SQUARE + part], int(said[SITES + part]))
        for part in reply.evaluations
        if SITES + part in said
    }


def _trained(replies: Sequence[Reply], number: int) -> dict[int, int]:
    """Return, by site, how many sites trained in this round: of all as one, as many as they say."""
    learned = [reply for reply in replies if reply.learned and reply.round == number]
    return {reply.site: int(reply.metrics.get(TRAINED, 1)) for reply in learned}


def _pool(
    pooled: dict[str, Counts], before: Mapping[str, Evaluation], now: Mapping[str, Evaluation]
) -> None:
    """Put a site's new confusion matrices in the place of its former ones in all sites' sums."""
    for part in now.keys() & {"test", "val"}:
        counts = np.array(now[part].confusion, dtype=np.int64)
        if part in before:
            counts -= np.array(before[part].confusion, dtype=np.int64)
        pooled[part] = pooled[part] + counts if part in pooled else counts


def _sums(result: Evaluation) -> Row:
    return {each.name: getattr(result, each.name) for each in fields(Evaluation)}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _better(row: Row, than: Row | None, name: str) -> bool:
    """More sites counted first (a mean without the weakest sites is no better), then the mean."""
    if row[name] is None:
        return False
    if than is None:
        return True
    measured, before = row["sites_evaluated"], than["sites_evaluated"]
    return bool((measured, row[name]) > (before, than[name]))


def _accuracy(reply: Reply, part: str) -> float | None:
    return reply.evaluations[part].accuracy if part in reply.evaluations else None


def _pseudo_label_error(replies: Sequence[Reply]) -> float | None:
    """Wrong pseudo-labels over all pseudo-labels of the round (Fig. 8); None where unmeasured."""
    total = sum(r.metrics.get("pseudo_total", 0) for r in replies)
    wrong = sum(r.metrics.get("pseudo_wrong", 0) for r in replies)
    return wrong / total if total else None
