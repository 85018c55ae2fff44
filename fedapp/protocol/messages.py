"""Every message between the server and a site, as frozen values.

Models travel by reference (`ModelRef`); the driver attaches the bytes only of content that the
receiver does not hold. Nothing here knows how the bytes are carried.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, FailFast, Field

from fedapp.core.names import MAX_CLASS_NAME, SITE_NAME, class_name

SCHEMA = 10
"""Version of the message format that this side writes."""
READS = (10, 10)
"""First and last version that this side understands; `tools/node/app_bundle` reads both lines."""

INITIAL_SITE = -1
"""Stands for the site of w_0, the model every site starts from."""
SERVER_SITE = -2
"""The server as a site: of the models that it makes by averaging and, where it holds labelled
images of its own, of those that it trains."""
ALL_SITES, COHORT = -4, -5
"""Where sums are masked: all sites as one, and the sites of a round's cohort as one. The method's
server asks these, and no site by itself."""
MASKED = "masked"
"""Role of a site's masked numbers."""
MODEL = "model"
"""The role of a site's model. A method may have contents of other roles beside it, such as
prototypes."""
MEMORY_LOST = "memory_lost"
"""Metric, 1 where a site had lost what it keeps to itself and began it anew."""
STEPS, IMAGES = "steps", "images"
"""Metrics of a task that trained: optimiser steps, and images that went into them, repeats too."""
EVALUATE = "evaluate"
"""Action of a task that only measures a model at a site."""
ONE_ROUND = "one_round"
"""Name of the closed form's answer, before any training."""
ANSWERS = ("common", "tuned", "alone", "online", ONE_ROUND)
"""What a site can answer with: the server's model, its own after it trained that one, its own
trained on its labelled images alone, the server's online network (FedSiam), the closed form."""
EPSILON = "epsilon"
"""Metric in which a site tells what its uploads of this run have cost."""
EPSILON_OF_PATIENTS = "epsilon_of_patients"
"""Metric, 1 where a site's epsilon is of a patient and not of an image."""


CLOSED = {"extra": "forbid", "strict": True}
"""Pydantic reads these classes from the wire: unknown fields and silent conversions are refused."""

MAX_MODELS = 128
"""Models in one message: the site's own, a list of at most 63, and as many newcomers."""
MAX_CLASSES = 1000
MAX_FINDINGS = MAX_CLASSES // 2
"""Each is two classes of a confusion matrix."""
MAX_SIDE = 2**16
"""Each number of an input's shape."""
MAX_IMAGES = 2**31
"""Images of a kind at one site."""
MAX_BINS = 64
"""Bins of an evaluation's calibration, and of pseudo-labels' uncertainty."""
SCORE_BINS = 100
"""Bins of a class's scores (`fedapp.evaluation.ranking_metrics`)."""
MAX_ENTRIES = 32
"""Entries of a mapping: metrics, evaluations, roles."""
MAX_SETTINGS = 256
"""Settings of an experiment, in the first question: the largest mapping of any message."""
MAX_TEXT = 4000
"""Characters of a refusal."""

_ON_ONE_LINE = r"^[^\p{Cc}\p{Zl}\p{Zp}\u{202A}-\u{202E}\u{2066}-\u{2069}]*$"
"""No control characters, no line breaks, nothing that turns the reading direction around."""

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
DigestOrNone = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
SiteId = Annotated[int, Field(ge=0, lt=2**31)]
"""Of a message: the server's own site gets its tasks without any."""
Number = Annotated[int, Field(ge=0, lt=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-z_]+$")]
Images = Annotated[int, Field(ge=0, lt=MAX_IMAGES)]
Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=_ON_ONE_LINE)]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Setting = bool | int | Finite | Annotated[str, Field(max_length=2**16)]
ClassName = Annotated[str, Field(max_length=MAX_CLASS_NAME), AfterValidator(class_name)]

# A list ends at its first wrong item: a message may hold millions.
_Models = (Field(max_length=MAX_MODELS), FailFast())
_Classes = (Field(max_length=MAX_CLASSES), FailFast())
_Bins = (Field(max_length=MAX_BINS), FailFast())
_Sides = (Field(min_length=1, max_length=3), FailFast())
_Entries = Field(max_length=MAX_ENTRIES)


@dataclass(frozen=True)
class ModelRef:
    """One version of one site's model, or of its content of another role.

    digest: the SHA-256 of its safetensors bytes, in hex.
    """

    __pydantic_config__ = CLOSED

    site: Annotated[int, Field(ge=SERVER_SITE, lt=2**31)]
    version: Number
    digest: Digest
    role: Name = MODEL


@dataclass(frozen=True)
class ScoredRef:
    """A helper and its relation Corr(k|j) to the site that lists it."""

    __pydantic_config__ = CLOSED

    model: ModelRef
    score: Finite


@dataclass(frozen=True)
class Evaluation:
    """Sums over one site's samples, so that sites can be added without error.

    confusion: [C][C] counts, true class x predicted class.
    bin_count, bin_correct: [B] samples and correct ones per confidence bin ((i, i + 1] / B).
    bin_confidence: [B] sum of the top probability in each bin.
    """

    __pydantic_config__ = CLOSED

    confusion: Annotated[tuple[Annotated[tuple[Images, ...], *_Classes], ...], *_Classes]
    bin_count: Annotated[tuple[Images, ...], *_Bins]
    bin_correct: Annotated[tuple[Images, ...], *_Bins]
    bin_confidence: Annotated[tuple[Finite, ...], *_Bins]

    @cached_property
    def samples(self) -> int:
        """Number of samples."""
        return sum(map(sum, self.confusion))

    @cached_property
    def correct(self) -> int:
        """Number of samples on the diagonal of the confusion matrix."""
        return sum(row[c] for c, row in enumerate(self.confusion))

    @cached_property
    def accuracy(self) -> float | None:
        """Share of correct samples, or None where there are no samples."""
        return self.correct / self.samples if self.samples else None

    @property
    def plain(self) -> "Evaluation":
        """It without score counts."""
        return self

    def with_scores(self, counts: Iterable[Iterable[int]]) -> "Scored":
        """Return it with score counts, as `Scored.scores` has them."""
        of = self.confusion, self.bin_count, self.bin_correct, self.bin_confidence
        return Scored(*of, tuple(map(tuple, counts)))


@dataclass(frozen=True)
class Scored(Evaluation):
    """An evaluation with score counts, where a run pools them (`rounds.pooled_auroc`).

    scores: [C][2 B] images by bin of the class's probability, those of the class, then all others.
    """

    __pydantic_config__ = CLOSED

    scores: Annotated[
        tuple[Annotated[tuple[Images, ...], Field(max_length=2 * SCORE_BINS), FailFast()], ...],
        *_Classes,
    ]

    @property
    def plain(self) -> Evaluation:
        """It without score counts."""
        return Evaluation(self.confusion, self.bin_count, self.bin_correct, self.bin_confidence)


Measured = Annotated[Evaluation | Scored, Field(union_mode="left_to_right")]
"""As messages and checkpoints have it."""


@dataclass(frozen=True)
class PseudoLabels:
    """Counts of the pseudo-labels that a site learned from in a round.

    by_class: [C]. by_uncertainty: [B], by normalised entropy H / ln C, in bins [i, i + 1) / B.
    wrong_by_class, wrong_by_uncertainty: those of them that are wrong; empty on a real site, which
        does not know.
    """

    __pydantic_config__ = CLOSED

    by_class: Annotated[tuple[Images, ...], *_Classes]
    by_uncertainty: Annotated[tuple[Images, ...], *_Bins]
    wrong_by_class: Annotated[tuple[Images, ...], *_Classes] = ()
    wrong_by_uncertainty: Annotated[tuple[Images, ...], *_Bins] = ()

    @property
    def total(self) -> int:
        """Number of pseudo-labels."""
        return sum(self.by_class)


Key32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""32 bytes in hex: an X25519 public key."""
Bytes = Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=2048)]
"""A few bytes in hex: a signature, a public key, a sealed box."""
Attempt = Annotated[int, Field(ge=1, lt=2**53)]
"""Which try at a masked sum it is."""
MAX_MEMBERS = 4096
"""Sites of one masked sum."""
_Members = (Field(max_length=MAX_MEMBERS), FailFast())


@dataclass(frozen=True)
class Announcement:
    """A site's two public keys for one attempt at a masked sum, signed by its registered key.

    Its signature is also its word that it has confirmed no earlier attempt at this sum, and never
    will. attempt: at the sum.
    box: for what other sites seal for it. mask: for the masks that it shares with each of them.
    own: digest of the seed of its own mask, by which wrong shares of it are found out.
    signer: the registered public key (DER, SubjectPublicKeyInfo); its fingerprint was agreed on.
    """

    __pydantic_config__ = CLOSED

    site: SiteId
    attempt: Attempt
    box: Key32
    mask: Key32
    own: Key32
    signer: Bytes
    signature: Bytes


@dataclass(frozen=True)
class Sealed:
    """A site's shares of its two secrets, which only the receiver can open."""

    __pydantic_config__ = CLOSED

    sender: SiteId
    receiver: SiteId
    box: Bytes


@dataclass(frozen=True)
class Confirmation:
    """A site's word that it was named these survivors, signed as its announcement is."""

    __pydantic_config__ = CLOSED

    site: SiteId
    signer: Bytes
    signature: Bytes


@dataclass(frozen=True)
class SumStep:
    """A step of a masked sum, as the server asks for it (docs/MASKED_SUMS.md).

    number: of the sum within the round, from 0. attempt: at this sum; the same for all sites.
    stage: announce keys, share secrets, add one's own masked numbers (the task itself), confirm
    whose numbers came, open. members: who takes part, ascending; empty when keys are asked for.
    announced: digest of what all members announced; empty when keys are asked for. announcements:
    of the site's neighbours and its own (share, add, open). earlier: announcements of earlier
    attempts at this sum, each site's newest, which prove that the site's last row in it is never
    opened (add). sealed: what neighbours sealed for it (open). survivors: whose numbers are in the
    sum (confirm, open). confirmations: of these survivors (open).
    """

    __pydantic_config__ = CLOSED

    number: Number
    stage: Literal["announce", "share", "add", "confirm", "open"]
    attempt: Attempt = 1
    members: Annotated[tuple[SiteId, ...], *_Members] = ()
    announced: DigestOrNone = ""
    announcements: Annotated[tuple[Announcement, ...], *_Members] = ()
    earlier: Annotated[tuple[Announcement, ...], *_Members] = ()
    sealed: Annotated[tuple[Sealed, ...], *_Members] = ()
    survivors: Annotated[tuple[SiteId, ...], *_Members] = ()
    confirmations: Annotated[tuple[Confirmation, ...], *_Members] = ()


@dataclass(frozen=True)
class OpenedShare:
    """What a site opens at the end: its share of one secret of another site."""

    __pydantic_config__ = CLOSED

    site: SiteId
    share: Bytes


@dataclass(frozen=True)
class SumAnswer:
    """A site's answer to a step: of each stage one field.

    own: shares of the secret of a survivor's own mask. pairs: of the mask key of a site that is
    lost. Never both of one site.
    """

    __pydantic_config__ = CLOSED

    announcement: Announcement | None = None
    sealed: Annotated[tuple[Sealed, ...], *_Members] = ()
    confirmation: Confirmation | None = None
    own: Annotated[tuple[OpenedShare, ...], *_Members] = ()
    pairs: Annotated[tuple[OpenedShare, ...], *_Members] = ()


@dataclass(frozen=True)
class Task:
    """Work for one site in one round. `models` gives, for each role, the models it refers to.

    `own` is the site's current model as the server knows it: the server's record is the truth, so
    a site whose disk is empty or ahead (a run resumed after a crash) continues from the same model.
    private: digest of the part of its model that never leaves the site, as of its last answer;
        empty: w_0's.
    phase: which of the round's trainings this is; round 0 may have several.
    numbers: what the method tells the site beside models, by name.
    sum: the step of a masked sum that it is; None: it is none.
    """

    __pydantic_config__ = CLOSED

    site: SiteId
    round: Number
    action: Name
    own: ModelRef
    models: Annotated[Mapping[Name, Annotated[tuple[ModelRef, ...], *_Models]], _Entries] = field(
        default_factory=dict
    )
    private: DigestOrNone = ""
    phase: Number = 0
    numbers: Annotated[Mapping[Name, Finite], _Entries] = field(default_factory=dict)
    sum: SumStep | None = None

    @property
    def when(self) -> int | str:
        """Return what random draws of this task are keyed by: the round, or its later phase."""
        return f"{self.round}.{self.phase}" if self.phase else self.round

    @property
    def question(self) -> "Task":
        """Return what is asked of the site's images.

        By it a site that protects them pays, and by the same its noise is drawn: what only says how
        far a masked sum is, or what the site keeps to itself, must not buy other noise.
        """
        return replace(self, private="", sum=None)

    def refs(self) -> tuple[ModelRef, ...]:
        """Every model the task refers to, each content once, in a fixed order."""
        every = [self.own, *(ref for role in sorted(self.models) for ref in self.models[role])]
        return tuple({ref.digest: ref for ref in every}.values())


@dataclass(frozen=True)
class PartSent:
    """Some tensors of an uploaded content: whoever has the base has the others.

    base: digest of a content that the task named or, for another role, of the site's new model.
    digest: of what was sent.
    """

    __pydantic_config__ = CLOSED

    base: Digest
    digest: Digest


@dataclass(frozen=True)
class Reply:
    """What a site did.

    model: digest of the site's model now (equal to the task's `own` when it did not change).
    helpers: its helper list, most related first, itself excluded; this is also its request for the
        next round: what it holds (by digest) and how the entries rank.
    held: digests in the site's store after the round.
    metrics: named numbers, counts where the server must add them up.
    evaluations: "val", "test", "test_before" where the site trained, and "val_tuned" and the like
        where a site has other answers than the one it uses (`ANSWERS`).
    equal: more evaluations by name, each with the name of the one in `evaluations` that it equals.
    private: digest of the part of its model that it keeps to itself; empty: none, or w_0's.
    contents: digests of its new contents of other roles.
    parts: what was sent of its new contents, by role; of those not named the whole.
    learned: whether it trained.
    pseudo: the pseudo-labels that it learned from; None where its method fixes none for a round.
    sum: its answer to a step of a masked sum; None: the task was none.
    """

    __pydantic_config__ = CLOSED

    site: SiteId
    round: Number
    model: Digest
    helpers: Annotated[tuple[ScoredRef, ...], *_Models] = ()
    held: Annotated[tuple[Digest, ...], *_Models] = ()
    metrics: Annotated[Mapping[Name, Finite], _Entries] = field(default_factory=dict)
    evaluations: Annotated[Mapping[Name, Measured], _Entries] = field(default_factory=dict)
    equal: Annotated[Mapping[Name, Name], _Entries] = field(default_factory=dict)
    private: DigestOrNone = ""
    contents: Annotated[Mapping[Name, Digest], _Entries] = field(default_factory=dict)
    parts: Annotated[Mapping[Name, PartSent], _Entries] = field(default_factory=dict)
    learned: bool = False
    pseudo: PseudoLabels | None = None
    sum: SumAnswer | None = None

    def with_repeats(self) -> "Reply":
        """Return it with all evaluations, those that are equal to another one too."""
        again = {name: self.evaluations[of] for name, of in self.equal.items()}
        return replace(self, evaluations={**self.evaluations, **again}, equal={})

    def uploads(self, before: str) -> dict[str, str]:
        """Return the role of each new content, and the digest of what comes along for it.

        Contents of two roles may be equal: then one comes along for both. before: digest of the
        site's model as the task named it.
        """
        return {
            role: self.parts[role].digest if role in self.parts else digest
            for role, digest in self.new_contents(before).items()
        }

    def new_contents(self, before: str) -> dict[str, str]:
        """Return the digest of each new content, whole, by role: the model, if new, comes first."""
        model = {MODEL: self.model} if self.model != before else {}
        return {**model, **self.contents}


def without_repeats(
    evaluations: Mapping[str, Evaluation],
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Return evaluations without those that another name has too, and for these what it is.

    As `Reply.evaluations` and `Reply.equal`; `Reply.with_repeats` undoes it.
    """
    named: dict[int, str] = {}
    equal: dict[str, str] = {}
    for name, result in evaluations.items():
        first = named.setdefault(id(result), name)
        if first != name:
            equal[name] = first
    return {name: evaluations[name] for name in named.values()}, equal


@dataclass(frozen=True)
class Missing:
    """The site lacks these contents (new disk, damaged file): send them and it does the task."""

    __pydantic_config__ = CLOSED

    site: SiteId
    round: Number
    digests: Annotated[tuple[Digest, ...], *_Models]


@dataclass(frozen=True)
class Refusal:
    """The site could not do the task, and why; the run goes on without it this round.

    site: INITIAL_SITE where it could not even tell which site it is. lasting: the same question has
        no other answer in this run, unless a person changes what the site allows.
    """

    __pydantic_config__ = CLOSED

    site: Annotated[int, Field(ge=INITIAL_SITE, lt=2**31)]
    round: Number
    reason: Text
    lasting: bool = False


@dataclass(frozen=True)
class Hello:
    """First question to a node: who are you? Answered with `SiteFacts`.

    settings: those that both sides must share, so that a site that has others can say which.
    """

    __pydantic_config__ = CLOSED

    settings: Annotated[Mapping[Text, Setting], Field(max_length=MAX_SETTINGS)] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Origin:
    """What the server runs; rides with every request.

    A site that runs other code or another experiment refuses with the difference.
    run: name of the run, a folder at the site. identity: tells it from others of that name; empty:
        one begun by an earlier version. code: hash of the server's code.
    experiment: digest of the settings that both sides must share.
    pool: SHA-256 of the key in the server's model pool: a site that can read that key works on the
        pool itself and is sent no contents. Empty: contents always travel.
    reads: first and last version of messages that the server understands.
    """

    __pydantic_config__ = CLOSED

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$")]
    code: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    experiment: Digest
    pool: DigestOrNone = ""
    identity: DigestOrNone = ""
    reads: tuple[Number, Number] = READS


@dataclass(frozen=True)
class SiteFacts:
    """What the server must know of a site before round 0. Counts are images.

    inputs: shape of one input: (channels, height, width) of an image, (dimensions,) of a vector.
    bagged: training images of whose labels a site knows the proportions of each bag alone.
    split_digest: SHA-256 of the split the site holds a part of or, where sites have data of their
        own, of the rules by which they read them.
    pool_key: the key that the site read in the server's pool, as proof; empty: it cannot read it.
    name: of a site with data of its own; else empty.
    """

    __pydantic_config__ = CLOSED

    site: SiteId
    inputs: Annotated[tuple[Side, ...], *_Sides]
    classes: Annotated[tuple[ClassName, ...], Field(min_length=1), *_Classes]
    labelled: Images
    unlabelled: Images
    val: Images
    test: Images
    split_digest: Digest
    pool_key: Annotated[str, Field(pattern="^([0-9a-f]{32})?$")] = ""
    name: Annotated[str, Field(pattern=f"^({SITE_NAME})?$")] = ""
    bagged: Images = 0

    @property
    def display_name(self) -> str:
        """What a person is told the site is."""
        if self.site in _SPECIAL_SITES:
            return _SPECIAL_SITES[self.site]
        return f"site {self.site} ({self.name})" if self.name else f"site {self.site}"

    @property
    def folder(self) -> str:
        """Name of a folder of the site's own."""
        return self.name or str(self.site)

    @property
    def training(self) -> int:
        """All images to learn from."""
        return self.labelled + self.unlabelled + self.bagged

    @property
    def supervised(self) -> bool:
        """Whether it knows something of the classes of those."""
        return self.labelled + self.bagged > 0

    @property
    def mu(self) -> float:
        """|D_s| / (|D_s| + |D_u|) (Eq. 2); 0 without training images."""
        return self.labelled / max(self.labelled + self.unlabelled, 1)


_SPECIAL_SITES = {
    SERVER_SITE: "the server's own site",
    ALL_SITES: "all sites together",
    COHORT: "the cohort",
}

Request = Task | Hello
Answer = Reply | Missing | Refusal | SiteFacts


@dataclass(frozen=True)
class Outgoing:
    """A task, as it travels too, and the digests of the contents that go with it."""

    task: Task
    head: bytes
    attach: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incoming:
    """An answer and the contents that came with it, by digest, not yet checked.

    head_bytes: size of the answer as it came, without the contents.
    sent: False where the task could not even be sent; the answer, a `Refusal`, says why.
    """

    answer: Answer
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    head_bytes: int = 0
    sent: bool = True
