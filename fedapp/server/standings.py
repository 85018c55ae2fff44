"""Records of all sites: their latest evaluations, and the rows and sums that follow from them.

In some methods a site's model changes only when the site trains; its last evaluation is then exact
until it trains again. In the others the server averages, and every site measures anew in each
round. In both cases the mean of a round is over all sites that were ever evaluated.
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
from fedapp.evaluation.reliability_warnings import one_answer
from fedapp.evaluation.verdict import (
    PAIRS,
    WARM_UP_ALONE,
    Outcome,
    Pairs,
    SiteJoining,
    Verdict,
    verdict_of,
)
from fedapp.learn.metrics import worst_decile
from fedapp.methods._summed import MEAN_OF, SITES_OF, SQUARE_OF, TRAINED
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

LONE_VALIDATION = "alone_val_accuracy"
"""Column of per_site.csv: accuracy on validation images of what a site learned alone."""
POOLED_METRICS: tuple[Metric, ...] = ("balanced_accuracy", "f1", "kappa")
"""Metrics beside accuracy that follow from the confusion matrices that sites send."""


@dataclass(frozen=True)
class SummedAccuracies:
    """Accuracies of sites of which only sums are known (masked sums).

    mean, square: the mean and the mean square of the accuracies. sites: how many.
    """

    mean: float
    square: float
    sites: int


@dataclass(frozen=True)
class Standing:
    """The record of one site.

    A record is replaced and never changed, so that a checkpoint can tell which sites have something
    new. facts: what the site reported of its data. latest: the last evaluation of each part.
    warmup_accuracy, best_round_accuracy, by_validation_accuracy: accuracy on its test images after
    the warm-up, and in the rounds that are best by mean test and by mean validation accuracy.
    epsilon: that the site reported; of_patients: whether it protects a patient, not an image.
    joined: the round before which the site came; 0: it was there from the start. choice: the
    candidates for the model that it keeps. steps, images: number of steps and images by which it
    has learned so far, as it reports (`protocol.STEPS`). means: by part, where the record stands
    for all sites (`ALL_SITES`).
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
    pairs: Pairs | None = None
    """Right answers together and alone, as the site counts them itself; None: it did not."""

    def accuracy(self, part: str) -> float | None:
        """Return the last accuracy on "val", "test" or "test_before"; None without images."""
        return self.latest[part].accuracy if part in self.latest else None

    def worth(self, metric: Metric) -> float | None:
        """Return a metric on the test images; None where it is not defined."""
        if "test" not in self.latest:
            return None
        return metric_over_findings(metric, np.array(self.latest["test"].confusion), self._names)

    @property
    def _names(self) -> int:
        return len(self.facts.classes)

    @property
    def test_classes(self) -> int | None:
        """Number of classes that have test images; None before the first evaluation of any."""
        if "test" not in self.latest:
            return None if self.facts.test else 0
        rows = self.latest["test"].confusion
        return sum(any(row) for row in (rows[1::2] if len(rows) > self._names else rows))

    @property
    def verdict(self) -> Verdict:
        """Whether joining paid, by the site's own pairs, else by numbers of right test images."""
        if (pairs := self.pairs or self._counted) is not None:
            return verdict_of(pairs, lone=WARM_UP_ALONE if self.choice.trained_longer else "")
        why = "without a model of each kind" if self.facts.test else "without test images"
        tested = self.latest.get("test")
        if tested is not None and len(tested.confusion) > self._names:
            why = "from counts of findings, of which an image has several; the site's own page can"
        return Verdict("unknown", "accuracy", self.facts.test, why=why)

    @property
    def _counted(self) -> Pairs | None:
        """Right answers of the two candidates; None: there are no two, or they are of findings."""
        (joined, alone), tested = self.choice.compared, self.latest.get("test")
        if tested is None or len(tested.confusion) > self._names or joined is None or alone is None:
            return None
        images = joined.test_images
        same = images and images == alone.test_images
        return Pairs(images, joined.test_right, alone.test_right) if same else None

    @property
    def joining(self) -> SiteJoining:
        """What is known of the site for `joining_lines`."""
        name, tested = self.facts.name or f"site {self.facts.site}", self.latest.get("test")
        right = (tested.correct, tested.samples) if tested and tested.samples else None
        return SiteJoining(name, self.verdict, self.facts.labelled, right, self.one_answer)

    @property
    def one_answer(self) -> str:
        """The commonest class, where the model is no better than it as the answer for all."""
        tested = self.latest.get("test")
        if tested is None or len(tested.confusion) > self._names:  # of findings nothing is said
            return ""
        found = one_answer(tested.confusion)
        return "" if found is None else self.facts.classes[found[1]]

    def after(
        self, reply: Reply, joins_at: float, metric: Metric = "accuracy", least: float = 0.0
    ) -> "Standing":
        """Return the record after a reply.

        joins_at: as `Method.joins_at`. metric, least: by which the site selects the model that it
        keeps (`rounds.chosen_by`, `rounds.min_sensitivity`).
        """
        apart = reply.learned and reply.round < joins_at
        one = reply.site != ALL_SITES  # the record of all sites together keeps no model
        by = metric, least, self._names
        found = candidates(reply.round, reply.evaluations, apart, *by) if one else ()
        now = replace(
            self,
            choice=self.choice.after(found) if found else self.choice,
            latest={**self.latest, **reply.evaluations},
            means={**self.means, **_summed_accuracies(reply)},
            epsilon=reply.metrics.get(EPSILON, self.epsilon),
            of_patients=self.of_patients or bool(reply.metrics.get(EPSILON_OF_PATIENTS, 0)),
            steps=self.steps + reply.metrics.get(STEPS, 0),
            images=self.images + reply.metrics.get(IMAGES, 0),
            pairs=Pairs.read(reply.metrics) or self.pairs,
        )
        if reply.round == 0:
            return replace(now, warmup_accuracy=now.accuracy("test"))
        return replace(now, rounds_trained=now.rounds_trained + reply.learned)


@dataclass
class Standings:
    """The records of all sites, and the best rounds so far.

    best, best_by_validation: rows of the rounds with the highest mean test and mean validation
    accuracy. pseudo_label_error: the last one that was measured. by_answer: for each answer that
    sites can give, the row of the round that is best by the validation of that answer. by_metric:
    likewise for each metric over the images of all sites together (`_pooled_row`).
    """

    sites: dict[int, Standing]
    best: Row | None = None
    best_by_validation: Row | None = None
    pseudo_label_error: float | None = None
    by_answer: dict[str, Row] = field(default_factory=dict)
    by_metric: dict[str, Row] = field(default_factory=dict)

    @property
    def epsilon_of(self) -> str:
        """Whom the epsilon of the run protects, as text, as far as sites reported it."""
        reported = {site: one.of_patients for site, one in self.sites.items() if one.epsilon}
        if not reported:  # with masked sums nothing is known of single sites
            return "an image, or of a patient at sites that know whose their images are"
        if len(set(reported.values())) == 1:
            return "a patient" if any(reported.values()) else "an image"
        whose = ", ".join(
            str(site) for site, of_patients in sorted(reported.items()) if of_patients
        )
        return f"a patient at sites {whose}, and of an image at the others"

    @cached_property
    def _measured(self) -> dict[str, dict[int, float]]:
        """Accuracies by part and site.

        They are kept and updated, because only few of many sites answer in a round.
        """
        found: dict[str, dict[int, float]] = {}
        for site, standing in self.sites.items():
            _update_accuracies(found, site, standing.latest, standing.means)
        return found

    def _spread(self) -> Row:
        """`spread` of the test accuracies; with masked sums, as far as sums determine it."""
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
        """The sum of all sites' latest confusion matrices, by part.

        Sums of integers do not depend on the order of the sites.
        """
        found: dict[str, Counts] = {}
        for standing in self.sites.values():
            _update_pooled(found, {}, standing.latest)
        return found

    def accuracies(self) -> dict[str, list[float]]:
        """Return by part the accuracies of all sites that have images of it, in any order."""
        return {part: list(by_site.values()) for part, by_site in self._measured.items() if by_site}

    def of_answer(self, part: str, answer: str) -> list[float]:
        """Return the accuracy of an answer at every site with images of this part, in any order.

        A site without this answer counts with a substitute, so that the means of different answers
        are over the same sites and can be compared. The substitute for "tuned" is the site's common
        answer. For "alone" it is the accuracy of an even guess among the classes (of a finding:
        there or not), because a site without labels cannot learn alone. For other answers it is the
        answer that the site uses.
        """
        own = self._measured.get(f"{part}_{answer}", {})
        common = self._measured.get(f"{part}_common", {})
        found = []
        for site, used in self._measured.get(part, {}).items():
            instead = {
                "tuned": common.get(site, used),
                "alone": 1 / self._num_choices(site),
            }
            found.append(own[site] if site in own else instead.get(answer, used))
        return found

    def _num_choices(self, site: int) -> int:
        """Return among how many answers a site's model chooses: its classes, or 2 of a finding."""
        standing = self.sites[site]
        names = len(standing.facts.classes)
        return 2 if any(len(of.confusion) > names for of in standing.latest.values()) else names

    def sites_without(self, answer: str) -> int:
        """Return how many sites with test images count with a substitute (`of_answer`)."""
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
        """Record the replies of a round and return its row of `metrics.jsonl`.

        skipped: reasons by site. joins_at, metric, least: as for `Standing.after`.
        """
        measured, pooled = self._measured, self._pooled
        for reply in replies:
            _update_pooled(pooled, self.sites[reply.site].latest, reply.evaluations)
            before = self.sites[reply.site]
            self.sites[reply.site] = before.after(reply, joins_at, metric, least)
            _update_accuracies(measured, reply.site, reply.evaluations, _summed_accuracies(reply))
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
            "sites_evaluated": sum(self._sites_behind(k, "test") for k in measured.get("test", {})),
            "pseudo_label_error": error,
            # The warm-up of a site that joins late belongs to round 0, and does not count here.
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
            self._store_test_accuracy("best_round_accuracy")
        if number > 0 and _better(row, self.best_by_validation, "mean_val_accuracy"):
            self.best_by_validation = row
            self._store_test_accuracy("by_validation_accuracy")
        return row

    def _sites_behind(self, site: int, part: str) -> int:
        """Return for how many sites an entry stands: 1, or with masked sums as many as reported."""
        of = self.sites[site].means.get(part)
        return of.sites if of else 1

    @property
    def _answers_findings(self) -> bool:
        """Whether the answers of sites are findings; False before the first answer."""
        return any(len(of) > self._names for of in self._pooled.values())

    @property
    def _names(self) -> int:
        return len(next(iter(self.sites.values())).facts.classes)

    def _pooled_row(self) -> Row:
        """Return the metrics over the images of all sites together, by part; None: not defined.

        These are no means over sites: there, a site with two images of a class, whose sensitivity
        can only be 0, 50 or 100 %, would count as much as one with two hundred.
        """
        return {
            f"pooled_{part}_{name}": metric_over_findings(name, self._pooled[part], self._names)
            if part in self._pooled
            else None
            for name in POOLED_METRICS
            for part in ("test", "val")
        }

    def _by_class(self) -> list[Row]:
        """Return a row for each class, over the images of all sites together.

        Sensitivity and specificity are None where there are fewer than `MIN_CLASS_IMAGES` images.
        sites_with_few: number of sites that have images of the class, but fewer than that. A
        finding has a row of the same kind; `images` show it, of those in which it was `read`.
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
        """Return the rows of `PooledScores` over all sites; [] where no site sent score counts.

        With masked sums only the sum over all sites is known, and there are no means over sites.
        """
        pooled = PooledScores()
        for number, site in self.sites.items():
            if isinstance(found := site.latest.get("test"), Scored):
                pooled.add(np.array(found.scores, dtype=np.int64), number != ALL_SITES)
        return pooled.rows()

    def _store_test_accuracy(self, name: str) -> None:
        """Store every site's accuracy on its test images in the field `name` of its record."""
        for site, standing in self.sites.items():
            if getattr(standing, name) != (accuracy := standing.accuracy("test")):
                noted: dict[str, Any] = {name: accuracy}
                self.sites[site] = replace(standing, **noted)

    def evaluations(self) -> Row:
        """Return every site's latest evaluations in types that JSON has."""
        return {
            str(number): {part: _sums(result) for part, result in sorted(site.latest.items())}
            for number, site in sorted(self.sites.items())
        }

    def per_site(self, helpers: Callable[[int], str]) -> list[Row]:
        """Return one row per site for `per_site.csv`.

        helpers: returns the text of the column "helpers" for a site.
        """
        measured = {part for site in self.sites.values() for part in site.latest}
        compared = {k: of for k, site in self.sites.items() if (of := site.verdict.pairs)}
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
                **({"findings": len(site.facts.classes)} if self._answers_findings else {}),
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
                **(lone_validation(site) if "test_alone" in measured else {}),
                **(dict.fromkeys(PAIRS) if compared else {}),
                **(compared[number].numbers if number in compared else {}),
                "rounds_trained": site.rounds_trained,
                "rounds_skipped": site.rounds_skipped,
                "helpers": helpers(number),
                **({} if site.epsilon is None else {"epsilon": site.epsilon}),
                **({"epsilon_of": "patient"} if site.of_patients else {}),
                **({"joined": site.joined} if site.joined else {}),
                **({"one_answer": site.one_answer} if site.one_answer else {}),
            }
            for number, site in sorted(self.sites.items())
        ]

    def kept(self) -> Row:
        """Return how good the models are that sites keep by their validation images.

        The server can only estimate it: a site keeps its model as it was before noise was added.
        mean: mean accuracy on the sites' test images. told: number of sites that could choose
        between a model trained alone and one with a part of other sites. alone: those of them that
        keep the former, with the round of the model. verdicts: number of sites by outcome.
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
                kind: sum(self.sites[k].verdict.outcome == kind for k in choices)
                for kind in get_args(Outcome)
            },
        }

    def summary(self) -> Row:
        """Return the part of `summary.json` about accuracy.

        "best" is the round with the highest mean test accuracy, from round 1 on, as the UM-pFSSL
        paper reports it.
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
    """Return mean, population standard deviation and worst decile over sites; None without any."""
    return {
        "mean_test_accuracy": _mean(accuracies),
        "std_test_accuracy": statistics.pstdev(accuracies) if accuracies else None,
        "worst_decile_accuracy": worst_decile(accuracies) if accuracies else None,
    }


def lone_validation(site: Standing) -> Row:
    """Return the column with the accuracy on validation images of what a site learned alone."""
    return {LONE_VALIDATION: site.accuracy("val_alone")}


def _update_accuracies(
    measured: dict[str, dict[int, float]],
    site: int,
    evaluations: Mapping[str, Evaluation],
    means: Mapping[str, SummedAccuracies],
) -> None:
    """Enter a site's accuracies into a table by part and site.

    An entry that stands for all sites (masked sums) has the mean over sites.
    """
    for part, result in evaluations.items():
        of_part = measured.setdefault(part, {})
        if result.accuracy is None:
            of_part.pop(site, None)
        else:
            of_part[site] = means[part].mean if part in means else result.accuracy


def _summed_accuracies(reply: Reply) -> dict[str, SummedAccuracies]:
    """Return what a masked sum reports of its sites' accuracies, by part; {} of a plain reply."""
    metrics = reply.metrics
    return {
        part: SummedAccuracies(
            metrics[MEAN_OF + part], metrics[SQUARE_OF + part], int(metrics[SITES_OF + part])
        )
        for part in reply.evaluations
        if SITES_OF + part in metrics
    }


def _trained(replies: Sequence[Reply], number: int) -> dict[int, int]:
    """Return, by site, for how many sites that trained in this round the reply stands."""
    learned = [reply for reply in replies if reply.learned and reply.round == number]
    return {reply.site: int(reply.metrics.get(TRAINED, 1)) for reply in learned}


def _update_pooled(
    pooled: dict[str, Counts], before: Mapping[str, Evaluation], now: Mapping[str, Evaluation]
) -> None:
    """Replace a site's earlier confusion matrices by its new ones in the sums over all sites."""
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
    """Return whether a row is better than another by the mean `name`.

    A row that counts more sites is better: a mean without the weakest sites says nothing. Between
    rows of equally many sites the mean decides.
    """
    if row[name] is None:
        return False
    if than is None:
        return True
    measured, before = row["sites_evaluated"], than["sites_evaluated"]
    return bool((measured, row[name]) > (before, than[name]))


def _accuracy(reply: Reply, part: str) -> float | None:
    return reply.evaluations[part].accuracy if part in reply.evaluations else None


def _pseudo_label_error(replies: Sequence[Reply]) -> float | None:
    """Return the share of wrong pseudo-labels of a round (Fig. 8 of the paper); None: unknown."""
    total = sum(r.metrics.get("pseudo_total", 0) for r in replies)
    wrong = sum(r.metrics.get("pseudo_wrong", 0) for r in replies)
    return wrong / total if total else None
