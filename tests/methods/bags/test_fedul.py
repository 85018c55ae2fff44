"""FedUL and its baselines at a site: where they are supervised learning, and what each step is."""

import csv
import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from flwr.supercore.task_identity import TaskIdentity

from fedapp.core.errors import DataError, RunError
from fedapp.data.sites import Bags, Part
from fedapp.experiment.config import load_experiment
from fedapp.learn.class_priors import reweighted
from fedapp.learn.networks import initial_params
from fedapp.learn.predictors import Predictor
from fedapp.methods import method_class
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedprox import FedProx
from fedapp.methods.bags import fedpl
from fedapp.methods.bags._bagged import steps_by_kind
from fedapp.methods.bags.fedllp import FedLLP
from fedapp.methods.bags.fedpl import FedPL, confident_labels
from fedapp.methods.bags.fedul import FedUL, site_class_mix
from fedapp.methods.incompatibilities import Conditions
from fedapp.protocol.messages import EVALUATE, ModelRef, Reply, SiteFacts, Task
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import loopback, rows
from tests.methods.conformance import (
    PIXELS,
    assert_close,
    assert_same,
    check_method,
    context,
    data_of,
    digits_like,
    trainable,
)

W_T = ModelRef(-2, 1, "a" * 64)
TASK = Task(0, 1, "train", ModelRef(0, 0, "b" * 64), {"server": (W_T,)})
WARM = Task(0, 0, "warmup", ModelRef(0, 0, "b" * 64), {"server": (W_T,)})
MEASURE = Task(0, 1, EVALUATE, ModelRef(0, 0, "b" * 64), {"server": (W_T,)})
START = initial_params(PIXELS, (1, 8, 8), 3, seed=0)
ROWS = torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2]]).double()


def bagged(bag, proportions=ROWS, labelled=0, unlabelled=0):
    """A site whose images are in these bags."""
    part = Part(digits_like(len(bag), 1), Bags(bag, proportions))
    return data_of(labelled, unlabelled).with_parts(bags=part)


def trained(method, data, task=TASK, **training):
    return method.site_round(task, context(data, START, **training))


# --- FedUL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [{}, {"local_epochs": 3, "batch_size": 4, "momentum": 0.9}])
def test_where_bags_are_classes_it_is_fedavg_bit_for_bit(training):
    """FU1: the same images, one with a bag of each class, one with labels."""
    label = torch.arange(12) % 3
    from_bags = trained(FedUL(), bagged(label, torch.eye(3).double()), **training)
    images = Part(digits_like(12, 1), label)
    labelled = trained(FedAvg(), data_of(0).with_parts(labelled=images), **training)
    assert_same(from_bags.params, labelled.params)


def test_a_site_with_labels_alone_learns_from_them_corrected_by_its_mix():
    """At an even mix the correction is a constant, so it is FedAvg."""
    assert_close(
        trained(FedUL(), data_of(6)).params, trained(FedAvg(), data_of(6)).params, atol=1e-5
    )


def test_labels_are_corrected_by_their_own_mix_whatever_is_in_the_bags():
    """Of even labels the correction is a constant, beside bags in which class 0 prevails."""
    rows = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.2, 0.2], [0.6, 0.1, 0.3]]).double()
    site = context(bagged(torch.arange(9) % 3, rows, labelled=6), START)
    site.load(W_T)
    x, y = site.normalise(site.data.labelled), site.data.labels
    assert torch.bincount(y).tolist() == [2, 2, 2]
    plain = F.cross_entropy(site.model(x), y)
    torch.testing.assert_close(FedUL().labelled_loss(site)(site.model, x, y), plain)


def test_a_site_weighs_as_many_images_as_it_learned_from():
    site = SiteFacts(0, (1, 8, 8), ("a", "b"), 3, 9, 1, 1, "0" * 64, bagged=5)
    assert FedUL().weight(site, Reply(0, 1, "f" * 64)) == 8


def test_uneven_labels_are_corrected_by_hand():
    """Of 4, 1 and 1: to each image's logits ln (4 1/3, 1 1/3, 1 1/3) / 7 is added."""
    labels = torch.tensor([0, 0, 1, 0, 2, 0])
    data = data_of(0).with_parts(labelled=Part(digits_like(6, 1), labels))
    site = context(data, START)
    site.load(W_T)
    [step] = FedUL().steps(TASK, site)
    mix = (torch.tensor([4.0, 1.0, 1.0]) + 1 / 3) / 7
    site.model.train()
    weighed = torch.softmax(site.model(site.normalise(data.labelled)), 1) * mix
    given = (weighed / weighed.sum(1, keepdim=True))[torch.arange(6), labels]
    assert step(site.model).item() == pytest.approx(-given.log().mean().item(), rel=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_a_step_from_bags_of_unequal_size_by_hand(double):
    """Q~ = diag(pibar) Pi diag(1 / pi) eta with pibar = (4, 2, 1, 1) / 8 and pi even."""
    data = bagged(torch.tensor([0, 1, 0, 2, 0, 3, 1, 0]))
    site = context(data, START)
    site.load(W_T)
    [step] = FedUL(double_softmax=double).steps(TASK, site)
    part = data.parts["bags"]
    site.model.train()
    eta = torch.softmax(site.model(site.normalise(part.inputs)), 1).double()
    raw = torch.tensor([4, 2, 1, 1]) / 8 * (eta * 3 @ ROWS.T)
    q = raw / raw.sum(1, keepdim=True)
    given = (torch.softmax(q, 1) if double else q)[torch.arange(8), part.supervision.bag]
    assert step(site.model).item() == pytest.approx(-given.log().mean().item(), rel=1e-4)


def test_a_site_with_nothing_sends_nothing():
    assert trained(FedUL(), data_of(0, 4)).params is None


def unlearnable(method, data):
    """What keeps a site's data from teaching, and the remedy."""
    return [(one.reason, one.remedy) for one in method.incompatibilities(Conditions(site=data))]


def test_from_bags_that_do_not_tell_the_classes_apart_it_cannot_learn():
    even = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    [(what, remedy)] = unlearnable(FedUL(), bagged(torch.arange(8) % 4, even))
    assert what.startswith("its 4 bags do not tell 3 classes apart") and "give more" in remedy
    for method in (FedPL(), FedLLP()):  # these ask for no rank
        assert unlearnable(method, bagged(torch.arange(8) % 4, even)) == []


def test_a_bag_without_images_tells_nothing():
    """The first three rows are of full rank; the site has images of two of them."""
    assert unlearnable(FedUL(), bagged(torch.arange(6) % 3)) == []
    [(what, _)] = unlearnable(FedUL(), bagged(torch.arange(6) % 2))
    assert what == "there are 2 bags, but 3 classes in them"


def test_a_site_without_bags_is_no_hindrance():
    assert unlearnable(FedUL(), data_of(6)) == unlearnable(FedUL(), data_of(0, 4)) == []


def test_the_proximal_term_is_fedprox_and_the_l1_term_is_the_sign():
    label = torch.arange(12) % 3
    data = bagged(label, torch.eye(3).double())
    images = data_of(0).with_parts(labelled=Part(digits_like(12, 1), label))
    pulled = trained(FedUL(proximal=0.5), data, local_epochs=2)
    assert_same(pulled.params, trained(FedProx(proximal=0.5), images, local_epochs=2).params)
    plain, sparse = trained(FedUL(), data), trained(FedUL(l1=0.01), data)
    for name, start in START.items():
        if name in trainable(context(data, START).model):
            torch.testing.assert_close(
                plain.params[name] - sparse.params[name],
                0.1 * 0.01 * start.sign(),
                atol=1e-6,
                rtol=0,
            )


def test_local_norms_are_those_of_fedbn():
    model = context(data_of(), START).model
    kept = method_class("fedbn")().kept_private(model)
    assert FedUL(local_norms=True).kept_private(model) == kept and kept
    assert FedUL().kept_private(model) == frozenset()


# --- the personal answer --------------------------------------------------------------------------


def test_a_site_knows_its_mix_from_bags_and_labels():
    """Two bags of 4 images, (.5, .25, .25) and (0, 1, 0), and a label of class 0, and one even."""
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]).double()
    data = bagged(torch.tensor([0] * 4 + [1] * 4), rows, labelled=1)
    wanted = torch.tensor([3, 5, 1]).double() + 1 / 3
    torch.testing.assert_close(site_class_mix(data, torch.empty(0, 3)), wanted / wanted.sum())


def test_the_personal_answer_is_the_common_one_times_the_mix():
    data = bagged(torch.tensor([0] * 7 + [1, 2, 3]))
    site = context(data, START)
    plain = FedUL().site_round(MEASURE, site).evaluations
    found = FedUL(personal=True).site_round(MEASURE, site).evaluations
    assert found["test_common"] == plain["test_common"] == plain["test"]
    site.load(W_T)
    mix = site_class_mix(data, torch.empty(0, 3))
    answers = reweighted(site.predicted(data.test), mix)
    right = int((answers.argmax(1) == data.test_labels).sum())
    assert found["test"].correct == right
    [used] = FedUL(personal=True).used(MEASURE, site).values()
    assert isinstance(used, Predictor)
    torch.testing.assert_close(used.class_mix, mix)


def test_the_personal_answer_follows_a_mix_of_nearly_one_class():
    """A thousand images to one: all answers are that class, whatever the network says."""
    for c in range(3):
        row = torch.full((1, 3), 5e-7, dtype=torch.float64)
        row[0, c] = 1 - 1e-6
        bags = torch.zeros(1000, dtype=torch.int64)
        part = Part(digits_like(1, 1).expand(1000, -1, -1, -1), Bags(bags, row))
        site = context(data_of().with_parts(bags=part), START)
        found = FedUL(personal=True).site_round(MEASURE, site).evaluations["test"]
        plain = FedUL().site_round(MEASURE, site).evaluations["test"]
        answered = torch.tensor(found.confusion).sum(0)
        assert answered[c] == answered.sum() > 0, c
        assert plain == FedUL(personal=True).site_round(MEASURE, site).evaluations["test_common"]


# --- FedLLP ---------------------------------------------------------------------------------------


def test_a_step_is_one_bag():
    """Two bags of three images: two steps a pass, each the entropy's distance, by hand."""
    data = bagged(torch.tensor([0, 1, 0, 1, 0, 1]), ROWS[:2])
    site = context(data, START)
    site.load(W_T)
    losses = [step(site.model).item() for step in FedLLP().steps(TASK, site)]
    assert len(losses) == 2
    site.load(W_T)
    site.model.train()
    by_hand = []
    for number in (0, 1):
        images = site.normalise(data.parts["bags"].inputs[number::2])
        mean = torch.softmax(site.model(images), 1).mean(0)
        by_hand.append(-(ROWS[number] * mean.double().log()).sum().item())
    assert sorted(losses) == pytest.approx(sorted(by_hand), rel=1e-4)


def test_a_bag_of_one_image_and_an_empty_bag_are_passed_over():
    data = bagged(torch.tensor([0, 0, 0, 2]))
    assert len(list(FedLLP().steps(TASK, context(data, START)))) == 1


def test_the_consistency_term_leaves_the_statistics_alone():
    """The running statistics after a step are those of FedLLP; the weights are not."""
    data = bagged(torch.arange(12) % 4)
    plain = trained(FedLLP(), data, batch_size=64).params
    vat = trained(FedLLP(vat=5.0, radius=1.0), data, batch_size=64).params
    names = [n for n in START if n.endswith("num_batches_tracked")]
    assert names and all(torch.equal(plain[n], vat[n]) for n in names)
    assert any(not torch.equal(plain[n], vat[n]) for n in START)


def test_the_consistency_term_is_added():
    """Not taken away: an answer that changes with the image is a loss."""
    data = bagged(torch.zeros(6, dtype=torch.int64), ROWS[:1])
    found = {}
    for weight in (0.0, 0.5, 1.0):
        site = context(data, START)
        site.load(W_T)
        [step] = FedLLP(vat=weight, radius=3.0).steps(TASK, site)
        found[weight] = step(site.model).item()
    assert found[1.0] - found[0.0] > 1e-3
    assert found[1.0] - found[0.5] == pytest.approx(found[0.5] - found[0.0], rel=1e-3)


def test_the_worst_change_is_sought_from_a_direction_drawn_anew_by_seed_and_task(monkeypatch):
    """A normal draw prefers no direction: of 1,024 numbers 512 +- 80 are above 0, five sigma."""
    begun = []

    def noted(model, inputs, radius, start):
        begun.append(start)
        return torch.zeros(())

    monkeypatch.setattr("fedapp.methods.bags.fedllp.adversarial_loss", noted)
    data = bagged(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]), ROWS[:2])
    for task in (TASK, TASK, replace(TASK, round=2)):
        trained(FedLLP(vat=1.0), data, task)
    assert [start.shape for start in begun] == [(8, 1, 8, 8)] * 6
    assert all(torch.equal(begun[i], begun[i + 2]) for i in (0, 1))
    assert len({start.sum().item() for start in begun}) == 4
    first = torch.stack(begun[:2])
    assert abs(int((first > 0).sum()) - 512) < 80
    assert first.flatten(2).std(1).min() > 0  # each image has its own


def test_a_step_of_whole_bags_is_planned_for():
    data = bagged(torch.tensor([0] * 9 + [1] * 3))
    assert FedLLP().images_per_step(4, data) == 9
    assert FedLLP(vat=1.0).images_per_step(4, data) == 27
    assert FedLLP().images_per_step(16, data) == 16 and FedLLP().images_per_step(4, data_of()) == 4


def test_labels_beside_bags_are_learned_as_they_are():
    """Its answers have the site's mix, by bags and by labels."""
    images = data_of(6)
    assert_same(trained(FedLLP(), images).params, trained(FedAvg(), images).params)


# --- FedPL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [
    ROWS[:3],
    [[0.98, 0.01, 0.01], [0.9, 0.1, 0.0], [0.9, 0.0, 0.1]],  # nearly all are of class 0
])  # fmt: skip
def test_in_the_warm_up_the_class_that_prevails_in_a_bag_is_the_label(rows):
    """As supervised learning from those labels."""
    bag = torch.arange(12) % 3
    found = trained(FedPL(), bagged(bag, torch.as_tensor(rows).double()), WARM, warmup_epochs=1)
    images = data_of(0).with_parts(labelled=Part(digits_like(12, 1), bag))
    wanted = trained(FedAvg(), images, WARM, warmup_epochs=1)
    assert_same(found.params, wanted.params)


def test_afterwards_sure_and_unsure_images_are_mixed():
    """With the images themselves as logits: labels, pairs and loss by hand."""
    x = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 9.0]])
    given = torch.nn.Identity(), x, torch.tensor([True, False, True]), torch.tensor([0, 1, 2]), 0.25
    label = given[3]
    found = FedPL()._mixed(*given)
    blended = 0.25 * x[:1] + 0.75 * x[1:2]
    wanted = F.cross_entropy(x[[0, 2]], label[[0, 2]])
    wanted += 0.3 * 0.25 * F.cross_entropy(blended, torch.tensor([0]))
    wanted += 0.3 * 0.75 * F.cross_entropy(blended, torch.tensor([1]))
    assert found.item() == pytest.approx(wanted.item())
    # The network is the identity: mixing images is mixing answers.
    assert FedPL(mix_logits=True)._mixed(*given).item() == pytest.approx(wanted.item())


def test_shares_of_a_mixture_are_drawn_anew_for_each_mini_batch_by_seed_and_task(monkeypatch):
    """Beta(b, b): their mean is 0.5; 40 draws, 5 sigma of the widest case are 0.4."""
    monkeypatch.setattr(
        fedpl,
        "confident_labels",
        lambda site, x: (torch.arange(len(x)) % 2 == 0, torch.zeros(len(x))),
    )
    seen = []
    monkeypatch.setattr(FedPL, "_mixed", lambda self, network, x, sure, label, share: seen.append(
        share) or next(network.parameters()).sum())  # fmt: skip

    def shares(task):
        seen.clear()
        trained(FedPL(), bagged(torch.arange(16) % 4), task, local_epochs=10, batch_size=4)
        return list(seen)

    first = shares(TASK)
    assert len(set(first)) == len(first) == 40 and abs(sum(first) / 40 - 0.5) < 0.4
    assert shares(TASK) == first and shares(replace(TASK, round=2)) != first


def test_labels_are_given_as_the_network_answers_in_use():
    """Dropout and batch statistics are off while it labels, and on again afterwards."""
    site = context(data_of(), START)
    x = site.normalise(digits_like(6, 1))
    site.model.train()
    before = site.params()
    sure, label = confident_labels(site, x)
    assert site.model.training
    site.model.eval()
    answers = torch.softmax(site.model(x), 1)
    assert torch.equal(label, answers.argmax(1)) and torch.equal(sure, answers.max(1).values >= 0.4)
    assert_same(site.params(), before)


def test_the_sure_ones_have_a_probability_of_40_percent_and_the_most_probable_label():
    """The images are the logits."""
    p = torch.tensor([[0.2, 0.41, 0.39], [0.39, 0.31, 0.3], [0.05, 0.05, 0.9], [0.3, 0.31, 0.39]])
    site = context(data_of(), START)
    object.__setattr__(site, "model", torch.nn.Identity())
    sure, label = confident_labels(site, p.log())
    assert sure.tolist() == [True, False, True, False] and label.tolist() == [1, 0, 2, 2]


def test_one_image_of_a_kind_is_not_enough(monkeypatch):
    """Batch norm has no mean over one: the mini-batch is passed over, two of each are learned."""
    for count, learned in ((1, False), (2, True), (6, True), (7, False)):
        sure = torch.arange(8) < count
        found = (sure, torch.zeros(8, dtype=torch.int64))
        monkeypatch.setattr("fedapp.methods.bags.fedpl.confident_labels", lambda *_, f=found: f)
        report = trained(FedPL(), bagged(torch.arange(8) % 4), batch_size=8)
        assert (report.params is not None) == learned


# --- labels and bags at one site ------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedUL(), FedLLP(), FedPL()])
@pytest.mark.parametrize("labelled", [0, 6])
def test_labels_and_bags_share_the_steps_of_a_task(method, labelled):
    data = bagged(torch.arange(12) % 4, labelled=labelled)
    site = context(data, START, local_steps=7, warmup_epochs=1, warmup_rounds=1)
    assert len(list(method.steps(WARM, site))) == 7


def test_they_share_them_by_their_numbers_of_images():
    """Few images of a kind have one step of several; without a number both have their passes."""
    assert steps_by_kind(9, 6, 12) == (3, 6) and steps_by_kind(7, 6, 12) == (2, 5)
    assert steps_by_kind(25, 6, 600) == (1, 24) and steps_by_kind(25, 600, 6) == (24, 1)
    assert steps_by_kind(7, 0, 12) == (0, 7) and steps_by_kind(7, 6, 0) == (7, 0)
    assert steps_by_kind(1, 6, 12) == (0, 1) and steps_by_kind(0, 6, 12) == (0, 0)
    assert steps_by_kind(None, 6, 12) == (None, None)


def test_of_each_kind_as_many_steps_as_its_share():
    """Three of labels, that look at six images, then six of bags."""
    seen = []
    site = context(bagged(torch.arange(12) % 4, labelled=6), START, local_steps=9)
    site.load(W_T)
    site.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    for step in FedUL().steps(TASK, site):
        step(site.model)
    assert seen == [6] * 3 + [12] * 6


# --- in a federation ------------------------------------------------------------------------------

OVER = {
    "split.num_clients": 3,
    "split.bags": 12,
    "model.width": 4,
    "model.dropout": 0.0,
    "training.warmup_epochs": 2,
    "training.warmup_rounds": 1,
    "training.local_epochs": 2,
    "training.batch_size": 16,
    "training.learning_rate": 0.003,
    "training.optimiser": "adam",
    "rounds.num_rounds": 3,
    "rounds.sample_rate": 1.0,
    "runtime.device": "cpu",
}
"""Over digits_demo."""


def federation(name, out, run="run", **over):
    fixed = {"method.name": name, "runtime.out": str(out), "runtime.run_name": run}
    return load_experiment("digits_demo", {**OVER, **fixed, **over})


@pytest.fixture
def one_process(monkeypatch):
    """Be the process of a Flower run."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


TOO_FEW = [
    {"split.deal": deal, "split.bag_mix": mix, "split.bags": 4}
    for deal in ("iid", "majority", "dirichlet") for mix in ("dominant", "dirichlet", "official")
]  # fmt: skip


@pytest.mark.parametrize("split", TOO_FEW)
def test_too_few_bags_are_refused_before_the_first_round(tmp_path, split):
    """Ten classes in four bags."""
    with pytest.raises(DataError) as caught:
        loopback(federation("fedul", tmp_path, **split))
    assert str(caught.value) == (
        "split.bags = 4: site 0: there are 4 bags, but 10 classes in them: make at least as many "
        "bags as classes, with different proportions"
    )
    assert not (tmp_path / "run").exists()


def test_told_proportions_that_are_all_wrong_are_refused_too(tmp_path, monkeypatch):
    """Bags enough, of which the sites are told the same."""
    monkeypatch.setattr(
        "fedapp.data.simulated_sites.with_noise", lambda told, *_: torch.full_like(told, 0.1)
    )
    alike = {"split.deal": "majority", "split.prior_noise": 0.2}
    with pytest.raises(DataError, match=r"split\.bags = 12: site 0: its 12 bags do not tell 10"):
        loopback(federation("fedul", tmp_path, **alike))


def on_flower(tmp_path, bags):
    """Run one round over nodes in memory, dealt as FedUL's IID sites."""
    experiment = federation("fedul", tmp_path, **{
        "split.bags": bags, "split.deal": "iid", "split.bag_mix": "dominant",
        "rounds.num_rounds": 1, "data.subset": 300,
    })  # fmt: skip
    serve(experiment, MemoryGrid(sites({"preset": preset(experiment, tmp_path)}, 3)))


def test_under_flower_too_few_bags_are_refused_too(tmp_path, one_process):
    with pytest.raises(RunError, match=r"none of 3 nodes can take part: split\.bags = 4: site 0: "):
        on_flower(tmp_path, 4)


def test_under_flower_each_site_tells_its_own_log_what_bags_it_has(
    tmp_path, one_process, monkeypatch, caplog
):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level("INFO", "flwr")
    on_flower(tmp_path, 12)
    said = [record.message for record in caplog.records if "bags: " in record.message]
    assert len(said) == 3 and all(
        line.startswith(f"site {k}: bags: 12; condition number of their class proportions ")
        for k, line in enumerate(said)
    )


def test_it_learns_from_bags_alone(tmp_path):
    """Ten classes, chance 10 %: what labels would teach, without one."""
    last = rows(loopback(federation("fedul", tmp_path, **{"rounds.num_rounds": 6})))[-1]
    assert last["mean_test_accuracy"] > 0.5


@pytest.mark.parametrize("name", ["fedul", "fedpl", "fedllp"])
def test_what_every_method_bears(tmp_path, name):
    short = {"data.subset": 300, "training.local_epochs": 1, "rounds.num_rounds": 2}
    check_method(lambda run: federation(name, tmp_path, run, **short))


def test_repeated_images_and_wrong_proportions_make_a_run(tmp_path):
    """As the authors' code deals and loses: it runs. How well: docs/research/bags.md."""
    official = {"split.bag_mix": "official", "split.deal": "iid", "split.prior_noise": 0.2}
    wanted = federation("fedul", tmp_path, **official, **{"method.double_softmax": True})
    last = rows(loopback(wanted))[-1]
    assert last["skipped"] == {} and last["mean_test_accuracy"] > 0.15  # chance 0.1


def test_sites_with_labels_bags_and_nothing_learn_together(tmp_path):
    known = {"split.knows": "labels, bags, nothing", "split.deal": "iid"}
    folder = loopback(federation("fedul", tmp_path, **known))
    with (folder / "per_site.csv").open() as file:
        labelled = {int(row["site"]): int(row["labelled"]) for row in csv.DictReader(file)}
    assert [labelled[k] > 0 for k in range(3)] == [True, False, False]
    assert rows(folder)[-1]["trained"] == 2  # the third has nothing to learn from
    assert rows(folder)[-1]["mean_test_accuracy"] > 0.4
