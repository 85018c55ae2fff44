"""Four real hospitals: each hospital's answers with the others, and what it has without them.

    python -m bench.hospitals

Reads UCI's Heart Disease data (`fedapp/data/hospitals.py`). Every draw splits each hospital's
patients anew and takes another part of the labels. What has a setting has one value of it for all
draws, chosen on other draws (`--seeds 0 40 --penalty C`, and the like).
"""

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from os import devnull
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import fedapp
from bench.command import Quick, carry_out
from bench.record import Row, save
from fedapp.data.hospitals import NAMES
from fedapp.data.inputs import normalise
from fedapp.data.sites import LABELLED, TEST, VAL, SiteData
from fedapp.experiment.config import load_experiment
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import federation_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Settings = Mapping[str, str | int | float | bool]
Answers = list[Array]
"""By hospital: the probability that a patient of its test part is ill, and after these the same of
its validation part, [n]."""
TOGETHER, ALONE = "one_round, together", "one_round, alone"
REGRESSION, BETTER = "logistic regression, alone", "alone, the better of both"
FEDAVG, RECOMMENDED = "FedAvg of a logistic regression", "recommended, together"
COMMONER = "the commoner diagnosis"
EVEN = ", even mix"
"""Follows the name of a method whose answers are for as many ill patients as others."""
SHOWN = {TOGETHER: "together", BETTER: "alone", TOGETHER + EVEN: "together, even mix"}
"""Whose sensitivity, specificity and AUROC are tabled by hospital, and under which name."""
MEANS = "mean", "balanced", "AUROC"
"""Accuracy, balanced accuracy and AUROC: means over the hospitals."""
GAINS = "over alone", "balanced over alone", "AUROC over alone"
"""The gains in these means, draw by draw, over what each hospital would have chosen without the
others."""
OVER_REGRESSION = "over the regression"
"""The gain in accuracy over a logistic regression alone at every hospital."""
ROUNDS, STEPS = 50, 10
"""Of FedAvg: rounds, and steps of each hospital in a round, each on all its labelled patients."""
TRAINED: Settings = {"method.preset": "recommended", "method.guesses": 0, "rounds.num_rounds": 10}
"""What `recommended` has in place of the preset's settings, beside its rate."""
FLAMBY: Settings = {"data.name": "heart_flamby", "split.val_share": 0.0}
"""FLamby's patients and its split, which has no validation part."""


def private(settings: Settings) -> dict[str, Settings]:
    """Return cases with masked sums, without noise and with it."""
    masked = {**settings, "privacy.sums": "masked"}
    noisy = {f"100 %, masked, epsilon {e}": {**masked, "privacy.epsilon": e} for e in (8, 3, 1)}
    return {"100 %, masked": masked, **noisy}


SHARES = (0.2, 0.1, 0.05)
CASES: dict[str, dict[str, Settings]] = {
    data: {
        "100 %": settings,
        **private(settings),
        **{f"{100 * share:g} %": {**settings, "split.label_share": share} for share in SHARES},
    }
    for data, settings in {"heart": {}, "heart_flamby": FLAMBY}.items()
}
"""By data: the shares of training patients whose diagnosis is used. Private cases follow the one
with which they are compared."""


@dataclass(frozen=True)
class Hospital:
    """A hospital's patients, standardised.

    known, labels: its labelled training patients. asked: its test patients, then its validation
    patients. truth, validation: which of the first and which of the second are ill.
    """

    known: Array
    labels: Labels
    asked: Array
    truth: Labels
    validation: Labels

    @property
    def tested(self) -> list[bytes]:
        """Names of its test patients, the same in every draw."""
        return [one.tobytes() for one in self.asked[: len(self.truth)]]

    @classmethod
    def of(cls, data: SiteData) -> "Hospital":
        """Return it as arrays."""
        every = (data.parts[part] for part in (LABELLED, TEST, VAL))
        (known, labels), (test, truth), (val, validation) = (
            (normalise(one.inputs, data.mean, data.std).double().numpy(), one.labels.numpy())
            for one in every
        )
        return cls(known, labels, np.concatenate([test, val]), truth, validation)


@dataclass(frozen=True)
class Chosen:
    """The setting of each anchor.

    penalty: C of scikit-learn's logistic regressions. rate: of FedAvg's steps. recommended: of the
    steps of `recommended`.
    """

    penalty: float
    rate: float
    recommended: float


def answers(settings: Settings, chosen: Chosen) -> tuple[dict[str, Answers], list[Hospital]]:
    """Return each method's answers in one draw, and the hospitals."""
    experiment = load_experiment("heart", settings)
    federation = federation_of(experiment)
    sites = [federation.dealt.site(k) for k in range(experiment.split.num_clients)]
    hospitals = list(map(Hospital.of, sites))
    found: dict[str, Answers] = {TOGETHER: closed_form(settings, sites)}
    if not experiment.privacy.masked:
        lone = [logistic([h], h, chosen.penalty) for h in hospitals]
        pooled = [logistic(hospitals, h, chosen.penalty) for h in hospitals]
        *weights, constant = fedavg(hospitals, chosen.rate)
        averaged = [sigmoid(h.asked @ weights + constant) for h in hospitals]
        own = [ill_share([h.labels]) for h in hospitals]
        of_all, even = ([s] * len(own) for s in (ill_share([h.labels for h in hospitals]), 0.5))
        trained = {**settings, **TRAINED, "training.learning_rate": chosen.recommended}
        found |= {
            ALONE: (closed := alone(settings, sites)),
            RECOMMENDED: closed_form(trained, sites),
            FEDAVG: averaged,
            "FedAvg, for its own mix": for_mix(averaged, of_all, own),
            REGRESSION: lone,
            BETTER: better(closed, lone, hospitals),
            "logistic regression, pooled": pooled,
            "pooled, for its own mix": for_mix(pooled, of_all, own),
            COMMONER: [np.full(len(h.asked), ill_share([h.labels])) for h in hospitals],
            TOGETHER + EVEN: closed_form({**settings, "method.own_mix": False}, sites),
            ALONE + EVEN: alone({**settings, "method.own_mix": False}, sites),
            "FedAvg" + EVEN: for_mix(averaged, of_all, even),
            REGRESSION + EVEN: for_mix(lone, own, even),
            "pooled" + EVEN: for_mix(pooled, of_all, even),
        }
    return found, hospitals


def better(first: Answers, second: Answers, hospitals: Sequence[Hospital]) -> Answers:
    """Return by hospital the answers that are right on more of its validation patients.

    Where both are, or nobody validates, the first.
    """

    def right(said: Array, of: Hospital) -> int:
        return int(((said[len(of.truth) :] > 0.5) == of.validation).sum())

    every = zip(first, second, hospitals, strict=True)
    return [two if right(two, of) > right(one, of) else one for one, two, of in every]


def ill_share(labels: Sequence[Labels]) -> float:
    """Return the share of ill patients among the labelled ones, with one of each kind added."""
    every = np.concatenate(labels)
    return float((every.sum() + 1) / (len(every) + 2))


def closed_form(settings: Settings, sites: Sequence[SiteData]) -> Answers:
    """Return the answers of the models that these hospitals keep of a run with these settings."""
    run = fedapp.open_run(run_loopback(load_experiment("heart", settings))[1])
    asked = [torch.cat([s.parts[part].inputs for part in (TEST, VAL)]) for s in sites]
    every = [run.model(s.name).probabilities(of) for s, of in zip(sites, asked, strict=True)]
    return [said[:, 1].double().numpy() for said in every]


def alone(settings: Settings, sites: Sequence[SiteData]) -> Answers:
    """Return the answers of models that each of these hospitals makes without the others."""
    single = {**settings, "split.num_clients": 1}
    return [closed_form({**single, "data.sites": s.name}, [s])[0] for s in sites]


def logistic(givers: Sequence[Hospital], taker: Hospital, penalty: float) -> Array:
    """Return the taker's answers by a logistic regression on the givers' labelled patients.

    penalty: C of scikit-learn. Where all are of one diagnosis, that is the answer.
    """
    x, y = (np.concatenate(of) for of in zip(*((g.known, g.labels) for g in givers), strict=True))
    if len(set(y.tolist())) < 2:
        return np.full(len(taker.asked), float(y[0]))
    fitted = LogisticRegression(C=penalty, max_iter=1000).fit(x, y)
    said: Array = fitted.predict_proba(taker.asked)[:, 1]
    return said


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))


def fedavg(givers: Sequence[Hospital], rate: float) -> Array:
    """Return the weights [d + 1] of a logistic regression that hospitals average after each round.

    The last weight is the constant. A hospital counts as often as it has labelled patients; one
    without any sends nothing.
    """
    there = [(np.c_[h.known, np.ones(len(h.known))], h.labels) for h in givers if len(h.labels)]
    common = np.zeros(givers[0].known.shape[1] + 1)
    for _ in range(ROUNDS):
        total = np.zeros_like(common)
        for x, labels in there:
            own = common
            for _ in range(STEPS):
                own = own - rate * x.T @ (sigmoid(x @ own) - labels) / len(labels)
            total += len(labels) * own
        common = total / sum(len(labels) for _, labels in there)
    return common


def for_mix(said: Answers, before: Sequence[float], after: Sequence[float]) -> Answers:
    """Return answers by hospital, each for another share of ill patients."""
    return [remixed(*of) for of in zip(said, before, after, strict=True)]


def remixed(said: Array, before: float, after: float) -> Array:
    """Return probabilities for another share of ill patients: by Bayes' rule."""
    ill, others = said * after / before, (1 - said) * (1 - after) / (1 - before)
    return np.asarray(ill / (ill + others))


Scores = tuple[float, float, float, float, float]


def scores(said: Array, ill: Labels) -> Scores:
    """Return accuracy, balanced accuracy, AUROC, sensitivity and specificity in %.

    said: of these patients, which may be followed by others. All but the first are NaN where
    nobody, or everybody, is ill.
    """
    said = said[: len(ill)]
    called = said > 0.5
    accuracy = 100 * float((called == ill).mean())
    if len(set(ill.tolist())) < 2:
        return accuracy, np.nan, np.nan, np.nan, np.nan
    sensitivity = 100 * float(called[ill == 1].mean())
    specificity = 100 * float((~called)[ill == 0].mean())
    area = 100 * float(roc_auc_score(ill, said))
    return accuracy, (sensitivity + specificity) / 2, area, sensitivity, specificity


def placements(said: Array, ill: Labels) -> Array:
    """Return how well each patient is ranked, [n]: NaN where nobody, or everybody, is ill.

    The share of the patients with the other diagnosis whom the answers place on the right side of
    this one; a tie counts half. The mean over the ill is the AUROC, and so is that over the others.
    """
    placed = np.full(len(ill), np.nan)
    above = 0.5 + np.sign(said[: len(ill)][ill == 1][:, None] - said[: len(ill)][ill == 0]) / 2
    if above.size:
        placed[ill == 1], placed[ill == 0] = above.mean(1), above.mean(0)
    return placed


@dataclass(frozen=True)
class Found:
    """What a method answered in all draws.

    scores: [draws, hospitals, 5]. patients: by hospital, whether the answer to each patient is
    right, and its placement: [draws, patients, 2], NaN in draws that do not test it. ill: by
    hospital, which of these patients are ill.
    """

    scores: Array
    patients: Sequence[Array]
    ill: Sequence[Labels]

    @classmethod
    def of(cls, said: Sequence[Answers], draws: Sequence[Sequence[Hospital]]) -> "Found":
        """Return it of the answers by draw and hospital."""
        patients, ill = [], []
        for k, every in enumerate(zip(*draws, strict=True)):
            names = sorted({name for hospital in every for name in hospital.tested})
            values = np.full((len(every), len(names), 2), np.nan)
            truth = np.zeros(len(names), int)
            for draw, hospital in enumerate(every):
                at = [names.index(name) for name in hospital.tested]
                right = (said[draw][k][: len(at)] > 0.5) == hospital.truth
                values[draw, at] = np.c_[right, placements(said[draw][k], hospital.truth)]
                truth[at] = hospital.truth
            patients.append(values)
            ill.append(truth)
        scored = [
            [scores(one, h.truth) for one, h in zip(of, hospitals, strict=True)]
            for of, hospitals in zip(said, draws, strict=True)
        ]
        return cls(np.array(scored), patients, ill)

    def at(self, k: int) -> "Found":
        """Return it of a single hospital."""
        return Found(self.scores[:, k : k + 1], self.patients[k : k + 1], self.ill[k : k + 1])

    def gains(self, alone: "Found") -> list[str]:
        """Return the gains in accuracy, balanced accuracy and AUROC, with intervals.

        Means over hospitals, of the draws' mean. alone: of the same draws, or of a single one.
        Empty where both are the same.
        """
        if np.array_equal(self.scores, alone.scores, equal_nan=True):
            return [""] * len(GAINS)
        more = np.nanmean(self.scores - alone.scores, axis=1)[:, :3]
        widths = half_widths(
            more, [a - b for a, b in zip(self.patients, alone.patients, strict=True)], self.ill
        )
        return [
            f"{value:+.1f}" + ("" if np.isnan(half) else f" ± {half:.1f}")
            for value, half in zip(more.mean(0), widths, strict=True)
        ]


def half_widths(more: Array, patients: Sequence[Array], ill: Sequence[Labels]) -> Array:
    """Return half of the 95 % intervals of three gains, in points.

    more: [draws, 3]. patients: by hospital, the differences [draws, patients, 2]. The variance over
    patients (for the AUROC DeLong's, 1988, of each patient's mean over the draws), each hospital's
    patients as drawn from its own, and the variance of the mean over draws: what other patients to
    train on would change is not in it. NaN where a hospital has one patient with a diagnosis.
    """
    variances = []
    for values, truth in zip(patients, ill, strict=True):
        every = np.nanmean(values, axis=0)
        all_of, ill_of, others = (
            100**2 * group.var(axis=0, ddof=1) / len(group)
            if len(group) > 1
            else np.full(2, np.nan)
            for group in (every, every[truth == 1], every[truth == 0])
        )
        right, placed = ill_of + others
        variances.append([all_of[0], right / 4, placed])
    over_draws = more.var(axis=0, ddof=1) / len(more) if len(more) > 1 else 0.0
    return np.asarray(1.96 * np.sqrt(np.sum(variances, axis=0) / len(ill) ** 2 + over_draws))


def measured(settings: Settings, seeds: range, chosen: Chosen) -> dict[str, Found]:
    """Return what each method answered."""
    said: dict[str, list[Answers]] = {}
    draws: list[list[Hospital]] = []
    for seed in seeds:
        with TemporaryDirectory(prefix="bench-") as out, open(devnull, "w") as nowhere:
            with redirect_stdout(nowhere):
                every, hospitals = answers({**settings, "seed": seed, "runtime.out": out}, chosen)
        draws.append(hospitals)
        for name, of in every.items():
            said.setdefault(name, []).append(of)
    return {name: Found.of(of, draws) for name, of in said.items()}


def rows(case: str, found: Mapping[str, Found], before: Mapping[str, Found]) -> list[Row]:
    """Return a row for each method: its accuracy at each hospital, the means, the gains.

    before: what each hospital could have answered in the same draws without the others. Answers for
    an even mix are compared with those that are for one too.
    """
    made: list[Row] = []
    for name, of in found.items():
        end = EVEN if name.endswith(EVEN) else ""
        alone, regression = before[ALONE + EVEN if end else BETTER], before[REGRESSION + end]
        means = np.nanmean(of.scores, axis=0)
        gains = dict(zip(GAINS, of.gains(alone), strict=True))
        gains[OVER_REGRESSION] = of.gains(regression)[0]
        made.append(
            {
                "labels": case,
                "answer": name,
                **{h: f"{x:.1f}" for h, x in zip(NAMES, means[:, 0].tolist(), strict=True)},
                "worst": f"{means[:, 0].min():.1f}",
                **{n: f"{x:.1f}" for n, x in zip(MEANS, means.mean(0)[:3].tolist(), strict=True)},
                **gains,
            }
        )
    return made


def by_hospital(case: str, found: Mapping[str, Found]) -> list[Row]:
    """Return a row for each hospital: who of the ill is found, who of the others spared, AUROC."""
    return [
        {
            "labels": case,
            "hospital": name.replace("_", " "),
            **{
                f"{what}, {word}": f"{np.nanmean(found[answer].scores[:, k, place]):.1f}"
                for place, what in ((3, "sensitivity"), (4, "specificity"), (2, "AUROC"))
                for answer, word in SHOWN.items()
            },
            "AUROC over alone": found[TOGETHER].at(k).gains(found[BETTER].at(k))[2],
        }
        for k, name in enumerate(NAMES)
    ]


def dumbbells(table: Sequence[Row]) -> "Figure":
    """Draw each hospital's accuracy: alone, together, and by its commoner diagnosis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    cases = [case for case in dict.fromkeys(str(row["labels"]) for row in table) if "," not in case]
    every = figure.subplots(1, len(cases), sharex=True, sharey=True)
    for axes, case in zip(every, cases, strict=True):
        at = {str(row["answer"]): row for row in table if row["labels"] == case}
        of = {a: [float(str(at[a][n])) for n in NAMES] for a in (BETTER, TOGETHER, COMMONER)}
        places = range(len(NAMES))
        axes.hlines(places, of[BETTER], of[TOGETHER], color="0.6", zorder=1)
        axes.scatter(of[BETTER], places, facecolor="white", edgecolor="C0", zorder=2)
        axes.scatter(of[TOGETHER], places, color="C0", zorder=3)
        axes.scatter(of[COMMONER], places, color="C1", marker="|", s=120, zorder=2)
        axes.set_title(f"{case} of the labels", fontsize=10)
        axes.set_yticks(places, [name.replace("_", " ") for name in NAMES])
        axes.grid(axis="x", alpha=0.3)
    every[0].invert_yaxis()
    names = ["alone", "together", "the commoner diagnosis"]
    figure.legend(every[0].collections[1:], names, loc="outside upper center", ncols=3)
    figure.supxlabel("right answers on the hospital's own test patients, %", fontsize=10)
    return figure


def main(
    data: Annotated[Literal["heart", "heart_flamby"], typer.Option(help="patients")] = "heart",
    seeds: Annotated[tuple[int, int], typer.Option(help="first draw, number of draws")] = (
        770,
        100,
    ),
    penalty: Annotated[float, typer.Option(help="C of the logistic regressions")] = 0.3,
    rate: Annotated[float, typer.Option(help="of FedAvg's steps")] = 0.1,
    recommended: Annotated[float, typer.Option(help="rate of recommended's steps")] = 0.01,
    quick: Quick = False,
) -> None:
    """Measure and save the table."""
    draws = range(seeds[0], seeds[0] + (2 if quick else seeds[1]))
    chosen = Chosen(penalty, rate, recommended)
    table, spared = list[Row](), list[Row]()
    before: Mapping[str, Found] = {}
    for case, settings in CASES[data].items():
        one_split = data == "heart_flamby" and case in ("100 %", "100 %, masked")
        found = measured(settings, draws[:1] if one_split else draws, chosen)
        # With masked sums nobody is alone: the gain is over what there is without them.
        before = found if ALONE in found else before
        table += rows(case, found, before)
        spared += by_hospital(case, found) if ALONE in found else []
        print(f"bench.hospitals: {data}, {case}: done", flush=True)
    told = {"draws": f"{draws.start} to {draws.stop - 1}"}
    save(f"hospitals-{data}", table, told, dumbbells(table) if data == "heart" else None, quick)
    save(f"hospitals-{data}-sensitivity", spared, told, quick=quick)


if __name__ == "__main__":
    carry_out(main)
