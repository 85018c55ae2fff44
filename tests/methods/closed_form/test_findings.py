"""The closed form of findings: that of two classes, the same for any split, and the extremes."""

from dataclasses import replace

import pytest
import torch

import fedapp
from fedapp.core.errors import ProtocolError
from fedapp.learn.features.hog import Hog
from fedapp.methods.base import Arrived
from fedapp.methods.closed_form._contents import GUESSES, RIDGES, ROUNDED, SUMS, check_closed
from fedapp.methods.closed_form._discriminant import (
    UNSEEN_CLASS_GAP,
    Classes,
    Guesses,
    Sums,
    by_finding,
)
from fedapp.methods.closed_form._findings import _heads, logits, sums_of
from fedapp.protocol.messages import SiteFacts


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))


def drawn(images=40, findings=3, unread=0.3, seed=0):
    stream = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.normalize(torch.randn(images, 5, generator=stream), dim=1)
    y = (x[:, :findings] > 0.1).long()
    y[torch.rand(y.shape, generator=stream) < unread] = -1
    return x, y


def test_sums_by_hand():
    known = torch.tensor([[0.5, 0.0], [0.0, 1.0], [0.25, 0.5]])
    labels = torch.tensor([[1, -1], [0, 1], [1, -1]])
    found = sums_of(known, labels)
    assert found.counts.tolist() == [1, 2, 0, 1]
    assert found.by_class.tolist() == [[0, 1], [0.75, 0.5], [0, 0], [0, 1]]
    assert found.images == 3 and found.total.tolist() == [0.75, 1.5]
    assert found.second.tolist() == [[0.3125, 0.125], [0.125, 1.25]]


def test_one_finding_read_everywhere_is_two_classes():
    x, y = drawn(findings=1, unread=0)
    [mine] = by_finding(sums_of(x, y))
    plain = Sums.of(x, y[:, 0], 2)
    for name in ("counts", "by_class", "total", "second"):
        torch.testing.assert_close(getattr(mine, name), getattr(plain, name))
    weights, biases = Classes.of(plain).heads(RIDGES)
    weight, bias, levels = _heads(Classes.of(mine))
    torch.testing.assert_close(weight, weights[:, 1] - weights[:, 0])
    torch.testing.assert_close(bias, biases[:, 1] - biases[:, 0])
    assert len(levels) == len(RIDGES)


def test_sums_are_added_whatever_the_split():
    x, y = drawn()
    whole = sums_of(x, y)
    parts = sums_of(x[:11], y[:11]) + sums_of(x[11:], y[11:])
    for name in ("counts", "by_class", "total", "second"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_a_finding_that_no_image_shows_or_all_do_has_no_slope():
    weights, biases = torch.randn(2, 4), torch.randn(2)
    gap = UNSEEN_CLASS_GAP
    for counts, expected in (([5, 0], -gap), ([0, 5], gap), ([0, 0], 0.0)):
        weight, bias = logits(torch.tensor(counts), weights, biases)
        assert not weight.any() and bias == expected


@pytest.mark.parametrize("role", [SUMS, ROUNDED])
def test_sums_that_no_images_have_are_refused(role):
    x, y = drawn()
    facts = SiteFacts(0, (5,), ("a", "b", "c"), 40, 7, 0, 0, "0" * 64)
    honest = sums_of(x, y)

    def arrived(sums):
        return {role: Arrived(sums.to_params(role == ROUNDED), frozenset())}

    check_closed(arrived(honest), facts)
    more = honest.counts + torch.tensor([0, 41, 0, 0, 0, 0])
    for lie in (
        replace(honest, counts=more),
        replace(honest, by_class=honest.by_class * 3),
        replace(honest, second=honest.second * 0.2),
        replace(honest, images=41.0),
    ):
        with pytest.raises(ProtocolError, match="sums: "):
            check_closed(arrived(lie), facts)


def test_guesses_that_are_sure_and_right_are_labels():
    x, y = drawn(unread=0)
    both = torch.stack([1 - y, y], 2).flatten(1)
    guessed, labelled = Guesses.of(x, both), sums_of(x, y)
    torch.testing.assert_close(guessed.counts, labelled.counts)
    torch.testing.assert_close(guessed.by_class, labelled.by_class)


@pytest.mark.parametrize("lie", [
    lambda g: replace(g, counts=g.counts + torch.tensor([1, 0, 0, 0, 0, 0])),
    lambda g: replace(g, counts=g.counts.flip(0) - g.counts),
    lambda g: replace(g, by_class=g.by_class * 9),
])  # fmt: skip
def test_guesses_that_no_images_have_are_refused(lie):
    """Of each finding they add up to the images."""
    x = drawn(images=7)[0]
    there = torch.rand(7, 3, generator=torch.Generator().manual_seed(0))
    honest = Guesses.of(x, torch.stack([1 - there, there], 2).flatten(1))
    facts = SiteFacts(0, (5,), ("a", "b", "c"), 40, 7, 0, 0, "0" * 64)
    check_closed({GUESSES: Arrived(honest.to_params(), frozenset())}, facts)
    with pytest.raises(ProtocolError, match="guesses: "):
        check_closed({GUESSES: Arrived(lie(honest).to_params(), frozenset())}, facts)


def site(count, seed, unread=0.3):
    """Images of two squares, each bright or not, and one finding of nobody's."""
    stream = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count, 3), generator=stream)
    y[:, 2] = 0
    x = torch.randint(0, 90, (count, 1, 16, 16), generator=stream, dtype=torch.uint8)
    x[:, 0, 4:12, 1:7] += (100 * y[:, 0, None, None]).to(torch.uint8)
    x[:, 0, 4:12, 9:15] += (100 * y[:, 1, None, None]).to(torch.uint8)
    y[torch.rand(y.shape, generator=stream) < unread] = -1
    a, b = count // 3, count // 2
    return fedapp.Site((x[:a], y[:a]), None, (x[a:b], y[a:b]), (x[b:], y[b:]))


def test_a_run_finds_what_there_is_and_its_model_answers_as_measured():
    data = fedapp.Federation([site(90, 0), site(60, 1), site(60, 2, unread=1.1)])
    run = fedapp.run(data, "one_round", quiet=True)
    first, second, nobody = run.summary["by_class"]
    for found in (first, second):
        assert found["sensitivity"] > 0.9 and found["specificity"] > 0.9
    assert nobody["images"] == 0 and nobody["sensitivity"] is None
    assert nobody["specificity"] == 1.0
    assert run.summary["answers"]["alone"]["sites_without"] == 0
    model = run.model(0)
    said = model.probabilities(torch.zeros(2, 1, 16, 16, dtype=torch.uint8))
    assert said.shape == (2, 3) and said[:, 2].max() < 0.01
    assert model._model.recipe.finds


def test_a_run_whose_sums_and_heads_travel_rounded_finds_the_same(monkeypatch):
    data = fedapp.Federation([site(90, 0), site(60, 1), site(60, 2, unread=1.1)])
    runs = []
    for rounded in (False, True):
        monkeypatch.setattr(Hog, "rounded", rounded)
        hog = {"method.features": "hog"}
        runs.append(fedapp.run(data, "one_round", quiet=True, settings=hog))
    exact, found = runs
    assert found.accuracy == pytest.approx(exact.accuracy, abs=0.01)
    for way in ("bytes_up", "bytes_down"):
        assert found.summary[way] < 0.5 * exact.summary[way]


def test_unlabelled_images_are_guessed_but_for_a_finding_that_nobody_has():
    few = [site(36, 0), site(36, 1), site(36, 2)]
    beside = [site(150, 3 + k).labelled[0] for k in range(3)]
    data = fedapp.Federation(
        [fedapp.Site(a.labelled, x, a.val, a.test) for a, x in zip(few, beside, strict=True)]
    )
    guessed, plain = (
        fedapp.run(data, "one_round", quiet=True, settings={"method.guesses": most})
        for most in (8, 0)
    )
    assert guessed.summary["closed_guessed"] >= 1 and not plain.summary["closed_guessed"]
    assert guessed.accuracy >= plain.accuracy - 0.02
    for run in (guessed, plain):
        said = run.model(0).probabilities(few[0].test[0])
        assert said[:, 2].max() < 0.01
