"""The regression after the closed form: by hand, against scikit-learn, in runs of one and more."""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedapp.core.errors import ProtocolError
from fedapp.core.formatting import counted
from fedapp.data.inputs import normalise
from fedapp.learn.class_priors import class_mix, site_mix
from fedapp.learn.features import build_features
from fedapp.methods.base import Arrived
from fedapp.methods.closed_form import _server
from fedapp.methods.closed_form._contents import (
    GRADIENT,
    HEAD,
    LOGLIK,
    OWN_WEIGHTS,
    REGRESS,
    SOLUTION,
    VOTE,
    VOTERS,
    Solution,
    check_closed,
)
from fedapp.methods.closed_form._discriminant import Classes, Sums
from fedapp.methods.closed_form._regression import PENALTY, Regression, gradient_of, regressed
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.protocol.messages import SiteFacts
from tests.methods.conformance import Deal, play, site_data, toy

EVEN = torch.full((3,), 1 / 3)
FACTS = SiteFacts(0, (1, 8, 8), ("a", "b", "c"), 6, 4, 5, 4, "0" * 64)
DEALS = (Deal(30, 20, 12, 12), Deal(24, 0, 12, 12), Deal(0, 25, 12, 12), Deal(12, 20, 0, 12))


def drawn(count=60, size=5, classes=3, seed=0):
    """Features of norm 1 at most and labels that depend on them."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, generator=draw).double()
    labels = (x[:, :classes] + torch.randn(count, classes, generator=draw)).argmax(1)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1), labels


def zero_head(size=5, classes=3):
    return torch.zeros(classes, size), torch.zeros(classes)


def loss(head, x, labels, mix):
    logits = x @ head[0].double().T + head[1].double() + mix.double().log()
    return float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))


def test_the_gradient_of_one_image_by_hand():
    """Mix 3 to 1, a head of zeros: the answer is the mix, and the label is the rarer class."""
    x, label = torch.tensor([[0.6, 0.8]]), torch.tensor([1])
    found = gradient_of(x, label, zero_head(2, 2), torch.tensor([0.75, 0.25]))
    wanted = 0.75 * torch.tensor([[0.6, 0.8, 1.0], [-0.6, -0.8, -1.0]]).double()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-7)


def test_it_is_the_gradient_of_the_labels_log_likelihood():
    x, labels = drawn()
    mix = torch.tensor([0.6, 0.3, 0.1])
    weight, bias = (torch.randn(3, 5).double(), torch.randn(3).double())
    for part in (weight, bias):
        part.requires_grad_()
    logits = x @ weight.T + bias + mix.double().log()
    torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    found = gradient_of(x, labels, (weight.detach(), bias.detach()), mix)
    torch.testing.assert_close(found, torch.cat([weight.grad, bias.grad[:, None]], 1))
    assert float(found.sum(0).abs().max()) < 1e-9


def test_without_images_it_is_zero_and_of_two_sites_it_is_the_sum():
    x, labels = drawn()
    head = torch.randn(3, 5), torch.randn(3)
    none = gradient_of(x[:0], labels[:0], head, EVEN)
    assert none.shape == (3, 6) and not bool(none.any())
    parts = [gradient_of(x[k::2], labels[k::2], head, EVEN) for k in (0, 1)]
    torch.testing.assert_close(parts[0] + parts[1], gradient_of(x, labels, head, EVEN))


def test_many_steps_end_at_the_penalised_regression():
    """scikit-learn's from a head of zeros: C = 1 / r, the bias is the weight of a feature of 1."""
    x, labels = drawn()
    found = regressed(zero_head(), x, labels, EVEN, 3000)
    with_one = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    r = PENALTY * float((with_one**2).sum()) / 6
    theirs = LogisticRegression(C=1 / r, fit_intercept=False, tol=1e-10, max_iter=10_000)
    wanted = torch.from_numpy(theirs.fit(with_one.numpy(), labels.numpy()).coef_)
    torch.testing.assert_close(
        torch.cat([found[0], found[1][:, None]], 1).double(), wanted, rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("sharp", [1.0, 30.0])
def test_no_step_makes_the_objective_worse(sharp):
    """From a head that is right and from one that is sure and wrong; mixes differ by site."""
    x, labels = drawn(40)
    start = sharp * torch.randn(3, 5, generator=torch.Generator().manual_seed(3)), torch.zeros(3)
    mixes = [torch.tensor([0.98, 0.01, 0.01]), torch.tensor([0.2, 0.2, 0.6])]
    one = Regression.of(Sums.of(x, labels, 3), start)
    head, last = start, float("inf")
    for _ in range(30):
        parts = [(x[k::2], labels[k::2], mixes[k]) for k in (0, 1)]
        away = torch.cat([head[0] - start[0], (head[1] - start[1])[:, None]], 1)
        now = sum(loss(head, *part) for part in parts)
        now += one.penalty / 2 * float(away.double().square().sum())
        assert now <= last * (1 + 1e-6) + 1e-4
        last = now
        head = one.after(head, sum(gradient_of(p, of, head, mix) for p, of, mix in parts))


def test_a_class_that_nobody_has_stays_as_it_is():
    x, labels = drawn(classes=2)
    start = Classes.of(Sums.of(x, labels, 3)).head(0.1)
    found = regressed(start, x, labels, EVEN, 5)
    assert torch.equal(found[0][2], start[0][2].float())
    assert float(found[1][2]) == float(start[1][2])
    assert loss(found, x, labels, EVEN) < loss(start, x, labels, EVEN)


def test_a_site_alone_takes_as_many_steps():
    x, labels = drawn(20)
    classes = Classes.of(Sums.of(x, labels, 3))
    plain = Solution(classes, *classes.head(0.1), torch.ones(3).double(), 0.1, 2.0)
    some = Solution(classes, *classes.head(0.1), torch.ones(3).double(), 0.1, 2.0, regressed=4.0)
    mix = class_mix(torch.bincount(labels, minlength=3), torch.empty(0, 3))
    wanted = regressed(plain.alone(x, labels), x, labels, mix, 4)
    for found, one in zip(some.alone(x, labels), wanted, strict=True):
        assert torch.equal(found, one)


# --- runs -----------------------------------------------------------------------------------------


def solved(played):
    return Solution.from_params(played.newest(SOLUTION))


def run(tmp_path, steps, deals=DEALS, answer="tuned"):
    method = OneRound(guesses=0, regression_steps=steps, answer=answer)
    return play(toy(method, tmp_path, deals, rounds__num_rounds=1))


@pytest.fixture
def accepted(monkeypatch):
    """Any step is better than none, and each is better than the last."""
    monkeypatch.setattr(_server, "MIN_GAIN", -torch.inf)
    votes = iter(range(100))
    sent = _server.contents_sent

    def rising(rnd, replies, role):
        rise = float(next(votes)) if role == GRADIENT else 0.0
        for site, found in sent(rnd, replies, role):
            yield site, {**found, LOGLIK: found[LOGLIK] * 0 + rise} if role == GRADIENT else found

    monkeypatch.setattr(_server, "contents_sent", rising)


def test_of_one_site_it_is_the_regression_on_its_images(tmp_path, accepted):
    """Times its mix, which is that of the closed form's head and does not change with the steps."""
    played = [run(tmp_path / str(n), n, [Deal(40, 10, 12, 12)], "common") for n in (5, 0)]
    found, before = map(solved, played)
    assert (found.regressed, before.regressed) == (5, 0)
    assert played[0].summary["closed_regressed"] == 5 and len(played[0].of(0, REGRESS)) == 6
    data, build = site_data(played[0].experiment, 0), build_features("hog", (1, 8, 8)).of
    x, others = (
        build(normalise(data.parts[part].inputs, data.mean, data.std))
        for part in ("labelled", "unlabelled")
    )
    answers = torch.softmax(others @ before.weight.T + before.bias, 1)
    mix = site_mix(torch.bincount(data.labels, minlength=10), answers, before.prior)
    wanted = regressed(before.common, x, data.labels, mix, 5)
    for one, other in zip(found.common, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    assert not torch.allclose(found.weight, before.weight, rtol=0.01)
    assert torch.equal(found.classes.means, before.classes.means)


@pytest.mark.parametrize(("votes", "steps", "asked"), [
    ((-9, -8, -7.5, -7.4), 0, 4), ((-9, -8, -6.9, -6.5), 3, 4), ((-9, -7, -7, 0), 1, 3),
    ((-9, -9.1), 0, 2), ((-9, -8, -7), 2, 4),
])  # fmt: skip
def test_it_goes_on_while_labels_become_likelier_and_must_gain_e_squared(
    tmp_path, monkeypatch, capsys, votes, steps, asked
):
    """At most three steps here. asked: in how many exchanges."""
    said, sent = iter([*votes, -99.0]), _server.contents_sent

    def voted(rnd, replies, role):
        if role != GRADIENT:
            yield from sent(rnd, replies, role)
            return
        found = list(sent(rnd, replies, role))
        share = torch.tensor([next(said) / len(found)])
        yield from ((site, {**of, LOGLIK: share}) for site, of in found)

    monkeypatch.setattr(_server, "contents_sent", voted)
    played = run(tmp_path, 3)
    assert solved(played).regressed == played.summary["closed_regressed"] == steps
    assert len({e.task.models[HEAD][0].digest for e in played.of(0, REGRESS)}) == asked
    told = f"taken, {counted(steps, 'steps')}" if steps else "not taken"
    assert f"regression: {told}" in capsys.readouterr().out


def test_it_ends_where_a_sites_votes_are_missing(tmp_path, monkeypatch):
    """Without them the sum of log-likelihoods is larger, which must not pass for a better head."""
    monkeypatch.setattr(_server, "MIN_GAIN", -torch.inf)
    heads = []

    def lost(task, incoming):
        if task.action == REGRESS and task.models[HEAD][0].digest not in heads:
            heads.append(task.models[HEAD][0].digest)
        return None if task.action == REGRESS and task.site == 1 and len(heads) > 1 else incoming

    method = OneRound(guesses=0, regression_steps=3)
    deals = [Deal(30, 20, 12, 12), Deal(24, 9, 12, 12)]
    toyed = toy(method, tmp_path, deals, rounds__num_rounds=1, rounds__min_reply_share=0.0)
    played = play(toyed, lost)
    assert len(heads) == 2 and solved(played).regressed == 0


def test_a_site_votes_on_the_head_that_it_would_use(tmp_path, monkeypatch):
    """At the first head the votes are those of the election that gave own images their weight."""
    most = torch.tensor([-1e6, 0.0] + [-1e6] * 3).double()
    monkeypatch.setattr(_server, "OWN_WEIGHT_LOG_PRIOR", most)
    played = run(tmp_path, 1)
    assert solved(played).own_weight == OWN_WEIGHTS[1]
    elected = [e for e in played.of(0, VOTE) if SOLUTION in e.task.models]
    first = played.of(0, REGRESS)[: len(DEALS)]
    by_weight, found = ([e.upload[LOGLIK] for e in part] for part in (elected, first))
    for votes, one in zip(by_weight, found, strict=True):
        torch.testing.assert_close(votes[1:2], one, rtol=0, atol=1e-4)
    assert any(abs(float(votes[1] - votes[0])) > 1e-2 for votes in by_weight)


def test_own_images_move_the_regressions_head_as_they_move_the_closed_forms(tmp_path):
    x, labels = drawn(30)
    classes = Classes.of(Sums.of(x, labels, 3))
    plain = Solution(classes, *classes.head(0.1), torch.ones(3).double(), 0.1, 1.0)
    away = plain.weight + 1, plain.bias - 1
    other = replace(plain, weight=away[0], bias=away[1], regressed=2.0)
    before, after = (of.head(x[:9], labels[:9], 3.0) for of in (plain, other))
    for part, moved in enumerate((1.0, -1.0)):
        torch.testing.assert_close(
            after[part].double() - before[part],
            torch.full_like(away[part], moved),
            atol=1e-3,
            rtol=0,
        )


def test_masked_sums_end_at_the_same_head(tmp_path, accepted):
    """But for fixed point, and for the sites' mean mix, which is estimated from other sums."""
    found = []
    for sums in ("plain", "masked"):
        method = OneRound(guesses=0, regression_steps=3)
        toyed = toy(method, tmp_path / sums, DEALS, rounds__num_rounds=1, privacy__sums=sums)
        found.append(solved(play(toyed)))
    assert found[0].regressed == found[1].regressed == 3
    scale = float(found[0].weight.abs().max())
    torch.testing.assert_close(found[0].weight, found[1].weight, rtol=0, atol=0.02 * scale)


@pytest.mark.parametrize("change", ["long", "sum", "votes", "voters"])
def test_a_gradient_that_no_images_have_is_refused(tmp_path, change):
    x, labels = drawn(6, size=4)
    found = gradient_of(x, labels, zero_head(4), EVEN).float()
    sent = {GRADIENT: found.flatten(), LOGLIK: torch.tensor([-3.0]), VOTERS: torch.tensor([5.0])}
    check_closed({GRADIENT: Arrived(sent, frozenset(sent))}, FACTS)
    wrong = {
        "long": {GRADIENT: torch.cat([9.0 * torch.ones(5), -9.0 * torch.ones(5), torch.zeros(5)])},
        "sum": {GRADIENT: found.flatten() + 0.01},
        "votes": {LOGLIK: torch.tensor([0.5])},
        "voters": {VOTERS: torch.tensor([6.0])},
    }[change]
    with pytest.raises(
        ProtocolError, match=r"row is longer|add up to zero|log-likelihoods|for validation"
    ):
        check_closed({GRADIENT: Arrived({**sent, **wrong}, frozenset(sent))}, FACTS)


def test_a_site_may_not_send_a_head():
    with pytest.raises(ProtocolError, match="sent a head, which the server alone makes"):
        check_closed(
            {HEAD: Arrived({}, frozenset())}, SiteFacts(0, (1, 8, 8), ("a",), 6, 4, 5, 4, "")
        )
