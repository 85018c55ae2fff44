"""w_0 from a file of weights: what is read, what is refused, and that no code in it is run."""

import hashlib
import os

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

from fedapp.core.errors import ConfigError
from fedapp.learn.networks import initial_params, network_settings

CLASSES = 4


@pytest.fixture(scope="module")
def published():
    """Like torchvision's files: a head of 1000 classes, no counters of batches."""
    torch.manual_seed(7)
    state = resnet18(weights=None).state_dict()
    return {n: t + torch.rand(()) for n, t in state.items() if t.is_floating_point()}


def kept(tensors, path):
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


def w_0(path, channels=3, **changes):
    fields = {"weights": str(path), "weights_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    settings = network_settings("resnet18", fields | changes)
    return initial_params(settings, (channels, 32, 32), CLASSES, seed=0)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_all_but_the_head_is_the_files(tmp_path, published, name):
    found = w_0(kept(published, tmp_path / name))
    drawn = initial_params(network_settings("resnet18", {}), (3, 32, 32), CLASSES, seed=0)
    for tensor, value in found.items():
        counter = tensor.endswith("num_batches_tracked")
        own = tensor.startswith("head.") or counter
        assert torch.equal(value, drawn[tensor] if own else published[tensor]), tensor
    assert not any(torch.equal(drawn[n], found[n]) for n in ("conv1.weight", "bn1.running_mean"))


def test_a_grey_image_has_the_answer_of_three_equal_channels(tmp_path, published):
    path = kept(published, tmp_path / "w.pth")
    colour, grey = w_0(path), w_0(path, channels=1)
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    answers = []
    for channels, params in ((3, colour), (1, grey)):
        model = network_settings("resnet18", {}).network((channels, 32, 32), CLASSES).eval()
        model.load_state_dict({**params, **{n: colour[n] for n in colour if "head." in n}})
        answers.append(model.trunk(x.expand(-1, channels, -1, -1))[0])
    torch.testing.assert_close(*answers, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("change", "says"), [
    (lambda w: w | {"bn9.weight": torch.ones(1)}, "has an unknown tensor 'bn9.weight'"),
    (lambda w: {n: t for n, t in w.items() if n != "bn1.weight"}, "has no tensor 'bn1.weight'"),
    (lambda w: w | {"bn1.weight": torch.ones(3)}, r"'bn1.weight' is \[3\], must be \[64\]"),
    (lambda w: w | {"bn1.weight": torch.full((64,), torch.nan)}, "NaN or infinity in 64 of 64 num"),
    (lambda w: w | {"conv1.weight": torch.ones(3)}, r"'conv1.weight' is \[3\]"),
    (lambda w: w | {"epoch": 3}, "holds more than named tensors"),
    (lambda w: [w], "holds more than named tensors"),
])  # fmt: skip
def test_a_file_of_another_network_is_refused(tmp_path, published, change, says):
    with pytest.raises(ConfigError, match=says) as error:
        w_0(kept(change(published), tmp_path / "w.pth"))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("front", ["module._orig_mod.", "encoder.", "backbone."])
def test_what_programs_put_in_front_of_every_name_is_dropped(tmp_path, published, front):
    """As DataParallel and torch.compile do, and a network that has this one as a part."""
    plain = w_0(kept(published, tmp_path / "w.pth"))
    wrapped = w_0(kept({front + n: t for n, t in published.items()}, tmp_path / "v.pth"))
    assert all(torch.equal(plain[name], wrapped[name]) for name in plain)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("was-run",)


def test_no_code_in_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is damaged or no state dict as"):
        w_0(kept({"conv1.weight": Bomb()}, tmp_path / "w.pth"))
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_a_file_of_noise_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"noise" * 100)
    with pytest.raises(ConfigError, match="is damaged or no state dict as"):
        w_0(tmp_path / name)


def test_a_file_needs_its_sha256():
    with pytest.raises(ValueError, match="weights needs weights_sha256"):
        network_settings("resnet18", {"weights": "w.pth"})
