"""What sweeps call equal work is equal work: steps by hand, and in short runs."""

import json
from pathlib import Path

import pytest

from fedapp.experiment.config import load_experiment
from fedapp.methods.two_networks.fedsiam_pi import FedSiamPi
from fedapp.tools.compare.grid import read_grid
from tests.flower.results import loopback
from tests.golden.numbers import SHRUNK
from tests.methods.conformance import Deal, play, toy

STEPS = "training.local_steps"


@pytest.mark.parametrize(("sweep", "images", "batch"), [
    ("fedul_table1_small", 24_000, 128), ("fedul_sets_small", 24_000, 128),
    ("fedul_cifar10_small", 20_000, 128),
])  # fmt: skip
def test_small_sweeps_give_fedllp_the_mini_batches_of_fedul(sweep, images, batch):
    """One pass over a fifth of the training images: 4,800 / 128 = 37.5, 4,000 / 128 = 31.25."""
    methods = read_grid(sweep).methods
    fedul = -(-images // 5 // batch)
    assert STEPS not in methods["fedul"]
    for name in {"fedllp", "fedllp_vat", "fedavg_tenth"} & methods.keys():
        assert methods[name][STEPS] == fedul, name


def steps_of(out: Path, preset: str, local_steps: int) -> float:
    """Return the steps that a site takes in a round, on digits in 16 bags a site."""
    shown = {"method.preset": preset, "split.bags": 16, "runtime.out": str(out / preset)}
    budget = {"training.warmup_epochs": 0, STEPS: local_steps, "rounds.num_rounds": 1}
    changes = {**SHRUNK, **shown, **budget, "rounds.sample_rate": 1.0}
    folder = loopback(load_experiment("digits_demo", changes))
    return float(json.loads((folder / "summary.json").read_text())["steps_per_site"])


def test_with_local_steps_methods_with_bags_take_equally_many(tmp_path):
    found = {p: steps_of(tmp_path, p, 5) for p in ("fedul", "fedllp", "fedllp_vat")}
    assert set(found.values()) == {5.0}


def test_the_control_of_fedsiam_is_fedsiam_but_for_the_unlabelled_images(tmp_path):
    """16 images in mini-batches of 8: two steps; of 4 labelled ones alone one step."""
    methods = read_grid("fedsiam_mnist").methods
    pi, control = methods["fedsiam_pi"], dict(methods["fedsiam_pi_labels"])
    assert control.pop("method.preset") == "fedsiam_pi"
    assert control.pop("method.consistency_weight") == 1e-9
    assert control == {key: value for key, value in pi.items() if key != "method.preset"}
    no_warm_up = {"training__warmup_epochs": 0, "rounds__num_rounds": 1}
    steps = {
        weight: play(
            toy(FedSiamPi(consistency_weight=weight), tmp_path, [Deal(4, 12)], name=f"w{weight}",
                **no_warm_up)
        ).summary["steps_per_site"]
        for weight in (1.0, 1e-9, 0.0)
    }  # fmt: skip
    assert steps == {1.0: 2, 1e-9: 2, 0.0: 1}
