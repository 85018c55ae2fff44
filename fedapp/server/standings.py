"""How every site stands: its latest evaluations, and the rows and sums made of them.

Where a site's model changes only when it trains, the evaluation it sent then stays exact until it
trains again; where the server averages, every site measures anew. Either way every round's mean
counts all sites that were ever evaluated.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from fedapp.learn.choice import Choice, candidates
from fedapp.learn.metrics import worst_decile
from fedapp.messages.protocol import ANSWERS, IMAGES, STEPS, Evaluation, Reply, SiteFacts

Row = dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """One site's record; `latest` holds the last evaluation of each part.

    It is replaced, never changed: by that a checkpoint tells which sites have something new.
    joined: the round before which it came; 0: it was here from the start. steps, images: what it
    has learned by so far, as it says (`protocol.STEPS`).
    """

    facts: SiteFacts
    latest: Mapping[str, Evaluation] = field(default_factory=dict)
    warmup_accuracy: float | None = None
    best_round_accuracy: float | None = None
    by_validation_accuracy: float | None = None
    rounds_trained: int = 0
    rounds_skipped: int = 0
    epsilon: float | None = None
    joined: int = 0
    choice: Choice = field(default_factory=Choice)
    steps: float = 0.0
    images: float = 0.0

    def accuracy(self, part: str) -> float | None:
        """Accuracy on "val", "test" or "test_before"; None without images."""
        return self.latest[part].accuracy if part in self.latest else None

    @property
    def test_classes(self) -> int | None:
        """Number of classes with test images; None before the first evaluation of any."""
        if "test" not in self.latest:
            return None if self.facts.test else 0
        return sum(any(row) for row in self.latest["test"].confusion)

    def after(self, reply: Reply, joins_at: float) -> "Standing":
        """Return the record with a reply in it."""
        apart = reply.learned and reply.round < joins_at
        now = replace(
            self,
            choice=self.choice.after(candidates(reply.round, reply.evaluations, apart)),
            latest={**self.latest, **reply.evaluations},
            epsilon=reply.metrics.get("epsilon", self.epsilon),
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
    """

    sites: dict[int, Standing]
    best: Row | None = None
    best_by_validation: Row | None = None
    pseudo_label_error: float | None = None
    by_answer: dict[str, Row] = field(default_factory=dict)

    @cached_property
    def _measured(self) -> dict[str, dict[int, float]]:
        """Accuracies by part and site. Kept: few of all sites answer in a round."""
        found: dict[str, dict[int, float]] = {}
        for site, standing in self.sites.items():
            _note(found, site, standing.latest)
        return found

    def accuracies(self) -> dict[str, list[float]]:
        """Return by part the accuracies of all sites that have images of it, in any order."""
        return {part: list(by_site.values()) for part, by_site in self._measured.items() if by_site}

    def of_answer(self, part: str, answer: str) -> list[float]:
        """Return an answer's accuracy at every site that has images of this part, in any order.

        A site that lacks the answer counts with what it would have in its place. In the place of
        the "tuned" answer that is the common one. In the place of the one "alone" it is an even
        guess among the classes: who has no label cannot learn alone. So means of answers are over
        the same sites, and can be compared.
        """
        own = self._measured.get(f"{part}_{answer}", {})
        common = self._measured.get(f"{part}_common", {})
        found = []
        for site, used in self._measured.get(part, {}).items():
            instead = {
                "tuned": common.get(site, used),
                "alone": 1 / len(self.sites[site].facts.classes),
            }
            found.append(own[site] if site in own else instead.get(answer, used))
        return found

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
    ) -> Row:
        """Record a round's replies and return its row of `metrics.jsonl`.

        joins_at: as `Method.joins_at`.
        """
        for reply in replies:
            self.sites[reply.site] = self.sites[reply.site].after(reply, joins_at)
            _note(self._measured, reply.site, reply.evaluations)
        for site in skipped:
            standing = self.sites[site]
            self.sites[site] = replace(standing, rounds_skipped=standing.rounds_skipped + 1)
        error = _pseudo_label_error(replies)
        self.pseudo_label_error = error if error is not None else self.pseudo_label_error
        accuracies = self.accuracies()
        tested = accuracies.get("test", [])
        row: Row = {
            "round": number,
            **spread(tested),
            "mean_val_accuracy": _mean(accuracies.get("val", [])),
            "mean_test_accuracy_before_training": _mean(
                [a for r in replies if (a := _accuracy(r, "test_before")) is not None]
            ),
            "sites_evaluated": len(tested),
            "pseudo_label_error": error,
            # Not the warm-up of a site that joins now: it is of round 0.
            "trained": len({r.site for r in replies if r.learned and r.round == number}),
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
        if late := [k for k, s in sorted(self.sites.items()) if s.joined == number > 0]:
            row["joined"] = late
        if number > 0 and _better(row, self.best, "mean_test_accuracy"):
            self.best = row
            self._mark("best_round_accuracy")
        if number > 0 and _better(row, self.best_by_validation, "mean_val_accuracy"):
            self.best_by_validation = row
            self._mark("by_validation_accuracy")
        return row

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
                "test_classes": site.test_classes,
                "warmup_accuracy": site.warmup_accuracy,
                "final_accuracy": site.accuracy("test"),
                "best_round_accuracy": site.best_round_accuracy,
                "by_validation_accuracy": site.by_validation_accuracy,
                "before_training_accuracy": site.accuracy("test_before"),
                "val_accuracy": site.accuracy("val"),
                **{
                    f"{answer}_accuracy": site.accuracy(f"test_{answer}")
                    for answer in ANSWERS
                    if f"test_{answer}" in measured
                },
                "rounds_trained": site.rounds_trained,
                "rounds_skipped": site.rounds_skipped,
                "helpers": helpers(number),
                **({} if site.epsilon is None else {"epsilon": site.epsilon}),
                **({"joined": site.joined} if site.joined else {}),
            }
            for number, site in sorted(self.sites.items())
        ]

    def kept(self) -> Row:
        """Return what the models are worth that sites keep by their validation images.

        As far as the server can tell: a site keeps its model as it was before noise. mean: of
        their accuracies on the sites' test images. told: sites whose images tell whether joining
        helped. alone: those of them, with the round of the better model, that it did not.
        """
        choices = {k: site.choice for k, site in sorted(self.sites.items())}
        tested = [kept for c in choices.values() if (kept := c.kept) and kept.test_images]
        return {
            "mean": _mean([kept.test_right / kept.test_images for kept in tested]),
            "told": sum(c.helped is not None for c in choices.values()),
            "alone": {
                str(k): kept.round
                for k, c in choices.items()
                if c.helped is False and (kept := c.kept)
            },
        }

    def summary(self) -> Row:
        """Return the accuracy part of `summary.json`.

        "best" is by test accuracy over the rounds from 1, as the paper reports it.
        """
        accuracies = self.accuracies()
        final = spread(accuracies.get("test", []))
        best, chosen = self.best or {}, self.best_by_validation or {}
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
    measured: dict[str, dict[int, float]], site: int, evaluations: Mapping[str, Evaluation]
) -> None:
    """Take a site's accuracies into a table by part and site."""
    for part, result in evaluations.items():
        of_part = measured.setdefault(part, {})
        if result.accuracy is None:
            of_part.pop(site, None)
        else:
            of_part[site] = result.accuracy


def _sums(result: Evaluation) -> Row:
    return {each.name: getattr(result, each.name) for each in fields(result)}


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
