"""What a curve says besides single rounds, by hand."""

import pytest

from fedapp.results.statistics import largest_fall, last_rounds


def curve(*accuracies: float | None) -> list[dict[str, float | int | None]]:
    """Rows of rounds 0, 1, ...: the first is the warm-up."""
    return [{"round": n, "mean_test_accuracy": a} for n, a in enumerate(accuracies)]


def test_the_last_five_rounds_or_as_many_as_there_are():
    assert last_rounds(curve(0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)) == pytest.approx(0.4)
    assert last_rounds(curve(0.9, 0.1, 0.3)) == pytest.approx(0.2)
    assert last_rounds(curve(0.9)) is None


def test_the_largest_fall_leaves_the_warm_up_out():
    assert largest_fall(curve(0.9, 0.2, 0.5, 0.4, 0.6, 0.3)) == pytest.approx(0.3)
    assert largest_fall(curve(0.9, 0.1, 0.2, 0.2)) == 0.0
    assert largest_fall(curve(0.9, 0.1)) is None


def test_rounds_that_measured_nothing_are_left_out():
    rounds = curve(None, 0.5, None, 0.25)
    assert (last_rounds(rounds), largest_fall(rounds)) == (0.375, 0.25)
