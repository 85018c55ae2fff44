"""What must be equal between two runs of one experiment, and the loopback run to compare with."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedapp.experiment.experiment import Experiment
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.loopback import run_loopback


def rows(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [_untimed(json.loads(line)) for line in lines]


def results(folder: Path) -> dict[str, Any]:
    """Rows, every site's model by digest, helper lists, evaluations, and all traffic.

    Of what sites keep to themselves only whose there is: its digests have each site's secret in
    them, and are other ones wherever its folder is another.
    """
    checkpoint = _untimed(json.loads((folder / "checkpoint.json").read_text()))
    checkpoint["state"]["private"] = sorted(checkpoint["state"]["private"])
    return {"rows": rows(folder), "traffic": (folder / "traffic.csv").read_text(), **checkpoint}


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _untimed(inner) for k, inner in value.items() if k != "wall_seconds"}
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value


def loopback(experiment: Experiment) -> Path:
    """Run the experiment without Flower; return its folder."""
    return run_loopback(experiment)[1]


def assert_resumed_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
    experiment_in: Callable[[Path], Experiment],
    tmp_path: Path,
    cut: int,
) -> None:
    """Run whole; run again, the power going in exchange `cut` after its first answer; resume.

    experiment_in: makes the experiment whose runs lie in a folder.
    """
    whole = loopback(experiment_in(tmp_path / "whole"))
    count, honest = [0], Loopback.exchange

    def exchange(self: Loopback, outbox: Any, fetch: Any, deadline_s: Any) -> Iterator[Any]:
        count[0] += 1
        for answered in honest(self, outbox, fetch, deadline_s):
            yield answered
            if count[0] == cut:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loopback, "exchange", exchange)
        with pytest.raises(KeyboardInterrupt):
            loopback(experiment_in(tmp_path / "cut"))
    experiment = experiment_in(tmp_path / "cut")
    again = loopback(replace(experiment, runtime=replace(experiment.runtime, resume=True)))
    assert results(again)["pool"] == results(whole)["pool"]
    assert rows(again) == rows(whole)
