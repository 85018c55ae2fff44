"""Sweeps: settings or methods whose names give values to one parameter, such as nu=1 and nu=5."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedapp.reports.comparison.record import ComparisonRecord
from fedapp.reports.comparison.style import PARAMETER, Look, looks, parameters

_NOT_SWEPT = {"alpha"}
"""Parameters of the split: the tables have a column for each setting anyway."""
_OF_THE_DATA = {"labels", "shift", "sites", "images"}
"""Parameters of the data, which nobody chooses, so the cost of their values is not shown."""


@dataclass(frozen=True)
class Sweep:
    """One parameter, its values in ascending order, and the lines to be drawn over them.

    A line is named by the rest of the setting's and of the method's name, without the parameter; a
    part that is the same for all lines is empty. It maps each value to its (setting, method).
    """

    parameter: str
    values: Sequence[float]
    lines: Mapping[tuple[str, str], Mapping[float, tuple[str, str]]]

    @property
    def of_the_data(self) -> bool:
        """Whether the parameter belongs to the data and not to a method."""
        return self.parameter in _OF_THE_DATA

    @property
    def settings(self) -> set[str]:
        """The settings that it sweeps over."""
        return {setting for line in self.lines.values() for setting, _ in line.values()}


def sweeps(comparison: ComparisonRecord) -> list[Sweep]:
    """Return all sweeps of a comparison, in the order in which their parameters are named."""
    settings, methods = comparison.settings, comparison.methods
    points = {(s, m): parameters(s)[0] | parameters(m)[0] for s in settings for m in methods}
    named = dict.fromkeys(key for given in points.values() for key in given)
    found = []
    for parameter in named:
        if parameter in _NOT_SWEPT:
            continue
        lines: dict[tuple[str, str], dict[float, tuple[str, str]]] = {}
        for (setting, method), given in points.items():
            if parameter in given:
                line = (
                    _rest(setting, parameter, settings),
                    _rest(method, parameter, methods),
                )
                lines.setdefault(line, {})[given[parameter]] = (setting, method)
        values = sorted({value for line in lines.values() for value in line})
        if len(values) > 1:
            found.append(Sweep(parameter, values, lines))
    return found


def _rest(name: str, parameter: str, every: Sequence[str]) -> str:
    """Return a name without the parameter; empty where the rest is the same for all names."""
    rest = _without(name, parameter)
    return rest if any(_without(other, parameter) != rest for other in every) else ""


def _without(name: str, parameter: str) -> str:
    kept = PARAMETER.sub(lambda m: " " if m[1] == parameter else m[0], name)
    return " ".join(kept.replace(",", " ").split())


def looks_of_lines(comparison: ComparisonRecord, sweep: Sweep) -> dict[tuple[str, str], Look]:
    """Return how each line of a sweep is drawn: as its method, if no other line has that method.

    The label of a line is empty if it is the only one.
    """
    known = comparison.looks
    labels = {}
    for setting, method in sweep.lines:
        shown = known[method].label if method in known else method
        labels[setting, method] = ", ".join(part for part in (setting, shown) if part)
    methods = [{method for _, method in line.values()} for line in sweep.lines.values()]
    single = [next(iter(own)) for own in methods if len(own) == 1]
    if len(set(single)) < len(sweep.lines):
        drawn = looks(list(labels.values()))
        return {line: drawn[label] for line, label in labels.items()}
    own = zip(sweep.lines, single, strict=True)
    return {line: replace(known[method], label=labels[line]) for line, method in own}
