"""Counts of steps and images: by hand, nested and outside, and in whole runs of every method."""

import pytest

from fedapp.learn.work_counter import WorkCount, count_work, counting_work
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.methods.recommended.prior_shift import PriorShift
from fedapp.methods.two_networks.fedmatch.method import FedMatch
from fedapp.methods.um_pfssl.method import UmPfssl
from tests.methods.conformance import Deal, named, play, toy

DEALS = (Deal(20, 0), Deal(3, 0), Deal(0, 0))


def test_by_hand():
    with counting_work() as outer:
        count_work(steps=1, images=8)
        with counting_work() as inner:
            count_work(steps=2)
        count_work(images=3)
    count_work(steps=100)  # outside: of no task
    assert outer == WorkCount(1, 11) and inner == WorkCount(2, 0)


def test_an_error_ends_the_counting():
    with pytest.raises(ValueError, match="over"), counting_work():
        raise ValueError("over")
    with counting_work() as done:
        pass
    assert done == WorkCount()


@named([FedAvg(), LocalOnly(), UmPfssl(mc_samples=2)])
def test_passes_over_labelled_images_by_hand(tmp_path, method):
    """Mini-batches of 8: 3 steps a pass over 20 images, 1 over 3; 2 passes, then 2 rounds of 3."""
    changes = {"training__warmup_epochs": 2, "training__local_epochs": 3}
    summary = play(toy(method, tmp_path, DEALS, name=method.name, **changes)).summary
    assert summary["steps_per_site"] == pytest.approx((3 + 1) * (2 + 2 * 3) / 3)
    assert summary["images_per_site"] == pytest.approx((20 + 3) * (2 + 2 * 3) / 3)


def test_a_second_network_and_inner_steps_count_too(tmp_path):
    """The lone model takes as many again; pFedMe's K steps use one mini-batch."""
    plain = play(toy(FedAvg(), tmp_path, DEALS, name="plain")).summary
    twice = play(toy(PriorShift(), tmp_path, DEALS, name="twice")).summary
    inner = play(toy(PFedMe(inner_steps=5), tmp_path, DEALS, name="inner")).summary
    for name, times in (("steps_per_site", 5), ("images_per_site", 1)):
        assert twice[name] == pytest.approx(2 * plain[name])
        assert inner[name] == pytest.approx(times * plain[name])


def test_two_steps_of_fedmatch_on_one_batch(tmp_path):
    """Sigma's and psi's, where there are images of both kinds: with local_steps=4, 8 a round."""
    changes = {"training__local_steps": 4, "training__warmup_epochs": 0, "rounds__num_rounds": 1}
    summary = play(toy(FedMatch(), tmp_path, [Deal(20, 9)], **changes)).summary
    assert summary["steps_per_site"] == 8
