"""`fedapp.Federation` and `fedapp.Site`: data from a program's tensors, arrays and data sets."""

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
    """The data of one site. Parts that it does not have are left out.

    labelled, unlabelled: training data; a site needs one of them. val: validation data, by which a
    round and an answer are selected. test: test data. name: letters, digits, dots, dashes and
    underscores; empty: the site is named by its number. patients: for every part that the site has,
    by the name of the part, the name or number of each input's patient; None: not known. No patient
    may be in two parts, except in `labelled` and `unlabelled`. With patients, confidence intervals
    count patients, and `privacy.epsilon` protects a patient in the place of an image.

    A part is a pair of inputs and labels (`unlabelled`: inputs only), as tensors or arrays. It may
    also be a PyTorch data set (`torch.utils.data.Dataset`) of (input, label), whose inputs may be
    Pillow images.

    Inputs are [n, ...]. Images are uint8 [n, C, H, W] with C = 1 or 3 and sides of 8 to 512 pixels;
    numbers are floating point [n, D], [n, C, L] or [n, C, H, W]. Labels are integers from 0, [n].
    Where an input may show several findings, they are integers [n, F]: 1 it shows the finding, 0 it
    does not, -1 not read. An input for which no finding was read counts as unlabelled in
    `labelled`, and is left out of `val` and `test`.
    """

    labelled: Labelled | None = None
    unlabelled: Unlabelled | None = None
    val: Labelled | None = None
    test: Labelled | None = None
    name: str = ""
    patients: Mapping[str, Sequence[Any]] | None = None


class Federation:
    """The data of all sites, in memory.

    The config.yaml of a run records the SHA-256 of the data, so that a run can only be resumed with
    the same data.

    sites: one or more, all with inputs of one shape; either all have a name or none has. classes:
    names of the classes in the order of the labels, or of the findings; None: those of a data set
    (`.classes`) if there are any, otherwise numbers.

    Inputs are standardised by channel (of a table: by column), with mean and standard deviation
    over the training inputs of all sites. Raises DataError, which names the site and the part.
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
        """Return one labelled data set, split between simulated sites (docs/research/choices.md).

        data: like a part of `Site`. sites: how many. alpha: parameter of the Dirichlet
        distribution, above 0; the smaller it is, the fewer classes a site has. label_share: in
        (0, 0.5], mean share of a site's training inputs whose labels it may see. patients: the name
        or number of each input's patient; all inputs of a patient are at one site and in one part.
        The settings `split.*` of `run` say everything else about the split.

        Raises DataError where the data are not as `Site` describes them.
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
        """Settings of a run that follow from the data."""
        self.inputs = inputs
        """Shape of one input."""
        self.classes = given.classes
        """Names of the classes in the order of the labels, or of the findings."""

    @property
    def brings_sites(self) -> bool:
        """Whether each site was given its own data; otherwise one data set is split."""
        return isinstance(self._given, GivenSites)


@dataclass(frozen=True, eq=False)
class _Read:
    """The parts of a site as checked tensors.

    known: inputs and labels of each part that has labels. unlabelled: inputs; None: there are none.
    patients: by part, the number of each input's patient; empty: not known.
    """

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
        """Training inputs, labelled ones first."""
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
    """Return by part the number of each input's patient, as `SiteData.patients`.

    sizes: number of inputs of each part of the site. Raises DataError where a part is not named,
    has another number of inputs, or shares a patient with another part.
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
        if finds:  # inputs for which no finding was read: see `Site`
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
        # There is no audit of pseudo-labels: the labels of unlabelled inputs are not known.
        made.append(SiteData(number, parts, len(classes), mean, std, None, one.name, whose))
    return GivenSites(tuple(made), classes, none.dtype == torch.uint8)
