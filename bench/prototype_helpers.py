"""UM-pFSSL that trains with helpers chosen by prototypes: accuracy against bytes.

`python -m bench.prototype_helpers PRESET [--seeds 3] [--quick] [key=value ...]` runs UM-pFSSL
(relation by mutual information) in three ways. They differ in the rounds that search (t < F), and
there in whom a site lists. All else is the method's own: a listed model's relation, its weight in
the average and the pseudo-labels come of the model itself.

- As it is: a site tries R newcomers' models by their answers.
- By prototypes: it lists the M - 1 most related of all peers, by what their prototypes under the
  common model answer to its images (`bench.labelling`). That is the plain mean of the trained
  sites' newest models. A peer without labelled images has none, so nobody chooses it.
- By chance: it lists M - 1 trained peers, drawn anew in each such round.

A peer that was listed before stays as the version listed. A site that does not train is sent no
models to search by prototypes or by chance.

Bytes: the run's ledger, messages included, of all rounds and the warm-up. By prototypes there is
more in each round that searches: down to each site the common model, once, for its own prototypes
and for its answers, and all peers' prototypes; up from it its own. Messages around these are not
counted. They need one exchange more in such a round; here the program makes all prototypes itself,
from the sites' data.

Written to bench/results/prototype-helpers-PRESET-DATA.json and
docs/pictures/prototype-helpers-DATA.png: mean over sites of the test accuracy, at the round that
validation chose and after the last one; wrong pseudo-labels, the mean over rounds; MB (10^6 bytes)
that a site is sent and sends in the whole run. Mean and standard deviation over seeds; "minus": the
difference to the method as it is, seed by seed. In the JSON alone: the accuracy round by round.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from bench.command import Overrides, Quick, Seeds, carry_out
from bench.labelling import relations, travelling
from bench.measure import spread
from bench.prototypes import TOY, Preset, experiment_of, keep, marked
from bench.record import Cells, Row
from bench.runs import codes, finished, kept_runs, scale
from fedapp.experiment.config import parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.learn.networks import build_model
from fedapp.learn.params import to_bytes, weighted_mean
from fedapp.learn.prototypes import Prototypes, class_means, embedded, log_answers
from fedapp.messages.protocol import Reply, ScoredRef, Task
from fedapp.methods.base import Round
from fedapp.methods.um_pfssl.helperlists import HelperLists
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.results.comparison.figures import WIDTH_MORE, styled
from fedapp.site.federation import federation_of

METHOD = "um_pfssl_mi"
MODELS, PROTOTYPES, CHANCE = "models", "prototypes", "chance"
WAYS = {MODELS: "newcomers' models", PROTOTYPES: "all peers' prototypes", CHANCE: "chance"}
"""What helpers are chosen by, and how it is called."""
NUMBERS = ("chosen by validation, %", "last round, %", "wrong pseudo-labels, %", "MB down", "MB up")

Choice = Mapping[int, Sequence[tuple[int, float]]]
"""By site: peers and their relation in [0, 1], most related first."""


class ByPrototypes:
    """Ranks all peers by their prototypes; counts the bytes that sites would be sent and send."""

    def __init__(self, experiment: Experiment) -> None:
        self._data = federation_of(experiment).dealt
        self._sites = range(experiment.split.num_clients)
        first = self._data.site(0)
        self._network = build_model(experiment.model, first.inputs, first.num_classes)
        self.down = self.up = 0

    def __call__(self, rnd: Round) -> Choice:
        """Return each site's ranking of all peers that have prototypes."""
        trained = rnd.pool.trained()
        models = [rnd.pool.read(rnd.pool.latest(site)) for site in trained]
        common = weighted_mean(((1, model) for model in models), models[0])
        self._network.load_state_dict(common)
        embeddings, prototypes = {}, {}
        for site in self._sites:
            data = self._data.site(site)
            both = torch.cat([data.labelled, data.unlabelled])
            embeddings[site] = embedded(self._network, both, scale(data))
            if site in trained and (labelled := len(data.labels)):
                own = embeddings[site][:labelled]
                prototypes[site] = class_means(own, data.labels, data.num_classes)
        sizes = {site: travelling(of) for site, of in prototypes.items()}
        self.up += sum(sizes.values())
        for site in self._sites:
            self.down += len(to_bytes(common)) + sum(sizes.values()) - sizes.get(site, 0)
        return {site: self._ranked(site, embeddings[site], prototypes) for site in self._sites}

    def _ranked(
        self, site: int, embeddings: torch.Tensor, prototypes: Mapping[int, Prototypes]
    ) -> list[tuple[int, float]]:
        peers = [peer for peer in prototypes if peer != site]
        answers = [log_answers(embeddings, prototypes[peer], "euclidean").exp() for peer in peers]
        found = zip(peers, relations(answers, self._data.site(site)), strict=True)
        return sorted(found, key=lambda one: -one[1])


def by_chance(rnd: Round) -> Choice:
    """Return all trained peers of each site in an order that is drawn."""
    return {
        site: [
            (peer, 0.0)
            for peer in rnd.stream("chance", site).permutation(rnd.pool.trained()).tolist()
            if peer != site
        ]
        for site in rnd.sites
    }


def searching_by(choose: Callable[[Round], Choice], method: UmPfssl) -> UmPfssl:
    """Return the method that in a searching round lists whom `choose` says."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    searching_no_more = UmPfssl(**settings | {"search_rounds": 0})

    class Choosing(UmPfssl):
        """UM-pFSSL that is told its helpers while it searches."""

        def server_round(
            self, state: HelperLists, rnd: Round
        ) -> Generator[Sequence[Task], Sequence[Reply], HelperLists]:
            """List, then go on as UM-pFSSL does when it no longer searches."""
            if 0 < rnd.number < self.search_rounds:
                state = listed(state, rnd, choose(rnd), self.helper_list_size - 1)
            return (yield from searching_no_more.server_round(state, rnd))

    return Choosing(**settings)


def listed(state: HelperLists, rnd: Round, choice: Choice, places: int) -> HelperLists:
    """Return the lists with each site's first peers; those listed stay as their version."""
    lists = dict(state.helpers)
    for site, ranking in choice.items():
        stored = {helper.model.site: helper.model for helper in state.helpers.get(site, ())}
        lists[site] = tuple(
            ScoredRef(stored.get(peer) or rnd.pool.latest(peer), score)
            for peer, score in ranking[:places]
        )
    return HelperLists(lists)


def measured(way: str, experiment: Experiment) -> dict[str, Any]:
    """Run once; return `NUMBERS` and the accuracy round by round, in %."""
    method = experiment.method
    assert isinstance(method, UmPfssl)
    prototypes = ByPrototypes(experiment)
    if way != MODELS:
        method = searching_by(prototypes if way == PROTOTYPES else by_chance, method)
    with finished(replace(experiment, method=method)) as run:
        summary, rounds = run.summary, run.folder.metrics()
    wrong = [e for row in rounds if (e := row["pseudo_label_error"]) is not None]
    accuracy, sites = summary["mean_test_accuracy"], experiment.split.num_clients
    values = (
        100 * accuracy["best_by_validation"],
        100 * accuracy["final"],
        100 * fmean(wrong),
        (summary["bytes_down"] + prototypes.down) / sites / 1e6,
        (summary["bytes_up"] + prototypes.up) / sites / 1e6,
    )
    return {
        "numbers": dict(zip(NUMBERS, values, strict=True)),
        "rounds": [100 * row["mean_test_accuracy"] for row in rounds],
    }


def rows_of(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[Row]:
    """Return a row for each way. found: by way and seed, every way with the same seeds."""
    rows: list[Row] = []
    for way, name in WAYS.items():
        row: Cells = {"helpers chosen by": name}
        for number in NUMBERS:
            values, as_is = (of_seeds(found, one, number) for one in (way, MODELS))
            row[number] = spread(values)
            if way != MODELS and number in NUMBERS[:2]:
                row[f"minus, {number}"] = spread(
                    [mine - other for mine, other in zip(values, as_is, strict=True)]
                )
        rows.append(row)
    return rows


def of_seeds(
    found: Mapping[tuple[str, int], Mapping[str, Any]], way: str, number: str
) -> list[float]:
    """Return one number of a way, seed by seed."""
    return [run["numbers"][number] for (name, _), run in found.items() if name == way]


def by_round(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the accuracy after the warm-up and after each round, the mean over seeds, by way."""
    runs = {way: [run["rounds"] for (name, _), run in found.items() if name == way] for way in WAYS}
    return {
        way: [round(fmean(seeds), 2) for seeds in zip(*each, strict=True)]
        for way, each in runs.items()
    }


@styled
def drawn(found: Mapping[tuple[str, int], Mapping[str, Any]], title: str) -> Figure:
    """Draw accuracy against what a site is sent and sends."""
    figure = Figure(figsize=(WIDTH_MORE / 2, 4))
    axes = figure.subplots()
    for place, (way, name) in enumerate(WAYS.items()):
        down, up = of_seeds(found, way, "MB down"), of_seeds(found, way, "MB up")
        both = [one + other for one, other in zip(down, up, strict=True)]
        marked(axes, place, both, of_seeds(found, way, NUMBERS[0]), name)
    axes.set(title=title, xlabel="MB that a site is sent and sends", ylabel="test accuracy, %")
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", title="helpers chosen by")
    return figure


def main(
    preset: Preset, overrides: Overrides = None, seeds: Seeds = 3, quick: Quick = False
) -> None:
    """Run what has not been run; write down and draw."""
    given = {**(TOY if quick else {}), **parse_overrides(overrides or [])}
    cases = {
        (way, seed): experiment_of(preset, given, METHOD, seed)
        for seed in range(seeds)
        for way in WAYS
    }
    found = kept_runs(
        f"prototype-helpers-{preset}", given, cases, lambda case, one: measured(case[0], one)
    )
    first = cases[MODELS, 0]
    figure = drawn(found, f"{first.data.name}, {first.split.num_clients} sites")
    notes = {"seeds": seeds, "runs by code": codes(found), "mean by round, %": by_round(found)}
    keep("prototype-helpers", preset, first, rows_of(found), figure, notes, quick)


if __name__ == "__main__":
    carry_out(main)
