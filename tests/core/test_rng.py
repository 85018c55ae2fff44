"""Keyed draws."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.core.rng import key, numpy_stream, seeded, torch_stream

parts = st.lists(st.one_of(st.integers(0, 99), st.text("ab1\x1f", max_size=3)), max_size=3)


@given(parts, parts)
def test_keys_are_equal_only_for_equal_parts(one, two):
    assert (key(0, "p", *one) == key(0, "p", *two)) == (one == two)


def test_key_is_pinned():
    """Another value would change every published number."""
    assert key(0, "train", 1, 2) == 381532481141669058


def test_streams_repeat_and_differ_by_purpose():
    assert numpy_stream(1, "a", 2).random() == numpy_stream(1, "a", 2).random()
    assert numpy_stream(1, "a", 2).random() != numpy_stream(1, "b", 2).random()
    one, two = (torch.rand(3, generator=torch_stream(1, "a")) for _ in range(2))
    assert torch.equal(one, two)


def test_seeded_restores_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(torch.device("cpu"), 0, "inside"):
        torch.rand(7)
    assert torch.equal(torch.rand(2), expected)
