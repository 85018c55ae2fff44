"""Every setting of an experiment but the method's and the network's own: closed, typed, checked.

Paper: "Uncertainty Minimization for Personalized Federated Semi-Supervised Learning", final form.
The descriptions give unit and source; `conf/*.yaml` repeats them beside the values.
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
from fedapp.core.names import SITE_NAME, folder_name

CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown keys, silent conversions, NaN and infinity are refused."""

OWN = "own"
"""`data.name` where every site reads images of its own."""
FOLDER = "folder"
"""`data.name` of a folder of images, one folder for each class."""
MEMORY = "memory:"
"""How `data.name` begins of data that a program gave this process."""
_TABLE_COLUMNS = ("path", "label", "bag", "split", "group", "patient")
"""Of a site's table, which no finding may be called."""

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
"""A dropout rate."""


def _join_names(value: object) -> object:
    """Return the names of a list as one text, commas between them; anything else as it is.

    Raises ValueError on a name that such a text cannot hold, and on a text in brackets.
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
"""Names with commas between them; where they stand in a file, they may be a list of YAML."""

LABELS, BAGS, NOTHING = KINDS_OF_KNOWLEDGE = ("labels", "bags", "nothing")
"""What a site may know of its training images' classes: `split.knows`."""

OWN_WINDOW = "dicom"
"""`data.window` where each file's own window is to be used, which only DICOM files have."""

_DEALS_OF_ALPHA = {
    "dirichlet_alpha": ("dirichlet", "dirichlet_unlabelled"),
    "label_alpha": ("dirichlet",),
}
"""Concentrations, and the values of `split.deal` that they belong to."""

UNEVEN_LABELS_SHARE = 0.05
"""Labelled share of most sites' training images under `split.deal=uneven_labels` (FedSiam)."""

SHIFT_KINDS = ("rotation", "brightness", "contrast", "blur", "noise")
"""What `split.feature_shift` can change; `fedapp.data.feature_shift` says how."""


Unused = dict[str, str]
"""Settings that say nothing beside the others, and why; the words go on after the setting's name.

A choice between kinds, such as `split.deal`, so decides which of the other settings belong to it.
"""


def is_changed(settings: object, key: str) -> bool:
    """Whether a setting has another value than its default.

    A file that says every setting, such as a run's config.yaml, gives idle ones their defaults.
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
    """Of images with more than 8 bits, in files: the two values that become black and white, a
    comma between; `dicom`: each file's own window; empty: there are no such images."""

    # What sites with data of their own (name = own) agree upon, since no one sees all their images.
    classes: Names = ""
    """Names of the classes, commas between them; their order is the labels' numbers."""
    findings: Names = ""
    """Names of findings, commas between them, in the place of classes: an image shows any number of
    them (docs/OWN_DATA.md). Empty: each image is of one class."""
    sites: Names = ""
    """Names of the sites that may take part, commas between them; their order is their numbers."""
    channels: Annotated[int, Field(ge=0, le=3)] = 0
    """Of every image: 1 (grey) or 3 (RGB)."""
    mean: float = 0.5
    """Subtracted from pixels / 255, in every channel, in [0, 1]; or from every number of a vector.
    Of own data only, others are measured."""
    std: Positive = 0.25
    """What is left is divided by it, at most 1 for pixels; of own data only."""
    vector_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Numbers of a vector, where the sites have vectors and no images; 0: they have images."""
    encoder: str = ""
    """What made these vectors, as all sites' files must say it; empty: tables, made by none."""
    patients: str = ""
    """Regular expression with one group, found in every image's path, which gives the patient: all
    images of one go to one site and part. Empty: labels.csv may say it (docs/OWN_DATA.md). Of
    simulations alone: a real site has its own in its site.yaml, and refuses a run with one."""

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
        """Say of a single number what a window is; that it is no text would be of no help."""
        if isinstance(value, int | float):
            window_ends(str(value))
        return value

    @staticmethod
    def unused(said: Mapping[str, Any]) -> Unused:
        """Return the settings that say nothing beside those that are said."""
        found: Unused = {}
        if said["name"] not in (OWN, FOLDER):
            rule = f"is a setting of images in files: set name to {OWN!r} or {FOLDER!r} or drop it"
            found |= dict.fromkeys(("window", "patients"), rule)
        if said["name"] != OWN:
            rule = "is a setting of own data: set name to 'own' or drop it"
            of_own = ("classes", "sites", "channels", "vector_size", "encoder")
            found |= dict.fromkeys(of_own, rule)
            if not str(said["name"]).startswith(MEMORY):
                rule = "says nothing of such data, where each image is of one class: drop it"
                found["findings"] = rule
        elif said["vector_size"]:
            rule = "is a setting of images: drop it, or vector_size"
            of_images = ("image_size", "channels", "window", "patients", "findings")
            found |= dict.fromkeys(of_images, rule)
        else:
            found["encoder"] = "is a setting of vectors: set vector_size or drop it"
        if said["name"] == OWN and said["findings"]:
            found["classes"] = "says nothing beside findings: drop one of the two"
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
        _check_names("sites", self.site_names, _site_name)


def _site_name(name: str) -> str:
    """Return a site's name as it is. Raises ValueError where it is none."""
    if not re.fullmatch(SITE_NAME, name):
        raise ValueError(
            f"{name!r}: a site's name has at most 64 letters, digits, dots, dashes and "
            "underscores, the first a letter or digit: rename it"
        )
    return name


def _check_names(key: str, names: Sequence[str], rule: Callable[[str], str]) -> None:
    """Raise Contradiction where two are equal, or one is none by its rule."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Contradiction(f"{key} must differ: {twice[0]!r} stands twice", key)
    for name in names:
        try:
            rule(name)
        except ValueError as error:
            raise Contradiction(f"{key}: {error}", key) from error


def members_of(members: str, names: Sequence[str], sites: int) -> dict[int, str]:
    """Return the fingerprint of each site's key, by the site's number; none where none is named.

    members: as `privacy.members`. names: of sites with images of their own; else sites go by
    their numbers. sites: how many there are. Raises ValueError naming the rule.
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
        raise ValueError(f"it names {len(found)} of {sites} sites: name each with its fingerprint")
    if len(set(found.values())) < len(found):
        raise ValueError("two sites have the same fingerprint: each has a key of its own")
    return found


def window_ends(window: str) -> tuple[float, float] | None:
    """Return the values of `data.window` that become black and white; None: it names none.

    Raises ValueError where it is no window.
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
    """Raise Contradiction where it is no regular expression with one group."""
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        rule = f"patients is no regular expression ({error}): write one such as '(P[0-9]+)_'"
        raise Contradiction(rule, "patients") from error
    if pattern and groups != 1:
        rule = f"patients has {groups} groups in parentheses, must have one: the patient's name"
        raise Contradiction(rule, "patients")


def unused_settings(
    cls: type[DataSettings] | type["SplitSettings"], said: Mapping[str, Any]
) -> Unused:
    """Return the settings of a group that say nothing beside what is said of it, and why.

    What is said may be of any type: others check that.
    """
    return cls.unused({field.name: field.default for field in fields(cls)} | dict(said))


def _refuse_unused(settings: "DataSettings | SplitSettings") -> None:
    """Raise Contradiction on the first setting that says nothing beside the others."""
    for key, why in settings.unused(vars(settings)).items():
        if is_changed(settings, key):
            raise Contradiction(f"{key} {why}", key)


def _split_names(text: str) -> tuple[str, ...]:
    # Letters with marks as one character each, as the names of classes are read elsewhere too.
    names = unicodedata.normalize("NFC", text).split(",")
    return tuple(name.strip() for name in names) if text.strip() else ()


@dataclass(frozen=True, config=CLOSED)
class SplitSettings:
    """How the images are dealt to the sites (paper, Sec. VI-A)."""

    num_clients: Annotated[int, Field(ge=1, le=100_000)] = 10
    """K, sites."""
    deal: Literal[
        "dirichlet", "iid", "two_classes", "two_labelled_classes", "uneven_labels", "majority",
        "ten_mixes", "dirichlet_unlabelled",
    ] = "dirichlet"  # fmt: skip
    """dirichlet: by the two alphas; the others with exact counts, see `fedapp.data.split.exact`."""
    dirichlet_alpha: Positive = 0.5
    """alpha of Dir_K: label skew between sites; small = each site sees few classes."""
    label_alpha: Positive = 0.5
    """alpha of Dir_2: how unevenly sites are labelled; small = all or nothing."""
    train_share: Share = 0.7
    """Share of all images for training; 0.7 in the paper."""
    val_share: Share = 0.1
    """Share of all images for validation; 0.1 in the paper; the rest is for testing."""
    test_images: NonNegative = 0
    """Images at the end of the data set that are its test part; 0: drawn, by the two shares."""
    labels: Literal["some", "all", "none"] = "some"
    """some: of each site's training images a share by Dir_2; all: every one, the paper's -SL; none:
    the server alone has labels to learn from."""
    label_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Mean share of a site's training images that are labelled; 0.5 in the paper, which is the most
    that Dir_2 can give."""
    feature_shift: Share = 0.0
    """How much each site's images are changed by its own fixed amounts; 0: not at all."""
    shift_kinds: Names = "rotation, brightness, contrast"
    """What is changed then, commas between them: see `SHIFT_KINDS`."""
    bags: Annotated[int, Field(ge=0, le=1000)] = 0
    """Bags per site, of whose training images the class proportions alone are known; 0: none."""
    bag_mix: Literal["dirichlet", "dominant", "official"] = "dirichlet"
    """Of classes in bags. dirichlet: every division as likely; dominant: bags of equal size, in
    each of which one class prevails (FedUL); official: as its code, images repeat across bags."""
    prior_noise: Annotated[float, Field(ge=0, le=2)] = 0.0
    """epsilon of FedUL's Table E.9: how wrong the proportions are that sites are told; 0: exact."""
    knows: Names = ""
    """What sites know of their training images' classes, in turn, commas between them: labels,
    bags or nothing; empty: all the same, bags if there are any."""
    server_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all training images that the server has itself, labelled; 0: it has none."""

    manifest: str = ""
    """File of a saved split to use instead of drawing one; empty: draw."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """`shift_kinds` one by one."""
        return _split_names(self.shift_kinds)

    def known_at(self, site: int) -> str:
        """Return what a site knows, one of `KINDS_OF_KNOWLEDGE`."""
        turns = _split_names(self.knows) or (BAGS if self.bags else LABELS,)
        return turns[site % len(turns)]

    @staticmethod
    def unused(said: Mapping[str, Any]) -> Unused:
        """Return the settings that say nothing beside those that are said."""
        found: Unused = {}
        if said["test_images"]:
            rule = "says nothing where test_images says which images are to test on"
            found["train_share"] = f"{rule}: drop one of them"
        turns = _split_names(str(_join_names(said["knows"])))
        if (labels := said["labels"]) != "some":
            rule = f"says nothing where labels is {labels!r}: drop it or set labels to 'some'"
            found["label_share"] = rule
        elif (turns or said["bags"]) and LABELS not in turns:
            rule = "says nothing where no site has labels: drop it, or name labels in knows"
            found["label_share"] = rule
        if not said["bags"]:
            found |= dict.fromkeys(("bag_mix", "prior_noise"), "says nothing without bags: drop it")
        deal, remedy = said["deal"], "drop it or set deal to 'dirichlet'"
        for key, deals in _DEALS_OF_ALPHA.items():
            if deal not in deals:
                found[key] = f"says nothing where deal is {deal!r}: {remedy}"
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
            rule = "labels says nothing beside bags or knows: drop it"
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
    """Local training: SGD with momentum (paper, Sec. VI-A), or as another paper has it."""

    local_epochs: NonNegative = 5
    """E, passes over a site's training images per round."""
    local_steps: NonNegative = 0
    """Mini-batches per round in place of E passes, equal at all sites and for all methods; 0: E
    passes. The warm-up takes warmup_epochs / E as many."""
    warmup_epochs: NonNegative = 5
    """Supervised passes over a site's labelled images before round 1; the paper is silent."""
    warmup_rounds: Count = 4
    """Averages in the warm-up of methods that average, at equal distances; others have none."""
    batch_size: Annotated[int, Field(ge=2)] = 64
    """B, images."""
    at_once: NonNegative = 0
    """Images that the network takes at a time: a batch of more is learned from in pieces, whose
    gradients add up; batch norm sees a piece alone. 0: whole batches. For losses that are a mean
    over images: UM-pFSSL, supervised FedAvg and kin. Steps of their own (pFedMe, privacy.epsilon)
    stay whole."""
    learning_rate: Positive = 1e-4
    """eta."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of SGD."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of the optimiser: a weight's share that is added to its gradient."""
    optimiser: Literal["sgd", "adam", "rmsprop"] = "sgd"
    """How a step follows from a gradient; begins anew in each task. pFedMe has steps of its own."""
    batches: Literal["joint", "paired"] = "joint"
    """joint: drawn from labelled and unlabelled images together; paired: B of each a step."""
    augment: Literal["none", "weak"] = "none"
    """weak: every training image is shifted, and mirrored where that is safe, at every step."""

    uneven: Literal["plain", "balanced", "adjusted"] = "plain"
    """Of classes of which a site has few labelled images. balanced: each class is drawn as often;
    adjusted: logits + ln of the site's class shares in training (Menon et al. 2021). Of methods
    that average; prior shift then answers as if all classes were as frequent."""

    def steps(self, epochs: int, before: int = 0) -> int | None:
        """Return the mini-batches that stand for that many passes; None: the passes decide.

        before: passes of the same training that were counted already. Parts add up to the whole.
        """
        if not self.local_steps:
            return None
        each = self.local_steps / max(self.local_epochs, 1)
        return round(each * (before + epochs)) - round(each * before)


@dataclass(frozen=True, config=CLOSED)
class RoundSettings:
    """The federation's clock."""

    num_rounds: NonNegative = 200
    """T, rounds after the warm-up."""
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """tau, share of sites that train in a round."""
    deadline_s: Positive = 3600.0
    """Seconds a phase of a round may take before silent sites are skipped."""
    join_wait_s: Annotated[float, Field(ge=0)] = 10.0
    """Seconds to wait, at the start or when a run is taken up again, until all sites are here and
    have answered; then those that have are used."""
    hello_s: Positive = 600.0
    """Seconds to wait for the sites' first answers; a site may have to download its data."""
    min_reply_share: Share = 0.5
    """A phase with fewer answers than this share of its tasks ends the run."""
    robust: str = "none"
    """How the server averages: none, the weighted mean; against bad models bounded, median or
    filtered; or a rule of one's own, `package.module:Class`."""
    chosen_by: Literal["accuracy", "balanced_accuracy", "f1", "kappa"] = "accuracy"
    """Metric of the validation images by which a site keeps a model, and of its verdict; all but
    accuracy count every class alike, or take chance off."""
    min_sensitivity: Share = 0.0
    """Sensitivity that the model that a site keeps must have in each class with 10 validation
    images or more; where none has it, the nearest is kept. 0: none is asked for."""
    pooled_auroc: bool = False
    """Whether sites send by class how many test images have which score, in 100 bins: of them the
    server has AUROC and average precision of all sites' images. SECURITY.md says what they tell."""


@dataclass(frozen=True, config=CLOSED)
class TransportSettings:
    """How a model is written down: on the wire, on disk and for its digest."""

    precision: Literal["float32", "float16"] = "float32"
    """Of the weights; float16 halves what is sent and rounds every model that is uploaded."""
    compression: Literal["none", "zlib"] = "none"
    """zlib: 14 % fewer bytes, lossless; pays on links below about 40 Mbit/s."""


@dataclass(frozen=True, config=CLOSED)
class PrivacySettings:
    """What is done to a model before it leaves a site (docs/SECURITY.md)."""

    clip: Annotated[float, Field(ge=0)] = 0.0
    """C, largest L2 norm of an upload's change; 0: off, models leave as they were trained."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """At which epsilon is told; well below 1 / the number of a site's images."""
    epsilon: Annotated[float, Field(ge=0)] = 0.0
    """Of a whole run, for any one patient where a site knows whose its images are, else for any one
    image, at delta; 0: neither is protected."""
    gradient: Positive = 1.0
    """L2 norm that the gradient of one image, or of all images of a patient, is cut to where a
    network is trained under epsilon."""
    sampling: Annotated[float, Field(gt=0, le=1)] = 0.1
    """q: with which chance an image or patient is in a step then, in place of batch_size."""
    sums: Literal["plain", "masked"] = "plain"
    """masked: what sites send is masked so that the server learns the sums over all sites alone."""
    members: Names = ""
    """Sites whose sums are masked, each with the fingerprint of its registered key, commas between
    them: `north=SHA256, south=SHA256`; empty: keys follow from the seed, a simulation."""
    least_members: Annotated[int, Field(ge=3)] = 3
    """Sites in a masked sum at least; a site's own terms may ask for more."""
    colluding: Annotated[int, Field(ge=1)] = 1
    """Members of a masked sum that may be in league with the server: the others' noise, under
    epsilon, suffices without theirs."""

    @property
    def masked(self) -> bool:
        """Whether the server learns sums alone."""
        return self.sums == "masked"

    def __post_init__(self) -> None:
        if self.masked and self.clip:
            rule = "clip is of whole models that leave a site, and masked sums let none leave"
            raise Contradiction(f"{rule}: drop one of them", "sums", "clip")
        if self.members and not self.masked:
            raise Contradiction("members says nothing where sums is 'plain'", "members", "sums")
        if self.epsilon and self.clip:
            rule = "clip is of whole models, and under epsilon each image's part is clipped"
            raise Contradiction(f"{rule}: set one of the two", "epsilon", "clip")
        for key in ("gradient", "sampling"):
            if is_changed(self, key) and not self.epsilon:
                rule = f"{key} says nothing without epsilon: set epsilon or drop it"
                raise Contradiction(rule, key, "epsilon")


@dataclass(frozen=True, config=CLOSED)
class RuntimeSettings:
    """Where and how the work is done.

    `device` and `threads` can change a result's last bits, `precision` its third digit. On a
    GPU the last bits differ from one run to the next unless `deterministic` is set.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of convolutions; weights stay float32. auto: bfloat16 on a GPU, float32 on a CPU."""
    threads: Count = 1
    """CPU threads per site; fixed so that every driver gives the same bits."""
    deterministic: bool = False
    """On a GPU: algorithms that give equal bits every time; some are slower."""
    workers: NonNegative = 0
    """Sites at a time, each in a process; 0: on Flower as many as cores and memory carry, in
    `fedapp run` one."""
    in_flight_mib: Count = 4096
    """MiB of models that may be under way between server and sites; bounds the server's memory."""
    out: str = ""
    """Folder for run folders; empty: $FEDAPP_OUT, else ~/fedapp-runs."""
    run_name: str = ""
    """Name of the run folder; empty: preset, seed and start time."""
    resume: bool = False
    """Continue the run in the folder `run_name` from its last whole round."""
    server_data: str = ""
    """Folder or CSV file of labelled images that the server has itself, where sites have images of
    their own; empty: it has none."""
    models: bool = True
    """Each site keeps its best model for use; a comparison's cells do not: it costs up to 9 %."""


GROUPS: Mapping[str, type] = {
    "data": DataSettings,
    "split": SplitSettings,
    "training": TrainSettings,
    "rounds": RoundSettings,
    "transport": TransportSettings,
    "privacy": PrivacySettings,
    "runtime": RuntimeSettings,
}
"""The groups of settings of an experiment, by the names that they have there."""


# --- between groups -------------------------------------------------------------------------------


def _check_own_data(data: DataSettings, split: SplitSettings) -> Iterator[Incompatibility]:
    """Yield each setting that does not go with sites' own data, which nobody deals."""
    if data.name != OWN:
        return
    if data.sites and len(data.site_names) != split.num_clients:
        rule = f"data.sites names {len(data.site_names)} sites"
        yield Incompatibility("split.num_clients", rule, "make the two equal")
    if split.labels == "all":
        rule = "own data have no hidden labels to reveal"
        yield Incompatibility("split.labels", rule, "use 'some'")
    dealt = "own data are dealt by nobody"
    for key, rule in {
        "manifest": dealt,
        "label_share": "own data come with the labels they have",
        "feature_shift": "own data are used as they are",
        **dict.fromkeys(("bags", "knows", "server_share"), dealt),
    }.items():
        if is_changed(split, key):
            yield Incompatibility(f"split.{key}", rule, "leave it out")


def _check_findings(
    data: DataSettings, training: TrainSettings, rounds: RoundSettings, privacy: PrivacySettings
) -> Iterator[Incompatibility]:
    """Yield each setting that has no meaning where an image has several labels (findings)."""
    if not data.findings:
        return
    of_classes = "is a setting of classes, and data.findings are set"
    if training.uneven != "plain":
        yield Incompatibility("training.uneven", of_classes, "leave it out")
    if rounds.min_sensitivity:
        yield Incompatibility("rounds.min_sensitivity", of_classes, "leave it out")
    if privacy.epsilon:
        rule = "an image counts in the sums of every finding that was read in it, and the noise is "
        rule += "for one class an image"
        yield Incompatibility("privacy.epsilon", rule, "leave it out")
    if rounds.chosen_by == "kappa":
        rule = "kappa is of classes, and data.findings are set"
        yield Incompatibility("rounds.chosen_by", rule, "choose balanced_accuracy or f1")


def _check_server_data(
    data: DataSettings, split: SplitSettings, runtime: RuntimeSettings
) -> Iterator[Incompatibility]:
    """Yield what is wrong where no server can have labels, or it alone should and has no images."""
    own = data.name == OWN
    if runtime.server_data and not own:
        remedy = "a data set that is dealt has split.server_share"
        yield Incompatibility("runtime.server_data", "goes with data.name=own", remedy)
    if split.labels == "none" and not (split.server_share or runtime.server_data):
        key = "runtime.server_data" if own else "split.server_share"
        rule = f"the server alone has labels, and it has no images: set {key}"
        yield Incompatibility("split.labels", rule)


def _check_masked_sums(
    split: SplitSettings, rounds: RoundSettings, privacy: PrivacySettings, runtime: RuntimeSettings
) -> Iterator[Incompatibility]:
    """Yield each setting that needs more of a site than its part in a sum, or a smaller sum."""
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
        rule = f"{cohort} sites train in a round, and a masked sum is of {least}"
        too_few = split.num_clients < least  # then all of them do not suffice
        key = "split.num_clients" if too_few else "rounds.sample_rate"
        yield Incompatibility(key, rule, "raise it")
    if privacy.epsilon and privacy.colluding > max((least - 1) // 3, 1):
        rule = f"must be fewer than a third of privacy.least_members = {least}"
        yield Incompatibility("privacy.colluding", rule, "raise that")


def _check_members(
    data: DataSettings, split: SplitSettings, privacy: PrivacySettings
) -> Iterator[Incompatibility]:
    """Yield what is wrong with the sites that are named as members of masked sums."""
    try:
        members_of(privacy.members, data.site_names, split.num_clients)
    except ValueError as error:
        yield Incompatibility("privacy.members", str(error))


BETWEEN_GROUPS: tuple[Callable[..., Iterator[Incompatibility]], ...] = (
    _check_server_data,
    _check_masked_sums,
    _check_members,
    _check_own_data,
    _check_findings,
)
"""Rules between groups of settings; what a rule looks at are its arguments, called as the groups
are. What a method rules out stands at the method."""
