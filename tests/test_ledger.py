import json
import random

import pytest

from fedapp.costs import cost_bound, cost_greedy, saving
from fedapp.errors import StoreError
from fedapp.ledger import Ledger

PAPER = {"num_clients": 100, "sample_rate": 0.1, "num_rounds": 200}
LIST = {"helper_list_size": 5, "num_replaced": 2, "search_rounds": 30, "update_every": 10}


def filled() -> Ledger:
    ledger = Ledger()
    ledger.add(0, 3, "up", "model", 1, 1000)
    ledger.add(0, 3, "up", "message", 0, 10)
    ledger.add(1, 3, "down", "model", 2, 2000)
    ledger.add(1, 3, "down", "model", 3, 3000)
    ledger.add(1, 4, "down", "message", 0, 7)
    return ledger


def test_totals_by_hand() -> None:
    assert filled().totals() == {
        "models_sent": 5,
        "models_up": 1,
        "bytes_up": 1010,
        "bytes_down": 5007,
    }
    assert filled().totals(0) == {
        "models_sent": 0,
        "models_up": 1,
        "bytes_up": 1010,
        "bytes_down": 0,
    }
    assert set(filled().totals(9).values()) == set(Ledger().totals().values()) == {0}


def test_rounds_add_up_to_the_totals() -> None:
    draw, ledger = random.Random(0), Ledger()
    for _ in range(200):
        ledger.add(
            draw.randrange(5),
            draw.randrange(4),
            draw.choice(["up", "down"]),
            draw.choice(["model", "message"]),
            draw.randrange(3),
            draw.randrange(1000),
        )
    rounds = [ledger.totals(number) for number in range(5)]
    assert ledger.totals() == {key: sum(r[key] for r in rounds) for key in rounds[0]}


def test_rows_are_sums_in_order() -> None:
    rows = filled().rows()
    assert [(r["round"], r["site"], r["direction"], r["kind"]) for r in rows] == [
        (0, 3, "up", "message"),
        (0, 3, "up", "model"),
        (1, 3, "down", "model"),
        (1, 4, "down", "message"),
    ]
    assert rows[2] | {"models": 5, "bytes": 5000} == rows[2]


def test_ledger_survives_json_and_goes_on() -> None:
    ledger = Ledger.from_plain(json.loads(json.dumps(filled().to_plain())))
    assert ledger.rows() == filled().rows()
    ledger.add(1, 3, "down", "model", 1, 1)
    assert ledger.totals()["models_sent"] == 6


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="up or down"):
        Ledger().add(0, 0, "sideways", "model", 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        Ledger().add(0, 0, "up", "model", -1, 1)
    for row in ([0, 0, "up"], [0, 0, "up", "model", 1, "x"], [0, 0, "up", "lead", 1, 1]):
        with pytest.raises(StoreError, match=r"ledger row .* damaged"):
            Ledger.from_plain([row])


def test_the_papers_numbers() -> None:
    """Sec. VI-D: per site tau K n = 2000, F R = 60, n (M + tau nu) / nu = 120; over 90 % saved."""
    greedy, bound = cost_greedy(**PAPER), cost_bound(**PAPER, **LIST)
    assert greedy == pytest.approx(100 * 2000)
    assert bound == pytest.approx(100 * (60 + 120))
    assert saving(greedy, bound) == pytest.approx(100 * (2000 - 60 - 120))
    assert saving(greedy, bound) / greedy > 0.9


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
