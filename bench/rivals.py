"""Rivals beside `one_round` on the same features: other papers' heads, anchors, what each sends.

    python -m bench.rivals xrays PNEUMONIAMNIST_FOLDER
    python -m bench.rivals photographs FOLDER --fedpft flower/baselines/fedpft
    python -m bench.rivals clothes FASHION_MNIST_FOLDER

Every site's features are those of the program, made once and kept as safetensors. All learn from
the same labels: those of the training images, and of the validation images by which `one_round`
decides. A rival's setting is the best of four on the dev seed, for each cell; the temperature at
which it is multiplied by a site's own class mix likewise. A cell that was measured is not measured
again. `--fedpft`: Flower's own code of FedPFT, which needs hydra-core and transformers.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib import import_module
from itertools import product
from logging import ERROR, getLogger
from os import devnull
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
import typer

from bench import heads
from bench.command import Quick, carry_out, several
from bench.heads import Array, Head, Known, Labels, Moments
from bench.record import Cells, Row, csv_rows, save
from bench.runs import Run, finished, kept
from fedapp.core.errors import ConfigError
from fedapp.data.inputs import normalise
from fedapp.data.sites import LABELLED, TEST, UNLABELLED, VAL
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import out_root
from fedapp.learn.features import build_features
from fedapp.learn.frozen_answers import answers_cached_in
from fedapp.learn.linear_head import compute_features
from fedapp.learn.networks import build_model
from fedapp.methods.base import SiteContext
from fedapp.methods.closed_form._contents import SOLUTION, Solution
from fedapp.methods.closed_form._site import deciding_images
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.reports.statistics import Difference, interval_factor, mean_sd, paired_difference
from fedapp.site.federation import federation_of

OURS, ALONE, COMMONER = "one_round", "alone: the same closed form", "the commoner class"
LONE = "alone: logistic regression"
DEV, FIRST = 0, 750
"""The seed on which settings are chosen; the first of those that are printed."""
Settings = dict[str, Scalar]
VARIANTS: Mapping[str, Settings] = {
    "one_round, without guesses": {"method.guesses": 0},
    "one_round, then a regression": {"method.regression_steps": 12},
}
"""Rows of `one_round` with another setting."""
COST = {"up": "kB up", "down": "kB down", "seconds": "seconds"}
UNIT = {"up": 1000, "down": 1000, "seconds": 1}
"""What a row costs, at a site in bytes and in all in seconds of one core: titles and units."""
TEMPERATURES = 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0
ROUNDS, STEPS = 100, 10
"""Of FedAvg: rounds, and steps of a site in a round."""


@dataclass(frozen=True)
class Study:
    """given: settings of all cells. cases: those of a share of labels. alphas: of each case."""

    preset: str
    given: Settings
    cases: Mapping[str, Settings]
    alphas: Mapping[str, Sequence[float]]


LABELS: Mapping[str, Settings] = {
    "100 %": {"split.labels": "all"},
    "10 %": {"split.label_share": 0.1},
    "1 %": {"split.label_share": 0.01},
}
LITE0: Settings = {
    "method.features": "network", "model.name": "encoder", "model.body": "lite0", "model.size": 128,
}  # fmt: skip
HOG: Settings = {"method.features": "hog"}
FIFTY: Settings = {"split.num_clients": 50}
SMALL: Settings = {  # of docs/RESULTS.md: the splits of `second_fashion_mnist`
    "data.image_size": 14, "data.subset": 8000, "split.num_clients": 10, "split.train_share": 0.35,
    "split.val_share": 0.05, "training.augment": "weak",
}  # fmt: skip
SHIFTS: Mapping[str, Settings] = {
    **{f"{100 * share:g} %": {"split.label_share": share} for share in (0.5, 0.2, 0.05, 0.01)},
    **{f"50 %, shift {shift:g}": {"split.feature_shift": shift} for shift in (0.5, 1.0)},
}


def _extremes(given: Settings) -> Study:
    """Return the study of 50 sites with one or two classes each, and with all of them."""
    return Study("cifar10", FIFTY | given, LABELS, dict.fromkeys(LABELS, (0.1, 5.0)))


DATA: Mapping[str, Study] = {
    "photographs": _extremes(LITE0 | {"data.name": "folder"}),
    "xrays": _extremes(LITE0 | {"data.name": "pneumoniamnist"}),
    "xrays-hog": _extremes(HOG | {"data.name": "pneumoniamnist"}),
    "clothes": Study(
        "fashion_mnist_small",
        SMALL | HOG,
        SHIFTS,
        {case: (0.1, 0.5, 5.0) if case == "50 %" else (0.5,) for case in SHIFTS},
    ),
}
Data = Literal["photographs", "xrays", "xrays-hog", "clothes"]
Results = dict[int, dict[str, dict[str, Any]]]
"""By seed and row: see `measured`."""


@dataclass(frozen=True)
class Site:
    """What a site knows, and its test images as features and classes; features of norm 1.

    unlabelled: features of its training images without labels.
    """

    known: Known
    unlabelled: Array
    test: Array
    truth: Labels


@dataclass(frozen=True)
class Sites:
    """All sites of a split. Features are float64 [n, d]."""

    every: Sequence[Site]
    classes: int
    seed: int

    @cached_property
    def pooled(self) -> Known:
        """All that is known, in one place."""
        x, y = zip(*(site.known for site in self.every), strict=True)
        return np.concatenate(x), np.concatenate(y)

    @cached_property
    def moments(self) -> Moments:
        """The sum over the sites of their sums, to rounding."""
        return Moments.of(self.pooled, self.classes)

    @cached_property
    def mixes(self) -> list[Array]:
        """Each site's class mix according to its labels."""
        return [heads.shares_of(site.known[1], self.classes) for site in self.every]

    @cached_property
    def scaled(self) -> "Sites":
        """The same, each feature standardised over all that is known."""
        x = self.pooled[0]
        mean, std = x.mean(0), x.std(0) + heads.TINY

        def of(site: Site) -> Site:
            (x, y), test = site.known, site.test
            others = (site.unlabelled - mean) / std
            return Site(((x - mean) / std, y), others, (test - mean) / std, site.truth)

        return Sites([of(site) for site in self.every], self.classes, self.seed)

    @property
    def size(self) -> int:
        """Number of features."""
        return int(self.every[0].test.shape[1])

    def mean_right(self, answers: Sequence[Labels]) -> float:
        """Return the mean of the sites' right answers, %; sites without test images are left out.

        answers: [n] for each site.
        """
        right = [
            float((said == site.truth).mean())
            for said, site in zip(answers, self.every, strict=True)
            if len(site.truth)
        ]
        return 100 * float(np.mean(right))


Made = tuple[Head | Sequence[Head], float, float]
"""One head for all or one for each site, and the bytes that a site sends and gets."""


@dataclass(frozen=True)
class Rival:
    """make: from the sites, standardised or not, and one of `tries`. rounds: 0: nothing is sent."""

    make: Callable[[Sites, Any], Made]
    tries: Sequence[Any]
    rounds: int = 1
    scaled: bool = False


def _afl(sites: Sites, level: float) -> Made:
    return heads.ridge(sites.pooled, sites.classes, level), *_sums(sites, _triangle(sites))


def _fedcgs(sites: Sites, level: float) -> Made:
    return heads.fedcgs(sites.moments, level), *_sums(sites, _triangle(sites))


def _lda(sites: Sites, shrinkage: float) -> Made:
    return heads.lda(sites.moments, shrinkage), *_sums(sites, _triangle(sites))


def _lda_em(sites: Sites, tried: tuple[float, float]) -> Made:
    given = ((site.unlabelled, mix) for site, mix in zip(sites.every, sites.mixes, strict=True))
    up, down = _sums(sites, _triangle(sites))
    exchanges = 1 + heads.EM_STEPS
    return heads.lda_em(sites.moments, given, *tried), exchanges * up, exchanges * down


def _naive_bayes(sites: Sites, smoothing: float) -> Made:
    return heads.naive_bayes(sites.moments, smoothing), *_sums(sites, sites.classes * sites.size)


def _qda(sites: Sites, shrinkage: float) -> Made:
    up, _ = _sums(sites, sites.classes * _triangle(sites))
    return heads.qda(sites.moments, shrinkage), up, up


def _fedavg(sites: Sites, rate: float) -> Made:
    given = [site.known for site in sites.every]
    sent = 4.0 * ROUNDS * sites.classes * (sites.size + 1)
    return heads.fedavg(given, sites.classes, rate, ROUNDS, STEPS), sent, sent


def _pooled(sites: Sites, c: float) -> Made:
    return heads.logistic(sites.pooled, sites.classes, c), 0, 0


def _alone(sites: Sites, c: float) -> Made:
    draw = np.random.default_rng(sites.seed)
    none = Head(lambda x: draw.random((len(x), sites.classes)), np.full(sites.classes, 1.0))
    each = [
        heads.logistic(site.known, sites.classes, c) if len(site.known[1]) else none
        for site in sites.every
    ]
    return each, 0, 0


def _triangle(sites: Sites) -> int:
    return sites.size * (sites.size + 1) // 2


def _sums(sites: Sites, numbers: int) -> tuple[float, float]:
    """Return bytes of counts, sums by class and `numbers` more to the server; of a head back."""
    return 4.0 * (sites.classes * (sites.size + 1) + numbers), 4.0 * sites.classes * (
        sites.size + 1
    )


def _fedpft(sites: Sites, tried: tuple[float, int]) -> Made:
    """Return the head of Flower's own baseline: its client, then its strategy, in this process.

    Its settings but for rate and number of mixtures. Features have a mean square of 1.
    """
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    client, server, strategy = (
        import_module(f"fedpft.{name}") for name in ("client", "server", "strategy")
    )
    getLogger("flwr").setLevel(ERROR)
    rate, mixtures = tried
    config = server.fedpft_get_on_fit_config_fn(mixtures, "spherical", sites.seed, 1e-12, 10000)
    through = torch.nn.Identity()
    through.hidden_dimension = sites.size  # type: ignore[assignment]
    scale = sites.size**0.5
    results, up = [], 0
    for site in sites.every:
        x, y = site.known
        if not len(y):
            continue
        inputs = torch.from_numpy(x * scale).float()
        images = [{"img": one, "label": c} for one, c in zip(inputs, y.tolist(), strict=True)]
        loader = torch.utils.data.DataLoader(cast(Any, images), batch_size=64)
        own = client.FedPFTClient(loader, None, through, sites.classes, torch.device("cpu"))
        arrays, number, metrics = own.fit([], config(1))
        up += sum(array.nbytes for array in arrays)
        status = Status(Code.OK, "")
        results.append((None, FitRes(status, ndarrays_to_parameters(arrays), number, metrics)))
    with torch.random.fork_rng():
        torch.manual_seed(sites.seed)
        made = strategy.FedPFT(
            num_classes=sites.classes, feature_dimension=sites.size,
            server_opt=SimpleNamespace(lr=rate), server_batch_size=32, num_epochs=50,
            device=torch.device("cpu"), on_fit_config_fn=config,
        )  # fmt: skip
        try:
            weight, bias = parameters_to_ndarrays(made.aggregate_fit(1, results, [])[0])
        except ValueError:  # no class of any site has more images than mixtures
            weight, bias = np.zeros((sites.classes, sites.size)), np.zeros(sites.classes)
    prior = heads.shares_of(sites.pooled[1], sites.classes)
    down = 4.0 * sites.classes * (sites.size + 1)
    head = Head.linear(weight.astype(np.float64) * scale, bias.astype(np.float64), prior)
    return head, up / len(sites.every), down


FEDPFT = "FedPFT (Flower's code)"
RIVALS: Mapping[str, Rival] = {
    "AFL": Rival(_afl, (0.01, 0.1, 1.0, 10.0)),
    FEDPFT: Rival(_fedpft, tuple(product((1e-4, 1e-3), (1, 3)))),
    "FedCGS": Rival(_fedcgs, (0.03, 0.3, 1.0, 3.0)),
    "GH-OFL: NB": Rival(_naive_bayes, (0.01, 0.1, 1.0, 10.0)),
    "GH-OFL: LDA": Rival(_lda, (0.05, 0.2, 0.5, 0.8)),
    "LDA, guesses by EM": Rival(
        _lda_em, tuple(product((0.2, 0.5), (0.1, 1.0))), 1 + heads.EM_STEPS
    ),
    "GH-OFL: QDA": Rival(_qda, (0.05, 0.2, 0.5, 0.8)),
    "FedAvg of a head, loss corrected": Rival(
        _fedavg, (3e-3, 1e-2, 3e-2, 1e-1), ROUNDS, scaled=True
    ),
    LONE: Rival(_alone, (1e-4, 1e-3, 1e-2, 1e-1), 0, scaled=True),
    "pooled: logistic regression": Rival(_pooled, (1e-5, 1e-4, 1e-3, 1e-2), 0, scaled=True),
}


def measured(rival: Rival, sites: Sites, tried: Any) -> dict[str, Any]:
    """Return one answer for all and, by temperature, the one times own mixes; seconds; bytes."""
    given = sites.scaled if rival.scaled else sites
    _ = sites.moments  # so that it is no part of the time of the first rival that asks for it
    began = time.process_time()
    made, up, down = rival.make(given, tried)
    seconds = time.process_time() - began
    each = [made] * len(sites.every) if isinstance(made, Head) else made
    scores = [head.scores(site.test) for head, site in zip(each, given.every, strict=True)]
    own = {
        str(t): sites.mean_right(
            [
                heads.times_mix(head, said, t, mix)
                for head, said, mix in zip(each, scores, sites.mixes, strict=True)
            ]
        )
        for t in TEMPERATURES
    }
    common = sites.mean_right([said.argmax(1) for said in scores])
    return {"common": common, "own": own, "seconds": seconds, "up": up, "down": down}


def chosen(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return which try is best for one answer for all, and which, at what temperature, at a site.

    found: what `measured` returned for every try on the dev seed. Of equal ones the first.
    """
    common = max(range(len(found)), key=lambda k: found[k]["common"])
    pairs = product(range(len(found)), map(str, TEMPERATURES))
    own, at = max(pairs, key=lambda pair: found[pair[0]]["own"][pair[1]])
    return {"common": common, "own": own, "temperature": at}


def tested(rival: Rival, sites: Sites, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rival's results with the settings that were chosen."""
    common = measured(rival, sites, rival.tries[choice["common"]])
    own = common
    if choice["own"] != choice["common"]:
        own = measured(rival, sites, rival.tries[choice["own"]])
    return {**common, "own": own["own"][choice["temperature"]]}


# --- this project's -------------------------------------------------------------------------------


def sites_of(experiment: Experiment) -> Sites:
    """Return what sites know in an experiment, as features that its method would use."""
    federation = federation_of(experiment)
    every, seed = [], experiment.seed
    made = None
    for number in range(experiment.split.num_clients):
        data = federation.dealt.site(number)
        data = data.raw() if experiment.model.raw else data
        if made is None:
            network = build_model(experiment.model, data.inputs, data.num_classes)
            assert isinstance(experiment.method, OneRound)
            made = build_features(experiment.method.features, data.inputs, network=network)
        scale = partial(normalise, mean=data.mean, std=data.std)
        known, others, val, test = (
            compute_features(made, data.parts[part].inputs, scale).double().numpy()
            for part in (LABELLED, UNLABELLED, VAL, TEST)
        )
        decide = deciding_images(cast(SiteContext, SimpleNamespace(data=data, seed=seed)))
        labels = torch.cat([data.labels, data.val_labels[decide]]).numpy()
        both = np.concatenate([known, val[decide.numpy()]]), labels
        every.append(Site(both, others, test, data.parts[TEST].labels.numpy()))
    return Sites(every, data.num_classes, seed)


def ours(experiment: Experiment, sites: Sites) -> dict[str, dict[str, Any]]:
    """Return the results of `one_round` and of its closed form alone, through the program."""
    began = time.process_time()
    with open(devnull, "w") as nowhere, redirect_stdout(nowhere), finished(experiment) as run:
        seconds = time.process_time() - began
        solution = run.made(SOLUTION)
        exchanges = _exchanges(run)
    assert solution is not None
    weight, bias = (of.double().numpy() for of in Solution.from_params(solution).common)
    common = [(site.test @ weight.T + bias).argmax(1) for site in sites.every]
    answers = run.summary["answers"]
    each = {name: 100 * answers[name]["final"] for name in ("tuned", "alone")}
    up, down = (run.summary[f"bytes_{way}"] / len(sites.every) for way in ("up", "down"))
    cost = {"seconds": seconds, "up": up, "down": down, "exchanges": exchanges}
    return {
        OURS: {"common": sites.mean_right(common), "own": each["tuned"], **cost},
        ALONE: {"common": None, "own": each["alone"]},
    }


def _exchanges(run: Run) -> int:
    """Return how many contents the first site sent."""
    rows = csv_rows(run.folder.path / "traffic.csv")
    sent = [row for row in rows if (row["site"], row["direction"]) == ("0", "up")]
    return sum(int(row["models"]) for row in sent if row["kind"] not in ("message", "evaluation"))


def commoner(sites: Sites) -> dict[str, Any]:
    """Return what a site has that always answers its commonest label, or the federation's."""
    every = heads.shares_of(sites.pooled[1], sites.classes)
    pairs = list(zip(sites.every, sites.mixes, strict=True))
    said = [(mix if len(site.known[1]) else every).argmax() for site, mix in pairs]
    own = [np.full(len(site.truth), c) for site, c in zip(sites.every, said, strict=True)]
    common = [np.full(len(site.truth), every.argmax()) for site in sites.every]
    return {"common": sites.mean_right(common), "own": sites.mean_right(own)}


# --- the table ------------------------------------------------------------------------------------


def experiment_of(
    data: str, root: Path, case: str, alpha: float, seed: int, more: Settings | None = None
) -> Experiment:
    """Return the experiment of a cell. more: settings besides its own."""
    study = DATA[data]
    given: dict[str, Scalar] = {
        "seed": seed, "data.root": str(root), "split.dirichlet_alpha": alpha,
        "rounds.num_rounds": 1, "method.name": "one_round", "runtime.models": False,
    }  # fmt: skip
    every = {**given, **study.given, **study.cases[case], **(more or {})}
    return load_experiment(study.preset, every)


def cases_of(data: str, labels: str) -> list[str]:
    """Return the cases of these shares of the labels, or all of them if none is named.

    labels: percentages, commas between. Raises ConfigError for one that the data do not have.
    """
    asked = [f"{share} %" for share in several(labels)]
    if unknown := next((case for case in asked if case not in DATA[data].cases), None):
        known = ", ".join(case.removesuffix(" %") for case in DATA[data].cases if "," not in case)
        raise ConfigError(f"--labels {unknown}: must be of {known}: choose some of them")
    return asked or list(DATA[data].cases)


@dataclass(frozen=True)
class Cell:
    """One table's part: data, a share of the labels, a skew; results are kept in `folder`."""

    data: str
    root: Path
    case: str
    alpha: float
    folder: Path

    def measured(self, seeds: Sequence[int], names: Sequence[str]) -> Results:
        """Return all rows' results by seed; what was measured before is read."""
        choices = {name: self._at(DEV, name, partial(self._tuned, name)) for name in names}
        return {seed: self._of(seed, choices) for seed in seeds}

    def _of(self, seed: int, choices: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        def program() -> dict[str, Any]:
            return ours(self._experiment(seed), self._sites(seed))

        found = dict(self._at(seed, OURS, program))
        found.pop("code")
        for name, more in VARIANTS.items():
            found[name] = self._at(seed, name, partial(self._varied, seed, more))
        found[COMMONER] = self._at(seed, COMMONER, lambda: commoner(self._sites(seed)))
        for name, choice in choices.items():
            found[name] = self._at(seed, name, partial(self._tested, name, seed, choice))
        return found

    def _varied(self, seed: int, more: Settings) -> dict[str, Any]:
        return ours(self._experiment(seed, more), self._sites(seed))[OURS]

    def _tested(self, name: str, seed: int, choice: Mapping[str, Any]) -> dict[str, Any]:
        return tested(RIVALS[name], self._sites(seed), choice)

    def _tuned(self, name: str) -> dict[str, Any]:
        rival = RIVALS[name]
        return chosen([measured(rival, self._sites(DEV), tried) for tried in rival.tries])

    def _at(self, seed: int, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        words = (self.data, self.case, f"{self.alpha:g}", str(seed), name)
        file = "-".join("".join(c if c.isalnum() else "_" for c in word) for word in words)
        return kept(self.folder / f"{file}.json", lambda: {**make(), "code": code_hash()[1]})

    def _experiment(self, seed: int, more: Settings | None = None) -> Experiment:
        return experiment_of(self.data, self.root, self.case, self.alpha, seed, more)

    def _sites(self, seed: int) -> Sites:
        return _sites(self, seed)


@lru_cache(maxsize=1)
def _sites(cell: Cell, seed: int) -> Sites:
    return sites_of(cell._experiment(seed))


COLUMNS = {"common": ("one for all", "one_round ahead"), "own": ("own mix", "ahead, own mix")}
"""Of each kind of answer: its mean, and by how much `one_round` is ahead in the same seeds."""


def rows(cell: Cell, found: Results) -> list[Row]:
    """Return a row for each answer: means over seeds with 95 % intervals, paired differences."""
    made: list[Row] = []
    for name in next(iter(found.values())):
        by = {seed: results[name] for seed, results in found.items()}
        row: Cells = {"labels": cell.case, "alpha": cell.alpha, "answer": name}
        for key, (title, ahead) in COLUMNS.items():
            values = {seed: of[key] for seed, of in by.items() if of[key] is not None}
            if (key, name) == ("common", LONE):
                values = {}  # every site has a head of its own
            ours_by = {seed: found[seed][OURS][key] for seed in values}
            found_ahead = None if name == OURS else paired_difference(ours_by, values)
            row[title] = with_interval(list(values.values()))
            row[ahead] = signed(found_ahead)
        each = {key: [of[key] for of in by.values() if key in of] for key in COST}
        for key, values_of in each.items():
            row[COST[key]] = round(float(np.mean(values_of)) / UNIT[key], 1) if values_of else None
        first = next(iter(by.values()))
        row["exchanges"] = RIVALS[name].rounds if name in RIVALS else first.get("exchanges")
        made.append(row)
    return made


def with_interval(values: Sequence[float]) -> str:
    """Return the mean with half of its 95 % t-interval; empty where there are none."""
    found = mean_sd(values)
    if found is None:
        return ""
    return f"{found.value:.1f}" + half(found.sd and found.sd * interval_factor(found.n))


def signed(difference: Difference | None) -> str:
    """Return a difference with its sign and half of its interval."""
    if difference is None:
        return ""
    return f"{difference.value:+.1f}{half(difference.half_width)}"


def half(width: float | None) -> str:
    """Return half the width of an interval, where it is known."""
    return "" if width is None else f" ± {width:.1f}"


def main(
    data: Annotated[Data, typer.Argument(help="what")],
    root: Annotated[Path, typer.Argument(help="folder of images by class, or of files")],
    fedpft: Annotated[Path | None, typer.Option(help="Flower's baselines/fedpft")] = None,
    seeds: Annotated[int, typer.Option(help=f"how many, from {FIRST} on")] = 3,
    labels: Annotated[str, typer.Option(help="shares of the labels, %, commas between")] = "",
    quick: Quick = False,
) -> None:
    """Measure what was not measured before, and save the table."""
    torch.set_num_threads(1)
    if fedpft is not None:
        sys.path.insert(0, str(fedpft))
    names = [name for name in RIVALS if name != FEDPFT or fedpft is not None]
    cases = cases_of(data, "1" if quick else labels)
    experiment = experiment_of(data, root, cases[0], DATA[data].alphas[cases[0]][0], DEV)
    folder = out_root(experiment) / "bench-rivals"
    printed = range(FIRST, FIRST + (1 if quick else seeds))
    table: list[Row] = []
    code: set[str] = set()
    for case, alpha in ((one, alpha) for one in cases for alpha in DATA[data].alphas[one]):
        cell = Cell(data, root, case, alpha, folder)
        with answers_cached_in(folder / "features"):
            found = cell.measured(printed, names)
        code |= {
            result["code"] for of in found.values() for result in of.values() if "code" in result
        }
        table += rows(cell, found)
        print(f"bench.rivals: {data}, {case} of the labels, alpha {alpha:g}: done", flush=True)
    notes = {"seeds": f"{FIRST} to {printed[-1]}", "code of runs": sorted(code)}
    save(f"rivals-{data}", table, notes, quick=quick)


if __name__ == "__main__":
    carry_out(main)
