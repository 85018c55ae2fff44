"""Which site a node is: by its number, or by its name among the names in the preset.

The number of a named site is its place in `data.sites`. So a site has the same number in every run
and every driver, whether it comes first, comes late or comes back.
"""

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, DataError
from fedapp.core.formatting import counted
from fedapp.core.settings import OWN
from fedapp.data.own import Place
from fedapp.data.sites import SiteData
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar

NUMBER, NODES = "partition-id", "num-partitions"
"""Keys of a simulated node's config, which has no others: its number and the number of nodes."""


def who_am_i(
    node_config: Mapping[str, Scalar], experiment: Experiment, asked: int | None = None
) -> tuple[int, Place | None]:
    """Return the number of the site that a node is, and where its own data lie.

    asked: the number of the site that a task is for. A node that stands for several sites answers
    as that one. The place is None if the site has no data of its own, and if a simulated site finds
    them below `data.root`. Raises ConfigError if the node config names no site of the preset.
    """
    name, data = node_config.get("site-name", ""), node_config.get("data-path", "")
    if name == data == "":
        number = _numbered(node_config.get(NUMBER), experiment)
        if asked is None or asked not in stands_for(node_config, experiment):
            return number, None
        return asked, None
    if experiment.data.name != OWN:
        raise ConfigError(
            f"site-name and data-path are for data.name = 'own', the preset has "
            f"{experiment.data.name!r}; start the node with partition-id=<k> alone"
        )
    if not name or not data or NUMBER in node_config:
        raise ConfigError(
            "a site with data of its own needs site-name and data-path and no partition-id, such "
            """as --node-config 'site-name="north" data-path="/data"'"""
        )
    names = experiment.data.site_names
    if name not in names:
        near = difflib.get_close_matches(str(name), names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "have it added at the list's end"
        raise ConfigError(
            f"site-name {name!r}: not in the preset's data.sites ({', '.join(names)}); {hint}"
        )
    return names.index(str(name)), Place(str(name), Path(str(data)).expanduser())


def stands_for(node_config: Mapping[str, Scalar], experiment: Experiment) -> Sequence[int]:
    """Return the numbers of all sites that a node stands for.

    Flower's simulation tells each of its N nodes what N is. Together they stand for all K sites:
    node p for the sites p, p + N, p + 2 N, ... Every other node is one site.
    """
    number, nodes = node_config.get(NUMBER), node_config.get(NODES)
    if not isinstance(number, int):
        return ()
    if not simulated_here(node_config) or not isinstance(nodes, int) or nodes < 1:
        return (number,)
    return range(number, experiment.split.num_clients, nodes)


def simulated_here(node_config: Mapping[str, Scalar]) -> bool:
    """Whether this process answers as a node of Flower's simulation, and not as a real site.

    Two conditions must hold, and a run can change neither: the node config has exactly the keys
    that the simulation gives, and the process is one of Ray's. The config alone does not suffice,
    since people start SuperNodes with the same two keys.
    """
    return node_config.keys() == {NUMBER, NODES} and in_ray()


def in_ray() -> bool:
    """Whether this process is connected to Ray, which runs the nodes of Flower's simulation."""
    ray = sys.modules.get("ray")  # Ray's own processes have it; others need not import it
    return ray is not None and bool(ray.is_initialized())


def check_unchanged(note: Path, data: SiteData) -> None:
    """Check that a site's own data are those with which it began this run.

    note: file with the digest of those data; the first call writes it. The digest stays at the
    site. New images would move other images between the training and the test part. Raises
    DataError if the data have changed, StoreError if the disk refuses.
    """
    if not note.exists():
        write_atomic(note, data.digest.encode(), durable=True)
    elif note.read_text() != data.digest:
        raise DataError(
            f"site {data.name!r}: its data have changed since this run began: put them back as "
            "they were, or start a new run"
        )


def _numbered(number: object, experiment: Experiment) -> int:
    if not isinstance(number, int):
        own = experiment.data.name == OWN
        need = "site-name and data-path" if own else "partition-id"
        how = """site-name="<name>" data-path="<folder>\"""" if own else "partition-id=<k>"
        raise ConfigError(f"node config has no {need}; start the node with {how}")
    if not 0 <= number < experiment.split.num_clients:
        raise ConfigError(
            f"partition-id {number}: the preset has "
            f"{counted(experiment.split.num_clients, 'sites')}, numbered from 0; raise "
            "split.num_clients or start fewer nodes"
        )
    return number
