"""Methods that keep a part of the model at home, through Flower's real simulation."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import build_model
from fedapp.learn.params import digest_of
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.models.description import TENSORS, read_description
from fedapp.models.model import load_model
from fedapp.site.federation import federation_of
from tests.flower.grids import preset
from tests.flower.simulation import copy_of_app, simulate_and_loop_back
from tests.methods.conformance import toy

SPY = """

# Writes every message down, in the copy of the app that the test runs.
import itertools
import os
from pathlib import Path

_plain, _numbers = _records, itertools.count()


def _records(heads, payloads):  # noqa: F811
    way = "down" if "origin" in heads else "up"
    folder = Path({folder!r}) / f"{{way}}-{{os.getpid()}}-{{next(_numbers)}}"
    folder.mkdir()
    for name, value in {{**heads, **payloads}}.items():
        (folder / name).write_bytes(b"".join(value) if isinstance(value, list) else value)
    return _plain(heads, payloads)
"""


@pytest.fixture
def copy(tmp_path):
    with copy_of_app(tmp_path) as copy:
        yield copy


@pytest.mark.slow
def test_a_method_preset_with_private_parts_is_the_loopback_run_bit_for_bit(copy, tmp_path):
    """Sites work on the server's pool; `method.preset` reaches server and sites alike."""
    experiment = toy(UmPfssl(helper_list_size=2, num_replaced=1, mc_samples=2), tmp_path)
    file = preset(experiment, tmp_path)
    flower, whole, _ = simulate_and_loop_back(copy, file, {"method.preset": "fixbn"})
    for site in map(str, range(3)):
        models = [folder / "models" / site / TENSORS for folder in (flower, whole)]
        assert models[0].read_bytes() == models[1].read_bytes()
    state = json.loads((flower / "checkpoint.json").read_text())["state"]
    assert sorted(state["private"]) == ["0", "1", "2"]
    for site, digest in state["private"].items():
        for run in (flower, whole):
            [part] = (run / "sites" / f"site-{site}" / "private").rglob(f"{digest}.safetensors")
            assert digest_of(part.read_bytes()) == digest
    assert not {path.stem for path in (flower / "pool").rglob("*.safetensors")} & {
        *state["private"].values()
    }


@pytest.mark.slow
def test_no_batch_norm_is_in_any_message_between_machines(copy, tmp_path, monkeypatch):
    """Sites keep their stores elsewhere, as on other machines, so that contents travel."""
    sent = tmp_path / "sent"
    sent.mkdir()
    wire = copy.app / "fedapp" / "protocol" / "flower_records.py"
    wire.write_text(wire.read_text() + SPY.format(folder=str(sent)))
    monkeypatch.setenv("FEDAPP_SITES", str(tmp_path / "elsewhere"))
    experiment = toy(FedBN(), tmp_path)
    flower, whole, _ = simulate_and_loop_back(copy, preset(experiment, tmp_path), {})

    # The site's best model lies with the site, in a folder that nothing empties, and not here.
    assert not (flower / "models").exists()
    for site in map(str, range(3)):
        there, here = tmp_path / "elsewhere/models/flower" / site, whole / "models" / site
        model, description = load_model(there, torch.device("cpu"))
        assert (there / TENSORS).read_bytes() == (here / TENSORS).read_bytes()
        assert description.choice == read_description(here).choice
        assert description.results.exact is True and description.others is None
        data = federation_of(experiment).dealt.site(int(site))
        found = evaluation(model.probabilities(data.test), data.test_labels)
        assert found.correct == description.results.test.right

    network = build_model(experiment.model, (1, 8, 8), 10)
    kept = experiment.method.kept_private(network)
    secrets = set()
    for path in Path(tmp_path / "elsewhere").glob("flower/sites/*/private/*/*.safetensors"):
        part = load(path.read_bytes())
        assert part.keys() == kept | {"salt"}
        hidden = [t for name, t in part.items() if t.is_floating_point() or name == "salt"]
        secrets |= {tensor.numpy().tobytes() for tensor in hidden}
    assert len(secrets) > len(kept)
    ways = {"up": 0, "down": 0}
    for message in sent.iterdir():
        for path in message.iterdir():
            blob = path.read_bytes()
            assert not any(secret in blob for secret in secrets), path
            if path.name not in {"origin", "message", "messages"}:
                ways[message.name.partition("-")[0]] += 1
                assert load(blob).keys() == network.state_dict().keys() - kept
    # Up: 3 sites in the warm-up and 2 rounds. Down: every mean is measured and then learned from.
    assert ways == {"up": 9, "down": 9 + 6}
