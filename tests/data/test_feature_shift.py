import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.settings import SHIFT_KINDS, SplitSettings
from fedapp.data.feature_shift import FeatureShift, apply_shift, draw_shift, shift_sites
from fedapp.site.federation import federation_of
from tests.small import small


def grain(seed=0):
    return np.random.default_rng(seed)


def noisy(count=6, channels=3, side=9):
    """Images of every level, the ends included."""
    pixels = grain().integers(0, 256, (count, channels, side, side), np.uint8)
    return torch.from_numpy(pixels)


def dot(row, column, side=9):
    images = torch.zeros(1, 1, side, side, dtype=torch.uint8)
    images[0, 0, row, column] = 200
    return images


def test_no_amounts_change_nothing():
    images = noisy()
    assert torch.equal(apply_shift(images, FeatureShift(), grain()), images)
    assert draw_shift(3, 1, 0.0, SHIFT_KINDS) == FeatureShift()


def test_rotation_by_hand():
    """A quarter turn counter-clockwise takes what is right of the middle to above it."""
    turned = apply_shift(dot(4, 6), FeatureShift(rotation=90), grain())
    assert torch.equal(turned, dot(2, 4))
    images = noisy()
    assert torch.equal(
        apply_shift(images, FeatureShift(rotation=-90), grain()), images.rot90(-1, (2, 3))
    )


def test_rotation_is_bilinear():
    """About the middle of 8 x 8 pixels, at (3.5, 3.5); (3, 3) then comes from between four."""
    images = dot(3, 3, side=8)
    turned = apply_shift(images, FeatureShift(rotation=45), grain())
    # From column 3.5, row 3.5 - sqrt(0.5): 0.5 across, and row 3 has 1 - 0.2071 of row 2 to 3.
    assert turned[0, 0, 3, 3] == round(200 * 0.5 * (1 - (3 - (3.5 - math.sqrt(0.5)))))


@pytest.mark.parametrize("level", [0, 90, 255])
@pytest.mark.parametrize("degrees", [-40.0, 13.0, 40.0])
def test_rotation_and_blur_leave_no_frame(level, degrees):
    """An even image stays even up to its corners; so black backgrounds stay black."""
    images = torch.full((2, 3, 9, 12), level, dtype=torch.uint8)
    assert torch.equal(
        apply_shift(images, FeatureShift(rotation=degrees, blur=1.5), grain()), images
    )


def test_brightness_and_contrast_by_hand():
    images = torch.tensor([0, 100, 127, 128, 255], dtype=torch.uint8).view(5, 1, 1, 1)
    images = images.expand(5, 1, 8, 8)

    def levels(shift):
        return apply_shift(images, shift, grain())[:, 0, 3, 3].tolist()

    assert levels(FeatureShift(brightness=0.2)) == [51, 151, 178, 179, 255]
    assert levels(FeatureShift(brightness=-0.4)) == [0, 0, 25, 26, 153]
    assert levels(FeatureShift(contrast=2.0)) == [
        0,
        72,
        126,
        128,
        255,
    ]  # 72.5, 126.5, 128.5: to even
    # Rounded and clamped once: what one step takes above 255, the next takes back.
    assert levels(FeatureShift(contrast=2.0, brightness=-0.4)) == [0, 0, 24, 26, 255]


def test_blur_by_hand():
    """Sigma 0.3 reaches one pixel: weights 1 and exp(-1 / 0.18) = 0.003866, their sum 1.007732."""
    blurred = apply_shift(dot(4, 4), FeatureShift(blur=0.3), grain())
    middle, side = 1 / 1.007732, 0.003866 / 1.007732
    assert blurred[0, 0, 4, 4] == round(200 * middle**2)
    assert blurred[0, 0, 3, 4] == blurred[0, 0, 4, 5] == round(200 * middle * side)
    wide = apply_shift(dot(4, 4), FeatureShift(blur=1.5), grain())
    assert torch.equal(wide, wide.flip(2)) and torch.equal(wide, wide.transpose(2, 3))
    assert abs(int(wide.sum()) - 200) < 40.5  # 81 pixels rounded by at most half a level each


def test_noise_has_its_standard_deviation():
    """65,536 pixels of level 128, std 0.1 x 255 = 25.5: no pixel is clamped below 4.9 sigma.

    Bounds 6 standard errors, of the mean 25.5 / 256 and of the variance sqrt(2) / 256: false-alarm
    rate below 1e-8 over seeds (the seed is fixed). Rounding adds 1/12 to the variance.
    """
    images = torch.full((16, 1, 64, 64), 128, dtype=torch.uint8)
    noise = apply_shift(images, FeatureShift(noise=0.1), grain()).double() - 128
    assert abs(float(noise.mean())) < 6 * 25.5 / 256
    assert abs(float(noise.var()) / (25.5**2 + 1 / 12) - 1) < 6 * math.sqrt(2) / 256
    assert not torch.equal(noise[0], noise[1])  # every image has its own


def test_chunks_leave_no_trace():
    """More images than are changed at a time: each is changed as it is alone, noise apart."""
    images, shift = noisy(300), FeatureShift(20.0, 0.1, 1.3, 0.7)
    together = apply_shift(images, shift, grain())
    assert torch.equal(together[290:], apply_shift(images[290:], shift, grain()))
    assert len(apply_shift(images[:0], shift, grain())) == 0


def test_the_number_of_threads_leaves_no_trace():
    images, shift = noisy(300), FeatureShift(20.0, 0.1, 1.3, 0.7, 0.05)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = apply_shift(images, shift, grain())
        torch.set_num_threads(3)
        assert torch.equal(apply_shift(images, shift, grain()), one)
    finally:
        torch.set_num_threads(before)


def test_amounts_fill_their_ranges():
    """400 sites at strength 1: a tenth of a range stays empty with probability below 5 x 10^-17."""
    drawn = [draw_shift(0, k, 1.0, SHIFT_KINDS) for k in range(400)]
    ranges = {
        "rotation": (-40.0, 40.0, [s.rotation for s in drawn]),
        "brightness": (-0.3, 0.3, [s.brightness for s in drawn]),
        "contrast": (-0.7, 0.7, [math.log(s.contrast) for s in drawn]),
        "blur": (0.0, 1.5, [s.blur for s in drawn]),
        "noise": (0.0, 0.2, [s.noise for s in drawn]),
    }
    for low, high, values in ranges.values():
        counts, _ = np.histogram(values, 10, (low, high))
        assert counts.sum() == 400 and counts.min() > 0


def test_an_amount_depends_on_its_kind_and_site_alone():
    alone = draw_shift(5, 2, 1.0, ["blur"])
    assert alone.blur == draw_shift(5, 2, 1.0, SHIFT_KINDS).blur
    assert replace(alone, blur=0.0) == FeatureShift()
    half = draw_shift(5, 2, 0.5, SHIFT_KINDS)
    whole = draw_shift(5, 2, 1.0, SHIFT_KINDS)
    assert (half.rotation, half.noise) == (whole.rotation / 2, whole.noise / 2)
    others = {draw_shift(s, k, 1.0, ["blur"]).blur for s, k in ((5, 2), (5, 3), (6, 2))}
    assert len(others) == 3


def test_a_pool_is_changed_site_by_site():
    images, site = noisy(40), np.arange(40, dtype=np.int32) % 3
    assert shift_sites(images, site, 7, 0.0, SHIFT_KINDS) is images
    kinds = ("rotation", "contrast")
    changed = shift_sites(images, site, 7, 0.8, kinds)
    for k in range(3):
        mine = images[site == k]
        assert torch.equal(
            changed[site == k], apply_shift(mine, draw_shift(7, k, 0.8, kinds), grain())
        )
    grained = [shift_sites(images, site, 7, 0.8, ["noise"]) for _ in range(2)]
    assert torch.equal(*grained) and not torch.equal(grained[0], images)


def test_every_part_of_a_site_is_changed_alike_and_its_fingerprint_with_it():
    before = federation_of(small())
    after = federation_of(small(split__feature_shift=0.5))
    assert before.manifest is not None and after.manifest is not None
    assert before.manifest.digest() == after.manifest.digest()  # who holds what stays
    for k in range(5):
        old, new = before.dealt.site(k), after.dealt.site(k)
        assert old.fingerprint != new.fingerprint
        shift = draw_shift(1, k, 0.5, SplitSettings().kinds)
        for part in ("labelled", "unlabelled", "val", "test"):
            assert torch.equal(getattr(new, part), apply_shift(getattr(old, part), shift, grain()))
        assert torch.equal(new.labels, old.labels) and new.mean == old.mean


def test_an_image_is_the_same_whoever_sees_its_label():
    """Noise too: it is drawn in the pool's order, not in that of labelled and unlabelled images."""
    noise = {"split__feature_shift": 1.0, "split__shift_kinds": "noise"}
    found = []
    for labels in ({}, {"split__label_share": 0.1}, {"split__labels": "all"}):
        data = federation_of(small(**noise, **labels)).dealt.site(2)
        images = [*data.labelled, *data.unlabelled]
        found.append(sorted(x.numpy().tobytes() for x in images))
        test = data.test
    assert found[0] == found[1] == found[2]
    assert torch.equal(test, federation_of(small(**noise)).dealt.site(2).test)
