"""FedMatch: sigma from labels, psi from the rest, helpers by nearest answers."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import TrainSettings
from fedapp.data.sites import Part
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.two_networks.fedmatch.agreement import nearest, probe, unlabelled_loss, vote
from fedapp.methods.two_networks.fedmatch.decomposed import Decomposed, first_psi, summed
from fedapp.methods.two_networks.fedmatch.method import ANSWER, PSI, FedMatch
from fedapp.methods.two_networks.fedmatch.sparse import applied, sparse_bytes
from fedapp.protocol.messages import ModelRef, Reply, SiteFacts, Task
from tests.methods.conformance import (
    PIXELS,
    SMALL,
    Deal,
    assert_close,
    assert_same,
    context,
    data_of,
    mean_by_hand,
    play,
    toy,
)

SERVER = ModelRef(-2, 1, "a" * 64)
TASK = Task(0, 1, "train", ModelRef(0, 1, "b" * 64), {"server": (SERVER,), PSI: (SERVER,)})
NET = MLPSettings(hidden="6", dropout=0.0)
START = initial_params(NET, (1, 8, 8), 3, seed=0)
DEALS = (Deal(9, 12), Deal(20, 3), Deal(5, 6))


def visit(method, task=TASK, data=None, start=START, net=NET, **training):
    """Do a task at a site that has lost nothing; return its report and what it began with."""
    site = context(data or data_of(6, 8), start, settings=net, **training)
    memory = method.memory(site.model, start)
    return method.site_round(task, replace(site, memory=memory)), site


# --- FM1 to FM5 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("training", [
    {}, {"batch_size": 2, "local_epochs": 3, "momentum": 0.9}, {"optimiser": "adam"},
])  # fmt: skip
def test_fm1_without_psi_and_its_losses_it_is_fedavg_on_labels_bit_for_bit(training, repeat):
    """Or FedAvg++, where labelled images stand several times in a pass."""
    method = FedMatch(
        labelled_weight=1.0, helper_weight=0.0, unlabelled_weight=0.0, l1=0.0, l2=0.0,
        psi_factor=0.0, delta_threshold=0.0, labelled_repeat=repeat,
    )  # fmt: skip
    data = data_of(7, 0)
    ours, _ = visit(method, data=data, **training)
    theirs = FedAvg(labelled_repeat=repeat).site_round(
        TASK, context(data, START, settings=NET, **training)
    )
    assert_same(ours.params, theirs.params)
    assert ours.metrics["loss"] == theirs.metrics["loss"] and not ours.contents


def test_fm1_with_unlabelled_images_psi_stays_0_and_sigma_learns_from_labels_alone():
    method = FedMatch(
        labelled_weight=1.0, helper_weight=0.0, unlabelled_weight=0.0, l1=0.0, l2=0.0,
        psi_factor=0.0, delta_threshold=0.0,
    )  # fmt: skip
    ours, _ = visit(method, data=data_of(7, 7))
    assert not any(t.any() for t in ours.contents[PSI].values())
    plain = FedAvg().site_round(TASK, context(data_of(7, 0), START, settings=NET))
    assert_close(ours.params, plain.params)  # one step on all seven, in another order


def test_fm2_the_pull_alone_makes_the_gap_098_times_as_wide_in_a_step():
    """sigma = 1, psi = .2, rate 1e-3, lambda_L2 = 10: .216, .27686, .70866 after 1, 5, 50."""
    model = build_model(NET, (1, 8, 8), 3)
    sigma = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    psi = {name: torch.full_like(t, 0.2) for name, t in sigma.items()}
    both = Decomposed(model, sigma, psi, TrainSettings(learning_rate=1e-3, momentum=0.0))
    found = []
    for _ in range(50):
        both.learn_psi(None, 0.0, 10.0)
        found.append(both.psi["head.weight"][0, 0].item())
    assert [round(found[n - 1], 5) for n in (1, 5, 50)] == [0.216, 0.27686, 0.70866]
    assert all(bool((t == 1).all()) for t in both.sigma.values())
    assert_close(dict(model.named_parameters()), summed(*both.parts()))


def test_fm3_the_vote_and_its_ties():
    def sure_of(*classes):
        return F.one_hot(torch.tensor(classes), 3).float()

    assert vote(sure_of(2), torch.stack([sure_of(1), sure_of(1)])).item() == 1
    assert vote(sure_of(2), torch.stack([sure_of(1), sure_of(0)])).item() == 0
    assert vote(sure_of(2, 0), torch.empty(0, 2, 3)).tolist() == [2, 0]  # nobody but itself


def test_fm4_unlabelled_images_never_move_sigma_nor_labelled_ones_psi():
    method = FedMatch(confidence=0.0, unlabelled_weight=1.0, l2=0.0, delta_threshold=0.0)
    unlabelled, _ = visit(method, data=data_of(0, 8))
    assert unlabelled.params is None and unlabelled.learned
    first = first_psi(START, build_model(NET, (1, 8, 8), 3), 0.2)
    assert not torch.equal(unlabelled.contents[PSI]["head.weight"], first["head.weight"])
    labelled, _ = visit(method, data=data_of(8, 0))
    assert not labelled.contents
    assert not torch.equal(labelled.params["head.weight"], START["head.weight"])


def test_fm4_sigma_stays_bit_for_bit_while_psi_learns():
    """By itself, and at a site whose labels weigh nothing: only there is sigma told."""
    model = build_model(NET, (1, 8, 8), 3)
    both = Decomposed(model, START, first_psi(START, model, 0.2), TrainSettings(learning_rate=0.1))
    sigma, psi = ({n: t.clone() for n, t in part.items()} for part in (both.sigma, both.psi))
    both.learn_psi(F.cross_entropy(model(torch.ones(2, 1, 8, 8)), torch.tensor([0, 1])), 1e-3, 0.1)
    assert_same(both.sigma, sigma)
    assert not any(torch.equal(both.psi[n], psi[n]) for n in psi)
    method = FedMatch(
        labelled_weight=0.0, confidence=0.0, unlabelled_weight=5.0, delta_threshold=0.0
    )
    report, site = visit(method)
    first = first_psi(START, site.model, 0.2)
    assert_same(report.params, START)
    assert not torch.equal(report.contents[PSI]["head.weight"], first["head.weight"])


def test_fm5_in_20_rounds_helpers_are_sent_in_exactly_2(tmp_path):
    played = play(toy(FedMatch(), tmp_path, DEALS, rounds__num_rounds=20))
    of = {e.task.round for e in played.seen if "helpers" in e.task.models}
    assert of == {10, 20}
    for exchange in played.of(10, "train"):
        helpers = exchange.task.models["helpers"]
        assert {ref.role for ref in helpers} == {PSI}
        assert {ref.site for ref in helpers} == {0, 1, 2} - {exchange.task.site}


# --- the parts ------------------------------------------------------------------------------------


def test_a_loss_by_hand_and_its_extremes():
    """One image is sure, of class 0; two helpers say (.5, .5) and (1, 0): the vote is 0."""
    plain = torch.tensor([[2.0, 0.0], [0.1, 0.0]], requires_grad=True)
    strong = torch.tensor([[0.0, 1.0], [5.0, 0.0]], requires_grad=True)
    helpers = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]]])
    p = torch.softmax(plain.detach()[0], 0)
    one = 0.5 * (0.5 / p[0]).log() + 0.5 * (0.5 / p[1]).log()
    two = (1 / p[0]).log()
    cross = -torch.log_softmax(strong.detach()[0], 0)[0]
    loss = unlabelled_loss(plain, strong, helpers, 0.75, 3.0, 2.0)
    torch.testing.assert_close(loss.detach(), 3 * (one + two) / 2 + 2 * cross)
    loss.backward()
    assert strong.grad[0].any() and plain.grad[0].any()  # the KL's, not the vote's
    assert not strong.grad[1].any() and not plain.grad[1].any()
    alone = unlabelled_loss(plain, strong, helpers[:0], 0.75, 3.0, 2.0)
    torch.testing.assert_close(alone.detach(), 2 * cross)
    assert unlabelled_loss(plain, strong, helpers, 1.1, 3.0, 2.0).item() == 0


def test_helpers_that_answer_as_the_network_does_add_nothing():
    plain = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    helpers = torch.softmax(plain, 1)[None].repeat(2, 1, 1)
    with_helpers = unlabelled_loss(plain, plain, helpers, 0.0, 1.0, 1.0)
    without = unlabelled_loss(plain, plain, helpers[:0], 0.0, 1.0, 1.0)
    torch.testing.assert_close(with_helpers, without)


def test_of_small_differences_nothing_is_applied_and_nothing_counted():
    base = {"w": torch.tensor([1.0, 2.0, 3.0]), "mean": torch.tensor([0.0])}
    new = {"w": torch.tensor([1.05, 2.0, 2.0]), "mean": torch.tensor([9.0])}
    found, count = applied(new, base, 0.1, ["w"])
    assert found["w"].tolist() == [1.0, 2.0, 2.0] and count == 1
    assert found["mean"].item() == 9.0  # a statistic goes as it is
    same, every = applied(new, base, 0.0, ["w"])
    assert torch.equal(same["w"], new["w"]) and every == 2
    assert applied(base, base, 0.0, ["w"])[1] == 0


def test_sparse_numbers_take_eight_bytes_and_never_more_than_all_of_them():
    assert [sparse_bytes(n, 100) for n in (0, 1, 50, 51, 100)] == [0, 8, 400, 400, 400]


def test_the_nearest_answers_help():
    answers = {k: torch.tensor(a) for k, a in {
        0: [1.0, 0.0], 1: [0.9, 0.1], 2: [0.0, 1.0], 5: [0.9, 0.1],
    }.items()}  # fmt: skip
    assert nearest(0, answers, 2) == (1, 5)  # as near as each other: the lower number first
    assert nearest(2, answers, 9) == (1, 5, 0) and nearest(2, answers, 0) == ()
    assert nearest(7, answers, 2) == ()  # never seen


def test_the_probe_is_the_same_for_all_and_spreads_over_all_pixels():
    """Of N(125, 125) cut at 0 and 255 the mean is 126 and the deviation 67."""
    pixels = probe((1, 64, 64), 3).double()
    assert torch.equal(probe((1, 64, 64), 3), probe((1, 64, 64), 3))
    assert not torch.equal(probe((1, 64, 64), 3), probe((1, 64, 64), 4))
    assert abs(pixels.mean() - 126) < 5 and abs(pixels.std() - 67) < 3  # 5 deviations
    assert pixels.min() >= 0 and pixels.max() <= 255


def test_psi_begins_as_a_fifth_of_sigma_and_small_entries_of_it_count_as_0():
    net = build_model(PIXELS, (1, 8, 8), 3)
    sigma = initial_params(PIXELS, (1, 8, 8), 3, seed=0)
    psi = first_psi(sigma, net, 0.2)
    assert torch.equal(psi["head.weight"], sigma["head.weight"] * 0.2)
    assert not psi["stem.norm.running_var"].any()  # sigma's alone
    theta = summed(sigma, psi)
    torch.testing.assert_close(theta["head.weight"], 1.2 * sigma["head.weight"])
    assert torch.equal(theta["stem.norm.running_var"], sigma["stem.norm.running_var"])
    assert_same(summed(sigma, psi, below=1e9), sigma)
    assert_same(summed(sigma, psi, below=0.0), theta)


def test_the_learning_rate_falls_after_so_many_visits_without_a_better_one():
    """A loss of 0 can never be bettered."""
    method = FedMatch(patience=2, decay=4.0)
    site = context(data_of(6, 8), START, settings=NET)
    memory = {**method.memory(site.model, START), "best": torch.tensor(0.0)}
    rates = []
    for _ in range(5):
        report = method.site_round(TASK, replace(site, memory=memory))
        memory = report.memory
        rates.append(memory["rate"].item())
    assert rates == [1.0, 0.25, 0.25, 0.0625, 0.0625]
    never, _ = visit(replace(method, patience=0))
    assert never.memory["rate"] == 1 and never.memory["best"] > 1e30
    first, _ = visit(method)
    assert first.memory["since"] == 0 and first.memory["best"] < 10


def test_as_official_the_unlabelled_images_teach_nothing():
    method = FedMatch(confidence=0.0, unlabelled_weight=5.0, l1=0.0, l2=0.0, as_official=True)
    report, site = visit(method)
    first = first_psi(START, site.model, 0.2)
    assert torch.equal(report.contents[PSI]["head.weight"], first["head.weight"])
    taught, _ = visit(replace(method, as_official=False))
    assert not torch.equal(taught.contents[PSI]["head.weight"], first["head.weight"])


def test_the_pull_to_zero_by_hand():
    """lambda_L1 alone: a step of rate * lambda along the sign, none where psi is 0."""
    model = build_model(NET, (1, 8, 8), 3)
    sigma = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    psi = {name: torch.full_like(t, 0.2) for name, t in sigma.items()}
    psi["head.bias"] = torch.tensor([0.2, -0.2, 0.0])
    both = Decomposed(model, sigma, psi, TrainSettings(learning_rate=0.1, momentum=0.0))
    both.learn_psi(None, 0.5, 0.0)
    torch.testing.assert_close(both.psi["head.bias"], torch.tensor([0.15, -0.15, 0.0]))


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_ten_times_the_weight_is_ten_times_the_step(scale):
    """Also where the loss's gradient is longer than any may be: the weight comes after that."""
    moved = []
    for weight in (1.0, 10.0):
        model = build_model(NET, (1, 8, 8), 3)
        zeros = {name: torch.zeros_like(t) for name, t in START.items()}
        both = Decomposed(model, START, zeros, TrainSettings(learning_rate=0.1, momentum=0.0))
        both.learn_sigma(scale * model(torch.ones(2, 1, 8, 8))[:, 0].mean(), weight)
        moved.append(both.sigma["head.weight"] - START["head.weight"])
    torch.testing.assert_close(moved[1], 10 * moved[0], rtol=1e-3, atol=1e-5)


def test_a_site_with_a_lower_learning_rate_learns_by_it():
    """A quarter of the rate that was set is that rate, where nothing has a memory."""
    found = []
    for rate, learning_rate in ((0.25, 0.04), (1.0, 0.01)):
        site = context(data_of(6, 8), START, settings=NET, learning_rate=learning_rate)
        method = FedMatch(delta_threshold=0.0, confidence=0.0)
        memory = method.memory(site.model, START) | {"rate": torch.tensor(rate)}
        found.append(method.site_round(TASK, replace(site, memory=memory)))
    assert_close(found[0].params, found[1].params)
    assert_close(found[0].contents[PSI], found[1].contents[PSI])


def of_role(**contents):
    """A site whose contents go by their role."""
    site = context(data_of(6, 8), START, settings=NET)
    return replace(site, contents=lambda ref: contents.get(ref.role, START))


def test_of_a_helper_too_small_entries_of_psi_count_as_0():
    psi = {n: torch.full_like(t, 0.01) for n, t in START.items()}
    site = of_role(psi=psi)
    task = replace(TASK, models={**TASK.models, "helpers": (ModelRef(1, 1, "c" * 64, PSI),)})
    answers = {}
    for threshold, added in ((0.02, 0.0), (0.005, 0.01)):
        [answers[added]] = FedMatch(l1_threshold=threshold)._asked(task, site, START)
        theta = {n: t + added for n, t in START.items()}
        wanted = context(data_of(0, 8), theta, settings=NET)
        wanted.load(SERVER)
        assert_close({"": answers[added]}, {"": wanted.predicted(site.data.unlabelled)})
    assert not torch.allclose(answers[0.0], answers[0.01])


def test_a_visit_with_helpers_by_hand(monkeypatch):
    """lambda_i mean_j KL(p_j || p) + lambda_a CE(strong view, vote), image by image.

    The strong view is the negative. Four of eight images are sure; helpers outvote some of them.
    """
    negative = {"randaugment": lambda images, *_: 255 - images}
    monkeypatch.setattr("fedapp.methods.two_networks.fedmatch.method.STRONG_VIEWS", negative)
    others = {k: initial_params(NET, (1, 8, 8), 3, seed=k) for k in (1, 2)}
    psi = {k: {n: 3.0 * t for n, t in other.items()} for k, other in others.items()}
    refs = tuple(ModelRef(k, 1, "c" * 64, PSI) for k in psi)
    task = replace(TASK, models={**TASK.models, "helpers": refs})
    site = context(data_of(0, 8), START, settings=NET)
    site = replace(site, contents=lambda ref: psi.get(ref.site, START))
    images = site.data.unlabelled

    def answers(psi, images):
        """Log-probabilities [8, 3] of sigma + psi."""
        model = build_model(NET, (1, 8, 8), 3)
        model.load_state_dict({n: t + psi[n] for n, t in START.items()})
        return torch.log_softmax(model(site.normalise(images)), 1).detach().double()

    first = first_psi(START, site.model, 0.2)
    log_p, strong = answers(first, images), answers(first, 255 - images)
    helpers = [answers(one, images) for one in psi.values()]
    top = log_p.max(1).values.exp()
    least = top.sort().values[3:5].mean().item()
    losses, outvoted = [], 0
    for i in (top >= least).nonzero().flatten().tolist():
        apart = [(h[i].exp() * (h[i] - log_p[i])).sum() for h in helpers]
        named = [int(said[i].argmax()) for said in (log_p, *helpers)]
        most = max(range(3), key=lambda k: (named.count(k), -k))
        outvoted += most != named[0]
        losses.append(2.0 * sum(apart) / 2 + 0.7 * -strong[i, most])
    assert len(losses) == 4 and outvoted
    method = FedMatch(confidence=least, helper_weight=2.0, unlabelled_weight=0.7)
    report = method.site_round(task, replace(site, memory=method.memory(site.model, START)))
    assert report.metrics["loss"] == pytest.approx(float(sum(losses) / 4), rel=1e-4)


def test_an_answer_leaves_out_small_entries_of_psi():
    psi = {n: torch.full_like(t, 0.01) for n, t in START.items()}
    task = replace(TASK, models={**TASK.models, PSI: (ModelRef(-2, 1, "c" * 64, PSI),)})
    for threshold, added in ((0.02, 0.0), (0.005, 0.01)):
        used = FedMatch(l1_threshold=threshold).used(task, of_role(psi=psi))["common"].params
        assert_close(used, {n: t + added for n, t in START.items()})


def test_what_hardly_differs_from_what_a_site_knows_stays_as_it_knows_it():
    method, site = FedMatch(), context(data_of(6, 8), START, settings=NET)
    known = method.memory(site.model, START)
    known = {n: t + 0.01 if n.startswith("sigma.") else t for n, t in known.items()}
    site = replace(site, memory=known)
    for threshold, shift in ((0.02, 0.01), (0.005, 0.0)):
        sigma, psi, down = method._begun(TASK, site, threshold)
        assert_close(sigma, {n: t + shift for n, t in START.items()})
        assert_close(psi, first_psi(START, site.model, 0.2))
        assert (down == 0) == bool(shift)


def test_pseudo_labels_are_of_images_as_they_are_and_taught_by_strong_views():
    seen = []
    site = context(data_of(0, 8), START, settings=NET)
    site.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    method = FedMatch(unlabelled_weight=1.0)
    method.site_round(TASK, replace(site, memory=method.memory(site.model, START)))
    plain, strong = seen[0].chunk(2)
    everything = site.normalise(site.data.unlabelled)
    assert all(any(torch.equal(one, image) for image in everything) for one in plain)
    assert not torch.equal(plain, strong)


# --- a whole run ----------------------------------------------------------------------------------


def test_sigma_and_psi_are_averaged_each_by_itself_all_sites_alike(tmp_path):
    """The second site has no labels, the third no others: each is left out of one average."""
    deals = (Deal(9, 12), Deal(0, 8), Deal(6, 0))
    played = play(toy(FedMatch(), tmp_path, deals, rounds__num_rounds=2))
    one, two, three = played.of(1, "train")
    assert [set(e.reply.contents) for e in (one, two, three)] == [{PSI, ANSWER}] * 2 + [set()]
    assert [e.reply.model != e.task.own.digest for e in (one, two, three)] == [True, False, True]

    def content(exchange, digest):
        return load(exchange.incoming.payloads[digest])

    [sigma_ref], [psi_ref] = (played.of(2, "train")[0].task.models[n] for n in ("server", PSI))
    sent = {digest: blob for e in played.seen for digest, blob in e.down.items()}
    sigma = mean_by_hand([content(e, e.reply.model) for e in (one, three)], [1, 1])
    psi = mean_by_hand([content(e, e.reply.contents[PSI]) for e in (one, two)], [1, 1])
    assert_close(load(sent[sigma_ref.digest]), sigma)
    assert_close(load(sent[psi_ref.digest]), psi)


def test_the_bytes_of_sparse_differences_are_told_beside_the_ledgers(tmp_path):
    """By hand of the warm-up's uploads; never more than what is sent; none of no difference."""
    dense = play(toy(FedMatch(delta_threshold=0.0), tmp_path, DEALS, name="dense"))
    w_0, weights = dense.w_0(), dict(build_model(SMALL, (1, 8, 8), 10).named_parameters())
    numbers = sum(w.numel() for w in weights.values())
    for exchange in dense.of(0, "warmup"):
        [blob] = exchange.incoming.payloads.values()
        changed = sum(int((load(blob)[n] != w_0[n]).sum()) for n in weights)
        said = exchange.reply.metrics
        assert said["bytes_up_sparse"] == min(8 * changed, 4 * numbers)
        assert said["bytes_down_sparse"] == 0  # w_0: the site has it
    none = play(toy(FedMatch(delta_threshold=1e9), tmp_path, DEALS, name="none")).summary
    some = play(toy(FedMatch(delta_threshold=2e-2), tmp_path, DEALS, name="some")).summary
    assert none["bytes_up_sparse"] == none["bytes_down_sparse"] == 0
    for way in ("up", "down"):
        most = dense.summary[f"bytes_{way}_sparse"]
        assert 0 < some[f"bytes_{way}_sparse"] < most < dense.summary[f"bytes_{way}"]


@pytest.mark.parametrize(("changes", "says"), [
    ({"metrics": {"bytes_up_sparse": -1.0}}, "metric bytes_up_sparse = -1; must be a count"),
    ({"metrics": {"bytes_down_sparse": 0.5}}, "must be a count"),
    ({"contents": {PSI: "c" * 64}}, "sent one of psi and answer; they belong together"),
])  # fmt: skip
def test_a_reply_that_cannot_be_is_refused(changes, says):
    facts = SiteFacts(0, (1, 8, 8), ("a", "b"), 1, 1, 1, 1, "0" * 64)
    with pytest.raises(ProtocolError, match=says):
        FedMatch().check_reply(TASK, Reply(0, 1, "d" * 64, **changes), facts)


def test_a_site_with_nothing_to_learn_from_says_nothing():
    report, _ = visit(FedMatch(), data=data_of(0, 0))
    assert report.params is None and not report.learned and not report.contents
    warm_up = replace(TASK, round=0, action="warmup")
    report, _ = visit(FedMatch(), warm_up, data=data_of(0, 9))
    assert not report.learned


@pytest.mark.parametrize(("labelled", "unlabelled"), [(1, 5), (5, 1), (1, 1), (1, 0), (0, 1)])
def test_a_site_with_a_single_image_of_a_kind_learns_with_batch_norm_frozen(labelled, unlabelled):
    """Labelled images go through the network by themselves: one has no variance."""
    start = initial_params(PIXELS, (1, 8, 8), 3, seed=0)
    data = data_of(labelled, unlabelled)
    report, _ = visit(FedMatch(confidence=0.0), data=data, start=start, net=PIXELS)
    assert report.learned and math.isfinite(report.metrics["loss"])
    if labelled == 1:
        assert torch.equal(report.params["stem.norm.running_mean"], start["stem.norm.running_mean"])


def test_the_server_learns_sigma_and_nothing_of_it_is_rounded():
    server = data_of(8, 0).with_parts(val=Part(data_of(0, 0).val[:0], torch.empty(0).long()))
    site = context(replace(server, site=-2), START, settings=NET)
    method = FedMatch(delta_threshold=1e9)
    task = replace(TASK, site=-2)
    report = method.site_round(task, replace(site, memory=method.memory(site.model, START)))
    assert not report.contents
    assert not torch.equal(report.params["head.weight"], START["head.weight"])
