"""A run's records as another answer of its sites has them, in the place of the one in use.

FedAvg fine-tuned measures FedAvg too: the common answer of the same run. So a grid has both rows
for one run, each judged by its own validation accuracy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.ground.errors import RunError
from fedapp.server.standings import spread

Row = dict[str, Any]


def scored_by(
    answer: str,
    summary: Mapping[str, Any],
    rounds: Sequence[Row],
    sites: Sequence[Row],
    name: str,
) -> tuple[Row, list[Row], list[Row]]:
    """Return summary.json, metrics.jsonl and per_site.csv with this answer's accuracies in use.

    name: of the cell, for errors.
    A site that lacks the answer counts with the average, as in the means (`Standings.of_answer`).
    What is not recorded by answer (spread over sites but of the last round, accuracy of single
    sites at other rounds) is left out. Raises RunError where the run did not measure the answer.
    """
    found = summary.get("answers", {}).get(answer)
    if found is None:
        has = ", ".join(summary.get("answers", {})) or "none"
        raise RunError(
            f"{name}: answer = {answer!r}: its run did not measure that ({has}); leave it out"
        )
    per_site = [_site(row, answer) for row in sites]
    last = spread([a for row in per_site if (a := row["final_accuracy"]) is not None])
    curve = [_round(row, answer) for row in rounds]
    tested = [row for row in curve if row["round"] and row["mean_test_accuracy"] is not None]
    best = max(tested, key=lambda row: row["mean_test_accuracy"], default=None)
    of_answer = {
        "best": best and best["mean_test_accuracy"],
        "best_round": best and best["round"],
        **{key: value for key, value in found.items() if key != "sites_without"},
    }
    lost = [key for key in summary if key.startswith(("by_validation_", "best_"))]
    kept = {key: value for key, value in summary.items() if key not in lost}
    return {**kept, **last, "mean_test_accuracy": of_answer}, curve, per_site


def _round(row: Row, answer: str) -> Row:
    means = {
        f"mean_{part}_accuracy": row.get(f"mean_{part}_accuracy_{answer}")
        for part in ("test", "val")
    }
    return {**row, "std_test_accuracy": None, "worst_decile_accuracy": None, **means}


def _site(row: Row, answer: str) -> Row:
    own = row.get(f"{answer}_accuracy")
    return {
        **row,
        "warmup_accuracy": None,
        "best_round_accuracy": None,
        "by_validation_accuracy": None,
        "final_accuracy": row.get("common_accuracy") if own is None else own,
    }
