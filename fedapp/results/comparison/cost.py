"""The tables of cost: of every run, and of each value of a parameter beside the paper's."""

from collections.abc import Mapping

from fedapp.ground.text import count, duration, percent, size
from fedapp.results.comparison.looks import MIX, looks, looks_of_lines
from fedapp.results.comparison.paper import COST, PaperNumbers
from fedapp.results.comparison.record import BEST, SELECTED, Comparison
from fedapp.results.comparison.sweep import Sweep
from fedapp.results.layout import DASH, Entry, Table, mean_percent

MODELS = ("models_down", "models_up", "cost_bound_models")
WORK = ("steps_per_site", "images_per_site")
BYTES = ("bytes_down", "bytes_up", "bytes_evaluation")


def cost_table(comparison: Comparison) -> Table:
    """What was sent and how long it took, beside the paper's bound; and pseudo-label error."""
    names = looks(comparison.methods, comparison.presets)
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            models, sent, work = (
                [_mean(comparison, setting, method, column) for column in columns]
                for columns in (MODELS, BYTES, WORK)
            )
            error = comparison.mean(setting, method, "pseudo_label_error")
            ran = len(comparison.of(setting, method))
            rows.append(
                [
                    *(setting, names[method].label, str(ran)),
                    *map(count, work),
                    *map(count, models),
                    *map(size, sent),
                    duration(_mean(comparison, setting, method, "wall_seconds")),
                    mean_percent(error, ran),
                ]
            )
    columns = [
        *("Setting", "Method", "Seeds", "Steps a site", "Images a site"),
        *("Models to sites", "Models to server"),
        *("Bound of Eq. 28, models", "Bytes to sites", "Bytes to server"),
        *("Bytes for evaluation alone", "Wall time", "Pseudo-label error, %"),
    ]
    notes = [
        "Means over seeds, of a whole run. Models and bytes are those that a method's rounds send, "
        "messages included; what is sent only to measure a model is counted apart. Bound: the "
        "paper's for UM-pFSSL (Eq. 28), models both ways; other methods have none.",
        "Steps: of every optimiser, of all networks of a site, warm-up too. Images: that went into "
        "them, each view and each repeat counted. Methods whose sites do unequal work are not "
        "compared by their rules alone.",
        "Wall times are comparable only where the cells ran on one machine, as many at a time. "
        "Pseudo-label error: share of wrong ones, last measured; mean ± sd over seeds.",
    ]
    if comparison.method(MIX):
        notes.append("Mix costs what the three methods that it asks cost together.")
    return Table("Cost of a run", columns, rows, notes)


def sweep_table(comparison: Comparison, sweep: Sweep, numbers: PaperNumbers) -> Table:
    """Accuracy and cost for each value of a parameter, beside the paper's."""
    rows: list[list[Entry]] = []
    shown = looks_of_lines(comparison, sweep)
    for key, line in sweep.lines.items():
        costs = relative_costs(comparison, line)
        for value in sorted(line):
            setting, method = line[value]
            ran = len(comparison.of(setting, method))
            rows.append(
                [
                    shown[key].label or DASH,
                    f"{value:g}",
                    str(ran),
                    mean_percent(comparison.mean(setting, method, SELECTED), ran),
                    mean_percent(comparison.mean(setting, method, BEST), ran),
                    numbers.find(setting, method) or DASH,
                    percent(costs.get(value)),
                    numbers.find(setting, method, COST) or DASH,
                ]
            )
    columns = [
        *("Line", sweep.parameter, "Seeds", "Selected on validation, %"),
        *("Best test accuracy over rounds, %", "Paper: best over rounds, %"),
        *("Cost, % of the dearest", "Paper: cost, %"),
    ]
    notes = ["Cost: models sent, both ways, mean over seeds, in % of the dearest value's."]
    if all(row[0] == DASH for row in rows):
        columns, rows = columns[1:], [row[1:] for row in rows]
        return Table(f"Values of {sweep.parameter}", columns, rows, notes, labels=1)
    return Table(f"Values of {sweep.parameter}", columns, rows, notes)


def relative_costs(
    comparison: Comparison, line: Mapping[float, tuple[str, str]]
) -> dict[float, float]:
    """Return value -> models sent, both ways, as a share of the dearest value's; where measured."""
    means = {}
    for value, (setting, method) in line.items():
        sent = _mean(comparison, setting, method, "models")
        if sent is not None:
            means[value] = sent
    dearest = max(means.values(), default=0.0)
    return {value: mean / dearest for value, mean in means.items()} if dearest else {}


def _mean(comparison: Comparison, setting: str, method: str, column: str) -> float | None:
    mean = comparison.mean(setting, method, column)
    return None if mean is None else mean.value
