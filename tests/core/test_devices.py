"""Which device a setting means, and what is said where there is no such device."""

import os
import subprocess

import pytest
import torch

from fedapp.core.devices import deterministic, pick_device
from fedapp.core.errors import ConfigError
from fedapp.data import datasets
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.simulation import flower_local, loopback
from fedapp.site import federation
from fedapp.tools.compare.compare import compare
from tests.flower.results import loopback as played
from tests.small import small

RULE = "runtime.device = 'cuda': PyTorch finds no GPU"


@pytest.fixture
def gpus(monkeypatch):
    def make(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)

    return make


@pytest.mark.parametrize(
    ("setting", "number", "device"),
    [("auto", 0, "cpu"), ("auto", 1, "cuda"), ("cpu", 0, "cpu"), ("cpu", 1, "cpu"),
     ("cuda", 1, "cuda")],
)  # fmt: skip
def test_the_device_that_a_setting_means(gpus, setting, number, device):
    gpus(number)
    assert pick_device(setting) == torch.device(device)


def test_equal_bits_are_asked_for_inside_alone(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    asked = torch.are_deterministic_algorithms_enabled
    with deterministic(False):
        assert not asked() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    with pytest.raises(KeyError), deterministic(True):
        assert asked() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        raise KeyError
    assert not asked() and torch.utils.deterministic.fill_uninitialized_memory
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # a person's own
    with deterministic(True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_sites_work_with_such_algorithms_where_the_setting_says_so(monkeypatch, tmp_path):
    seen, plain = [], UmPfssl.site_round

    def noted(self, task, site):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return plain(self, task, site)

    monkeypatch.setattr(UmPfssl, "site_round", noted)
    for wanted in (False, True):
        played(small(
            runtime__deterministic=wanted, runtime__out=str(tmp_path), rounds__num_rounds=1
        ))  # fmt: skip
        assert seen and all(each == wanted for each in seen)
        seen.clear()


def refusal(action) -> str:
    with pytest.raises(ConfigError) as caught:
        action()
    return str(caught.value)


def test_a_gpu_that_is_not_there_is_one_line_before_any_data_are_loaded(
    gpus, monkeypatch, tmp_path
):
    gpus(0)
    for module in (datasets, federation):
        monkeypatch.setattr(module, "load_dataset", None)
    wanted = small(runtime__device="cuda", runtime__out=str(tmp_path))
    said = refusal(lambda: loopback.run_loopback(wanted))
    assert said.startswith(RULE) and "runtime.device=auto" in said and "\n" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="the settings are checked in a process apart")
def test_neither_flower_nor_a_comparison_starts_anything_then(gpus, monkeypatch, tmp_path):
    gpus(0)
    monkeypatch.setattr(flower_local, "_superlink", None)
    overrides = ["runtime.device=cuda", f"runtime.out={tmp_path}"]
    said = refusal(lambda: flower_local.run(tmp_path, "digits_demo", overrides))
    assert said.startswith(RULE)
    monkeypatch.setattr(subprocess, "Popen", None)
    only = {"runtime.device": "cuda"}
    out = tmp_path / "compared"
    said = refusal(lambda: compare("digits_demo", only, methods=["fedavg"], out=out))
    assert said.startswith(RULE)
    assert list(tmp_path.iterdir()) == []
