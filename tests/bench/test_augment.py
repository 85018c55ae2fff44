"""bench.augment at toy size."""

import pytest
import torch

from bench import augment, measure
from bench.workload import workload


def test_one_row_for_each_way(monkeypatch):
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)
    work = workload("digits", width=2, count=8)
    rows = augment.rows_of(work, repetitions=1)
    assert [row["way"] for row in rows] == list(augment.ways_of(work))
    assert rows[0]["ratio"] == 1 and all(row["ratio"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["weak", "strong", "torchvision, image by image"])
def test_every_way_gives_as_many_images(name):
    work = workload("digits", width=2, count=8)
    seen = augment.ways_of(work)[name]()
    assert (seen.shape, seen.dtype) == (work.images.shape, torch.uint8)
