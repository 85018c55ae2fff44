"""bench.scoring and bench.training: what is compared does the same work; at toy size."""

import pytest
import torch

from bench import measure, scoring, training
from bench.workload import workload


@pytest.fixture
def work(monkeypatch):
    """Digits and a narrow network; collecting a test process's garbage takes longer than both."""
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)
    return workload("digits", width=2, count=70)


def test_the_plain_reading_and_ours_agree_without_dropout(work):
    model = work.model()
    model.dropout.p = 0.0
    torch.testing.assert_close(scoring.plain(model, work, 2), scoring.ours(model, work, 2))


def test_one_row_for_each_number_of_passes(work):
    rows = scoring.against_plain(work, (2, 3), repetitions=1)
    assert [row["T"] for row in rows] == [2, 3]
    for row in rows:
        assert row["ratio"] == pytest.approx(
            row["plain_ms_per_image"] / row["ours_ms_per_image"], 0.1
        )


def test_both_ways_to_train_take_steps_of_the_same_size(work):
    """They draw another order of the images, so the losses of an epoch differ a little."""
    torch.manual_seed(0)
    ours, plain = (way() for way in training.ways_of(work).values())
    assert plain == pytest.approx(ours, rel=0.1)
