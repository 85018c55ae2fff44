"""Trainings as one batch: the same bits whoever is in the group, and those of the loop nearly."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from fedapp.ground.errors import RunError
from fedapp.ground.settings import TrainSettings
from fedapp.ground.turns import Raised, Turns
from fedapp.learn import together
from fedapp.learn.limits import LONGEST_GRADIENT
from fedapp.learn.losses import cross_entropy
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.objectives import copies, pull
from fedapp.learn.steps import Step
from fedapp.learn.training import descend, freeze_batch_norm
from fedapp.learn.worked import counting

SETTINGS = TrainSettings(learning_rate=0.1, momentum=0.5, weight_decay=0.01)
NETWORKS = {
    "resnet9": ({"width": 2}, (1, 8, 8)),
    "fedsiam_mnist": ({}, (1, 16, 16)),
}


@pytest.fixture(params=NETWORKS)
def networks(request):
    """Of a site with equal weights each; dropout and batch norm as they are."""
    settings, inputs = NETWORKS[request.param]
    torch.manual_seed(0)
    one = build_model(network_settings(request.param, settings), inputs, 3).train()
    one.grouped = True
    return [copy.deepcopy(one) for _ in range(6)]


def steps_of(network, site, lengths, loss=cross_entropy):
    draw = torch.Generator().manual_seed(site)
    for length in lengths:
        x = torch.randn(length, *network.inputs, generator=draw)
        yield Step(loss, (x, torch.randint(3, (length,), generator=draw)))


def trained(networks, sites, lengths, seats, settings=SETTINGS, **given):
    """Train copies of the networks of these sites; return them and their losses, by site."""
    own = {site: copy.deepcopy(networks[site]) for site in sites}

    def work(site):
        torch.default_generator.manual_seed(site)
        penalty = given["penalty"](own[site]) if "penalty" in given else None
        loss = given.get("loss", cross_entropy)
        steps = steps_of(own[site], site, lengths[site], loss)
        return descend(own[site], steps, settings, penalty)

    if not seats:
        losses = [work(site) for site in sites]
    else:
        with Turns(seats) as turns:
            losses = list(turns.carry_out([lambda s=site: work(s) for site in sites]))
    return own, dict(zip(sites, losses, strict=True))


def equal(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


EQUAL = [(4, 4, 4)] * 6
UNEQUAL = [(4, 4, 4), (4, 4), (4, 3, 4), (), (4, 4, 4), (5,)]


def attached(network):
    anchors = copies(network.parameters())
    return lambda weights: pull(weights, anchors, 0.5)


@pytest.mark.parametrize("lengths", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("penalty", [None, attached], ids=["free", "attached"])
def test_a_sites_bits_are_the_same_in_every_group(networks, lengths, penalty):
    given = {} if penalty is None else {"penalty": penalty}
    alone, losses = trained(networks, range(6), lengths, 0, **given)
    for sites, seats in ((range(6), 6), ([5, 3, 1, 0, 2, 4], 6), (range(6), 4), (range(6), 1)):
        found, said = trained(networks, sites, lengths, seats, **given)
        assert all(equal(found[site], alone[site]) for site in sites), (list(sites), seats)
        assert said == losses
    assert (losses[3] is None) == (not lengths[3])


def test_more_sites_than_a_group_holds(networks, monkeypatch):
    alone, losses = trained(networks, range(6), EQUAL, 6)
    monkeypatch.setattr(together, "MEMBERS", 4)
    found, said = trained(networks, range(6), EQUAL, 6)
    assert all(equal(found[site], alone[site]) for site in range(6)) and said == losses


@pytest.mark.parametrize(
    ("sites", "lots"),
    [(1, [1]), (3, [3]), (5, [4, 1]), (13, [8, 4, 1]), (15, [15]), (37, [16, 16, 4, 1])],
)
def test_lots_leave_few_places_empty(sites, lots):
    """By hand: groups have 2, 4, 8 or 16 places; a lone site has two."""
    assert [len(lot) for lot in together.lots_of(list(range(sites)))] == lots


def test_it_is_the_loop_but_for_rounding(networks):
    for network in networks:
        network.dropout.p = 0.0
        if hasattr(network, "channel_dropout"):
            network.channel_dropout.p = 0.0
    found, losses = trained(networks, range(6), UNEQUAL, 6, penalty=attached)
    for network in networks:
        network.grouped = False
    looped, said = trained(networks, range(6), UNEQUAL, 0, penalty=attached)
    for site in range(6):
        for mine, theirs in zip(found[site].parameters(), looped[site].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        assert losses[site] == (said[site] and pytest.approx(said[site], rel=1e-4))


def test_a_long_gradient_is_shortened_at_its_site_alone(networks):
    """A step of rate 0.1 without momentum moves its site by 0.1 times the greatest length."""
    plain = TrainSettings(learning_rate=0.1, momentum=0.0)

    def steep(network, x, y):
        return (1000.0 if len(y.unique()) == 1 else 1.0) * F.cross_entropy(network(x), y)

    def steps(network, site):
        x = torch.randn(4, *network.inputs, generator=torch.Generator().manual_seed(site))
        yield Step(steep, (x, torch.tensor([0, 0, 0, 0] if site == 1 else [0, 1, 2, 0])))

    def moved(sites):
        own = [copy.deepcopy(networks[site]) for site in sites]
        works = [
            lambda n=n, s=s: descend(n, steps(n, s), plain) for n, s in zip(own, sites, strict=True)
        ]
        with Turns(3) as turns:
            list(turns.carry_out(works))
        return own

    [steep_one] = [n for n, site in zip(moved([0, 1, 2]), range(3), strict=True) if site == 1]
    before = list(networks[1].parameters())
    apart = [(p - q).flatten() for p, q in zip(steep_one.parameters(), before, strict=True)]
    assert torch.cat(apart).norm().item() == pytest.approx(0.1 * LONGEST_GRADIENT, rel=1e-4)
    assert equal(moved([0, 2])[1], moved([0, 1, 2])[2])


def test_a_site_whose_numbers_break_is_the_only_one(networks):
    whole, _ = trained(networks, [0, 2], EQUAL, 2)
    with torch.no_grad():
        networks[1].head.weight.fill_(math.nan)
    found, losses = trained(networks, [0, 1, 2], EQUAL, 3)
    assert math.isnan(losses[1]) and equal(found[0], whole[0]) and equal(found[2], whole[2])


def test_a_site_that_fails_is_the_only_one(networks):
    whole, losses = trained(networks, [0, 2], EQUAL, 2)
    own = {site: copy.deepcopy(networks[site]) for site in range(3)}

    def failing(network):
        yield from steps_of(network, 1, (4,))
        raise OSError("its disk is gone")

    def work(site):
        torch.default_generator.manual_seed(site)
        its = failing(own[1]) if site == 1 else steps_of(own[site], site, EQUAL[site])
        try:
            return descend(own[site], its, SETTINGS)
        except OSError as error:
            return str(error)

    with Turns(3) as turns:
        found = list(turns.carry_out([lambda s=site: work(s) for site in range(3)]))
    assert found == [losses[0], "its disk is gone", losses[2]]
    assert equal(own[0], whole[0]) and equal(own[2], whole[2])


@pytest.mark.parametrize("last", [False, True])
def test_a_method_that_changes_its_network_between_steps_is_found_out(networks, last):
    """Also behind its last step; the others go on."""
    whole, losses = trained(networks, [0, 2], EQUAL, 2)
    own = {site: copy.deepcopy(networks[site]) for site in range(3)}

    def meddling(network):
        for number, step in enumerate(steps_of(network, 1, (4, 4))):
            yield step
            if number == last:
                with torch.no_grad():
                    network.head.weight.mul_(0.5)

    def work(site):
        torch.default_generator.manual_seed(site)
        its = meddling(own[1]) if site == 1 else steps_of(own[site], site, EQUAL[site])
        try:
            return descend(own[site], its, SETTINGS)
        except RunError as error:
            return str(error)

    with Turns(3) as turns:
        found = list(turns.carry_out([lambda s=site: work(s) for site in range(3)]))
    assert found == [losses[0], together.CHANGED, losses[2]]
    assert equal(own[0], whole[0]) and equal(own[2], whole[2])


def twice(network, x, y):
    return F.cross_entropy(network(x) + network(-x), y)


def inner(network, x, y):
    return F.cross_entropy(network.classify(network.embed(network.trunk(x))), y)


@pytest.mark.parametrize("loss", [twice, inner])
def test_a_loss_that_asks_more_than_answers_is_the_loops_to_the_bit(networks, loss, caplog):
    together.say_one_by_one.cache_clear()
    found, losses = trained(networks, range(3), EQUAL, 3, loss=loss)
    assert "one by one" in caplog.text
    for network in networks:
        network.grouped = False
    looped, said = trained(networks, range(3), EQUAL, 0, loss=loss)
    assert all(equal(found[site], looped[site]) for site in range(3)) and losses == said


def test_too_little_memory_means_half_as_many(networks, monkeypatch, caplog):
    together.say_one_by_one.cache_clear()
    whole, losses = trained(networks, range(6), EQUAL, 6)
    real = together._step

    def small(group, optimiser, lot):
        if len(lot) > 2:
            raise MemoryError
        return real(group, optimiser, lot)

    monkeypatch.setattr(together, "_step", small)
    found, said = trained(networks, range(6), EQUAL, 6)
    assert all(equal(found[site], whole[site]) for site in range(6)) and said == losses
    assert "half as many" in caplog.text


def test_one_image_leaves_batch_norm_alone():
    settings, inputs = NETWORKS["resnet9"]
    torch.manual_seed(0)
    own = [build_model(network_settings("resnet9", settings), inputs, 3) for _ in range(3)]
    before = [copy.deepcopy(network.state_dict()) for network in own]
    for network in own:
        network.grouped = True

    def steps(network, site):
        network.train()
        freeze_batch_norm(network)
        yield from steps_of(network, site, (1, 1))

    with Turns(3) as turns:
        works = [lambda k=k: descend(own[k], steps(own[k], k), SETTINGS) for k in range(3)]
        assert all(loss is not None for loss in turns.carry_out(works))
    for network, were in zip(own, before, strict=True):
        after = network.state_dict()
        assert torch.equal(after["stem.norm.running_mean"], were["stem.norm.running_mean"])
        assert not torch.equal(after["stem.conv.weight"], were["stem.conv.weight"])


def test_steps_are_counted_at_their_site(networks):
    own = [copy.deepcopy(networks[site]) for site in range(3)]

    def work(site):
        with counting() as done:
            descend(own[site], steps_of(own[site], site, (4,) * (site + 1)), SETTINGS)
        return done.steps

    with Turns(3) as turns:
        assert list(turns.carry_out([lambda s=s: work(s) for s in range(3)])) == [1, 2, 3]


def test_adam_goes_one_by_one(networks):
    settings = TrainSettings(optimiser="adam", learning_rate=0.01)
    found, _ = trained(networks, range(2), EQUAL, 2, settings)
    looped, _ = trained(networks, range(2), EQUAL, 0, settings)
    assert all(equal(found[site], looped[site]) for site in range(2))


def test_an_answer_says_what_was_raised(networks):
    training = together.Training(networks[0], iter(()), SETTINGS, None)
    training.failed = ValueError("odd")
    assert training.answer() == Raised(training.failed)


@pytest.mark.cuda
def test_on_a_gpu_a_group_is_the_loop_but_for_rounding(networks):
    for network in networks:
        network.to("cuda").dropout.p = 0.0
        if hasattr(network, "channel_dropout"):
            network.channel_dropout.p = 0.0

    def outcome(grouped):
        own = [copy.deepcopy(network) for network in networks]
        for network in own:
            network.grouped = grouped

        def work(site):
            steps = (
                Step(step.loss, tuple(part.cuda() for part in step.batch))
                for step in steps_of(own[site], site, (4, 4))
            )
            return descend(own[site], steps, SETTINGS)

        with Turns(6) as turns:
            return own, list(turns.carry_out([lambda s=s: work(s) for s in range(6)]))

    (mine, losses), (theirs, said) = outcome(True), outcome(False)
    assert losses == pytest.approx(said, rel=1e-3)
    for one, other in zip(mine, theirs, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.cuda
def test_on_a_gpu_dropout_draws_for_each_site(networks):
    """The same loss whoever else is there, but for rounding: each has its own masks."""

    def work(network, site):
        torch.cuda.manual_seed(site)
        network.to("cuda")
        steps = (
            Step(step.loss, tuple(part.cuda() for part in step.batch))
            for step in steps_of(network, site, (4,))
        )
        return descend(network, steps, SETTINGS)

    def losses(sites):
        own = {site: copy.deepcopy(networks[site]) for site in sites}
        with Turns(6) as turns:
            works = [lambda s=s: work(own[s], s) for s in sites]
            return dict(zip(sites, turns.carry_out(works), strict=True))

    assert losses([1, 4])[4] == pytest.approx(losses([0, 4, 2, 3])[4], rel=1e-3)
