"""Prior shift of findings: each by itself, by hand; one that was not read teaches nothing."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

import fedapp
from fedapp.learn.class_priors import class_mix, reweighted, site_mix
from fedapp.learn.losses import cross_entropy
from fedapp.methods.closed_form._site import label_counts, samples_of
from fedapp.methods.recommended import _stack
from fedapp.methods.recommended._calibration import Fit
from fedapp.methods.recommended._corrected import corrected_loss
from fedapp.methods.recommended.prior_shift import PriorShift, Taught
from fedapp.models.model import Answer
from tests.methods.closed_form.test_findings import site

SAME = torch.nn.Identity()
FEW = {
    "rounds.num_rounds": 2, "training.local_steps": 5, "training.warmup_epochs": 2,
    "model.width": 2, "method.confidence": 0.6,
}  # fmt: skip


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))


def of_findings(labels, val=((0,),), numbers=(0, 0)):
    """A site with these labels, and a task that says what all sites count."""
    data = SimpleNamespace(
        finds=True, labels=torch.tensor(labels), val_labels=torch.tensor(val), audit=None
    )
    names = ("sure_right", "sure_total")
    return SimpleNamespace(data=data), SimpleNamespace(
        numbers=dict(zip(names, numbers, strict=True))
    )


def test_labels_are_counted_without_and_with_each_and_what_was_not_read_in_neither():
    there, _ = of_findings([[1, -1, 0], [1, -1, -1], [0, -1, 1]])
    assert label_counts(there).tolist() == [[1, 2], [0, 0], [1, 1]]


def test_mixes_of_findings_are_those_of_two_classes_each():
    known = torch.tensor([[3, 1], [0, 0]])
    said = torch.tensor([[0.9, 0.2], [0.6, 0.9], [0.5, 0.8]]).double()
    prior = torch.tensor([[2.0, 0.5], [0.0, 0.0]]).double()
    pairs = [torch.stack([1 - one, one], 1) for one in said.T]
    for mine, rule in (
        (class_mix(known, said), lambda f: class_mix(known[f], pairs[f])),
        (site_mix(known, said, prior), lambda f: site_mix(known[f], pairs[f], prior[f])),
    ):
        assert torch.equal(mine, torch.stack([rule(0), rule(1)]))
    for f, mix in enumerate(class_mix(known, said)):
        torch.testing.assert_close(
            reweighted(said, class_mix(known, said))[:, f], reweighted(pairs[f], mix)[:, 1]
        )


@pytest.mark.parametrize(("answer", "share", "expected"), [
    (0.5, 0.2, 0.2), (0.8, 0.5, 0.8), (0.8, 0.2, 0.5), (0.0, 0.9, 0.0), (1.0, 0.1, 1.0),
])  # fmt: skip
def test_an_answer_times_a_mix_by_hand(answer, share, expected):
    found = reweighted(torch.tensor([[answer]]), torch.tensor([[1 - share, share]]).double())
    assert found.item() == pytest.approx(expected)


def test_the_loss_by_hand():
    """sigmoid(ln 3) = 3/4: one read finding of each part, a pseudo-label of 1/2 worth 0.4."""
    z = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
    shift, worth = torch.tensor([math.log(3), math.log(3)]), torch.tensor([0.7, 0.4])
    targets, pseudo = torch.tensor([[0.0, -1.0]]), torch.tensor([[-1.0, 0.5]])
    found = corrected_loss(SAME, z, targets, pseudo, shift, worth)
    soft = (math.log(4) - math.log(3) + math.log(4)) / 2
    assert found.item() == pytest.approx(math.log(4) + 0.4 * soft)


def test_one_finding_is_two_classes():
    z, known = torch.randn(9, 1, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2
    none, shift, worth = torch.empty(0, 1), torch.tensor([0.3]), torch.zeros(1)
    mine = corrected_loss(SAME, z, known[:, None].float(), none, shift, worth)
    two = torch.cat([torch.zeros_like(z), z + 0.3], 1)
    torch.testing.assert_close(mine, cross_entropy(SAME, two, known))


def test_what_was_not_read_and_what_is_worth_nothing_teach_nothing():
    z = torch.zeros(2, 2, requires_grad=True)
    targets, pseudo = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.9, -1.0]])
    corrected_loss(SAME, z, targets, pseudo, torch.zeros(2), torch.tensor([0.0, 1.0])).backward()
    assert z.grad.ne(0).tolist() == [[True, False], [False, False]]
    nothing = torch.empty(0, 2)
    loss = corrected_loss(SAME, z[:0], nothing, nothing, torch.zeros(2), torch.zeros(2))
    assert loss.item() == 0


def test_sure_answers_and_what_they_are_worth_by_hand():
    """Finding 0: of three sure answers two right. Finding 1: unread. Finding 2: never sure."""
    answers = torch.tensor([[0.9, 0.9, 0.5], [0.1, 0.1, 0.6], [0.95, 0.9, 0.5], [0.5, 0.9, 0.5]])
    there, task = of_findings([[0, 0, 0]], [[1, -1, 0], [1, -1, 1], [1, -1, 1], [1, -1, -1]])
    method = PriorShift(confidence=0.8)
    assert method._sure(answers, there) == ([2, 0, 0], [3, 0, 0])
    assert method._worth(answers, task, there).tolist() == [0, 0, 0]  # 2 of 3 may be luck
    right, _ = of_findings([[0, 0, 0]], [[1, -1, 0], [0, -1, 1], [1, -1, 1], [1, -1, -1]])
    # Wilson's lower end at one deviation, of n right in n: n / (n + 1).
    assert method._worth(answers, task, right).tolist() == pytest.approx([2 * 3 / 4 - 1, 0, 0])
    _, told = of_findings([[0, 0, 0]], numbers=(20, 20))  # all sites': ten more, all right
    wanted = [2 * 13 / 14 - 1, 2 * 10 / 11 - 1, 2 * 10 / 11 - 1]
    assert method._worth(answers, told, right).tolist() == pytest.approx(wanted)


def test_pseudo_labels_count_in_images():
    """Of two findings, worth 1/2 and 1: (1/2 + 1/2 + 1) / 2."""
    soft = torch.tensor([[0.9, -1.0], [0.1, 0.95]])
    taught = Taught(torch.ones(2, 2) / 2, torch.arange(2), soft, torch.tensor([0.5, 1.0]).double())
    assert taught.images == 1.0
    nothing = Taught.nothing(torch.tensor([[1, 0], [0, 0]]))
    assert nothing.images == 0.0 and not len(nothing.kept) and not len(nothing.soft)
    assert nothing.mix.flatten().tolist() == [0.75, 0.25, 0.5, 0.5]  # one image more, spread evenly


def test_the_fit_of_findings_is_that_of_two_classes_each():
    """The gradient by hand: sum of z (y - sigmoid(a z + log odds)) over what was read."""
    z, labels = torch.tensor([[1.0, -2.0], [0.5, 3.0]]).double(), torch.tensor([[1, -1], [0, 1]])
    mix, a = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).double(), torch.tensor([0.7])
    pairs, truth, of = samples_of(z, labels)
    pairs[:, 0] = 0
    fit = Fit.of([pairs], truth, mix[of], a)
    wanted = sum(
        x * (y - 1 / (1 + math.exp(-0.7 * x - odds)))
        for x, y, odds in ((1.0, 1, 0.0), (0.5, 0, 0.0), (3.0, 1, math.log(0.25)))
    )
    assert fit.gradient.item() == pytest.approx(wanted, rel=1e-6)


def test_a_site_fits_by_the_findings_that_its_closed_form_knows(monkeypatch):
    """Finding 0 by one of two features; of finding 1 the closed form has seen nothing.

    Two images were read for finding 0: z is 0.2 times the network's and 0.8 times its logit.
    """
    other, network = (
        torch.tensor([[1.0, 5.0], [-2.0, 5.0], [0.5, 0.0]]),
        torch.tensor([[2.0, 9.0], [1.0, 9.0], [4.0, 9.0]]),
    )
    closed = SimpleNamespace(
        head=lambda task: (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.zeros(2)),
        mix_alone=lambda: torch.full((2, 2), 0.5), features=lambda part: other,
    )  # fmt: skip
    monkeypatch.setattr(_stack, "closed_side_of", lambda features, task, there: closed)
    monkeypatch.setattr(_stack, "_logits", lambda there, images: network[: len(images)])
    there, task = of_findings([[0, 0]], [[1, 1], [0, -1], [-1, 0]])
    there.data.val, there.device, there.load = torch.zeros(3), "cpu", lambda ref: None
    there.contents = lambda ref: {_stack.WEIGHTS: torch.tensor(_stack.START_WEIGHTS)}
    task.models = {_stack.STACK: [None], "server": [None]}
    fit = Fit.from_numbers(_stack.fit_of("hog", task, there)[_stack.NUMBERS])
    positive, negative = 0.2 * 2 + 0.8 * 1, 0.2 * 1 - 0.8 * 2
    assert (fit.images, fit.right) == (2, 2 / 2)  # right in one of two findings each
    wanted = -math.log1p(math.exp(-positive)) - math.log1p(math.exp(negative))
    assert fit.loglik == pytest.approx(wanted, rel=1e-6)


def more(one, count, seed):
    """The site with unlabelled images beside."""
    return fedapp.Site(one.labelled, site(count, seed).labelled[0], one.val, one.test)


@pytest.fixture(scope="module")
def data():
    unread = site(60, 2)
    unread.labelled[1][:, 1] = -1  # a site that has never read one
    return fedapp.Federation([more(site(90, 0), 90, 7), more(site(60, 1), 60, 8), unread])


def test_a_run_finds_what_there_is_and_teaches_with_what_it_is_sure_of(data, monkeypatch):
    taught, honest = [], PriorShift._taught
    monkeypatch.setattr(
        PriorShift, "_taught", lambda *given: taught.append(honest(*given)) or taught[-1]
    )
    run = fedapp.run(data, "recommended", settings=FEW, quiet=True)
    first, second, nobody = run.summary["by_class"]
    for found in (first, second):
        assert found["sensitivity"] > 0.9 and found["specificity"] > 0.9
    assert nobody["images"] == 0 and nobody["sensitivity"] is None
    some = [one for one in taught if len(one.kept)]
    assert some
    for one in some:
        known = one.soft >= 0
        assert known.any(1).all() and ((one.soft >= 0.6) | (one.soft <= 0.4))[known].all()
        assert not known[:, one.worth == 0].any() and 0 < one.images <= len(one.kept)
    for name in range(3):
        kept = json.loads((run.model(name).folder / "model.json").read_text())
        assert kept["results"]["exact"] is True
    model, x = run.model(0), torch.randint(0, 256, (5, 1, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(Answer(model._model)(x), model.probabilities(x), atol=1e-5, rtol=0)


def test_a_mixture_of_three_models_finds_too(data):
    run = fedapp.run(data, "prior_shift", settings=FEW, quiet=True)
    assert set(run.summary["answers"]) == {"common", "tuned", "alone"}
    kept = json.loads((run.model(0).folder / "model.json").read_text())
    assert kept["results"]["exact"] is True and len(kept["model"]["parts"]) == 3


def test_a_finding_that_all_images_show_and_one_that_nobody_reads_break_nothing():
    def spoilt(count, seed):
        one = site(count, seed)
        for _, labels in (one.labelled, one.val, one.test):
            labels[:, 0], labels[:, 1] = 1, -1
        return more(one, count, seed + 10)

    data = fedapp.Federation([spoilt(60, k) for k in range(3)])
    run = fedapp.run(data, "recommended", settings=FEW, quiet=True)
    always, never, _ = run.summary["by_class"]
    assert always["sensitivity"] == 1.0 and always["specificity"] is None
    assert never["read"] == 0 and never["sensitivity"] is None
    said = run.model(0).probabilities(torch.zeros(4, 1, 16, 16, dtype=torch.uint8))
    assert said[:, 0].min() > 0.9 and 0 < said[:, 1].min() and said[:, 1].max() < 1
