"""A round of FedAvg in this project and in others: CPU time, memory, and whether the work is equal.

`python -m bench.peers [--quick] [--turns N] [--sites K] [--only 'NAME;NAME'] [--before PATH]
[--pfllib PATH] [--fl-bench PATH] [--pfl-research PATH]`: this project runs beside a bare
PyTorch loop, the same loop with this project's training steps, and those projects whose checkouts
are given. In each turn every contender runs once, in a new order, in a process of its own with one
thread; ratios are taken within a turn. Before that, each contender trains one round without dropout
and with one batch per site, so that the order of the images does not matter: `update apart` is the
distance of its update from the bare loop's, relative to the length of that update.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from bench.command import Quick, carry_out
from bench.measure import Times, in_turns
from bench.peers.contenders import LOOP, OURS, STEPS, Contender, contender
from bench.peers.problem import Problem, Setting, apart, write
from bench.record import Row, save
from fedapp.core.errors import ConfigError

RESNET9: dict[str, str | int | float] = {"name": "resnet9", "width": 8}
SETTINGS = (
    Setting("20 x 490", "fashion_mnist", RESNET9, 20, 490, 70, 140, batch_size=70),
    Setting("100 x 100", "fashion_mnist", RESNET9, 100, 100, 14, 29, batch_size=50),
    Setting(
        "1,000 x 14",
        "fashion_mnist",
        {"name": "fedsiam_mnist"},
        1000,
        14,
        2,
        4,
        batch_size=14,
        warm_up=5,  # before, most sites train for the first time, and their models need new memory
    ),
    *(  # the last takes all images that there are
        Setting(
            f"{sites:,} x 5",
            "fashion_mnist",
            {"name": "fedsiam_mnist"},
            sites,
            5,
            1,
            1,
            batch_size=5,
            warm_up=5,
        )
        for sites in (2_500, 5_000, 10_000)
    ),
)
TOY = (Setting("4 x 20", "digits", {"name": "resnet9", "width": 2}, 4, 20, 2, 4, batch_size=10),)
ROUNDS = 2
"""Rounds of a turn that count, after the warm-up."""

Checkout = Annotated[Path | None, typer.Option(help="its checkout", show_default=False)]


def main(
    turns: Annotated[int, typer.Option(min=1, help="turns of each")] = 5,
    sites: Annotated[int | None, typer.Option(help="only the setting of so many")] = None,
    before: Checkout = None,
    pfllib: Checkout = None,
    fl_bench: Checkout = None,
    pfl_research: Checkout = None,
    only: Annotated[str, typer.Option(help="the bare loop and these: NAME;NAME")] = "",
    quick: Quick = False,
) -> None:
    """Measure and save the table."""
    given = {
        "before": before,
        "PFLlib": pfllib,
        "FL-bench": fl_bench,
        "pfl-research": pfl_research,
    }
    checkouts = {name: path for name, path in given.items() if path}
    turns = 1 if quick else turns
    settings = settings_of_size(sites, TOY if quick else SETTINGS)
    contenders = [Contender(LOOP, "loop"), Contender(STEPS, "steps"), Contender(OURS, "ours")]
    contenders += [contender(name, path) for name, path in checkouts.items()]
    contenders = chosen_contenders(only, contenders)
    with TemporaryDirectory(prefix="bench-") as folder:
        for index, setting in enumerate(settings):
            place = Path(folder) / str(index)
            differences = equal_work(setting, contenders, place / "equal")
            rows = timed(setting, contenders, turns, place / "timed", differences)
            # A table for each setting: one of them takes an hour on a busy machine.
            told = notes(turns, setting.sites, checkouts, only)
            save(f"peers-{setting.sites}", rows, told, quick=quick)


def settings_of_size(sites: int | None, settings: Sequence[Setting]) -> Sequence[Setting]:
    """Return the settings with this number of sites; None: all settings.

    Raises ConfigError where there is none.
    """
    found = [setting for setting in settings if sites in (None, setting.sites)]
    if not found:
        known = ", ".join(str(setting.sites) for setting in settings)
        raise ConfigError(f"--sites {sites}: no such setting: give one of {known}")
    return found


def chosen_contenders(only: str, contenders: Sequence[Contender]) -> list[Contender]:
    """Return the bare loop and the contenders named in `only`; empty: all.

    Raises ConfigError for an unknown name.
    """
    names = {contender.name for contender in contenders}
    wanted = set(filter(None, map(str.strip, only.split(";")))) or names
    if unknown := sorted(wanted - names):
        raise ConfigError(f"--only {unknown[0]}: give some of {'; '.join(sorted(names))}")
    return [one for one in contenders if one.name in wanted | {LOOP}]


def notes(turns: int, sites: int, checkouts: Collection[str], only: str) -> dict[str, object]:
    """Return what all rows have in common, with the command but without paths of this machine."""
    paths = "".join(f" --{name.lower()} PATH" for name in checkouts)
    paths += f" --only '{only}'" if only else ""
    return {
        "command": f"python -m bench.peers --turns {turns} --sites {sites}{paths}",
        "share of sites that train": SETTINGS[0].share,
        "epochs": SETTINGS[0].epochs,
    }


def equal_work(setting: Setting, contenders: Sequence[Contender], folder: Path) -> dict[str, float]:
    """Return the distance of each contender's update from the bare loop's, by `problem.apart`."""
    network = {**setting.network, "dropout": 0.0}
    write(replace(setting, network=network, batch_size=setting.train), folder)
    for who in contenders:
        who.turn(folder, folder / who.name, evaluate=False, rounds=1)
    models = {who.name: folder / f"{who.name}.safetensors" for who in contenders}
    start = Problem.load(folder, evaluate=False, rounds=1).start
    return {name: apart(path, models[LOOP], start) for name, path in models.items()}


def timed(
    setting: Setting,
    contenders: Sequence[Contender],
    turns: int,
    folder: Path,
    differences: Mapping[str, float],
) -> list[Row]:
    """Let all contenders take turns, with and without evaluation; return a row for each."""
    write(setting, folder)

    def turn(evaluate: bool, who: Contender) -> dict[str, Any]:
        answer = who.turn(folder, folder / who.name, evaluate, setting.warm_up + ROUNDS)
        how = "with" if evaluate else "without"
        took = f"{_per_round(answer):.2f} s a round, {answer['peak_mib']:.0f} MiB"
        print(f"bench.peers: {setting.name}, {how} evaluation: {who.name}: {took}", flush=True)
        return answer

    cases = {(e, w.name): partial(turn, e, w) for e in (False, True) for w in contenders}
    answers = in_turns(cases, turns)
    steps = any(who.name == STEPS for who in contenders)
    times = {case: Times(tuple(map(_per_round, given))) for case, given in answers.items()}
    return [
        {
            "images": setting.name,
            "evaluation": "with" if evaluate else "without",
            "who": who,
            **times[evaluate, who].row(),
            **times[evaluate, who].over(times[evaluate, LOOP]),
            **(_of_steps(times[evaluate, who], times[evaluate, STEPS]) if steps else {}),
            "peak_mib": round(max(one["peak_mib"] for one in given)),
            "page faults": round(median(mean(one["faults"][-ROUNDS:]) for one in given)),
            "trained on": given[0]["images"]["trained"],
            "evaluated": given[0]["images"]["evaluated"],
            "update apart": float(f"{differences[who]:.1g}"),
        }
        for (evaluate, who), given in answers.items()
    ]


def _of_steps(one: Times, steps: Times) -> dict[str, float]:
    return {name.replace("ratio", "of_our_steps"): value for name, value in one.over(steps).items()}


def _per_round(answer: dict[str, Any]) -> float:
    seconds: list[float] = answer["seconds"]
    return mean(seconds[-ROUNDS:])


if __name__ == "__main__":
    carry_out(main)
