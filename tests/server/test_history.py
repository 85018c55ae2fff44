"""A round's row of sites.jsonl, by hand."""

from fedapp.protocol.messages import Evaluation, ModelRef, PseudoLabels, Reply, ScoredRef
from fedapp.server.history import sites_row


def evaluation(right, of):
    return Evaluation(((right, of - right), (0, 0)), (of,), (right,), (float(right),))


def test_what_a_site_said_in_two_phases_is_one_entry():
    pseudo = PseudoLabels((3, 1), (4,))
    trained = Reply(
        2, 1, "0" * 64, (ScoredRef(ModelRef(7, 1, "1" * 64), 0.123456),), (),
        {"loss": 0.1234567, "memory_lost": 1}, {"val": evaluation(1, 4)},
        learned=True, pseudo=pseudo,
    )  # fmt: skip
    measured = Reply(
        2, 1, "0" * 64, evaluations={"val": evaluation(2, 4), "test": evaluation(3, 5)}
    )
    row = sites_row(1, [trained, measured], {"train": 0.12345, "server": 0.0})
    assert row == {
        "round": 1,
        "seconds": {"train": 0.123, "server": 0.0},
        "sites": {
            "2": {
                "val": [2, 4],
                "test": [3, 5],
                "val_balanced_accuracy": 0.5,
                "test_balanced_accuracy": 0.6,
                "learned": True,
                "loss": 0.12346,
                "helpers": [[7, 0.1235]],
                "pseudo": {
                    "by_class": (3, 1),
                    "by_uncertainty": (4,),
                    "wrong_by_class": (),
                    "wrong_by_uncertainty": (),
                },
                "memory_lost": True,
            }
        },
    }


def test_sites_stand_in_their_order_and_only_those_that_answered():
    row = sites_row(3, [Reply(k, 3, "0" * 64) for k in (10, 2)], {})
    assert list(row["sites"].items()) == [("2", {}), ("10", {})]
