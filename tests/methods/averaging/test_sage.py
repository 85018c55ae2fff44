"""SAGE: own pseudo-labels, softly corrected by the received model's."""

import math

import pytest
import torch

from fedapp.learn.objectives import consistency
from fedapp.methods.averaging import sage
from fedapp.methods.averaging.sage import Sage, corrected_loss, corrected_targets
from fedapp.protocol.messages import SiteFacts, Task
from tests.methods.conformance import (
    SERVER,
    START,
    TASK,
    assert_same,
    context,
    data_of,
    state_of,
)


def target(own, received, half_gap=0.05):
    """Soft target and whether it counts, of one image."""
    rows = [torch.tensor([row], dtype=torch.float64) for row in (own, received)]
    [soft], [counts] = corrected_targets(*rows, 0.95, half_gap)
    return soft.tolist(), bool(counts)


@pytest.mark.parametrize(("own", "received", "wanted", "counts"), [
    ((0.96, 0.02, 0.02), (0.02, 0.96, 0.02), (1, 0, 0), True),          # equal confidence: w = 1
    ((0.99, 0.01, 0.00), (0.02, 0.94, 0.04), (0.5, 0.5, 0), True),      # a gap of 0.05: w = 1/2
    ((0.98, 0.02, 0.00), (0.06, 0.88, 0.06), (0.25, 0.75, 0), True),    # of 0.1: 1/4
    ((0.97, 0.03, 0.00), (0.50, 0.30, 0.20), (1, 0, 0), True),          # both say the same
    ((0.90, 0.05, 0.05), (0.01, 0.01, 0.98), (0, 0, 1), True),          # own is unsure
    ((0.90, 0.05, 0.05), (0.04, 0.04, 0.92), (0, 0, 1), False),         # both are unsure
])  # fmt: skip
def test_targets_by_hand(own, received, wanted, counts):
    assert target(own, received) == (pytest.approx(wanted, abs=1e-6), counts)


def test_the_weight_is_half_at_half_gap_whatever_it_is():
    for gap in (0.01, 0.2):
        soft, _ = target((0.99, 0.01, 0.0), (0.0, 0.99 - gap, 0.01 + gap), gap)
        assert soft[0] == pytest.approx(0.5)


def logits_of(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def test_the_loss_by_hand():
    """The first image's target is half and half, the second is unsure, the third the global's."""
    own = logits_of((0.99, 0.005, 0.005), (0.6, 0.2, 0.2), (0.8, 0.1, 0.1))
    received = logits_of((0.03, 0.94, 0.03), (0.2, 0.2, 0.6), (0.01, 0.01, 0.98))
    strong = logits_of((0.2, 0.3, 0.5), (0.1, 0.1, 0.8), (0.3, 0.3, 0.4))
    first = 0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.3)
    by_hand = (first - math.log(0.4)) / 3
    assert corrected_loss(own, received, strong, 0.95, 0.05).item() == pytest.approx(by_hand)


def test_where_own_and_global_labels_agree_and_are_sure_it_is_fixmatch():
    own = logits_of((0.96, 0.03, 0.01), (0.4, 0.3, 0.3))
    strong = logits_of((0.5, 0.3, 0.2), (0.1, 0.8, 0.1))
    found = corrected_loss(own, own, strong, 0.95, 0.05)
    assert found.item() == pytest.approx(consistency(own, strong, 0.95).item())


def test_the_gradient_is_of_the_strong_view_alone():
    own = logits_of((0.99, 0.01)).requires_grad_()
    strong = logits_of((0.6, 0.4)).requires_grad_()
    corrected_loss(own, logits_of((0.06, 0.94)), strong, 0.95, 0.05).backward()
    assert own.grad is None
    torch.testing.assert_close(strong.grad, torch.tensor([[0.1, -0.1]], dtype=torch.float64))


def test_without_images_the_loss_is_zero():
    none = torch.empty(0, 3, requires_grad=True)
    assert corrected_loss(none, none, none, 0.95, 0.05).item() == 0


# --- at a site ------------------------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch):
    """What the method hands to `two_views`, instead of training."""
    found = {}

    def note(work, weak, strong, unlabelled_loss, weight):
        found.update(work=work, unlabelled_loss=unlabelled_loss, weight=weight)
        return iter(())

    monkeypatch.setattr(sage, "two_views", note)
    return found


def test_labelled_images_join_the_unlabelled_ones(given):
    data = data_of(labelled=4, unlabelled=5)
    Sage(unlabelled_weight=0.3).site_round(TASK, context(data, START))
    seen = given["work"].data
    assert torch.equal(seen.unlabelled, torch.cat([data.unlabelled, data.labelled]))
    assert torch.equal(seen.labelled, data.labelled) and given["weight"] == 0.3


def test_the_received_model_stays_as_it_came_while_the_site_learns(given, monkeypatch):
    site = context(data_of(labelled=4, unlabelled=5), START)
    Sage().site_round(TASK, site)
    views = site.normalise(site.data.unlabelled)
    answers = site.model.eval()(views).detach()
    assert_same(state_of(site.model), START)
    with torch.no_grad():
        site.model.head.weight.zero_()
    site.model.train()
    seen = []
    monkeypatch.setattr(
        sage, "corrected_loss", lambda own, received, *rest: seen.append(received) or own.sum()
    )
    own = site.model(views)
    for _ in range(2):
        given["unlabelled_loss"](views, own, own)
    assert all(torch.equal(received, answers) for received in seen) and len(seen) == 2
    assert not seen[0].requires_grad


def test_a_site_counts_all_its_images_once():
    facts = SiteFacts(0, (1, 8, 8), ("a", "b"), 4, 5, 0, 0, "d" * 64)
    assert Sage().weight(facts, Task(0, 1, "train", SERVER)) == 9
