"""What the paper allows to be sent (Eqs. 27 and 28), by hand and at its ends."""

import pytest

from fedapp.methods.um_pfssl.costs import cost_bound, cost_greedy

PAPER = {"num_clients": 100, "sample_rate": 0.1, "num_rounds": 200}
LIST = {"helper_list_size": 5, "num_replaced": 2, "search_rounds": 30, "update_every": 10}


def test_the_papers_numbers() -> None:
    """Sec. VI-D: per site tau K n = 2000, F R = 60, n (M + tau nu) / nu = 120; over 90 % saved."""
    greedy, bound = cost_greedy(**PAPER), cost_bound(**PAPER, **LIST)
    assert greedy == pytest.approx(100 * 2000)
    assert bound == pytest.approx(100 * (60 + 120))
    assert (greedy - bound) / greedy > 0.9


def test_bound_term_by_term() -> None:
    none = {"helper_list_size": 0, "num_replaced": 0, "search_rounds": 0, "update_every": 10}
    assert cost_bound(**PAPER, **none) == pytest.approx(0.1 * 100 * 200)
    assert cost_bound(**PAPER, **none | {"helper_list_size": 5}) == pytest.approx(2000 + 10_000)
    search = {"num_replaced": 2, "search_rounds": 30}
    assert cost_bound(**PAPER, **none | search) == pytest.approx(2000 + 6000)


def test_ends() -> None:
    still = {**PAPER, "num_rounds": 0}
    assert cost_greedy(**still) == 0
    assert cost_bound(**still, **LIST | {"search_rounds": 0}) == 0
    alone = {"num_clients": 1, "sample_rate": 1.0, "num_rounds": 7}
    assert cost_greedy(**alone) == 7  # its uploads; there is nobody to download from
