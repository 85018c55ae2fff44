"""`fedapp advise`: which method to take for one's own data.

The sweep `conf/sweeps/advise.yaml` is run on the data. A rule then reads its table, a pure function
of numbers (`advise`): the simplest candidate is recommended unless another one is shown to be
better, beyond chance. A method that may be better by more than a point of accuracy, but was not
shown to be, is a rival: then these runs cannot tell the two apart.
"""

import json
import shlex
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from fedapp.core.errors import ConfigError, RunError, name_suggestion
from fedapp.core.settings import FOLDER, DataSettings
from fedapp.data.datasets import data_root
from fedapp.data.folder import list_images, read_stored
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
from fedapp.learn.networks.encoder import EncoderSettings
from fedapp.reports.comparison.record import BEST_ALONE, NETWORK_ALONE, read_comparison
from fedapp.reports.statistics import (
    Difference,
    bonferroni_confidence,
    mean_by_seed,
    paired_difference,
)
from fedapp.tools.check.inputs import encoder_hint
from fedapp.tools.compare.cells import build_cells
from fedapp.tools.compare.compare import compare, folder_of, tune
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.tuning import RATE, write_grid

MARGIN = 0.01
"""One point of accuracy: a smaller gain is not worth a more complicated method."""

Unit = TypeVar("Unit", bound=Hashable)


@dataclass(frozen=True)
class Advice:
    """The recommended method and the evidence for it.

    differences: for each other candidate, its accuracy minus the recommended method's. over: the
    candidates that were recommended before it and that it was shown to beat. rivals: candidates
    that may be better by more than `MARGIN`. highest: the candidate with the highest mean accuracy.
    reach: half the width of the rivals' widest confidence interval, below which a difference cannot
    be seen; None: no rival has an interval.
    """

    method: str
    differences: Mapping[str, Difference]
    over: tuple[str, ...]
    rivals: tuple[str, ...]
    highest: str
    reach: float | None

    @property
    def clear(self) -> bool:
        """Whether no other candidate can be better by more than `MARGIN`."""
        return not self.rivals


def advise(found: Mapping[str, Mapping[Unit, float]]) -> Advice | None:
    """Return which candidate to take; None if there are fewer than two or no unit is common to all.

    found: for each candidate, the simplest first, its accuracy in [0, 1] by unit. A unit is a run
    (a seed), because the sites of one run share a model and a split and are not independent.

    Differences are paired by unit. Their confidence intervals hold together at 95 % (Bonferroni
    over all pairs of candidates). A difference without an interval, of a single unit, proves
    nothing.
    """
    shared = set.intersection(*map(set, found.values())) if found else set()
    if len(found) < 2 or not shared:
        return None
    units = {name: {unit: values[unit] for unit in shared} for name, values in found.items()}
    pairs = len(units) * (len(units) - 1) // 2

    def less(name: str, other: str) -> Difference:
        difference = paired_difference(units[name], units[other], bonferroni_confidence(pairs))
        assert difference is not None  # every candidate has the shared units
        return difference

    first, *others = units
    method, over = first, list[str]()
    for name in others:
        low = less(name, method).low
        if low is not None and low > 0:
            over.append(method)
            method = name
    differences = {name: less(name, method) for name in units if name != method}
    rivals = tuple(name for name, d in differences.items() if _may_be_better(d))
    reaches = [r for name in rivals if (r := differences[name].half_width) is not None]
    highest = max(units, key=lambda name: fmean(units[name].values()))
    return Advice(method, differences, tuple(over), rivals, highest, max(reaches, default=None))


def _may_be_better(difference: Difference) -> bool:
    if difference.high is None:  # equal in all units, or only one unit
        return difference.n < 2 or difference.value > MARGIN
    return difference.high > MARGIN


SWEEP = "advise"
SETTING = "base"
"""Name of the only setting in the comparison's files."""
PHOTOGRAPHS = ("cifar10", "stl10")
"""Published data sets of photographs."""
LOOKED_AT = 20
"""About how many images of a folder are opened before anything is run."""
SIDE = 32
"""Side in pixels to which a folder's images are resized unless `data.image_size` is given."""


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
    """Tune and run the candidates on a person's data and print the advice.

    data: a preset (name or YAML file), or a folder with one folder of images for each class. given:
    overrides, which win over the sweep's; if they set the learning rate, all methods use it and
    nothing is tuned. by: the metric that candidates are compared by. as_data: print nothing but
    JSON to standard output; progress goes to standard error.

    Returns the exit code: that of the tuning or the comparison if one failed, else 0. Raises
    ConfigError, DataError and RunError before anything is run, and RunError at the end if no site
    has labelled test images.
    """
    plain, own, left_out = plan(data, given, seeds)
    folder = folder_of(out, f"advise-{_name(data)}")
    file = folder / f"{SWEEP}.yaml"
    with redirect_stdout(sys.stderr) if as_data else nullcontext():
        agreed = load_experiment(plain["preset"], {**own, "method.preset": plain["methods"][0]})
        hint = encoder_hint(some_images(agreed.data))
        if hint and not isinstance(agreed.model, EncoderSettings):
            print(": ".join(hint))
        for name, why in left_out.items():
            print(f"left out: {name}: {why}")
        write_grid(file, "# Written by `fedapp advise`.\n", plain)
        build_cells(read_grid(str(file)), folder)  # raises what is wrong before the tuning begins
        if "tune" in plain:
            if code := tune(str(file), {}, out=folder / "tuning", jobs=jobs):
                return code
            file = folder / "tuning" / file.name
        if code := compare(str(file), {}, out=folder, jobs=jobs, by=by):
            return code
    record = read_comparison(folder)
    units = record.units(SETTING, by)
    if by == "accuracy" and NETWORK_ALONE in units and record.lone_form(SETTING):
        units[NETWORK_ALONE] = record.of_sites(SETTING, BEST_ALONE).dropna().to_dict()
    found = mean_by_seed(units)
    advice = advise({name: found[name] for name in plain["methods"] if name in found})
    if advice is None:
        raise RunError(f"{data}: no site has labelled test images: label some, or nobody can tell")
    chosen = read_grid(str(file)).methods
    if as_data:
        print(json.dumps(as_json(found, advice, chosen, left_out), indent=2))
        return 0
    print("\n".join(["", *reason(advice), *cheaper(found)]))
    if record.lone_form(SETTING):
        print(f"{NETWORK_ALONE} stands for each site alone: its network, or the closed form of its "
              "own images where that is better on its validation images.")  # fmt: skip
    best = {"method.preset": advice.method, **chosen[advice.method]}
    words = [plain["preset"], *(f"{key}={value}" for key, value in {**own, **best}.items())]
    print(f"In full: fedapp run {shlex.join(words)}")
    return 0


def plan(
    data: str, given: Mapping[str, Scalar], seeds: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Scalar], dict[str, str]]:
    """Return the sweep for a person's data, the overrides of its preset, and who is left out.

    The sweep is the content of a grid's YAML file. The last value maps each candidate that cannot
    run with these settings to the reason. Raises ConfigError if there is no such data or fewer than
    two candidates can run, and DataError if a folder has no images.
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
            f"{data}: advise compares at least two methods, and only {len(able)} can run: {why}"
        )
    plain["methods"] = able
    values = {name: plain["tune"]["values"][name] for name in able}
    plain["tune"] = {**plain["tune"], "seeds": [max(plain["seeds"]) + 1], "values": values}
    if RATE in own:
        del plain["tune"]
    return plain, own, left_out


def _data(data: str) -> tuple[str, dict[str, Scalar]]:
    """Return the preset to build on, and the settings that say where the data are."""
    if Path(data).is_dir() and data not in presets():
        list_images(Path(data))  # raises once here, rather than in every run
        where = str(Path(data).absolute())
        return str(IN_MEMORY), {"data.name": "folder", "data.root": where, "data.image_size": SIDE}
    if data in presets() or yaml_path(data) is not None:
        return independent_of_folder(data), {}
    if Path(data).suffix.lower() == ".csv" and Path(data).is_file():
        raise ConfigError(
            f"'{data}': a CSV file: of a table make a folder of vectors for each site, and name "
            "the YAML file that says where they are (docs/TUTORIAL_TABLES.md)"
        )
    raise ConfigError(
        f"'{data}': no such preset, YAML file or folder; {name_suggestion(data, presets())}"
    )


def some_images(settings: DataSettings) -> list[tuple[int, bool]]:
    """Return the shorter side of some of the images, and whether each is grey; [] if not known.

    Of a folder some files are opened; else the settings tell, or the data set's name.
    """
    if settings.name == FOLDER:
        files = list_images(data_root(settings.root)).files
        seen = [read_stored(file) for file in files[:: max(len(files) // LOOKED_AT, 1)]]
        return [(min(one.values.shape[:2]), one.grey) for one in seen]
    if settings.image_size and settings.channels:
        return [(settings.image_size, settings.channels == 1)]
    return [(settings.image_size or 32, False)] if settings.name in PHOTOGRAPHS else []


def _name(data: str) -> str:
    path = Path(data)
    return (path.absolute().name if path.is_dir() else path.stem) or "images"


def reason(advice: Advice) -> list[str]:
    """Return the recommendation and its reasons, one sentence for each line."""
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
        if advice.reach >= 1:
            seen = ": with so few seeds no difference can be seen"
    return [
        *lines,
        f"These runs do not tell it from {', '.join(advice.rivals)}{seen}.",
        f"Highest so far: {advice.highest}.",
        "More seeds (--seeds), or more images that are labelled for testing, tell more.",
    ]


def cheaper(found: Mapping[str, Mapping[Unit, float]]) -> list[str]:
    """Return a line that says "take one_round" where `recommended` is not shown to be better.

    found: as for `advise`. `recommended` is `one_round` and training beside it.
    """
    try:
        less = paired_difference(found["recommended"], found["one_round"])
    except KeyError:
        return []
    if less is None or less.n < 2 or (less.low is not None and less.low > 0):
        return []
    return [
        f"recommended is not shown to be better than one_round ({100 * less.value:+.1f} points), "
        "and takes 2 to 47 times as long: of the two take one_round."
    ]


def as_json(
    found: Mapping[str, Mapping[int, float]],
    advice: Advice,
    chosen: Mapping[str, Mapping[str, Scalar]],
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    """Return the advice for `--json`. Accuracies and differences are shares, in [0, 1] or [-1, 1].

    found: accuracy by candidate and seed. chosen: each candidate's tuned overrides. left_out: why
    the others could not run.
    """
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
