"""Findings: the loss and the counts by hand, one finding as two classes, the extremes."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs
from torch import nn

from fedapp.evaluation.findings import (
    finding_matrices,
    flatten_findings,
    metric_over_findings,
    one_vs_rest_by_finding,
    two_class_names,
)
from fedapp.evaluation.verdict import verdict
from fedapp.learn.losses import cross_entropy, finding_loss
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import build_model
from fedapp.learn.networks.mlp import MLPSettings

SAME = nn.Identity()  # the inputs are the logits


def drawn(seed, images=120, findings=3, unread=0.3):
    """Return probabilities and labels [n, F] of which some are not read."""
    stream = np.random.default_rng(seed)
    labels = (stream.random((images, findings)) < 0.4).astype(np.int64)
    scores = np.round(0.5 * stream.random(labels.shape) + 0.4 * labels, 2)  # ties
    labels[stream.random(labels.shape) < unread] = -1
    return scores, labels


def test_the_loss_by_hand():
    # sigmoid(0) = 1/2; sigmoid(ln 3) = 3/4; the third is not read.
    logits = torch.tensor([[0.0, math.log(3), 50.0]])
    loss = finding_loss(SAME, logits, torch.tensor([[1, 0, -1]]))
    assert loss.item() == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_what_was_not_read_teaches_nothing_and_breaks_nothing():
    logits = torch.tensor([[0.3, -2.0], [1.0, 4.0]], requires_grad=True)
    finding_loss(SAME, logits, torch.tensor([[-1, 0], [-1, -1]])).backward()
    assert logits.grad.ne(0).tolist() == [[False, True], [False, False]]
    loss = finding_loss(SAME, logits, torch.full((2, 2), -1))
    assert loss.item() == 0.0
    loss.backward()
    assert logits.grad.isfinite().all()


def test_one_finding_is_two_classes():
    """BCE(z) is the cross entropy of (0, z); so are probabilities and counts."""
    z = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(40) % 3 == 0).long()
    two = torch.cat([torch.zeros_like(z), z], 1)
    one = finding_loss(SAME, z, labels[:, None])
    torch.testing.assert_close(one, cross_entropy(SAME, two, labels))
    there = torch.sigmoid(z)
    mine = evaluation(there, labels[:, None])
    assert mine == evaluation(torch.cat([1 - there, there], 1), labels)


def test_a_network_of_findings_answers_each_by_itself():
    model = build_model(MLPSettings(hidden="4"), (5,), 3, finds=True).eval()
    logits = model(torch.randn(6, 5))
    torch.testing.assert_close(model.answer(logits), torch.sigmoid(logits))
    plain = build_model(MLPSettings(hidden="4"), (5,), 3).eval()
    assert torch.equal(plain.answer(logits), torch.softmax(logits, dim=1))


def test_counts_by_hand():
    probabilities = torch.tensor([[0.9, 0.2], [0.4, 0.7], [0.6, 0.5]])
    labels = torch.tensor([[1, 0], [1, -1], [0, 1]])
    found = evaluation(probabilities, labels)
    assert found.confusion == ((0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1, 0))
    assert (found.samples, found.correct) == (5, 2)
    assert finding_matrices(np.array(found.confusion)).tolist() == [
        [[0, 1], [1, 1]],
        [[1, 0], [1, 0]],
    ]
    assert two_class_names(["effusion", "mass"]) == ("no effusion", "effusion", "no mass", "mass")
    # (0 + 1/2) / 2 of the first, (1 + 0) / 2 of the second
    assert metric_over_findings("balanced_accuracy", np.array(found.confusion), 2) == 0.375


@pytest.mark.parametrize("seed", range(5))
def test_metrics_by_finding_are_scikit_learns(seed):
    scores, labels = drawn(seed)
    counts = np.array(evaluation(torch.tensor(scores), torch.tensor(labels)).confusion)
    areas, precise, balanced = [], [], []
    for f, one in enumerate(one_vs_rest_by_finding(scores, labels, 0.9)):
        read = labels[:, f] >= 0
        truth, score = labels[read, f], scores[read, f]
        areas.append(theirs.roc_auc_score(truth, score))
        precise.append(theirs.average_precision_score(truth, score))
        balanced.append(theirs.balanced_accuracy_score(truth, score > 0.5))
        assert one.images == truth.sum()
        assert (one.auroc, one.average_precision) == pytest.approx((areas[f], precise[f]))
        table = theirs.confusion_matrix(truth, score > 0.5)
        assert finding_matrices(counts)[f].tolist() == table.tolist()
    assert metric_over_findings("balanced_accuracy", counts, 3) == pytest.approx(np.mean(balanced))


def test_a_finding_that_nobody_has_has_no_number_and_a_constant_score_tells_nothing():
    scores, labels = drawn(0, unread=0)
    labels[:, 0], scores[:, 1] = 0, 0.5
    nobody, constant, _ = one_vs_rest_by_finding(scores, labels, 0.9)
    assert (nobody.images, nobody.auroc, nobody.average_precision) == (0, None, None)
    assert constant.auroc == 0.5 and constant.sensitivity_at == 0
    counts = np.array(evaluation(torch.tensor(scores), torch.tensor(labels)).confusion)
    alone = [counts[2:4, 2:4], counts[4:, 4:]]
    of_two = [metric_over_findings("f1", one, 2) for one in alone]
    assert metric_over_findings("f1", counts, 3) == pytest.approx(np.mean(of_two))
    none = np.diag([5, 0, 7, 0])
    assert metric_over_findings("balanced_accuracy", none, 2) is None


def test_nothing_read_counts_nothing():
    found = evaluation(torch.full((4, 2), 0.5), torch.full((4, 2), -1))
    assert found.samples == 0 and found.accuracy is None
    empty = evaluation(torch.empty(0, 2), torch.empty(0, 2, dtype=torch.int64))
    assert empty == found


def test_read_alone_goes_image_by_image():
    pairs, labels, image, of = flatten_findings(
        np.array([[0.75, 0.25], [0.5, 1.0]]), np.array([[1, -1], [0, 1]])
    )
    assert pairs.tolist() == [[0.25, 0.75], [0.5, 0.5], [0, 1]]
    assert (labels.tolist(), image.tolist(), of.tolist()) == ([1, 0, 1], [0, 1, 1], [0, 0, 1])


def test_the_verdict_is_of_images_as_wholes():
    """Ten equal findings an image say no more than one: as many images are better and worse."""
    stream = np.random.default_rng(3)
    truth = stream.integers(0, 2, (100, 1))
    right, other = stream.random((100, 1)) < 0.85, stream.random((100, 1)) < 0.7
    joined, alone = (np.where(of, truth, 1 - truth) * 0.8 + 0.1 for of in (right, other))
    one = verdict(joined, alone, truth)
    ten = verdict(*(np.repeat(each, 10, 1) for each in (joined, alone, truth)))
    assert ten.gain == pytest.approx(one.gain) and (ten.images, ten.answers) == (100, 1000)
    assert (ten.said, ten.pairs.p) == (one.said, one.pairs.p) and ten.pairs.cases == 100
    assert "of 1000 answers right together" in ten.line and "of 100 patients or images" in ten.line
    few = verdict(joined[:19], alone[:19], truth[:19])
    assert few.gain is None and "with 19 test images" in few.line
    by = verdict(joined, alone, truth, "balanced_accuracy", np.arange(100) // 10)
    assert by.gain is None and "of 10 patients" in by.line
