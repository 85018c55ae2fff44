"""Eq. 1: by hand, degenerate, extremes; and the mini-batch form against the whole one."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedapp.learn.losses import soft_target_loss


def semi_supervised_loss(logits_s, labels, logits_u, targets, mu):
    """Eq. 1 as printed, with means: mu CE(D_s) + (1 - mu) KL(y_hat || f(x))."""
    loss = torch.zeros(())
    if len(labels):
        loss = loss + mu * F.cross_entropy(logits_s, labels)
    if len(targets):
        log_f = F.log_softmax(logits_u, dim=1)
        loss = loss + (1 - mu) * (targets * (targets.clamp_min(1e-30).log() - log_f)).sum(1).mean()
    return loss


def test_by_hand():
    """-ln p for a one-hot target; KL((1/4, 3/4) || (1/2, 1/2)) = ln 2 - H(1/4, 3/4)."""
    logits = torch.tensor([[0.2, 0.8], [0.5, 0.5]]).log()
    targets = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    kl = math.log(2) + 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    loss = soft_target_loss(logits, targets)
    assert loss.item() == pytest.approx((-math.log(0.2) + kl) / 2)


def test_extreme_logits_and_targets_have_finite_gradients():
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    soft_target_loss(logits, torch.tensor([[0.0, 0.0, 1.0]])).backward()
    assert logits.grad.isfinite().all()


def test_mini_batch_form_is_equation_1_with_the_batchs_own_share():
    stream = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 5, generator=stream)
    labels = torch.tensor([4, 0, 2])
    targets = torch.softmax(torch.randn(4, 5, generator=stream), 1)
    whole = semi_supervised_loss(logits[:3], labels, logits[3:], targets, mu=3 / 7)
    joint = torch.cat([F.one_hot(labels, 5).float(), targets])
    torch.testing.assert_close(soft_target_loss(logits, joint), whole)
