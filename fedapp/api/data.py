"""A federation's data from a program's own tensors, arrays and data sets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import torch
from torch import Tensor

from fedapp.api.tensors import Labelled, Unlabelled, labelled, stats, unlabelled
from fedapp.core.errors import DataError
from fedapp.core.names import SITE_NAME
from fedapp.data.in_memory import Given, GivenSites, register
from fedapp.data.inputs import DataSet
from fedapp.data.sites import LABELLED, TEST, UNLABELLED, VAL, Part, SiteData
from fedapp.data.split.groups import patient_numbers
from fedapp.experiment.preset_files import Scalar
from fedapp.protocol.messages import MAX_CLASSES

_SITE_PARTS = (LABELLED, UNLABELLED, VAL, TEST)


@dataclass(frozen=True, eq=False)
class Site:
    """What one site has; what it lacks is left out.

    labelled, unlabelled: to learn from, one of them at least. val: to choose a round and an answer
    by. test: to measure by. name: letters, digits, dot, dash and underscore; empty: its number.
    patients: of every part that is there, by its name, a name or number of each input's patient;
    nobody is in two parts but the first two. Intervals are by patient then, and `privacy.epsilon`
    is of a patient. None: not known.

    Inputs are [n, ...]: uint8 [n, C, H, W] images, C 1 or 3, sides of 8 to 512 pixels; or numbers,
    floating point [n, D], [n, C, L] or [n, C, H, W]. Labels are integers from 0; or, where an input
    may show several findings, integers [n, F]: 1 there, 0 not there, -1 not read; one of which none
    is read counts as unlabelled, and measures nothing. A part is a pair
    of inputs and labels (`unlabelled`: inputs), as tensors or arrays; or a data set of PyTorch's
    (`torch.utils.data.Dataset`) of (input, label), whose inputs may be Pillow's images.
    """

    labelled: Labelled | None = None
    unlabelled: Unlabelled | None = None
    val: Labelled | None = None
    test: Labelled | None = None
    name: str = ""
    patients: Mapping[str, Sequence[Any]] | None = None


class Federation:
    """All sites' data, in memory.

    A run's config.yaml says that they were given so, and their SHA-256: a run goes on with the same
    data alone.

    sites: one or more, all of one shape of inputs; either all have a name or none. classes: their
    names, in the order of the labels, or those of the findings; None: those of a data set
    (`.classes`), else numbers.

    Inputs are standardised per channel (of a table: per column) by mean and standard deviation over
    all sites' training inputs. Raises DataError, which names the site and the part.
    """

    def __init__(self, sites: Sequence[Site], *, classes: Sequence[str] | None = None) -> None:
        if not sites:
            raise DataError("no sites: give one or more")
        read = [_Read.of(site, number) for number, site in enumerate(sites)]
        parts = [getattr(site, part) for site in sites for part in _SITE_PARTS]
        given = _given_sites(read, classes or _named_by(parts))
        chosen: dict[str, Scalar] = {"split.num_clients": len(sites)}
        if given.sites[0].finds:
            chosen["data.findings"] = ", ".join(given.classes)
        self._keep(given, chosen, given.sites[0].inputs)

    @classmethod
    def dealt(
        cls,
        data: Labelled,
        *,
        sites: int = 10,
        alpha: float = 0.5,
        label_share: float = 0.5,
        classes: Sequence[str] | None = None,
        patients: Sequence[Any] | None = None,
    ) -> Self:
        """Return one labelled data set dealt to simulated sites, as docs/research/choices.md says.

        data: as a part of `Site`. alpha: above 0, how even the mixes of classes are; small: few
        classes a site. label_share: in (0, 0.5], mean share of a site's training inputs whose label
        it may see. patients: a name or number of each input's: one's inputs are at one site, in one
        part. What else there is to say of the split is in the settings of `run` (`split.*`).

        Raises DataError where the data are not as `Site` has them.
        """
        inputs, labels = labelled(data, "data")
        if labels.shape[1:] == (1,):
            raise DataError("data: labels are [n, 1], must be [n]: give labels.ravel()")
        if labels.ndim == 2:
            raise DataError("data: findings are not dealt by class: give each site data of its own")
        names = _class_names(classes or _named_by([data]), [labels])
        federation = cls.__new__(cls)
        chosen: dict[str, Scalar] = {
            "split.num_clients": sites,
            "split.dirichlet_alpha": float(alpha),
            "split.label_share": float(label_share),
        }
        whose = (
            None if patients is None else torch.from_numpy(patient_numbers(patients, len(labels)))
        )
        pool = DataSet(inputs, labels, names, *stats([inputs]), whose)
        federation._keep(pool, chosen, tuple(inputs.shape[1:]))
        return federation

    def _keep(self, given: Given, chosen: Mapping[str, Scalar], inputs: tuple[int, ...]) -> None:
        name, self._given = register(given)
        self.settings: dict[str, Scalar] = {"data.name": name, **chosen}
        """Settings of a run that the data decide."""
        self.inputs = inputs
        """Shape of one input."""
        self.classes = given.classes
        """The classes' names, in the order of the labels."""

    @property
    def brings_sites(self) -> bool:
        """Whether each site has data of its own; else one set is dealt to them."""
        return isinstance(self._given, GivenSites)


@dataclass(frozen=True, eq=False)
class _Read:
    """A site's parts that are there, as checked tensors."""

    name: str
    known: Mapping[str, tuple[Tensor, Tensor]]
    unlabelled: Tensor | None
    patients: Mapping[str, Tensor]

    @classmethod
    def of(cls, site: Site, number: int) -> Self:
        if not isinstance(site, Site):
            kind = type(site).__name__
            raise DataError(f"site {number}: {kind}, must be a fedapp.Site: make it one")
        if site.name and not re.fullmatch(SITE_NAME, site.name):
            raise DataError(
                f"site {site.name!r}: a name is at most 64 letters, digits, dots, dashes and "
                "underscores: choose another"
            )
        called = f"site {site.name or number}"
        given = {part: getattr(site, part) for part in (LABELLED, VAL, TEST)}
        known = {p: labelled(g, f"{called}: {p}") for p, g in given.items() if g is not None}
        rest = site.unlabelled
        free = None if rest is None else unlabelled(rest, f"{called}: {UNLABELLED}")
        sizes = {part: len(labels) for part, (_, labels) in known.items()}
        sizes |= {} if free is None else {UNLABELLED: len(free)}
        read = cls(site.name, known, free, _patients(site.patients, sizes, called))
        if not read.training:
            raise DataError(
                f"{called}: nothing to learn from: give it labelled or unlabelled inputs"
            )
        return read

    @property
    def training(self) -> list[Tensor]:
        """Inputs to learn from."""
        found = [self.known[LABELLED][0]] if LABELLED in self.known else []
        return found if self.unlabelled is None else [*found, self.unlabelled]

    @property
    def inputs(self) -> list[Tensor]:
        """All inputs, part by part."""
        rest = [] if self.unlabelled is None else [self.unlabelled]
        return [*(inputs for inputs, _ in self.known.values()), *rest]

    @property
    def labels(self) -> list[Tensor]:
        """All labels, part by part."""
        return [labels for _, labels in self.known.values()]


def _patients(
    patients: Mapping[str, Sequence[Any]] | None, sizes: Mapping[str, int], called: str
) -> dict[str, Tensor]:
    """Return by part whose each input is, as `SiteData.patients`. Raises DataError.

    sizes: inputs of each part that is there.
    """
    if patients is None:
        return {}
    if not isinstance(patients, Mapping) or patients.keys() != sizes.keys():
        raise DataError(f"{called}: patients must name those of {', '.join(sizes)}: give all")
    given = {part: [str(one) for one in of] for part, of in patients.items()}
    try:
        numbers = patient_numbers(
            [one for of in patients.values() for one in of], sum(sizes.values())
        )
    except DataError as error:
        raise DataError(f"{called}: {error}") from error
    if wrong := [part for part, of in given.items() if len(of) != sizes[part]]:
        size, count = sizes[wrong[0]], len(given[wrong[0]])
        raise DataError(f"{called}: {wrong[0]}: {count} patients of {size} inputs: give one each")
    uses = ({LABELLED, UNLABELLED}, {VAL}, {TEST})
    held = [{one for part in use & given.keys() for one in given[part]} for use in uses]
    for one, other in combinations(held, 2):
        if both := sorted(one & other):
            raise DataError(f"{called}: patient {both[0]!r} is in two parts: choose one of them")
    pieces = torch.from_numpy(numbers).split([len(of) for of in given.values()])
    return dict(zip(given, pieces, strict=True))


def _named_by(parts: Sequence[object]) -> Sequence[str]:
    """Return the classes that a data set names, as torchvision's do; empty: none does."""
    named = (getattr(part, "classes", None) for part in parts)
    return next((names for names in named if isinstance(names, list | tuple)), ())


def _class_names(classes: Sequence[str], labels: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the classes' names, or numbers where none are given, checked against the labels."""
    low = min((int(one.min()) for one in labels), default=0)
    high = max((int(one.max()) for one in labels), default=0)
    if low < 0 or high >= MAX_CLASSES:
        rule = f"must be 0 to {MAX_CLASSES - 1}: number the classes from 0"
        raise DataError(f"labels are {low} to {high}, {rule}")
    if not classes:
        there = set(torch.cat([one.unique() for one in labels]).tolist() if labels else ())
        if absent := sorted(set(range(high + 1)) - there):
            raise DataError(
                f"labels are {low} to {high}, and no input has label {absent[0]}: number the "
                "classes from 0 without gaps, or name all of them (classes=[...])"
            )
    names = tuple(map(str, classes or range(high + 1)))
    if high >= len(names):
        raise DataError(
            f"labels go up to {high}, but {len(names)} classes are named: name them all, "
            "and number the labels from 0"
        )
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(
            f"classes are {list(names)}, must be two or more, all different: correct it"
        )
    return names


def _finding_names(findings: Sequence[str], labels: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the findings' names, or numbers where none are given, checked against the labels."""
    columns = sorted({one.shape[1] if one.ndim == 2 else 0 for one in labels})
    if len(columns) > 1:
        rows = " and ".join(str(n) if n else "no" for n in columns)
        raise DataError(f"sites have labels of {rows} findings: give all the same ones, in order")
    if columns[0] == 1 and len(findings) != 1:
        raise DataError(
            "labels are [n, 1]: give classes as [n] (labels.ravel()), or name the one finding that "
            "they are of (classes=['mass'])"
        )
    names = tuple(map(str, findings or range(columns[0])))
    if len(names) != columns[0] or len(set(names)) < len(names):
        raise DataError(
            f"findings are named {list(names)}, labels have {columns[0]}: name each, all different"
        )
    if odd := [name for name in names if "," in name or not name.strip()]:
        raise DataError(f"finding {odd[0]!r}: a name has no comma in it: rename it")
    return names


def _given_sites(read: Sequence[_Read], given: Sequence[str]) -> GivenSites:
    labels = [known for one in read for known in one.labels]
    finds = any(one.ndim == 2 for one in labels)
    classes = (_finding_names if finds else _class_names)(given, labels)
    names = [one.name for one in read]
    if any(names) and len(set(names) - {""}) < len(names):
        raise DataError(f"sites are named {names}: give each a name of its own, or none a name")
    kinds = {(str(t.dtype), tuple(t.shape[1:])) for one in read for t in one.inputs}
    if len(kinds) > 1:
        listed = " and ".join(f"{kind} {list(shape)}" for kind, shape in sorted(kinds))
        raise DataError(f"sites have inputs of {listed}, must be of one kind: make them alike")
    training = [inputs for one in read for inputs in one.training]
    mean, std = stats(training)
    none = training[0][:0]
    absent = (none, torch.empty((0, len(classes)) if finds else 0, dtype=torch.int64))
    made = []
    for number, one in enumerate(read):
        known = {part: one.known.get(part, absent) for part in (LABELLED, VAL, TEST)}
        rest = none if one.unlabelled is None else one.unlabelled
        whose = dict(one.patients)
        if finds:  # what nobody has read is unlabelled
            inputs, rows = known[LABELLED]
            unread = (rows < 0).all(1)
            rest = torch.cat([inputs[unread], rest])
            if whose:
                none_yet = torch.empty(0, dtype=torch.int64)
                more = whose.get(LABELLED, none_yet)[unread], whose.get(UNLABELLED, none_yet)
                whose[UNLABELLED] = torch.cat(more)
            read_in = {part: (y >= 0).any(1) for part, (_, y) in known.items()}
            whose |= {part: whose[part][there] for part, there in read_in.items() if part in whose}
            known = {part: (x[read_in[part]], y[read_in[part]]) for part, (x, y) in known.items()}
        parts = {part: Part(*pair) for part, pair in known.items()}
        parts[UNLABELLED] = Part(rest)
        # No audit: what an unlabelled input shows is not known.
        made.append(SiteData(number, parts, len(classes), mean, std, None, one.name, whose))
    return GivenSites(tuple(made), classes, none.dtype == torch.uint8)
