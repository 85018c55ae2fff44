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


def test_the_alternatives_score_the_same(work):
    """Rounding in float32 and in bfloat16; other draws have no difference to show."""
    rows = {row["way"]: row for row in scoring.alternatives(work, repetitions=1)}
    for name, row in rows.items():
        if "difference" in row:
            assert row["difference"] < (0.05 if name == "bfloat16" else 1e-4), name
    assert sum("difference" in row for row in rows.values()) == 9


@pytest.mark.parametrize("way", ["stacked samples", "stacked models", "torch's dropout"])
def test_ways_that_draw_otherwise_agree_without_dropout(work, way):
    model = work.model()
    model.dropout.p = 0.0
    expected = scoring.ours(model, work)
    if way == "stacked models":
        found = scoring.stacked_models([model, work.model()], work)[0]
    else:
        other = {
            "stacked samples": scoring.stacked_samples,
            "torch's dropout": scoring.with_torch_dropout,
        }
        found = other[way](model, work, *([5] if way == "stacked samples" else []))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_every_way_to_train_takes_the_same_steps(work, monkeypatch):
    losses = {}
    for name, way in training.ways_of(work, compiler=False).items():
        torch.manual_seed(0)
        losses[name] = way()
    usual = losses.pop("train, as it is")
    losses.pop("straightforward loop")  # draws another order
    for name, loss in losses.items():
        assert loss == pytest.approx(usual, rel=0.05 if name == "bfloat16" else 1e-4), name
