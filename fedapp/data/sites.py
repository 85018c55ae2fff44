"""What one site may access: its data by parts, and an audit of labels hidden from it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedapp.core.errors import DataError
from fedapp.data.bag_proportions import describe_bags
from fedapp.data.inputs import UNKNOWN

LABELLED, UNLABELLED, BAGS, VAL, TEST = PARTS = ("labelled", "unlabelled", "bags", "val", "test")
"""All parts that a site may have. A site without bags has no part of that name."""
TRAINING = (LABELLED, UNLABELLED, BAGS)
"""Parts for training; the others are for measuring."""
SPECIAL_PARTS = {BAGS: "images in bags"}
"""Parts, in words, for which a site is refused if its method cannot learn from them."""


@dataclass(frozen=True, eq=False)
class Bags:
    """Supervision by bags: not the classes of inputs are known, but the proportions in each bag.

    bag: int64 [n], the bag of each input, in [0, B).
    proportions: float64 [B, C], of each bag's inputs. A row sums to 1; that of an empty bag is 0.
    """

    bag: Tensor
    proportions: Tensor

    @property
    def filled(self) -> Tensor:
        """The proportions of the bags that contain an input, float64 [at most B, C]."""
        return self.proportions[self.bag.unique()]


Supervision = Tensor | Bags | None
"""What is known of n inputs: the class of each, int64 [n]; or F findings of each, int64 [n, F], 1
present, 0 absent, `inputs.UNKNOWN` if not annotated; or bags; or nothing.
"""


@dataclass(frozen=True, eq=False)
class Part:
    """Inputs [n, ...], n >= 0, and their supervision. Raises DataError where their lengths differ.

    Inputs are uint8 pixels or float32 numbers, with one shape in all parts of a site.
    """

    inputs: Tensor
    supervision: Supervision = None

    def __post_init__(self) -> None:
        of = self.supervision.bag if isinstance(self.supervision, Bags) else self.supervision
        most = 1 if isinstance(self.supervision, Bags) else 2
        if of is not None and (of.shape[:1] != self.inputs.shape[:1] or of.ndim > most):
            raise DataError(
                f"part of {len(self.inputs)} inputs has labels or bags {list(of.shape)}, must be "
                f"[{len(self.inputs)}]: give one for each input"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def labels(self) -> Tensor:
        """The labels of a part that has labels: int64 [n], or [n, F] for findings."""
        assert isinstance(self.supervision, Tensor), "a part without labels"
        return self.supervision

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors of the part, in a fixed order."""
        yield self.inputs
        if isinstance(self.supervision, Bags):
            yield from (self.supervision.bag, self.supervision.proportions)
        elif self.supervision is not None:
            yield self.supervision

    def to(self, device: torch.device) -> "Part":
        """Return the same part on `device`; the part itself if it is there already."""
        inputs, *known = (tensor.to(device) for tensor in self.tensors())
        if inputs is self.inputs:
            return self
        bags = isinstance(self.supervision, Bags)
        return Part(inputs, Bags(*known) if bags else known[0] if known else None)

    def add_to(self, total: "hashlib._Hash") -> None:
        """Update a hash with the shape and the content of every tensor."""
        for tensor in self.tensors():
            total.update(repr(tuple(tensor.shape)).encode())
            total.update(tensor.cpu().contiguous().numpy().data)


class Audit:
    """The only access to hidden labels: it counts errors and returns no label.

    For metrics in simulations; a real site has none. Labels that nobody knows are not counted.
    """

    __slots__ = ("_hidden",)

    def __init__(self, hidden: Tensor) -> None:
        """Keep the labels hidden from a site: int64 [n], in the order of its D_u or of its bags."""
        self._hidden = hidden

    @property
    def complete(self) -> bool:
        """Whether all hidden labels are known."""
        return not bool((self._hidden == UNKNOWN).any())

    def pseudo_label_errors(self, predicted: Tensor, of: Tensor | None = None) -> tuple[int, int]:
        """Return (wrong, total) for predicted classes, int64 [m]. Unknown labels are not counted.

        of: int64 [m], the indices of the hidden labels to compare with; None: all, in their order.
        """
        hidden = self._hidden if of is None else self._hidden[of.to(self._hidden.device)]
        if predicted.shape != hidden.shape or predicted.dtype != torch.int64:
            raise DataError(
                f"pseudo-labels are {predicted.dtype} {list(predicted.shape)}, must be int64 "
                f"{list(hidden.shape)}, one class per unlabelled image: pass the arg max"
            )
        known = hidden != UNKNOWN
        wrong = (predicted.to(hidden.device) != hidden) & known
        return int(wrong.sum()), int(known.sum())

    def to(self, device: torch.device) -> "Audit":
        """Return the same audit with its labels on `device`."""
        return Audit(self._hidden.to(device))


@dataclass(frozen=True, eq=False)
class SiteData:
    """One site's data.

    parts: by name (`PARTS`), each possibly empty; `BAGS` only if the site has bags.
    mean, std: for each channel, as `inputs.normalise` takes them.
    audit: hidden labels of D_u or of the bags, for metrics in simulations; None on a real site.
    name: of the site, if it has one.
    patients: by part, the patient of each input, int64 [n], on the CPU. Equal numbers are one
    patient, in whichever part. For a part that is missing here, patients are unknown.
    """

    site: int
    parts: Mapping[str, Part]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    audit: Audit | None
    name: str = ""
    patients: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parts.keys() | {BAGS} != set(PARTS):
            raise DataError(
                f"site {self.site}: has parts {', '.join(self.parts)}, must have "
                f"{', '.join(name for name in PARTS if name != BAGS)} and may have {BAGS}: give an "
                "empty part where there is nothing"
            )
        sizes = {name: len(self.parts.get(name, ())) for name in self.patients}
        if wrong := [name for name, of in self.patients.items() if len(of) != sizes[name]]:
            raise DataError(
                f"site {self.site}: {wrong[0]} has {len(self.patients[wrong[0]])} patients of "
                f"{sizes[wrong[0]]} inputs: give one for each input"
            )

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.labelled.shape[1:])

    @property
    def labelled(self) -> Tensor:
        """D_s without its labels."""
        return self.parts[LABELLED].inputs

    @property
    def labels(self) -> Tensor:
        """Labels of D_s, int64 [n_s], or [n_s, F] for findings, as in `Supervision`."""
        return self.parts[LABELLED].labels

    @property
    def finds(self) -> bool:
        """Whether the labels are findings, F = `num_classes`, rather than classes."""
        return self.labels.ndim == 2

    @property
    def unlabelled(self) -> Tensor:
        """D_u."""
        return self.parts[UNLABELLED].inputs

    @property
    def val(self) -> Tensor:
        """Validation inputs."""
        return self.parts[VAL].inputs

    @property
    def val_labels(self) -> Tensor:
        """Validation labels, int64 [n]."""
        return self.parts[VAL].labels

    @property
    def test(self) -> Tensor:
        """Test inputs."""
        return self.parts[TEST].inputs

    @property
    def test_labels(self) -> Tensor:
        """Test labels, int64 [n]."""
        return self.parts[TEST].labels

    def raw(self) -> "SiteData":
        """Return the same data for a network that normalises pixels / 255, or numbers, itself."""
        channels = len(self.mean)
        return replace(self, mean=(0.0,) * channels, std=(1.0,) * channels)

    @property
    def training(self) -> tuple[Tensor, ...]:
        """All inputs for training, part by part."""
        return tuple(self.parts[name].inputs for name in TRAINING if name in self.parts)

    @property
    def test_groups(self) -> Tensor | None:
        """The patient of each test image, int64 [n], numbered from 0; None: unknown."""
        found = self.patients.get(TEST)
        return None if found is None else found.unique(return_inverse=True)[1]

    @property
    def by_patient(self) -> bool:
        """Whether the patient of every training input is known."""
        return all(name in self.patients for name in TRAINING if len(self.parts.get(name, ())))

    @property
    def bagged(self) -> int:
        """Number of inputs in bags."""
        return len(self.parts.get(BAGS, ()))

    @property
    def counts(self) -> dict[str, int]:
        """Number of inputs in each part, under the names in `SiteFacts`."""
        return {
            "labelled": len(self.labels),
            "unlabelled": len(self.unlabelled),
            "val": len(self.val_labels),
            "test": len(self.test_labels),
            "bagged": self.bagged,
        }

    @property
    def mu(self) -> float:
        """mu_k = |D_s| / (|D_s| + |D_u|), in [0, 1]; 0.0 if there are no training images."""
        total = len(self.labelled) + len(self.unlabelled)
        return len(self.labelled) / total if total else 0.0

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, 16 hex digits, of everything at this site on which the score of a model depends.

        That is all training data, the number of classes and the normalisation, but not the site's
        number, its validation and test data, or hidden labels.
        """
        total = hashlib.sha256(repr((self.num_classes, self.mean, self.std)).encode())
        for name in TRAINING:
            if name in self.parts:
                self.parts[name].add_to(total)
        return total.hexdigest()[:16]

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of all data of the site, also of its validation and test parts."""
        total = hashlib.sha256(self.fingerprint.encode())
        for name in (VAL, TEST):
            self.parts[name].add_to(total)
        for name, whose in sorted(self.patients.items()):
            total.update(f"patients {name}".encode())
            total.update(whose.numpy().tobytes())
        return total.hexdigest()

    def to(self, device: torch.device) -> "SiteData":
        """Return the same data on `device`; nothing is copied if they are there already."""
        parts = {name: part.to(device) for name, part in self.parts.items()}
        if all(parts[name] is part for name, part in self.parts.items()):
            return self  # so that the fingerprint is not computed again
        audit = None if self.audit is None else self.audit.to(device)
        return replace(self, parts=parts, audit=audit)

    def with_parts(self, **parts: Part) -> "SiteData":
        """Return the same data with the named parts replaced. Their patients are then unknown."""
        patients = {name: of for name, of in self.patients.items() if name not in parts}
        return replace(self, parts={**self.parts, **parts}, patients=patients)


def describe_bags_of_sites(every: Sequence[SiteData]) -> str:
    """Describe the bags of the sites; empty if there are none."""
    known = [data.parts[BAGS].supervision for data in every if data.bagged]
    tables = [bags.filled.cpu() for bags in known if isinstance(bags, Bags)]
    return describe_bags(tables) if tables else ""
