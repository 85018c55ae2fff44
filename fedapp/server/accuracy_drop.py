"""A warning where the accuracy of the average has dropped in a round."""

from collections.abc import Mapping
from typing import Any

MAX_DROP = 0.1
"""Difference of accuracies, in [0, 1], above which there is a warning."""


def accuracy_drop_warning(row: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return a warning where a round's average fell and is far below the models it is made of.

    Both differences must exceed `MAX_DROP`, in accuracy on validation images; otherwise, or where
    an accuracy is not known, the text is empty. Such a round is a sign that one upload has spoilt
    the average.
    """
    common = row.get("mean_val_accuracy_common")
    tuned = row.get("mean_val_accuracy_tuned")
    last = before.get("mean_val_accuracy_common")
    if common is None or tuned is None or last is None or common >= min(last, tuned) - MAX_DROP:
        return ""
    return (
        f"round {row['round']}: the average is right on {100 * common:.0f} % of validation images, "
        f"{100 * last:.0f} % a round before, the sites' own models on {100 * tuned:.0f} %; if it "
        "stays so, look for a site whose training diverged, or lower training.learning_rate"
    )
