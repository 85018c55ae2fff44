"""All messages between the server and a site, as frozen dataclasses.

Messages name models by reference (`ModelRef`). The bytes of a content travel beside the message,
and only if the receiver does not hold it. Nothing here depends on how messages are transported.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, FailFast, Field

from fedapp.core.names import MAX_CLASS_NAME, SITE_NAME, class_name

SCHEMA = 11
"""Version of the message format that this side writes."""
READS = (11, 11)
"""First and last version that this side understands. `tools/node/app_bundle` finds this line and
the one above in the source text, so keep their form."""

INITIAL_SITE = -1
"""Site number of w_0, the initial model of every site."""
SERVER_SITE = -2
"""Site number of the server: of the models that it averages and, if it has labelled images of its
own, of those that it trains."""
ALL_SITES, COHORT = -4, -5
"""With secure aggregation: all sites as one, and the sites of a round's cohort as one. The server
part of a method sends tasks to these, and to no single site."""
MASKED = "masked"
"""Role of a site's masked numbers."""
MODEL = "model"
"""Role of a site's model. A method may have contents of other roles, such as prototypes."""
MEMORY_LOST = "memory_lost"
"""Metric: 1 if a site had lost the state that never leaves it, and began it anew."""
STEPS, IMAGES = "steps", "images"
"""Metrics of a training task: optimiser steps, and images in them, repetitions included."""
EVALUATE = "evaluate"
"""Action of a task that only measures a model at a site."""
ONE_ROUND = "one_round"
"""Name of the closed-form model's predictions, before any training."""
ANSWERS = ("common", "tuned", "alone", "online", ONE_ROUND)
"""Models whose predictions a site can use: the server's model; the server's model after local
training; a model trained on the site's labelled images alone; the server's online network
(FedSiam); the closed-form model."""
EPSILON = "epsilon"
"""Metric: the epsilon that a site's uploads of this run have spent."""
EPSILON_OF_PATIENTS = "epsilon_of_patients"
"""Metric: 1 if a site's epsilon protects a patient and not only an image."""


CLOSED = {"extra": "forbid", "strict": True}
"""Pydantic reads these classes from the wire: unknown fields and silent conversions are refused."""

MAX_MODELS = 128
"""Models in one message: the site's own, a list of at most 63, and as many newcomers."""
MAX_CLASSES = 1000
MAX_FINDINGS = MAX_CLASSES // 2
"""A finding takes two classes of a confusion matrix."""
MAX_SIDE = 2**16
"""Maximum of each number in an input's shape."""
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
"""Matches text without control characters, line breaks and changes of the reading direction."""

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
DigestOrNone = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
SiteId = Annotated[int, Field(ge=0, lt=2**31)]
"""Number of a site in a message. (The server's own site gets its tasks without a message.)"""
Number = Annotated[int, Field(ge=0, lt=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-z_]+$")]
Images = Annotated[int, Field(ge=0, lt=MAX_IMAGES)]
Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=_ON_ONE_LINE)]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Setting = bool | int | Finite | Annotated[str, Field(max_length=2**16)]
ClassName = Annotated[str, Field(max_length=MAX_CLASS_NAME), AfterValidator(class_name)]

# FailFast stops at a list's first wrong item, since a message may hold millions of them.
_Models = (Field(max_length=MAX_MODELS), FailFast())
_Classes = (Field(max_length=MAX_CLASSES), FailFast())
_Bins = (Field(max_length=MAX_BINS), FailFast())
_Sides = (Field(min_length=1, max_length=3), FailFast())
_Entries = Field(max_length=MAX_ENTRIES)


@dataclass(frozen=True)
class ModelRef:
    """A reference to one version of a site's model, or of its content of another role.

    digest: the SHA-256 of its safetensors bytes, in hex.
    """

    __pydantic_config__ = CLOSED

    site: Annotated[int, Field(ge=SERVER_SITE, lt=2**31)]
    version: Number
    digest: Digest
    role: Name = MODEL


@dataclass(frozen=True)
class ScoredRef:
    """A helper's model, and its relation Corr(k|j) to the site that lists it."""

    __pydantic_config__ = CLOSED

    model: ModelRef
    score: Finite


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a model on one site's samples, as sums, which can be added over sites.

    confusion: [C][C] counts, true class x predicted class.
    bin_count, bin_correct: [B] samples, and correctly classified ones, in each bin of confidence;
        bin i is (i, i + 1] / B.
    bin_confidence: [B] sum of the largest probability of the samples in each bin.
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
        """Share of correct samples; None if there are no samples."""
        return self.correct / self.samples if self.samples else None

    @property
    def plain(self) -> "Evaluation":
        """It without score counts."""
        return self

    def with_scores(self, counts: Iterable[Iterable[int]]) -> "Scored":
        """Return this evaluation with score counts in the form of `Scored.scores`."""
        of = self.confusion, self.bin_count, self.bin_correct, self.bin_confidence
        return Scored(*of, tuple(map(tuple, counts)))


@dataclass(frozen=True)
class Scored(Evaluation):
    """An evaluation with histograms of the scores, for runs with `rounds.pooled_auroc`.

    scores: [C][2 B] counts of images by the probability of the class, in B bins: first the images
        of the class, then all others.
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
"""An evaluation in messages and checkpoints, with or without scores."""


@dataclass(frozen=True)
class PseudoLabels:
    """Counts of the pseudo-labels from which a site learned in a round.

    by_class: [C]. by_uncertainty: [B], by normalised entropy H / ln C in bins [i, i + 1) / B.
    wrong_by_class, wrong_by_uncertainty: how many of them are wrong; empty at a real site, which
        does not know the true labels.
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
"""Number of the attempt at a masked sum, from 1."""
MAX_MEMBERS = 4096
"""Maximum number of sites in one masked sum."""
_Members = (Field(max_length=MAX_MEMBERS), FailFast())


@dataclass(frozen=True)
class Announcement:
    """A site's two public keys for one attempt at a masked sum, signed by its registered key.

    By its signature the site also promises that it has confirmed no earlier attempt at this sum and
    never will.

    box: public key for boxes that other sites seal for this site.
    mask: public key for the masks that the site shares with each other site.
    own: digest of the seed of the site's own mask, by which wrong shares of it are detected.
    signer: the registered public key (DER, SubjectPublicKeyInfo), whose fingerprint was agreed on.
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
    """A box with the sender's shares of its two secrets, which only the receiver can open."""

    __pydantic_config__ = CLOSED

    sender: SiteId
    receiver: SiteId
    box: Bytes


@dataclass(frozen=True)
class Confirmation:
    """A site's signed statement that the server named these survivors to it."""

    __pydantic_config__ = CLOSED

    site: SiteId
    signer: Bytes
    signature: Bytes


@dataclass(frozen=True)
class SumStep:
    """The server's request for one step of a masked sum (docs/MASKED_SUMS.md).

    number: number of the sum within the round, from 0.
    stage: announce keys; share secrets; add the site's masked numbers (the task itself); confirm
        whose numbers arrived; open shares. The fields below name the stages that use them.
    attempt: number of the attempt at this sum; the same for all sites.
    members: the sites that take part, ascending; empty in `announce`.
    announced: digest of what all members announced; empty in `announce`.
    announcements: those of the site's neighbours and its own (share, add, open).
    earlier: the newest announcement of each site in earlier attempts at this sum. They prove that
        the site's last row of numbers in this sum is never opened (add).
    sealed: the boxes that neighbours sealed for the site (open).
    survivors: the sites whose numbers are in the sum (confirm, open).
    confirmations: those of the survivors (open).
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
    """A share of one secret of the site `site`, which its holder reveals in the last stage."""

    __pydantic_config__ = CLOSED

    site: SiteId
    share: Bytes


@dataclass(frozen=True)
class SumAnswer:
    """A site's answer to a step of a masked sum; each stage fills its own field.

    own: shares of the seeds of survivors' own masks. pairs: shares of the seeds of the mask keys of
    sites that dropped out. A site never reveals both for the same site.
    """

    __pydantic_config__ = CLOSED

    announcement: Announcement | None = None
    sealed: Annotated[tuple[Sealed, ...], *_Members] = ()
    confirmation: Confirmation | None = None
    own: Annotated[tuple[OpenedShare, ...], *_Members] = ()
    pairs: Annotated[tuple[OpenedShare, ...], *_Members] = ()


@dataclass(frozen=True)
class Task:
    """Work for one site in one round.

    own: the site's current model according to the server. The server's record counts, so that a
        site whose disk is empty or ahead (a run resumed after a crash) continues from this model.
    models: for each role, the models that the task refers to.
    private: digest of the part of the site's model that never leaves it, as in its last reply;
        empty: that of w_0.
    phase: which training of the round this is; round 0 may have several.
    numbers: numbers by name that the method sends to the site beside models.
    sum: the step of a masked sum; None: the task is not part of one.
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
        """Key of the task's random draws: the round, or "round.phase" for a later phase."""
        return f"{self.round}.{self.phase}" if self.phase else self.round

    @property
    def question(self) -> "Task":
        """The part of the task that decides what is computed from the site's images.

        Under differential privacy a site charges its budget for this, and keys its noise by it. The
        stage of a masked sum and the private digest are left out: with another value of these the
        server must not get other noise for the same question.
        """
        return replace(self, private="", sum=None)

    @property
    def common_question(self) -> "Task":
        """The part of `question` that is the same for every member of a masked sum."""
        numbers = {name: float(number) for name, number in self.numbers.items()}  # as they arrive
        return replace(self.question, site=0, own=ModelRef(0, 0, "0" * 64), numbers=numbers)

    def refs(self) -> tuple[ModelRef, ...]:
        """Return all models that the task refers to, each content once, in a fixed order."""
        every = [self.own, *(ref for role in sorted(self.models) for ref in self.models[role])]
        return tuple({ref.digest: ref for ref in every}.values())


@dataclass(frozen=True)
class PartSent:
    """Says that only some tensors of a content were uploaded; the receiver has the others.

    base: digest of the content that has the other tensors: one that the task named or, for another
        role, the site's new model.
    digest: digest of the tensors that were sent.
    """

    __pydantic_config__ = CLOSED

    base: Digest
    digest: Digest


@dataclass(frozen=True)
class Reply:
    """A site's answer to a task that it did.

    model: digest of the site's model now; equal to the task's `own` if it did not change.
    helpers: the site's helper list, the most related first, without the site itself. It also asks
        for the next round's helpers: which ones the site holds (by digest) and how they rank.
    held: digests in the site's store after the round.
    metrics: named numbers; those that the server adds up over sites are counts.
    evaluations: "val", "test", "test_before" if the site trained, and others such as "val_tuned" if
        the site also has other models than the one it uses (`ANSWERS`).
    equal: further evaluations by name, each with the name of the equal one in `evaluations`.
    private: digest of the part of the model that never leaves the site; empty: none, or w_0's.
    contents: digests of the site's new contents of other roles than its model.
    parts: by role, which part of a new content was sent; contents not listed were sent whole.
    learned: whether the site trained.
    pseudo: the pseudo-labels that it learned from; None if its method fixes none for a round.
    sum: the answer to a step of a masked sum; None: the task was not part of one.
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
        """Return the reply with all evaluations written out, also those in `equal`."""
        again = {name: self.evaluations[of] for name, of in self.equal.items()}
        return replace(self, evaluations={**self.evaluations, **again}, equal={})

    def uploads(self, before: str) -> dict[str, str]:
        """Return by role the digest of what was sent for each new content: the whole or a part.

        Contents of two roles may be equal; they are then sent once. before: digest of the site's
        model in the task.
        """
        return {
            role: self.parts[role].digest if role in self.parts else digest
            for role, digest in self.new_contents(before).items()
        }

    def new_contents(self, before: str) -> dict[str, str]:
        """Return by role the digest of each whole new content; a new model comes first."""
        model = {MODEL: self.model} if self.model != before else {}
        return {**model, **self.contents}


def without_repeats(
    evaluations: Mapping[str, Evaluation],
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Return (`Reply.evaluations`, `Reply.equal`): each evaluation once, and the names of repeats.

    Two names repeat each other if they have the same object. `Reply.with_repeats` is the inverse.
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
    """The site lacks these contents (new disk, damaged file).

    The server must send the task again, with the contents.
    """

    __pydantic_config__ = CLOSED

    site: SiteId
    round: Number
    digests: Annotated[tuple[Digest, ...], *_Models]


@dataclass(frozen=True)
class Refusal:
    """The site could not do the task, and why; the round goes on without it.

    site: INITIAL_SITE if the node could not even tell which site it is.
    lasting: the site would refuse the same task again for the rest of the run, unless a person
        changes what the site allows.
    """

    __pydantic_config__ = CLOSED

    site: Annotated[int, Field(ge=INITIAL_SITE, lt=2**31)]
    round: Number
    reason: Text
    lasting: bool = False


@dataclass(frozen=True)
class Hello:
    """First request to a node, answered with `SiteFacts`.

    settings: the settings that both sides must share, so that a site with others can name them.
    """

    __pydantic_config__ = CLOSED

    settings: Annotated[Mapping[Text, Setting], Field(max_length=MAX_SETTINGS)] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Origin:
    """What the server runs; it accompanies every request.

    A site that runs other code or another experiment refuses and names the difference.

    run: name of the run, which is a folder at the site.
    code: hash of the server's code.
    experiment: digest of the settings that both sides must share.
    pool: SHA-256 of the key in the server's model pool. A site that can read that key uses the pool
        itself, and no contents are sent to it. Empty: contents always travel.
    identity: distinguishes the run from others of the same name; empty: it was begun by an earlier
        version.
    reads: first and last message version that the server understands.
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
    """What the server must know about a site before round 0. All counts are numbers of images.

    inputs: shape of one input: (channels, height, width) of an image, (dimensions,) of a vector.
    split_digest: SHA-256 of the split of which the site holds a part or, if sites have data of
        their own, of the rules by which they read them.
    pool_key: the key that the site has read in the server's pool; empty: it cannot read it.
    name: name of a site with data of its own; otherwise empty.
    bagged: training images in bags, of whose labels the site knows only each bag's proportions.
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
        """The site's name in messages for people."""
        if self.site in _SPECIAL_SITES:
            return _SPECIAL_SITES[self.site]
        return f"site {self.site} ({self.name})" if self.name else f"site {self.site}"

    @property
    def folder(self) -> str:
        """Name of the site's folder."""
        return self.name or str(self.site)

    @property
    def training(self) -> int:
        """Number of all training images."""
        return self.labelled + self.unlabelled + self.bagged

    @property
    def supervised(self) -> bool:
        """Whether the site knows anything about the classes of its training images."""
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
    """A task, its encoded head, and the digests of the contents to attach."""

    task: Task
    head: bytes
    attach: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incoming:
    """An answer and the contents that came with it by digest, which are not yet checked.

    head_bytes: size of the received answer without the contents.
    sent: False if the task could not even be sent; the answer is then a `Refusal` with the reason.
    """

    answer: Answer
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    head_bytes: int = 0
    sent: bool = True
