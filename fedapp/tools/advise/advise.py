"""`fedapp advise`: the sweep `advise` on a person's own data, and one rule over its table."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapp.core.errors import ConfigError, RunError, name_suggestion
from fedapp.data.folder import list_images
from fedapp.evaluation.classification_metrics import Metric
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import (
    IN_MEMORY,
    Scalar,
    independent_of_folder,
    presets,
    read_yaml,
    sweeps,
    yaml_path,
)
from fedapp.reports.comparison.record import read_comparison
from fedapp.reports.statistics import by_run
from fedapp.tools.advise.rule import MARGIN, Advice, advise
from fedapp.tools.compare.cells import build_cells
from fedapp.tools.compare.compare import compare, folder_of, tune
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.tuning import RATE, write_grid

SWEEP = "advise"
SETTING = "base"
"""What the one setting is called in the comparison's files."""
SIDE = 32
"""Pixels to which a folder's images are brought, unless told otherwise."""


def advise_on(
    data: str,
    given: Mapping[str, Scalar],
    *,
    seeds: Sequence[int] = (),
    out: Path | None = None,
    jobs: int | None = None,
    as_data: bool = False,
    by: Metric = "accuracy",
) -> int:
    """Tune and run the candidates on a preset or a folder, and say which to take; as `compare`.

    data: a preset, by name or file, or a folder of images by class. given: overrides, which go over
    the sweep's; a given learning rate is that of all, and nothing is tuned. by: metric in which
    candidates are compared. as_data: print JSON alone to standard output; progress goes to standard
    error.

    Raises ConfigError, DataError and RunError before anything is run, and RunError where no site
    has test images.
    """
    plain, own, left_out = plan(data, given, seeds)
    folder = folder_of(out, f"advise-{_name(data)}")
    file = folder / f"{SWEEP}.yaml"
    with redirect_stdout(sys.stderr) if as_data else nullcontext():
        for name, why in left_out.items():
            print(f"left out: {name}: {why}")
        write_grid(file, "# Written by `fedapp advise`.\n", plain)
        build_cells(read_grid(str(file)), folder)  # what is wrong is said before the tuning
        if "tune" in plain:
            if code := tune(str(file), {}, out=folder / "tuning", jobs=jobs):
                return code
            file = folder / "tuning" / file.name
        if code := compare(str(file), {}, out=folder, jobs=jobs, by=by):
            return code
    found = by_run(read_comparison(folder).units(SETTING, by))
    advice = advise({name: found[name] for name in plain["methods"] if name in found})
    if advice is None:
        raise RunError(f"{data}: no site has labelled test images: label some, or nobody can tell")
    chosen = read_grid(str(file)).methods
    if as_data:
        print(json.dumps(as_json(found, advice, chosen, left_out), indent=2))
        return 0
    print("\n".join(["", *reason(advice)]))
    best = {"method.preset": advice.method, **chosen[advice.method]}
    words = [plain["preset"], *(f"{key}={value}" for key, value in {**own, **best}.items())]
    print(f"In full: fedapp run {shlex.join(words)}")
    return 0


def plan(
    data: str, given: Mapping[str, Scalar], seeds: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Scalar], dict[str, str]]:
    """Return the sweep on a person's data as its file holds it, what they set, and what cannot run.

    The last: why each candidate that these settings leave out cannot run with them. Raises
    ConfigError where there is no such data or fewer than two candidates can run, and DataError
    where a folder has no images.
    """
    plain = dict(read_yaml(sweeps()[SWEEP]))
    base, own = _data(data)
    own |= given
    plain |= {"preset": base, "set": {**plain["set"], **own}, "seeds": [*(seeds or plain["seeds"])]}
    left_out: dict[str, str] = {}
    for name in plain["methods"]:
        try:
            load_experiment(base, {**own, "method.preset": name})
        except ConfigError as error:
            left_out[name] = "; ".join(map(str, error.problems))
    able = [name for name in plain["methods"] if name not in left_out]
    if len(able) < 2:
        why = next(iter(left_out.values()))
        raise ConfigError(
            f"{data}: advise compares two methods or more, and {len(able)} can: {why}"
        )
    plain["methods"] = able
    values = {name: plain["tune"]["values"][name] for name in able}
    plain["tune"] = {**plain["tune"], "seeds": [max(plain["seeds"]) + 1], "values": values}
    if RATE in own:
        del plain["tune"]
    return plain, own, left_out


def _data(data: str) -> tuple[str, dict[str, Scalar]]:
    """Return the preset of what a person named, and the settings that say where it is."""
    if Path(data).is_dir() and data not in presets():
        list_images(Path(data))  # else every run would say that there are none
        where = str(Path(data).absolute())
        return str(IN_MEMORY), {"data.name": "folder", "data.root": where, "data.image_size": SIDE}
    if data in presets() or yaml_path(data) is not None:
        return independent_of_folder(data), {}
    raise ConfigError(
        f"'{data}': no such preset, YAML file or folder; {name_suggestion(data, presets())}"
    )


def _name(data: str) -> str:
    path = Path(data)
    return (path.absolute().name if path.is_dir() else path.stem) or "images"


def reason(advice: Advice) -> list[str]:
    """Return the recommendation and why, a sentence each."""
    if all(difference.n < 2 for difference in advice.differences.values()):
        return ["One seed tells nothing about other seeds: give several (--seeds)."]
    lines = [f"Take: {advice.method}."]
    if advice.over:
        lines = [f"Take: {advice.method}. Better, beyond chance, than {', '.join(advice.over)}."]
    elif advice.rivals:
        lines = [f"Cannot tell: nothing is shown to be better than {advice.method}."]
    if advice.clear:
        return [*lines, f"Nothing else can be more than {100 * MARGIN:.0f} point better."]
    seen = ""
    if advice.reach is not None:
        seen = f": differences smaller than {100 * advice.reach:.1f} points are not seen"
    return [
        *lines,
        f"These runs do not tell it from {', '.join(advice.rivals)}{seen}.",
        f"Highest so far: {advice.highest}.",
        "More seeds (--seeds), or more images that are labelled for testing, tell more.",
    ]


def as_json(
    found: Mapping[str, Mapping[int, float]],
    advice: Advice,
    chosen: Mapping[str, Mapping[str, Scalar]],
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    """Return all of it as JSON can hold it; accuracies and differences are shares."""
    return {
        "method": advice.method,
        "clear": advice.clear,
        "better_than": list(advice.over),
        "rivals": list(advice.rivals),
        "highest": advice.highest,
        "reach": advice.reach,
        "candidates": {
            name: {
                "accuracy": fmean(runs.values()),
                **({RATE: chosen[name][RATE]} if RATE in chosen[name] else {}),
                **({} if (d := advice.differences.get(name)) is None else
                   {"difference": d.value, "low": d.low, "high": d.high}),
            }
            for name, runs in found.items()
        },
        "left_out": dict(left_out),
    }  # fmt: skip
