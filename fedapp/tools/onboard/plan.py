"""From a finished run and a new site to a run of that site alone, the run's models as peers."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.data.own import Place
from fedapp.experiment.config import from_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import ConfigError
from fedapp.ground.settings import OWN
from fedapp.server.peers import Finished


@dataclass(frozen=True)
class NewSite:
    """A site that took no part in the run.

    data, name: of one with images of its own. number: of a part of a data set that the program
    splits, for trials and research; None where the site has images of its own.
    """

    data: Path | None = None
    name: str = ""
    number: int | None = None


@dataclass(frozen=True)
class Plan:
    """The new run, its only site's number, and where that site's own data lie."""

    experiment: Experiment
    site: int
    place: Place | None


def plan_for(run: Finished, new: NewSite, rounds: int, overrides: Mapping[str, Scalar]) -> Plan:
    """Return the run of the new site alone: the finished run's settings, all rounds its own.

    overrides: settings to change, such as `training.local_epochs`. Raises ConfigError where the
    site cannot be told, took part already, or a setting is wrong.
    """
    if run.experiment.data.findings:
        raise ConfigError(
            f"{run.path.name}: its models answer findings, and what a new site gains is measured "
            "by classes: begin a run with the site in it"
        )
    plain: dict[str, Any] = copy.deepcopy(dict(run.plain))
    if run.experiment.data.name == OWN:
        site, place = _of_its_own(run, new, plain)
    else:
        site, place = _of_the_split(run, new), None
    if site in run.facts:
        raise ConfigError(
            f"site {new.name or site} took part in {run.path.name}: its model is there already; "
            "onboard a site that did not"
        )
    plain["name"] = f"{run.experiment.name}-onboard"
    plain["rounds"] = plain.get("rounds", {}) | {"num_rounds": rounds, "sample_rate": 1.0}
    plain["runtime"] = {"peers": str(run.path.absolute())}  # the other machine's are no matter here
    for key, value in overrides.items():
        group, dot, inner = key.partition(".")
        if key == "method.name":
            plain["method"] = {"name": value}
        elif dot:
            plain[group] = plain.get(group, {}) | {inner: value}
        else:
            plain[group] = value
    experiment = from_plain(plain, f"{run.path.name}/config.yaml with overrides")
    return Plan(experiment, site, place)


def _of_its_own(run: Finished, new: NewSite, plain: dict[str, Any]) -> tuple[int, Place]:
    """Return the number that the site's name has, or gets at the end of the list, and its data."""
    if new.data is None or not new.name or new.number is not None:
        raise ConfigError(
            f"{run.path.name} is of sites with images of their own; give --data FOLDER and "
            "--site-name NAME"
        )
    known = {k: facts.name for k, facts in run.facts.items()}
    names = list(run.experiment.data.site_names) or [known[k] for k in sorted(known)]
    if new.name not in names:
        names.append(new.name)
    plain["data"]["sites"] = ", ".join(names)
    plain["split"]["num_clients"] = len(names)
    return names.index(new.name), Place(new.name, new.data.expanduser())


def _of_the_split(run: Finished, new: NewSite) -> int:
    """Return the number of a part of the data set."""
    count = run.experiment.split.num_clients
    if new.number is None or new.data is not None or new.name:
        raise ConfigError(
            f"{run.path.name} is of {run.experiment.data.name}, which the program splits; give "
            "--site NUMBER alone"
        )
    if not 0 <= new.number < count:
        raise ConfigError(f"--site {new.number}: the run's {count} sites count from 0")
    return new.number
