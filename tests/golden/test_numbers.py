"""No change of the code changes a number unnoticed: every method preset against `numbers.json`."""

import json

import pytest

from fedapp.experiment.presetfiles import method_presets
from tests.golden.numbers import FILE, arithmetic, numbers_of, numbers_of_own

GOLDEN = json.loads(FILE.read_text())
FAST = ("fedavg", "recommended", "um_pfssl")
"""The others are slow: half a minute together."""
REMEDY = "numbers changed; is it meant so? `python -m tests.golden.numbers`, and say why"


@pytest.fixture
def same_arithmetic():
    if GOLDEN["arithmetic"] != arithmetic():
        pytest.skip("the file is of another torch or another kind of CPU, which has other bits")


def test_every_method_preset_has_its_numbers():
    assert list(GOLDEN["presets"]) == method_presets()


@pytest.mark.usefixtures("same_arithmetic")
@pytest.mark.parametrize("preset", [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in method_presets()
])  # fmt: skip
def test_the_numbers_are_those_of_the_file(tmp_path, preset):
    assert numbers_of(preset, tmp_path) == GOLDEN["presets"][preset], REMEDY


@pytest.mark.usefixtures("same_arithmetic")
def test_the_numbers_of_own_data_are_those_of_the_file(tmp_path):
    assert numbers_of_own(tmp_path) == GOLDEN["own_data"], REMEDY
