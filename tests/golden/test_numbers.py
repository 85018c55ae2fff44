"""No change of the code changes a number unnoticed: every method preset against `numbers.json`."""

import json

import pytest

from fedapp.presetfiles import method_presets
from tests.golden.numbers import FILE, arithmetic, numbers_of

GOLDEN = json.loads(FILE.read_text())
FAST = ("fedavg", "recommended", "um_pfssl")
"""The others are slow: half a minute together."""


def test_every_method_preset_has_its_numbers():
    assert list(GOLDEN["presets"]) == method_presets()


@pytest.mark.parametrize("preset", [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in method_presets()
])  # fmt: skip
def test_the_numbers_are_those_of_the_file(tmp_path, preset):
    if GOLDEN["arithmetic"] != arithmetic():
        pytest.skip("the file is of another torch or another kind of CPU, which has other bits")
    remedy = "numbers changed; is it meant so? `python -m tests.golden.numbers`, and say why"
    assert numbers_of(preset, tmp_path) == GOLDEN["presets"][preset], remedy
