import json
import random

import pytest

from fedapp.core.errors import StoreError
from fedapp.protocol.traffic import Ledger


def filled() -> Ledger:
    ledger = Ledger()
    ledger.add(0, 3, "up", "model", 1, 1000)
    ledger.add(0, 3, "up", "message", 0, 10)
    ledger.add(1, 3, "down", "model", 2, 2000)
    ledger.add(1, 3, "down", "model", 3, 3000)
    ledger.add(1, 4, "down", "message", 0, 7)
    ledger.add(1, 4, "down", "evaluation", 1, 800)
    ledger.add(1, 4, "up", "evaluation", 0, 30)
    return ledger


def test_totals_by_hand() -> None:
    assert filled().totals() == {
        "models_sent": 5,
        "models_up": 1,
        "bytes_up": 1010,
        "bytes_down": 5007,
        "bytes_evaluation": 830,
        "bytes_spared": 0,
    }
    assert set(Ledger().totals().values()) == {0}


def test_rounds_add_up_to_the_totals() -> None:
    draw, ledger, sums = random.Random(0), Ledger(), [0, 0]
    for number in range(5):
        for _ in range(40):
            which = draw.choice(["up", "down"]), draw.choice(["model", "message"])
            ledger.add(number, draw.randrange(4), *which, draw.randrange(3), draw.randrange(1000))
        rows = ledger.close_round()
        assert {row[0] for row in rows} == {number}
        sums[0] += sum(row[4] for row in rows if row[3] == "model")
        sums[1] += sum(row[5] for row in rows)
        assert ledger.close_round() == []  # nothing of a whole round stays in memory
    totals = ledger.totals()
    assert totals["models_sent"] + totals["models_up"] == sums[0]
    assert totals["bytes_up"] + totals["bytes_down"] == sums[1]


def test_rows_are_sums_in_order() -> None:
    assert filled().close_round() == [
        (0, 3, "up", "message", 0, 10, ""),
        (0, 3, "up", "model", 1, 1000, ""),
        (1, 3, "down", "model", 5, 5000, ""),
        (1, 4, "down", "evaluation", 1, 800, ""),
        (1, 4, "down", "message", 0, 7, ""),
        (1, 4, "up", "evaluation", 0, 30, ""),
    ]


def test_measuring_is_no_part_of_a_methods_cost() -> None:
    """Neither its models nor its bytes, in either direction; resumed runs go on counting."""
    ledger = Ledger()
    ledger.add(1, 0, "down", "evaluation", 3, 900)
    ledger.add(1, 0, "up", "evaluation", 1, 50)
    assert ledger.totals() == dict.fromkeys(Ledger().totals(), 0) | {"bytes_evaluation": 950}
    again = Ledger.from_totals(ledger.totals())
    again.add(2, 0, "up", "evaluation", 0, 1)
    assert again.totals()["bytes_evaluation"] == 951
    older = {name: n for name, n in ledger.totals().items() if name != "bytes_evaluation"}
    with pytest.raises(StoreError, match="damaged"):
        Ledger.from_totals(older)


def test_contents_of_another_role_cost_bytes_and_are_no_models() -> None:
    ledger = Ledger()
    ledger.add(1, 0, "up", "prototypes", 1, 400)
    ledger.add(1, 0, "down", "prototypes", 3, 1200)
    totals = ledger.totals()
    assert (totals["bytes_up"], totals["bytes_down"]) == (400, 1200)
    assert (totals["models_up"], totals["models_sent"]) == (0, 0)
    assert (1, 0, "down", "prototypes", 3, 1200, "") in ledger.close_round()


def test_a_part_names_its_layers_and_what_it_spared() -> None:
    """5 of 8 layers' bytes in the first, nothing of the second: they add up to what is whole."""
    ledger = Ledger()
    ledger.add(1, 0, "up", "online", 1, 500)
    ledger.add_part(1, 0, "online", ["head", "conv1"], 300)
    ledger.add_part(1, 1, "online", [], 800)
    assert ledger.close_round() == [
        (1, 0, "up", "online", 1, 500, "conv1 head"),
        (1, 1, "up", "online", 0, 0, ""),
    ]
    assert (ledger.totals()["bytes_up"], ledger.totals()["bytes_spared"]) == (500, 1100)
    ledger.add(2, 0, "up", "online", 1, 800)
    assert ledger.close_round() == [(2, 0, "up", "online", 1, 800, "")]


def test_totals_survive_json_and_go_on() -> None:
    ledger = Ledger.from_totals(json.loads(json.dumps(filled().totals())))
    assert ledger.totals() == filled().totals() and ledger.close_round() == []
    ledger.add(1, 3, "down", "model", 1, 1)
    assert ledger.totals()["models_sent"] == 6


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="up or down"):
        Ledger().add(0, 0, "sideways", "model", 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        Ledger().add(0, 0, "up", "model", -1, 1)
    good = Ledger().totals()
    for change in ({"models_up": -1}, {"bytes_up": "7"}, {"bytes_up": True}, {"more": 1}):
        with pytest.raises(StoreError, match=r"totals .* are damaged"):
            Ledger.from_totals(good | change)
    with pytest.raises(StoreError, match="damaged"):
        Ledger.from_totals({})
