"""UM-pFSSL with helpers chosen by prototypes or by chance: who is listed, bytes, the table."""

from dataclasses import dataclass

import pytest

from bench.labelling import travelling
from bench.prototype_helpers import (
    MODELS,
    NUMBERS,
    WAYS,
    ByPrototypes,
    by_chance,
    by_round,
    drawn,
    listed,
    rows_of,
    searching_by,
)
from fedapp.learn.networks import build_model
from fedapp.learn.params import to_bytes
from fedapp.learn.prototypes import class_means, embedded
from fedapp.messages.protocol import ModelRef, ScoredRef
from fedapp.methods.base import Round
from fedapp.methods.um_pfssl.helperlists import HelperLists
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.site.federation import federation_of
from tests.small import SMALL

SITES = (0, 1, 2, 3, 4)


@dataclass
class Pool:
    """All sites at version 2 but site 4, which was never trained; all have one model."""

    model: object = None

    def latest(self, site):
        return ModelRef(site, 0 if site == 4 else 2, "a" * 64)

    def trained(self):
        return SITES[:-1]

    def read(self, ref):
        return self.model


def a_round(number=1, pool=None, cohort=(0,)):
    return Round(number, 3, SITES, frozenset(cohort), pool or Pool())


def helper(site, version, score=0.0):
    return ScoredRef(ModelRef(site, version, "a" * 64), score)


def test_who_is_chosen_is_listed_and_a_version_that_is_listed_stays():
    state = HelperLists({0: (helper(3, 1, 0.9), helper(2, 1, 0.8)), 1: (helper(0, 1),)})
    after = listed(state, a_round(), {0: [(1, 0.7), (3, 0.6), (2, 0.5)]}, 2)
    assert after.helpers[0] == (helper(1, 2, 0.7), helper(3, 1, 0.6))
    assert after.helpers[1] == state.helpers[1]


def test_chance_draws_trained_peers_anew_in_each_round_by_the_seed():
    choice = by_chance(a_round())
    for site, ranking in choice.items():
        assert sorted(peer for peer, _ in ranking) == sorted({0, 1, 2, 3} - {site})
    assert by_chance(a_round()) == choice
    assert by_chance(a_round(2)) != choice


def test_it_chooses_while_it_searches_and_is_um_pfssl_in_all_else():
    """Each site's newcomers are none; from round F on, and with F = 0, both do the same."""
    method = UmPfssl(helper_list_size=3, num_replaced=1, search_rounds=3)
    asked = []

    def first_two(rnd):
        asked.append(rnd.number)
        return {0: [(1, 0.9), (2, 0.8), (3, 0.7)]}

    choosing = searching_by(first_two, method)
    state = HelperLists({0: (helper(3, 1),)})
    (task,) = next(choosing.server_round(state, a_round(2)))
    assert [ref.site for ref in task.models["helpers"]] == [1, 2]
    assert not task.models["newcomers"]
    for number in (0, 3):
        plain = next(method.server_round(state, a_round(number)))
        assert next(choosing.server_round(state, a_round(number))) == plain
    assert asked == [2]


def test_bytes_and_ranking_by_prototypes():
    """A site is sent the common model and the others' prototypes, and sends its own."""
    dealt = federation_of(SMALL).dealt
    first = dealt.site(0)
    network = build_model(SMALL.model, first.inputs, first.num_classes)
    model = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with_labels = [site for site in SITES[:-1] if len(dealt.site(site).labels)]
    embeddings = embedded(network, first.labelled, lambda images: images.float())
    size = travelling(class_means(embeddings, first.labels, first.num_classes))

    prototypes = ByPrototypes(SMALL)
    choice = prototypes(a_round(pool=Pool(model)))
    assert prototypes.up == size * len(with_labels)
    assert prototypes.down == 5 * len(to_bytes(model)) + size * len(with_labels) * 4
    for site, ranking in choice.items():
        assert sorted(peer for peer, _ in ranking) == [k for k in with_labels if k != site]
        scores = [score for _, score in ranking]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)


def found(**by_validation):
    """Two seeds; the other numbers are 1, 2, 3, 4."""
    return {
        (way, seed): {"numbers": dict(zip(NUMBERS, (value, 1.0, 2.0, 3.0, 4.0), strict=True))}
        for way, values in by_validation.items()
        for seed, value in enumerate(values)
    }


RESULTS = found(models=(50.0, 60.0), prototypes=(52.0, 60.0), chance=(40.0, 50.0))


def test_the_table_by_hand():
    models, prototypes, chance = rows_of(RESULTS)
    assert models["helpers chosen by"] == WAYS[MODELS]
    assert models[NUMBERS[0]] == "55.0 ± 7.1"
    assert f"minus, {NUMBERS[0]}" not in models
    assert prototypes[f"minus, {NUMBERS[0]}"] == "1.0 ± 1.4"
    assert chance[f"minus, {NUMBERS[0]}"] == "-10.0 ± 0.0"
    assert chance["MB up"] == "4.0 ± 0.0"


def test_rounds_are_meant_over_seeds():
    runs = {(way, seed): {"rounds": [10.0, 20.0 + seed]} for way in WAYS for seed in (0, 1)}
    assert by_round(runs) == {way: [10.0, 20.5] for way in WAYS}


def test_the_figure_has_a_mark_a_way_at_all_its_bytes():
    (axes,) = drawn(RESULTS, "made up").axes
    assert axes.get_legend_handles_labels()[1] == list(WAYS.values())
    assert axes.lines[0].get_xydata().tolist() == [[pytest.approx(7.0), 55.0]]
