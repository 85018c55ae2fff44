"""The peers that a site does not list, found without a walk through all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.methods.um_pfssl.unlisted_peers import Peers


def test_by_hand():
    strangers = Peers((0, 2, 3, 5, 9)).but({2, 5, 7})  # 7 has never trained
    assert len(strangers) == 3
    assert [strangers[i] for i in range(3)] == [0, 3, 9]


def test_extremes():
    assert len(Peers(()).but({1})) == 0
    assert list(Peers((4, 6)).but(())) == [4, 6]
    everybody = Peers((4, 6)).but((4, 6))
    assert len(everybody) == 0
    with pytest.raises(IndexError):
        everybody[0]


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_they_are_the_difference_of_the_two_sets(peers, listed):
    strangers = Peers(tuple(sorted(peers))).but(listed)
    assert list(strangers) == sorted(peers - listed)
    assert len(strangers) == len(peers - listed)
