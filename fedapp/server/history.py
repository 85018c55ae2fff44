"""The row of a round in `sites.jsonl`: what each site that answered reported of itself."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedapp.evaluation.classification_metrics import metric_value
from fedapp.protocol.messages import MEMORY_LOST, Reply

Row = dict[str, Any]


def sites_row(number: int, replies: Sequence[Reply], seconds: Mapping[str, float]) -> Row:
    """Return the row of round `number`, which has an entry for each site that answered.

    replies: of all phases, in their order; where a site reports something twice, the last report
    counts. seconds: by kind of phase, and of the server itself.

    The entry of a site has the following, where the site reported it: `[right, of]` of each
    evaluation by its name, `val_balanced_accuracy`, `test_balanced_accuracy`, `learned`, `loss`,
    `helpers` as `[site, relation]`, `pseudo` like `protocol.PseudoLabels`, and `memory_lost`.
    """
    sites: dict[str, Row] = {}
    for reply in replies:
        sites.setdefault(str(reply.site), {}).update(_entry(reply))
    return {
        "round": number,
        "seconds": {phase: round(spent, 3) for phase, spent in seconds.items()},
        "sites": dict(sorted(sites.items(), key=lambda item: int(item[0]))),
    }


def _entry(reply: Reply) -> Row:
    entry: Row = {part: [found.correct, found.samples] for part, found in reply.evaluations.items()}
    for part, found in reply.evaluations.items():
        balanced = metric_value("balanced_accuracy", found.confusion)
        if part in {"val", "test"} and balanced is not None:
            entry[f"{part}_balanced_accuracy"] = round(balanced, 4)
    if reply.learned:
        entry["learned"] = True
    if "loss" in reply.metrics:
        entry["loss"] = round(reply.metrics["loss"], 5)
    if reply.helpers:
        entry["helpers"] = [[h.model.site, round(h.score, 4)] for h in reply.helpers]
    if reply.pseudo is not None:
        entry["pseudo"] = asdict(reply.pseudo)
    if reply.metrics.get(MEMORY_LOST):
        entry[MEMORY_LOST] = True
    return entry
