"""All settings of an experiment but those of the method and the network: closed, typed, checked.

"The paper" is "Uncertainty Minimization for Personalized Federated Semi-Supervised Learning" in its
final form. The text below each setting gives its meaning, unit and source; `conf/*.yaml` repeats it
beside the values.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from fedapp.core.errors import Contradiction, Incompatibility, name_suggestion
from fedapp.core.formatting import counted
from fedapp.core.names import SITE_NAME, folder_name

CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown keys, silent conversions, NaN and infinity are refused."""

OWN = "own"
"""`data.name` where every site reads images of its own."""
FOLDER = "folder"
"""`data.name` of a folder of images, one folder for each class."""
NATURAL = ("heart", "heart_flamby")
"""Values of `data.name` whose inputs are known to come from different places: four hospitals."""
MEMORY = "memory:"
"""Prefix of `data.name` for data that a program has passed to the Python API."""
_TABLE_COLUMNS = ("path", "label", "bag", "split", "group", "patient")
"""Columns of a site's labels.csv; no finding may have such a name."""

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
"""A dropout rate."""


def _join_names(value: object) -> object:
    """Join a list of names into one text with commas; return any other value unchanged.

    Raises ValueError for a name that such a text cannot hold, and for a text in brackets.
    """
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        raise ValueError("no brackets here: write the names with commas between them")
    if not isinstance(value, list | tuple):
        return value
    for name in value:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise ValueError(f"{name!r}: must be a name: put it in quotes")
        if "," in str(name):
            raise ValueError(f"{name!r} has a comma in it, which parts the names: rename it")
    return ", ".join(map(str, value))


Names = Annotated[str, BeforeValidator(_join_names)]
"""Names separated by commas; in a file they may also be written as a YAML list."""

LABELS, BAGS, NOTHING = KINDS_OF_KNOWLEDGE = ("labels", "bags", "nothing")
"""Values of `split.knows`: what a site knows about the classes of its training images."""

OWN_WINDOW = "dicom"
"""`data.window` where each file's own window is used; only DICOM files have one."""

_DEALS_OF_ALPHA = {
    "dirichlet_alpha": ("dirichlet", "dirichlet_unlabelled"),
    "label_alpha": ("dirichlet",),
}
"""The Dirichlet concentrations, each with the values of `split.deal` that use it."""

UNEVEN_LABELS_SHARE = 0.05
"""Labelled share of most sites' training images under `split.deal=uneven_labels` (FedSiam)."""

SHIFT_KINDS = ("rotation", "brightness", "contrast", "blur", "noise")
"""What `split.feature_shift` can change; `fedapp.data.feature_shift` says how."""


Unused = dict[str, str]
"""Settings that have no effect beside the others, each with the reason (it follows the name).

For example, `split.deal` decides which of the other settings of its group are used.
"""


def is_changed(settings: object, key: str) -> bool:
    """Whether a setting differs from its default.

    A file with all settings, such as a run's config.yaml, has unused ones at their defaults.
    """
    return bool(getattr(settings, key) != getattr(type(settings), key))


@dataclass(frozen=True, config=CLOSED)
class DataSettings:
    """Which images, and where they lie."""

    name: str = "digits"
    """Data set: see `fedapp.data.datasets.NAMES`; or a user's own, `package.module:function`."""
    root: str = ""
    """Folder that holds the data; empty: $FEDAPP_DATA, else ~/.cache/fedapp."""
    download: bool = True
    """Fetch the data when they are not under `root`."""
    subset: NonNegative = 0
    """Images to use, drawn at random from train and test pooled; 0: all."""
    image_size: Annotated[int, Field(ge=0, le=512)] = 0
    """Side in pixels to resize to, 8 to 512 as far as the network allows it; 0: as stored."""
    window: str = ""
    """For image files with more than 8 bits: the two values that become black and white, separated
    by a comma; `dicom`: each file's own window; empty: there are no such images."""

    # What sites with data of their own (name = own) agree on, since nobody sees all their images.
    classes: Names = ""
    """Names of the classes, separated by commas; their order gives the numbers of the labels."""
    findings: Names = ""
    """Names of findings, separated by commas, in place of classes: an image shows any number of
    them (docs/OWN_DATA.md). Empty: each image has one class."""
    sites: Names = ""
    """Names of the sites that may take part, separated by commas; their order gives the numbers of
    the sites. Simulated sites without names are called by their numbers."""
    channels: Annotated[int, Field(ge=0, le=3)] = 0
    """Channels of every image: 1 (grey) or 3 (RGB)."""
    mean: float = 0.5
    """Is subtracted from pixels / 255 in every channel, in [0, 1], or from every number of a
    vector. For own data only; for other data it is measured."""
    std: Positive = 0.25
    """The difference is divided by it; at most 1 for pixels. For own data only."""
    vector_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Length of a vector where the sites have vectors in place of images; 0: they have images."""
    encoder: str = ""
    """Name of the encoder that made the vectors, as every site's files must state it; empty: tables
    that no encoder made."""
    patients: str = ""
    """Regular expression with one group that matches every image's path and gives the patient: all
    images of a patient go to one site and to one part. Empty: labels.csv may name the patient
    (docs/OWN_DATA.md). For simulations only: a real site has this in its own site.yaml, and refuses
    a run that sets it."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """`classes` one by one."""
        return _split_names(self.classes)

    @property
    def finding_names(self) -> tuple[str, ...]:
        """`findings` one by one; none: each image is of one class."""
        return _split_names(self.findings)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what a network answers to: the findings, or else the classes."""
        return self.finding_names or self.class_names

    @property
    def site_names(self) -> tuple[str, ...]:
        """`sites` one by one."""
        return _split_names(self.sites)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape that every site's inputs take, where they have data of their own."""
        if self.vector_size:
            return (self.vector_size,)
        return self.channels, self.image_size, self.image_size

    @field_validator("window", mode="before")
    @classmethod
    def _no_number(cls, value: object) -> object:
        """Explain what a window is if a single number is given; "not a string" would not help."""
        if isinstance(value, int | float):
            window_ends(str(value))
        return value

    @staticmethod
    def unused(given: Mapping[str, Any]) -> Unused:
        """Return the settings that have no effect beside the given ones, and the reason."""
        found: Unused = {}
        if given["name"] not in (OWN, FOLDER):
            rule = f"is a setting of images in files: set name to {OWN!r} or {FOLDER!r} or drop it"
            found |= dict.fromkeys(("window", "patients"), rule)
        if given["name"] != OWN:
            rule = "is a setting of own data: set name to 'own' or drop it"
            of_own = ("classes", "channels", "vector_size", "encoder")
            found |= dict.fromkeys(of_own, rule)
            if str(given["name"]).startswith(MEMORY):
                found["sites"] = "names no sites that come from Python: name them there, drop it"
            else:
                rule = "has no meaning for such data, where each image has one class: drop it"
                found["findings"] = rule
        elif given["vector_size"]:
            rule = "is a setting of images: drop it, or vector_size"
            of_images = ("image_size", "channels", "window", "patients", "findings")
            found |= dict.fromkeys(of_images, rule)
        else:
            found["encoder"] = "is a setting of vectors: set vector_size or drop it"
        if given["name"] == OWN and given["findings"]:
            found["classes"] = "has no effect beside findings: drop one of the two"
        return found

    def __post_init__(self) -> None:
        if 0 < self.image_size < 8:
            raise Contradiction("image_size must be 0 (as stored) or in [8, 512]", "image_size")
        window_ends(self.window)
        if not self.vector_size and not (0 <= self.mean <= 1 and self.std <= 1):
            raise Contradiction("mean must be in [0, 1] and std in (0, 1] of pixels", "mean", "std")
        _refuse_unused(self)
        check_patients(self.patients)
        _check_names("findings", self.finding_names, folder_name)
        _check_names("sites", self.site_names, _site_name)
        if self.name == OWN:
            self._check_own()

    def _check_own(self) -> None:
        images = self.image_size > 0 and self.channels in (1, 3)
        if self.subset or not (images or self.vector_size):
            rule = (
                "own data need an image_size in [8, 512] and channels of 1 or 3, or a vector_size; "
                "and no subset"
            )
            raise Contradiction(rule, "image_size", "channels", "subset")
        if len(self.class_names) < 2 and not self.findings:
            raise Contradiction(
                "classes must name two or more, such as 'normal, tumour'", "classes"
            )
        columns = [name.lower() for name in (*_TABLE_COLUMNS, *self.finding_names)]
        if twice := [name for name in self.finding_names if columns.count(name.lower()) > 1]:
            rule = f"findings: {twice[0]!r} is a column of its own in labels.csv: rename it"
            raise Contradiction(rule, "findings")
        _check_names("classes", self.class_names, folder_name)


def _site_name(name: str) -> str:
    """Return a valid name of a site unchanged. Raises ValueError naming the rule."""
    if not re.fullmatch(SITE_NAME, name):
        raise ValueError(
            f"{name!r}: a site's name has at most 64 letters, digits, dots, dashes and "
            "underscores, the first a letter or digit: rename it"
        )
    return name


def _check_names(key: str, names: Sequence[str], rule: Callable[[str], str]) -> None:
    """Raise Contradiction if two names are equal, or one breaks the rule for such names."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Contradiction(f"{key} must differ: {twice[0]!r} stands twice", key)
    for name in names:
        try:
            rule(name)
        except ValueError as error:
            raise Contradiction(f"{key}: {error}", key) from error


def members_of(members: str, names: Sequence[str], sites: int) -> dict[int, str]:
    """Return the fingerprint of each site's key by the site's number; empty if `members` is empty.

    members: the value of `privacy.members`. names: names of the sites if they have images of their
    own; otherwise sites are called by their numbers. sites: how many there are. Raises ValueError
    naming the rule.
    """
    found: dict[int, str] = {}
    for entry in _split_names(members):
        name, _, fingerprint = (part.strip() for part in entry.partition("="))
        known = list(names) or [str(number) for number in range(sites)]
        if name not in known:
            raise ValueError(f"{name!r} is no site of the preset; {name_suggestion(name, known)}")
        if not re.fullmatch("[0-9a-f]{64}", fingerprint):
            raise ValueError(f"{name}: a fingerprint has 64 digits of 0-9 and a-f")
        found[known.index(name)] = fingerprint
    if found and len(found) < sites:
        raise ValueError(
            f"it names {len(found)} of {counted(sites, 'sites')}: name each with its fingerprint"
        )
    if len(set(found.values())) < len(found):
        raise ValueError("two sites have the same fingerprint: each needs its own key")
    return found


def window_ends(window: str) -> tuple[float, float] | None:
    """Return the pixel values of `data.window` that become black and white; None if it has none.

    Raises Contradiction if it is not a window.
    """
    if window in ("", OWN_WINDOW):
        return None
    try:
        low, high = map(float, window.split(","))
    except ValueError:
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        rule = f"window must be two numbers, the lower first, such as '0, 4095', or {OWN_WINDOW!r}"
        raise Contradiction(rule, "window")
    return low, high


def check_patients(pattern: str) -> None:
    """Raise Contradiction if the pattern is not a regular expression with one group."""
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        rule = f"patients is no regular expression ({error}): write one such as '(P[0-9]+)_'"
        raise Contradiction(rule, "patients") from error
    if pattern and groups != 1:
        rule = f"patients has {groups} groups in parentheses, must have one: the patient's name"
        raise Contradiction(rule, "patients")


def unused_settings(
    cls: type[DataSettings] | type["SplitSettings"], given: Mapping[str, Any]
) -> Unused:
    """Return the settings of a group that have no effect beside the given ones, and the reason.

    given: the settings of the group that a user has set; their types may still be unchecked.
    """
    return cls.unused({field.name: field.default for field in fields(cls)} | dict(given))


def _refuse_unused(settings: "DataSettings | SplitSettings") -> None:
    """Raise Contradiction for the first setting that is set and has no effect."""
    for key, why in settings.unused(vars(settings)).items():
        if is_changed(settings, key):
            raise Contradiction(f"{key} {why}", key)


def _split_names(text: str) -> tuple[str, ...]:
    # NFC makes a letter with an accent one character, as wherever names of classes are read.
    names = unicodedata.normalize("NFC", text).split(",")
    return tuple(name.strip() for name in names) if text.strip() else ()


@dataclass(frozen=True, config=CLOSED)
class SplitSettings:
    """How the images are distributed to the sites (paper, Sec. VI-A)."""

    num_clients: Annotated[int, Field(ge=1, le=100_000)] = 10
    """K, number of sites."""
    deal: Literal[
        "dirichlet", "iid", "two_classes", "two_labelled_classes", "uneven_labels", "majority",
        "ten_mixes", "dirichlet_unlabelled", "natural",
    ] = "dirichlet"  # fmt: skip
    """How images go to sites. dirichlet: by the two alphas; natural: each input stays where it
    comes from, such as a hospital; the others give exact counts, see `fedapp.data.split.exact`."""
    dirichlet_alpha: Positive = 0.5
    """alpha of Dir_K, the label skew between sites; small: each site has few classes."""
    label_alpha: Positive = 0.5
    """alpha of Dir_2, how unevenly sites are labelled; small: a site has all labels or none."""
    train_share: Share = 0.7
    """Share of all images for training; 0.7 in the paper."""
    val_share: Share = 0.1
    """Share of all images for validation; 0.1 in the paper; the rest is for testing."""
    test_images: NonNegative = 0
    """Number of images at the end of the data set that are its test part; 0: the test part is drawn
    according to the two shares."""
    labels: Literal["some", "all", "none"] = "some"
    """Which training images are labelled. some: a share of each site's, by Dir_2; all: every one,
    the paper's -SL; none: only the server has labels."""
    label_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Mean share of a site's training images that are labelled; 0.5 in the paper, which is the most
    that Dir_2 can give."""
    feature_shift: Share = 0.0
    """How strongly each site's images are changed, by amounts fixed for the site; 0: not at all."""
    shift_kinds: Names = "rotation, brightness, contrast"
    """Which properties are changed then, separated by commas: see `SHIFT_KINDS`."""
    bags: Annotated[int, Field(ge=0, le=1000)] = 0
    """Bags per site. Of the training images in a bag only the class proportions are known; 0: there
    are no bags."""
    bag_mix: Literal["dirichlet", "dominant", "official"] = "dirichlet"
    """How classes are distributed to bags. dirichlet: every division is equally likely; dominant:
    bags of equal size in each of which one class prevails (FedUL); official: as in FedUL's code,
    where images repeat across bags."""
    prior_noise: Annotated[float, Field(ge=0, le=2)] = 0.0
    """epsilon of FedUL's Table E.9: error of the proportions that sites are given; 0: exact."""
    knows: Names = ""
    """What sites know about the classes of their training images: labels, bags or nothing,
    separated by commas and assigned to the sites in turn. Empty: the same for all sites, bags if
    there are any."""
    server_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all training images that the server itself has, labelled; 0: it has none."""

    manifest: str = ""
    """File of a saved split to use; empty: a split is drawn."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """`shift_kinds` one by one."""
        return _split_names(self.shift_kinds)

    def known_at(self, site: int) -> str:
        """Return what a site knows about its training images: one of `KINDS_OF_KNOWLEDGE`."""
        turns = _split_names(self.knows) or (BAGS if self.bags else LABELS,)
        return turns[site % len(turns)]

    @staticmethod
    def unused(given: Mapping[str, Any]) -> Unused:
        """Return the settings that have no effect beside the given ones, and the reason."""
        found: Unused = {}
        if given["test_images"]:
            rule = "has no effect where test_images says which images are to test on"
            found["train_share"] = f"{rule}: drop one of them"
        turns = _split_names(str(_join_names(given["knows"])))
        if (labels := given["labels"]) != "some":
            rule = f"has no effect where labels is {labels!r}: drop it or set labels to 'some'"
            found["label_share"] = rule
        elif (turns or given["bags"]) and LABELS not in turns:
            rule = "has no effect where no site has labels: drop it, or name labels in knows"
            found["label_share"] = rule
        if not given["bags"]:
            no_bags = "has no effect without bags: drop it"
            found |= dict.fromkeys(("bag_mix", "prior_noise"), no_bags)
        deal, remedy = given["deal"], "drop it or set deal to 'dirichlet'"
        if deal == "natural":
            rule = f"has no effect where deal is {deal!r}: {remedy}"
            unused = ("bags", "knows", "server_share", "test_images", "feature_shift")
            found |= dict.fromkeys(unused, rule)
        for key, deals in _DEALS_OF_ALPHA.items():
            if deal not in deals:
                found[key] = f"has no effect where deal is {deal!r}: {remedy}"
        return found

    def __post_init__(self) -> None:
        if not 0 < self.train_share <= self.train_share + self.val_share < 1:
            rule = "train_share must be above 0 and train_share + val_share below 1"
            raise Contradiction(rule, "train_share", "val_share")
        _refuse_unused(self)
        self._check_label_share()
        self._check_known()
        self._check_kinds()

    def _check_label_share(self) -> None:
        if self.deal == "dirichlet" and self.label_share > 0.5:
            raise Contradiction(
                "label_share must be at most 0.5 where deal is 'dirichlet': choose another "
                "deal or a smaller share",
                *("deal", "label_share"),
            )
        if self.deal == "uneven_labels" and self.label_share <= UNEVEN_LABELS_SHARE:
            raise Contradiction(
                f"label_share must be above {UNEVEN_LABELS_SHARE:g} where deal is 'uneven_labels': "
                "that is what most sites have; choose another deal or a larger share",
                *("deal", "label_share"),
            )

    def _check_known(self) -> None:
        turns = _split_names(self.knows)
        if odd := [word for word in turns if word not in KINDS_OF_KNOWLEDGE]:
            advice = name_suggestion(odd[0], KINDS_OF_KNOWLEDGE)
            rule = f"knows: no such kind {odd[0]!r}; {advice}"
            raise Contradiction(rule, "knows")
        if turns and (BAGS in turns) != bool(self.bags):
            rule = "knows must name bags where bags is above 0, and only there: change one of them"
            raise Contradiction(rule, "bags", "knows")
        if (turns or self.bags) and self.labels != "some":
            rule = "labels has no effect beside bags or knows: drop it"
            raise Contradiction(rule, "labels", "bags", "knows")

    def _check_kinds(self) -> None:
        if not self.kinds:
            rule = f"shift_kinds must name one or more of {', '.join(SHIFT_KINDS)}"
            raise Contradiction(rule, "shift_kinds")
        for kind in self.kinds:
            if kind not in SHIFT_KINDS:
                rule = f"shift_kinds: no such kind {kind!r}; {name_suggestion(kind, SHIFT_KINDS)}"
                raise Contradiction(rule, "shift_kinds")
            if self.kinds.count(kind) > 1:
                rule = f"shift_kinds must differ: {kind!r} stands twice; keep one"
                raise Contradiction(rule, "shift_kinds")


@dataclass(frozen=True, config=CLOSED)
class TrainSettings:
    """Local training: SGD with momentum (paper, Sec. VI-A), or the choice of another paper."""

    local_epochs: NonNegative = 5
    """E, passes over a site's training images per round."""
    local_steps: NonNegative = 0
    """Mini-batches per round in place of E passes, the same at all sites and for all methods; 0: E
    passes. The warm-up then takes warmup_epochs / E times as many."""
    warmup_epochs: NonNegative = 5
    """Supervised passes over a site's labelled images before round 1; the paper is silent."""
    warmup_rounds: Count = 4
    """Number of averages during the warm-up, evenly spaced, of methods that average; other methods
    have none."""
    batch_size: Annotated[int, Field(ge=2)] = 64
    """B, number of images in a mini-batch."""
    at_once: NonNegative = 0
    """Images that the network takes at a time: a larger batch is processed in pieces whose
    gradients are added up (gradient accumulation); batch norm sees each piece alone. 0: whole
    batches. For losses that are a mean over images, such as those of UM-pFSSL and supervised
    FedAvg. Methods with steps of their own (pFedMe, privacy.epsilon) always take whole batches."""
    learning_rate: Positive = 1e-4
    """eta, the learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the optimiser: this multiple of a weight is added to its gradient."""
    optimiser: Literal["sgd", "adam", "rmsprop"] = "sgd"
    """The optimiser, whose state begins anew in each task. pFedMe has steps of its own."""
    batches: Literal["joint", "paired"] = "joint"
    """joint: a batch is drawn from labelled and unlabelled images together; paired: each step takes
    B labelled and B unlabelled ones."""
    augment: Literal["none", "weak"] = "none"
    """weak: every training image is shifted, and mirrored where that is safe, at every step."""

    uneven: Literal["plain", "balanced", "adjusted"] = "plain"
    """Treatment of classes of which a site has few labelled images. balanced: every class is drawn
    equally often; adjusted: the logits plus ln of the site's class shares in training (Menon et al.
    2021). For methods that average; prior shift then answers as if all classes were equally
    frequent."""

    def steps(self, epochs: int, before: int = 0) -> int | None:
        """Return the number of mini-batches in place of `epochs` passes; None if passes count.

        before: passes of the same training that are already done. The numbers of the parts of a
        training add up to the number of the whole.
        """
        if not self.local_steps:
            return None
        each = self.local_steps / max(self.local_epochs, 1)
        return round(each * (before + epochs)) - round(each * before)


@dataclass(frozen=True, config=CLOSED)
class RoundSettings:
    """Rounds: how many, which sites train in them, and how long the server waits."""

    num_rounds: NonNegative = 200
    """T, number of rounds after the warm-up."""
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """tau, share of sites that train in a round."""
    deadline_s: Positive = 3600.0
    """Seconds that a phase of a round may take before sites that have not answered are skipped."""
    join_wait_s: Annotated[float, Field(ge=0)] = 10.0
    """Seconds to wait, at the start of a run and when it is resumed, until all sites are connected
    and have answered; after that the run goes on with those that have."""
    hello_s: Positive = 600.0
    """Seconds to wait for the sites' first answers; a site may have to download its data."""
    min_reply_share: Share = 0.5
    """The run ends if fewer than this share of a phase's tasks are answered."""
    robust: str = "none"
    """How the server averages: none, the weighted mean; against bad models bounded, median or
    filtered; or a rule of one's own, `package.module:Class`."""
    chosen_by: Literal["accuracy", "balanced_accuracy", "f1", "kappa"] = "accuracy"
    """Metric on the validation images by which a site chooses the model it keeps, and of its
    verdict. All but accuracy weigh every class alike or correct for chance."""
    min_sensitivity: Share = 0.0
    """Sensitivity that the model which a site keeps must reach in each class with 10 validation
    images or more; if no model reaches it, the nearest is kept. 0: no such condition."""
    pooled_auroc: bool = False
    """Whether sites send, for each class, a histogram of the test images' scores in 100 bins. From
    these the server computes AUROC and average precision over all sites' images. SECURITY.md says
    what the histograms reveal."""


@dataclass(frozen=True, config=CLOSED)
class TransportSettings:
    """How a model is serialised: on the wire, on disk and for its digest."""

    precision: Literal["float32", "float16"] = "float32"
    """Number format of the weights; float16 halves what is sent and rounds every uploaded model."""
    compression: Literal["none", "zlib"] = "none"
    """zlib: 14 % fewer bytes, lossless; pays on links below about 40 Mbit/s."""


@dataclass(frozen=True, config=CLOSED)
class PrivacySettings:
    """What is done to a model before it leaves a site (docs/SECURITY.md)."""

    clip: Annotated[float, Field(ge=0)] = 0.0
    """C, largest L2 norm of an upload's change; 0: models leave as they were trained."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the differential privacy; choose it well below 1 / the number of a site's images."""
    epsilon: Annotated[float, Field(ge=0)] = 0.0
    """epsilon of a whole run at delta: for any one patient if a site knows whose its images are,
    otherwise for any one image; 0: no differential privacy."""
    gradient: Positive = 1.0
    """L2 norm to which the gradient of one image, or of all images of a patient, is clipped when a
    network is trained under epsilon."""
    sampling: Annotated[float, Field(gt=0, le=1)] = 0.1
    """q, probability with which an image or patient is in a step under epsilon, in place of
    batch_size."""
    sums: Literal["plain", "masked"] = "plain"
    """masked: secure aggregation; sites mask what they send so that the server learns only the sums
    over all sites."""
    members: Names = ""
    """Sites of the masked sums, each with the fingerprint of its registered key, separated by
    commas: `north=SHA256, south=SHA256`; empty: a simulation, whose keys follow from the seed."""
    least_members: Annotated[int, Field(ge=3)] = 3
    """Minimum number of sites in a masked sum; a site's own terms may ask for more."""
    colluding: Annotated[int, Field(ge=1)] = 1
    """Members of a masked sum that may collude with the server: under epsilon, the noise of the
    others suffices without theirs."""

    @property
    def masked(self) -> bool:
        """Whether the server learns sums alone."""
        return self.sums == "masked"

    def __post_init__(self) -> None:
        if self.masked and self.clip:
            rule = "clip bounds whole models that leave a site, and with masked sums none leaves"
            raise Contradiction(f"{rule}: drop one of them", "sums", "clip")
        if self.members and not self.masked:
            raise Contradiction("members has no effect where sums is 'plain'", "members", "sums")
        if self.epsilon and self.clip:
            rule = "clip bounds whole models, and with epsilon each image's part is clipped"
            raise Contradiction(f"{rule}: set one of the two", "epsilon", "clip")
        for key in ("gradient", "sampling"):
            if is_changed(self, key) and not self.epsilon:
                rule = f"{key} has no effect without epsilon: set epsilon or drop it"
                raise Contradiction(rule, key, "epsilon")


@dataclass(frozen=True, config=CLOSED)
class RuntimeSettings:
    """Where and how the computation is done.

    `device` and `threads` can change a result's last bits, `precision` its third digit. On a
    GPU the last bits differ from one run to the next unless `deterministic` is set.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a CUDA device if there is one, else the CPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of convolutions; weights stay float32. auto: bfloat16 on a GPU, float32 on a
    CPU."""
    threads: Count = 1
    """CPU threads per site; fixed so that every way of running gives the same bits."""
    deterministic: bool = False
    """On a GPU: use only algorithms that give the same bits every time; some are slower."""
    workers: NonNegative = 0
    """Sites that work at the same time, each in a process of its own. 0: with Flower as many as
    cores and memory allow, with `fedapp run` one."""
    in_flight_mib: Count = 4096
    """MiB of models that may be in transit between server and sites; bounds the server's memory."""
    out: str = ""
    """Folder for run folders; empty: $FEDAPP_OUT, else ~/fedapp-runs."""
    run_name: str = ""
    """Name of the run folder; empty: preset, seed and start time."""
    resume: bool = False
    """Continue the run in the folder `run_name` from its last complete round."""
    server_data: str = ""
    """Folder or CSV file of labelled images that the server itself has, if sites have images of
    their own; empty: it has none."""
    models: bool = True
    """Whether each site keeps its best model for use. It takes up to 9 % of a run's time, and the
    runs of a comparison do not do it."""


GROUPS: Mapping[str, type] = {
    "data": DataSettings,
    "split": SplitSettings,
    "training": TrainSettings,
    "rounds": RoundSettings,
    "transport": TransportSettings,
    "privacy": PrivacySettings,
    "runtime": RuntimeSettings,
}
"""The groups of settings of an experiment, by the names of its fields."""


# --- between groups -------------------------------------------------------------------------------


def _check_own_data(data: DataSettings, split: SplitSettings) -> Iterator[Incompatibility]:
    """Yield each setting that cannot be used with sites' own data, which nobody distributes."""
    if data.name != OWN:
        return
    if data.sites and len(data.site_names) != split.num_clients:
        rule = f"data.sites names {counted(len(data.site_names), 'sites')}"
        yield Incompatibility("split.num_clients", rule, "make the two equal")
    if split.labels == "all":
        rule = "own data have no hidden labels to reveal"
        yield Incompatibility("split.labels", rule, "use 'some'")
    dealt = "each site keeps its own data"
    for key, rule in {
        "manifest": dealt,
        "label_share": "own data come with the labels they have",
        "feature_shift": "own data are used as they are",
        **dict.fromkeys(("bags", "knows", "server_share"), dealt),
    }.items():
        if is_changed(split, key):
            yield Incompatibility(f"split.{key}", rule, "leave it out")


def _check_natural(data: DataSettings, split: SplitSettings) -> Iterator[Incompatibility]:
    """Yield what is wrong with sites that are those of a published data set."""
    if data.name == OWN:
        if split.deal == "natural":
            yield Incompatibility("split.deal", "each site keeps its own data", "leave it out")
    elif split.deal == "natural" and data.name not in NATURAL:
        rule = f"{data.name} does not say where its inputs come from"
        yield Incompatibility("split.deal", rule, f"choose data.name of {', '.join(NATURAL)}")
    elif split.deal != "natural" and not data.sites:
        return  # simulated sites without names have numbers
    elif len(data.site_names) != split.num_clients:
        rule = f"data.sites names {counted(len(data.site_names), 'sites')}"
        yield Incompatibility("split.num_clients", rule, "make the two equal")


def _check_findings(
    data: DataSettings, training: TrainSettings, rounds: RoundSettings, privacy: PrivacySettings
) -> Iterator[Incompatibility]:
    """Yield each setting that has no meaning if an image has several labels (findings)."""
    if not data.findings:
        return
    of_classes = "applies to classes, and data.findings is set"
    if training.uneven != "plain":
        yield Incompatibility("training.uneven", of_classes, "leave it out")
    if rounds.min_sensitivity:
        yield Incompatibility("rounds.min_sensitivity", of_classes, "leave it out")
    if privacy.epsilon:
        rule = "an image counts in the sums of each of its findings, and the noise is computed "
        rule += "for one class per image"
        yield Incompatibility("privacy.epsilon", rule, "leave it out")
    if rounds.chosen_by == "kappa":
        rule = "kappa is defined for classes, and data.findings is set"
        yield Incompatibility("rounds.chosen_by", rule, "choose balanced_accuracy or f1")


def _check_server_data(
    data: DataSettings, split: SplitSettings, runtime: RuntimeSettings
) -> Iterator[Incompatibility]:
    """Yield what is wrong if the server cannot have data, or needs labelled images and has none."""
    own = data.name == OWN
    if runtime.server_data and not own:
        remedy = "for a data set that is split use split.server_share"
        yield Incompatibility("runtime.server_data", "goes with data.name=own", remedy)
    if split.labels == "none" and not (split.server_share or runtime.server_data):
        key = "runtime.server_data" if own else "split.server_share"
        rule = f"only the server would have labels, and it has no images: set {key}"
        yield Incompatibility("split.labels", rule)


def _check_masked_sums(
    split: SplitSettings, rounds: RoundSettings, privacy: PrivacySettings, runtime: RuntimeSettings
) -> Iterator[Incompatibility]:
    """Yield each setting that needs more than sums over sites, or too small a sum."""
    if not privacy.masked:
        return
    rule = "needs single models or images, and sums are masked (privacy.sums)"
    for key, asked in {
        "rounds.robust": rounds.robust != "none",
        "split.server_share": split.server_share,
        "runtime.server_data": runtime.server_data,
    }.items():
        if asked:
            yield Incompatibility(key, rule, "leave it out")
    cohort, least = math.ceil(rounds.sample_rate * split.num_clients - 1e-9), privacy.least_members
    if cohort < least:
        rule = f"a round has {counted(cohort, 'sites')}, and a masked sum needs {least}"
        too_few = split.num_clients < least  # then not even all sites would be enough
        key = "split.num_clients" if too_few else "rounds.sample_rate"
        yield Incompatibility(key, rule, "raise it")
    if privacy.epsilon and privacy.colluding > max((least - 1) // 3, 1):
        rule = f"must be fewer than a third of privacy.least_members = {least}"
        yield Incompatibility("privacy.colluding", rule, "raise that")


def _check_members(
    data: DataSettings, split: SplitSettings, privacy: PrivacySettings
) -> Iterator[Incompatibility]:
    """Yield what is wrong with `privacy.members`."""
    try:
        members_of(privacy.members, data.site_names, split.num_clients)
    except ValueError as error:
        yield Incompatibility("privacy.members", str(error))


BETWEEN_GROUPS: tuple[Callable[..., Iterator[Incompatibility]], ...] = (
    _check_server_data,
    _check_masked_sums,
    _check_members,
    _check_own_data,
    _check_natural,
    _check_findings,
)
"""Rules between groups of settings. The names of a rule's arguments are the groups that it needs.
What a method does not support is declared by the method."""
