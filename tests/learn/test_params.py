"""Models as named tensors: bytes, checks and the weighted mean."""

import math
import zlib

import pytest
import torch
from safetensors.torch import save
from torch import nn

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import TransportSettings
from fedapp.learn.params import (
    all_finite,
    from_bytes,
    max_bytes,
    part_from_bytes,
    schema_of,
    to_bytes,
    weighted_mean,
)


def model(value=1.0, count=3):
    return {
        "w": torch.full((2, 2), float(value)),
        "b": torch.tensor([float(value)]),
        "count": torch.tensor(count),
    }


SCHEMA = schema_of(model())


def test_bytes_that_safetensors_writes_in_another_way_are_as_good():
    params = model(0.5)
    back = from_bytes(save(params, metadata={"by": "others"}), SCHEMA, "test")
    assert schema_of(back) == SCHEMA and all(torch.equal(params[n], back[n]) for n in params)
    assert from_bytes(save({"w": torch.ones(0, 2)}), {"w": ((0, 2), torch.float32)}, "x")


def test_what_is_read_can_be_changed_and_each_tensor_is_saved_alone():
    blob = to_bytes(model())
    back = from_bytes(blob, SCHEMA, "test")
    back["w"].fill_(7)
    assert back["b"].item() == 1 and blob == to_bytes(model())
    assert back["w"].untyped_storage().nbytes() == 16


def test_bytes_are_those_of_safetensors():
    stream = torch.Generator().manual_seed(0)
    params = {
        **model(),
        "half": torch.randn(3, 2, generator=stream).half(),
        "layout": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        'quoted "name"': torch.randn(2, generator=stream, dtype=torch.float64),
        "turned": torch.randn(4, 5, generator=stream).t(),
    }
    assert to_bytes(params) == save({n: t.contiguous() for n, t in params.items()})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_finite_or_not(value):
    tensor = torch.zeros(3, 5)
    assert all_finite(tensor) and all_finite(torch.empty(0)) and all_finite(torch.tensor(3))
    assert all_finite(torch.tensor(torch.finfo(torch.float32).max).repeat(9))  # the sum is not
    tensor[2, 4] = value
    assert not all_finite(tensor)
    assert not all_finite(nn.Parameter(tensor))


TRANSPORTS = [
    TransportSettings(precision=precision, compression=compression)
    for precision in ("float32", "float16")
    for compression in ("none", "zlib")
]


@pytest.mark.parametrize("transport", TRANSPORTS, ids=repr)
def test_every_way_to_write_a_model_down_gives_it_back(transport):
    params = {**model(0.1), "v": torch.tensor([1e5, 0.1]), "count": torch.tensor(7)}
    schema = schema_of(params)
    blob = to_bytes(params, transport)
    back = from_bytes(blob, schema, "test", transport)
    assert schema_of(back) == schema
    half = transport.precision == "float16"
    expected = {**params, "w": params["w"].half().float() if half else params["w"]}
    assert all(torch.equal(expected[n], back[n]) for n in params)  # vectors are never rounded
    assert to_bytes(back, transport) == blob  # written down again: the same content
    assert to_bytes(dict(reversed(params.items())), transport) == blob
    for other in TRANSPORTS:
        if other != transport:
            with pytest.raises(ProtocolError):
                from_bytes(blob, schema, "test", other)


def test_a_small_stream_that_unpacks_to_much_is_refused_without_unpacking_it():
    transport = TransportSettings(compression="zlib")
    bomb = zlib.compress(bytes(10_000_000), 9)
    assert len(bomb) < 10_000
    schema = {"w": ((8192,), torch.float32)}
    with pytest.raises(ProtocolError, match="one zlib stream of at most"):
        from_bytes(bomb, schema, "x", transport)
    whole = to_bytes({"w": torch.ones(8192)}, transport)
    for blob in (whole[:-1], whole + b"x", whole[: len(whole) // 2], b""):
        with pytest.raises(ProtocolError, match="not a safetensors model"):
            from_bytes(blob, schema, "x", transport)


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_a_header_of_many_tensors_is_refused_without_reading_it(monkeypatch, compression):
    """As many bytes as an honest model has, half a million empty tensors: a GB once read."""
    transport = TransportSettings(compression=compression)
    empty = {f"t{i}": torch.empty(0) for i in range(600)}
    blob = to_bytes(empty, transport)
    monkeypatch.setattr("fedapp.learn.params.load", lambda data: pytest.fail("read"))
    with pytest.raises(ProtocolError, match=r"its header has \d+ bytes, at most 1024 are allowed"):
        from_bytes(blob, {"w": ((500_000,), torch.float32)}, "x", transport)


def test_a_weight_beyond_float16_is_refused_not_sent_as_infinity():
    transport = TransportSettings(precision="float16")
    with pytest.raises(ProtocolError, match="tensor w holds NaN or infinity"):
        from_bytes(to_bytes(model(1e5), transport), SCHEMA, "x", transport)


@pytest.mark.parametrize(("change", "says"), [
    (lambda p: p.pop("w"), r"missing tensors \['w'\]"),
    (lambda p: p.update(extra=torch.ones(1)), r"unexpected tensors \['extra'\]"),
    (lambda p: p.update(w=torch.ones(4)), r"tensor w .*must be torch.float32 \(2, 2\)"),
    (lambda p: p.update(b=torch.ones(1, dtype=torch.float64)), "tensor b is torch.float64"),
    (lambda p: p.update(b=torch.tensor([math.nan])), "tensor b holds NaN"),
    (lambda p: p.update(b=torch.tensor([-math.inf])), "tensor b holds NaN or infinity"),
    (lambda p: p.update(w=torch.tensor([[1, 1], [1, math.nan]])), "tensor w holds NaN"),
])  # fmt: skip
def test_bad_models_are_named(change, says):
    params = model()
    change(params)
    with pytest.raises(ProtocolError, match=says):
        from_bytes(to_bytes(params), SCHEMA, "site 3's upload")


@pytest.mark.parametrize(("params", "says"), [
    ({}, "site 3's upload: a part without tensors; send what was asked, or leave the part out"),
    ({"w": torch.ones(2, 2), "x": torch.ones(1)}, "unexpected tensors ['x']; build the same netw"),
])  # fmt: skip
def test_a_part_with_no_tensors_or_others_is_named(params, says):
    with pytest.raises(ProtocolError) as caught:
        part_from_bytes(to_bytes(params), SCHEMA, "site 3's upload")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_huge_damaged_and_empty_bytes():
    with pytest.raises(ProtocolError, match="at most"):
        from_bytes(bytes(max_bytes(SCHEMA) + 1), SCHEMA, "x")
    whole = to_bytes(model())
    for blob in (b"", whole[: len(whole) // 2], b"\xff" * 40, bytes(40)):
        with pytest.raises(ProtocolError, match="not a safetensors model"):
            from_bytes(blob, SCHEMA, "x")


def test_weighted_mean_by_hand():
    # (1 * 2 + 3 * 6) / 4 = 5
    mean = weighted_mean([(1.0, model(2)), (3.0, model(6))], own=model(0, count=9))
    assert torch.equal(mean["w"], torch.full((2, 2), 5.0))
    assert mean["count"].item() == 9 and mean["count"].dtype == torch.int64


def test_mean_of_one_is_itself_and_no_relation_keeps_own():
    own = model(0.1)
    assert torch.equal(weighted_mean([(0.7, own)], own)["w"], own["w"])
    kept = weighted_mean([(0.0, model(9)), (0.0, model(8))], own)
    assert torch.equal(kept["w"], own["w"])
    kept["w"].zero_()  # a copy
    assert own["w"].sum() != 0


def test_mean_refuses_other_names_and_broadcasting():
    with pytest.raises(ProtocolError, match="tensor names differ"):
        weighted_mean([(1.0, {"w": torch.ones(2, 2)})], model())
    narrow = model() | {"w": torch.ones(1, 2)}
    with pytest.raises(ProtocolError, match="tensor w: shapes"):
        weighted_mean([(1.0, narrow)], model())
