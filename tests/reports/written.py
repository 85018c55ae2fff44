"""Folders of runs, written by hand: what a report shows of them can be worked out on paper."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedapp.evaluation.verdict import Pairs
from fedapp.experiment.run_folder import RunFolder
from fedapp.protocol.messages import Evaluation, ModelRef, PseudoLabels, Reply, ScoredRef, SiteFacts
from fedapp.server.history import sites_row
from fedapp.server.standings import Standing, Standings

CLASSES = ("cat", "dog")


def evaluation(confusion: tuple[tuple[int, ...], ...], sure: int = 14) -> Evaluation:
    """All answers in one bin of probability, at its middle."""
    images, right = sum(map(sum, confusion)), sum(row[i] for i, row in enumerate(confusion))
    bins = [0] * 15
    return Evaluation(
        confusion,
        tuple([*bins[:sure], images, *bins[sure + 1 :]]),
        tuple([*bins[:sure], right, *bins[sure + 1 :]]),
        tuple([*bins[:sure], images * (sure + 0.5) / 15, *bins[sure + 1 :]]),
    )


def facts(
    site: int, labelled: int, name: str = "", classes: tuple[str, ...] = CLASSES
) -> SiteFacts:
    return SiteFacts(site, (1, 8, 8), classes, labelled, 100 - labelled, 4, 5, "ab" * 32, name=name)


def rights(right: int) -> Evaluation:
    """`right` of 5 test images: 3 cats and 2 dogs, the cats right first."""
    cats = min(right, 3)
    return evaluation(((cats, 3 - cats), (2 - (right - cats), right - cats)))


def write_run(
    root: Path,
    name: str = "mine",
    names: tuple[str, ...] = ("east", "north", "west"),
    classes: tuple[str, ...] = CLASSES,
    history: bool = True,
    pairs: tuple[Pairs, ...] = (),
) -> Path:
    """Write a run of three sites and two rounds of UM-pFSSL.

    Right of 5 test images, round by round: east 1, 3, 4; north 4, 4, 2; west 0, 0, 0. Labelled of
    100 training images: 5, 30, 80. pairs: what each site counts of both kinds of model.
    """
    folder = root / name
    folder.mkdir(parents=True)
    records = RunFolder(folder)
    sites = {
        k: Standing(facts(k, labelled, called, classes))
        for k, (labelled, called) in enumerate(zip((5, 30, 80), names, strict=True))
    }
    standings = Standings(sites)
    for k, counted in enumerate(pairs):
        sites[k] = replace(sites[k], pairs=counted)
    for number, right in enumerate(((1, 4, 0), (3, 4, 0), (4, 2, 0))):
        replies = [said(number, k, n) for k, n in enumerate(right)]
        row = standings.close_round(number, replies, {2: "no answer"} if number == 2 else {})
        row |= {"models_sent": 6 * number, "models_up": 3 * number, "bytes_down": 6000 * number,
                "bytes_up": 3000 * number, "wall_seconds": 10.0 * (number + 1)}  # fmt: skip
        records.append_metrics(row)
        if history:
            records.append_sites(sites_row(number, replies, {"train": 8.0, "server": 1.0}))
    state: dict[str, Any] = {
        "standings": TypeAdapter(Standings).dump_python(standings, mode="json"),
        "wall_seconds": 30.0,
    }
    records.save_checkpoint({"round": 2, "state": state})
    records.write_summary(
        {"cost_bound_models": 24.0, "cost_greedy_models": 18.0, "lone_model": "a network"}
    )
    versions = {"torch": "2.12.1"}
    records.write("run.json", json.dumps({"code": "c0de", "versions": versions, "started": "now"}))
    settings = {
        "name": "digits_demo", "seed": 7, "data": {"name": "digits"},
        "method": {"name": "um_pfssl"}, "model": {"name": "resnet9"},
        "rounds": {"num_rounds": 2, "sample_rate": 1.0},
    }  # fmt: skip
    records.write("config.yaml", json.dumps(settings))  # JSON is YAML
    return folder


def said(number: int, site: int, right: int) -> Reply:
    found = {"test": rights(right), "val": evaluation(((2, 0), (1, 1)))}
    reply = Reply(site, number, "0" * 64, metrics={"loss": 0.5}, evaluations=found, learned=True)
    if not number:
        return reply
    helper = ScoredRef(ModelRef((site + number) % 3, 1, "1" * 64), 0.5)
    counts = PseudoLabels((6, 4), (10, *[0] * 9), (1, 2), (3, *[0] * 9))
    return replace(reply, helpers=(helper,), pseudo=counts)
