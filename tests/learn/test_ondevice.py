"""Models on a device: read once, within the budget, never another content."""

import pytest
import torch

from fedapp.learn.ondevice import OnDevice, budget_of, models_on, sent

CPU = torch.device("cpu")


class Shelf:
    """Models of 16 bytes by digest; notes which were read."""

    def __init__(self):
        self.read = []

    def __call__(self, digest):
        def read():
            self.read.append(digest)
            return {"w": torch.full((4,), float(ord(digest)))}

        return read


def test_a_model_is_read_once_and_the_last_used_stay_within_the_budget():
    """Three models of 16 bytes in 40: the one not asked for goes."""
    models, shelf = OnDevice(CPU, 40), Shelf()
    for digest in "abac":
        assert models.get(digest, shelf(digest))["w"][0] == ord(digest)
    assert (shelf.read, models.used) == (["a", "b", "c"], 32)
    models.get("a", shelf("a"))
    models.get("b", shelf("b"))
    assert shelf.read == ["a", "b", "c", "b"]


def test_one_larger_than_the_budget_is_given_and_not_kept():
    models, shelf = OnDevice(CPU, 15), Shelf()
    assert models.get("a", shelf("a"))["w"].tolist() == [97.0] * 4
    assert models.used == 0


def test_without_a_budget_nothing_is_kept():
    models, shelf = OnDevice(CPU, 0), Shelf()
    for _ in range(2):
        models.get("a", shelf("a"))
    assert shelf.read == ["a", "a"]


def test_a_budget_of_exactly_one_model_keeps_the_last():
    models, shelf = OnDevice(CPU, 16), Shelf()
    for digest in "aabb":
        models.get(digest, shelf(digest))
    assert (shelf.read, models.used) == (["a", "b"], 16)


def test_a_tensor_that_is_there_is_not_copied():
    tensor = torch.ones(3)
    assert sent(tensor, CPU) is tensor


@pytest.mark.cuda
def test_a_card_keeps_what_it_was_sent():
    device = torch.device("cuda")
    tensors = {str(k): torch.randn(100, 1000) for k in range(20)}
    kept = models_on(device).get("of this test", lambda: tensors)
    for name, tensor in tensors.items():
        assert kept[name].is_cuda and torch.equal(kept[name].cpu(), tensor)
    assert 0 < models_on(device).used <= budget_of(device)
