"""What privacy costs: rows over seeds and their curves, by hand."""

import pytest

from bench.privacy import curves, experiment_of, rows_of

ATTACK = {"advantage": 0.1, "chance": 0.02, "auc": 0.5}


def found():
    said = {(0.0, "plain"): (0.9, 0.8), (3.0, "masked"): (0.7, 0.8), (3.0, "plain"): (0.5, 0.5)}
    return {
        ("10x400", "one_round", epsilon, sums, seed): {
            "accuracy": value,
            "common": value - 0.1,
            "even": value - 0.2,
            "attack": ATTACK,
        }
        for (epsilon, sums), values in said.items()
        for seed, value in enumerate(values)
    }


def test_a_row_is_the_mean_over_seeds_by_hand():
    none, masked, plain = rows_of(found())
    assert (none["epsilon"], none["sums"], none["home_%"], none["seeds"]) == (None, None, 85, 2)
    assert (masked["epsilon"], masked["sums"], masked["home_%"]) == (3.0, "masked", 75.0)
    assert (masked["common_%"], masked["as_it_is_%"]) == (65.0, 55.0)
    assert masked["home_sd_%"] == masked["common_sd_%"] == pytest.approx(7.1)  # sqrt(2) x 5
    assert (plain["home_sd_%"], plain["auc"]) == (0.0, 0.5)


def test_curves_show_each_rows_mean_and_no_noise_as_a_line():
    for less, axes in zip((0, 20), curves(rows_of(found())).axes, strict=True):
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        assert list(named["one_round, no noise"].get_ydata()) == [85 - less, 85 - less]
        for words, value in (("in the sum", 75.0), ("by site", 50.0)):
            line = named[f"one_round, noise {words}"].lines[0]
            assert (list(line.get_xdata()), list(line.get_ydata())) == ([3.0], [value - less])


def test_fedavg_takes_one_step_a_round_under_epsilon_alone():
    private = experiment_of("10x400", "fedavg", 3.0, "masked", 1, {})
    assert private.protection.plan.steps == private.rounds.num_rounds
    assert experiment_of("10x400", "fedavg", 0.0, "plain", 1, {}).training.local_steps == 0
