"""No change of the code changes a number unnoticed: every method preset against `numbers.json`."""

import json

import pytest

from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import method_presets
from fedapp.methods import method_names
from tests.golden.numbers import (
    BAGS,
    FILE,
    OWN,
    arithmetic,
    digests,
    elsewhere,
    near,
    run_of,
)
from tests.golden.sketch import apart

GOLDEN = json.loads(FILE.read_text())
RUNS = GOLDEN["runs"]
FAST = (OWN, "fedavg", "recommended", "um_pfssl")
"""The others are slow: half a minute together."""
REMEDY = "numbers changed; is it meant so? `python -m tests.golden.numbers`, and say why"
TIMES, LEAST = 3, 0.01
"""Where bits differ a run may be so many times as far away as without wide instructions, and this
share of its length at least."""


def test_every_method_and_every_preset_has_its_numbers():
    assert list(RUNS) == [OWN, *method_presets()]
    bags = {name: {"split.bags": count} for name, count in BAGS.items()}
    presets = ({"method.preset": name, **bags.get(name, {})} for name in method_presets())
    named = {load_experiment("digits_demo", one).method.name for one in presets}
    assert named == set(method_names())


@pytest.mark.parametrize("name", [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNS
])  # fmt: skip
def test_the_numbers_are_those_of_the_file(tmp_path, name):
    """To the bit, or where torch or the kind of CPU is another, nearly.

    A run without digests was changed on another kind of CPU than the file's.
    """
    if GOLDEN["arithmetic"] == arithmetic() and "pool" in RUNS[name]:
        assert RUNS[name].items() >= digests(run_of(name, tmp_path)).items(), REMEDY
    else:
        assert is_near(name, near(name, tmp_path)), REMEDY


def test_with_other_bits_the_numbers_are_near_those_of_the_file():
    """On the CPU of the file too, as if it were an older one; of another method they are not."""
    found = elsewhere(["fedavg", "um_pfssl"])
    assert all(is_near(name, one) for name, one in found.items())
    assert not is_near("fedavg", found["um_pfssl"])


def is_near(name, found):
    known = RUNS[name]
    return apart(known["sketch"], found) <= max(LEAST, TIMES * known["moved"])


def test_sketches_tell_how_far_apart_runs_are():
    """By hand: of lengths 5 and 2, 0.3 and 0.1 apart; a role more or less is another method."""
    one = {"model": [5.0, 1.0, -2.0], "psi": [2.0, 0.0, 1.0]}
    assert apart(one, one) == 0
    other = {"model": [5.0, 1.3, -2.0], "psi": [2.1, 0.0, 1.0]}
    assert apart(one, other) == pytest.approx(0.06)
    assert apart(one, {"model": one["model"]}) == float("inf")
