"""Counts of pseudo-labels: by hand, of one class, of none, and the same whatever the order."""

import pytest
import torch

from fedapp.data.sites import Audit
from fedapp.learn.metrics import UNCERTAINTY_BINS, count_pseudo_labels, uncertainty_bins

SOFT = torch.tensor([[1.0, 0.0], [0.89, 0.11], [0.4, 0.6], [0.5, 0.5]])
"""H / ln 2 is 0, 0.4999, 0.9710 and 1: bins 0, 4, 9 and 9."""
HIDDEN = torch.tensor([0, 1, 1, 1])


def test_by_hand():
    found = count_pseudo_labels(SOFT, Audit(HIDDEN))
    assert found.by_class == (3, 1)  # a tie goes to the first class
    assert found.by_uncertainty == (1, 0, 0, 0, 1, 0, 0, 0, 0, 2)
    assert found.wrong_by_class == (2, 0)
    assert found.wrong_by_uncertainty == (0, 0, 0, 0, 1, 0, 0, 0, 0, 1)
    assert found.total == 4


def test_some_of_the_unlabelled_images():
    found = count_pseudo_labels(SOFT[1:3], Audit(HIDDEN), of=torch.tensor([3, 0]))
    assert (found.by_class, found.wrong_by_class) == ((1, 1), (1, 1))


def test_a_real_site_does_not_know_what_is_wrong():
    found = count_pseudo_labels(SOFT, None)
    assert (found.wrong_by_class, found.wrong_by_uncertainty) == ((), ())


def test_no_pseudo_labels():
    found = count_pseudo_labels(torch.empty(0, 3), Audit(torch.empty(0, dtype=torch.int64)))
    assert found.by_class == found.wrong_by_class == (0, 0, 0)
    assert found.by_uncertainty == (0,) * UNCERTAINTY_BINS and found.total == 0


def test_of_one_class_nothing_is_uncertain():
    assert uncertainty_bins(torch.ones(3, 1)).tolist() == [0, 0, 0]


def test_the_order_does_not_matter_and_sums_agree():
    stream = torch.Generator().manual_seed(0)
    soft = torch.softmax(3 * torch.randn(200, 5, generator=stream), dim=1)
    hidden = torch.randint(5, (200,), generator=stream)
    order = torch.randperm(200, generator=stream)
    found = count_pseudo_labels(soft, Audit(hidden))
    assert count_pseudo_labels(soft[order], Audit(hidden[order])) == found
    assert count_pseudo_labels(soft[order], Audit(hidden), of=order) == found
    wrong, total = Audit(hidden).pseudo_label_errors(soft.argmax(1))
    assert sum(found.wrong_by_class) == sum(found.wrong_by_uncertainty) == wrong
    assert found.total == sum(found.by_uncertainty) == total


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_extremes_are_the_first_and_the_last_bin(classes):
    uniform = torch.full((1, classes), 1 / classes)
    sure = torch.eye(classes)[:1]
    assert uncertainty_bins(torch.cat([sure, uniform])).tolist() == [0, UNCERTAINTY_BINS - 1]
