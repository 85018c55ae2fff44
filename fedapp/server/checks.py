"""What the server checks of sites' facts and replies before it uses them."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields

import numpy as np

from fedapp.core.errors import ProtocolError, RunError
from fedapp.core.formatting import counted
from fedapp.core.settings import OWN, DataSettings
from fedapp.data.in_memory import in_memory
from fedapp.evaluation.findings import finding_matrices
from fedapp.evaluation.verdict import PAIRS, PREFIX, Pairs
from fedapp.learn.metrics import CALIBRATION_BINS, UNCERTAINTY_BINS
from fedapp.methods.base import check_counts, check_unchanged
from fedapp.protocol.messages import (
    ANSWERS,
    EPSILON,
    EPSILON_OF_PATIENTS,
    EVALUATE,
    IMAGES,
    MASKED,
    MODEL,
    SCORE_BINS,
    STEPS,
    Evaluation,
    Incoming,
    PseudoLabels,
    Refusal,
    Reply,
    Scored,
    SiteFacts,
    SumAnswer,
    SumStep,
    Task,
)
from fedapp.server.standings import Standings

MAX_METRICS = 32
_ROUNDING = 1e-6
"""Tolerance of a top probability, which is float32, at the exact border of a bin."""
_PARTS = {
    **{"val": "val", "test": "test", "test_before": "test"},
    **{f"{part}_{answer}": part for part in ("val", "test") for answer in ANSWERS},
}


def check_reply(  # noqa: C901 one rule after another, each in a few lines
    task: Task,
    reply: Reply,
    facts: SiteFacts,
    roles: Collection[str],
    finds: bool = False,
    scored: bool = False,
) -> None:
    """Check a reply, except for the content of its uploads and for rules of the method.

    task: the task that it answers. facts: what the site reported of its data. roles: the roles of
    contents that the method's sites send. finds: whether the classes are findings. scored: whether
    sites send score counts (`rounds.pooled_auroc`). Raises ProtocolError, which names the rule.
    """
    own = task.own
    if (reply.site, reply.round) != (task.site, task.round):
        raise ProtocolError(
            f"answer of site {reply.site} for round {reply.round}; asked was site {task.site} "
            f"for round {task.round}"
        )
    if task.action == EVALUATE and task.sum is None:
        check_unchanged(task, reply)
    beside = set(roles) - {MODEL}
    if unknown := reply.contents.keys() - beside:
        raise ProtocolError(f"sent {min(unknown)}; its method has {sorted(beside)} beside models")
    if odd := reply.parts.keys() - reply.new_contents(own.digest).keys():
        raise ProtocolError(f"sent a part of its {min(odd)}, of which it names no new content")
    known = {ref.digest for ref in task.refs()}
    for role, of in reply.parts.items():
        if of.base not in known and (role == MODEL or of.base != reply.model):
            raise ProtocolError("sent a part of a content whose base its task does not name")
    offered = {own, *(ref for refs in task.models.values() for ref in refs)}
    if not {helper.model for helper in reply.helpers} <= offered:
        raise ProtocolError("its helper list names a model that it was not offered")
    if len(reply.held) > len(offered) + 1 + len(reply.contents):
        raise ProtocolError(f"says that it holds {len(reply.held)} models; it saw {len(offered)}")
    for part, result in reply.evaluations.items():
        if part not in _PARTS:
            raise ProtocolError(f"evaluation {part!r}; must be one of {sorted(_PARTS)}")
        _check_evaluation(part, result, len(facts.classes), getattr(facts, _PARTS[part]), finds)
        if isinstance(result, Scored) != (scored and part == "test"):
            raise ProtocolError(f"evaluation {part} {'lacks' if scored else 'has'} score counts")
        if isinstance(result, Scored):
            _check_scores(result, finds)
    for name, other in reply.equal.items():
        if name in reply.evaluations or other not in reply.evaluations:
            raise ProtocolError(
                f"evaluation {name!r} is to be {other!r} over again: send one of both"
            )
        if _PARTS.get(name) != _PARTS[other]:
            raise ProtocolError(
                f"evaluation {name!r} cannot be {other!r}, of other images, over again"
            )
    _check_metrics(reply.metrics, facts)
    if reply.pseudo is not None:
        _check_pseudo(reply.pseudo, len(facts.classes), facts.unlabelled)
    if task.sum is not None:
        _check_step(task.sum, reply)


def _check_step(step: SumStep, reply: Reply) -> None:
    """Check that the answer to a step of a masked sum has what the other sites need.

    A site that answers with less, or shares secrets in the name of another site, must be left out
    before any site confirms the sum. Afterwards the sum could neither be opened nor begun again.
    """
    answer = reply.sum or SumAnswer()
    holders = [one.site for one in step.announcements]
    answered = {
        "announce": answer.announcement is not None,
        "share": [(b.sender, b.receiver) for b in answer.sealed]
        == [(reply.site, holder) for holder in holders],
        "add": MASKED in reply.contents,
        "confirm": answer.confirmation is not None,
        "open": reply.sum is not None,
    }
    if not answered[step.stage]:
        raise ProtocolError(
            f"its answer to the step {step.stage!r} of a masked sum is not what was asked for; the "
            "site must run a fedapp of the server's version"
        )


def attribute(task: Task, incoming: Incoming) -> Incoming:
    """Return the answer to a task as an answer of the site that was asked.

    An answer that claims another site or round becomes a refusal of the asked site. A refusal is
    accepted with any number, since a node that does not know its site answers as -1.
    """
    answer = incoming.answer
    if isinstance(answer, Refusal):
        reason = answer.reason
    elif isinstance(answer, SiteFacts):
        reason = "introduced itself instead of working"
    elif (answer.site, answer.round) != (task.site, task.round):
        reason = f"answered as site {answer.site}, round {answer.round}"
    else:
        return incoming
    return Incoming(Refusal(task.site, task.round, reason), {}, incoming.head_bytes, incoming.sent)


def _check_evaluation(
    part: str, result: Evaluation, classes: int, samples: int, finds: bool
) -> None:
    if finds:
        classes, samples = 2 * classes, _read(part, result, classes, samples)
    if list(map(len, result.confusion)) != [classes] * classes:
        raise ProtocolError(f"confusion matrix {part} is not {classes} x {classes}")
    if result.samples != samples:
        raise ProtocolError(f"evaluation {part} is of {result.samples} images, it has {samples}")
    count, correct, sure = result.bin_count, result.bin_correct, result.bin_confidence
    lengths = {len(count), len(correct), len(sure)}
    if lengths != {CALIBRATION_BINS} or sum(count) != samples or sum(correct) != result.correct:
        raise ProtocolError(f"calibration bins of {part} do not add up to its confusion matrix")
    if any(
        not (
            c <= n
            and n * (i / CALIBRATION_BINS - _ROUNDING)
            <= s
            <= n * ((i + 1) / CALIBRATION_BINS + _ROUNDING)
        )
        for i, (n, c, s) in enumerate(zip(count, correct, sure, strict=True))
        if n or c or s  # most bins are empty
    ):
        raise ProtocolError(f"calibration bins of {part} hold what does not belong there")


def _check_scores(result: Scored, finds: bool) -> None:
    """Check that the score counts of each class, and of the rest, add up to the images."""
    images = np.array(result.confusion, dtype=np.int64).sum(1)
    others = images[::2] if finds else images.sum() - images
    images = images[1::2] if finds else images
    if list(map(len, result.scores)) != [2 * SCORE_BINS] * len(images):
        raise ProtocolError(f"score counts are not of {len(images)} classes x {2 * SCORE_BINS}")
    counts = np.array(result.scores, dtype=np.int64).reshape(-1, 2, SCORE_BINS).sum(2)
    if (counts != np.stack([images, others], 1)).any():
        raise ProtocolError("score counts do not add up to the confusion matrix")


def _read(part: str, result: Evaluation, findings: int, images: int) -> int:
    """Return how many findings were read in the images of a part, after checking the counts.

    Raises ProtocolError where the counts mix findings, or have more images than the part.
    """
    if list(map(len, result.confusion)) != [2 * findings] * (2 * findings):
        raise ProtocolError(f"confusion matrix {part} is not of {findings} findings")
    counts = np.array(result.confusion, dtype=np.int64)
    read = finding_matrices(counts).sum((1, 2))
    if counts.sum() != read.sum() or (read > images).any():
        raise ProtocolError(f"evaluation {part} mixes findings, or is of more images than it has")
    return int(read.sum())


def _check_pseudo(pseudo: PseudoLabels, classes: int, unlabelled: int) -> None:
    pairs = (
        (pseudo.by_class, pseudo.wrong_by_class, classes),
        (pseudo.by_uncertainty, pseudo.wrong_by_uncertainty, UNCERTAINTY_BINS),
    )
    for counts, wrong, length in pairs:
        if len(counts) != length or len(wrong) not in {0, length}:
            raise ProtocolError(
                f"pseudo-labels counted in {len(counts)} groups, {len(wrong)} of wrong ones; must "
                f"be {length} and {length} or none"
            )
        if sum(counts) != pseudo.total or sum(wrong) != sum(pseudo.wrong_by_class):
            raise ProtocolError("pseudo-labels by uncertainty do not add up to those by class")
        if any(w > n for n, w in zip(counts, wrong, strict=False)):
            raise ProtocolError("more pseudo-labels wrong than there are")
    if pseudo.total > unlabelled:
        raise ProtocolError(f"{pseudo.total} pseudo-labels; it has {unlabelled} unlabelled images")


def _check_metrics(metrics: Mapping[str, float], facts: SiteFacts) -> None:
    if len(metrics) > MAX_METRICS:
        raise ProtocolError(f"{len(metrics)} metrics; at most {MAX_METRICS}")
    for name in (EPSILON, EPSILON_OF_PATIENTS, STEPS, IMAGES):
        if metrics.get(name, 0) < 0:
            raise ProtocolError(f"metric {name} = {metrics[name]:g}; must not be negative")
    most = metrics.get("pseudo_total", 0)
    check_counts(metrics, {"pseudo_total": facts.unlabelled, "pseudo_wrong": most})
    if metrics.keys() & set(PAIRS):
        answers = facts.test * len(facts.classes)  # of findings an image has several
        check_counts(metrics, {**dict.fromkeys(PAIRS, answers), f"{PREFIX}cases": facts.test})
        if Pairs.read(metrics) is None:
            raise ProtocolError("pairs of right answers that no test images can have")


DataKind = tuple[tuple[int, ...], tuple[str, ...], str]
"""Input shape, classes and split digest, which must be equal at all sites of a run."""
DATA_KIND_NAMES = ("input shape", "classes", "split digest")
"""Names of the three in texts for people."""


def agreeing_sites(
    facts: Sequence[SiteFacts],
    num_clients: int,
    data: DataSettings,
    say: Callable[[str], None],
    misfit: Callable[[tuple[int, ...]], str] = lambda inputs: "",
) -> list[SiteFacts]:
    """Return the sites that can train together, sorted by number.

    All must hold inputs of the same shape, the same classes and parts of the same split; where they
    differ, the majority is kept. num_clients, data: settings, which the sites must match. say:
    prints why a site is left out. misfit: returns why the network cannot take inputs of a shape;
    empty: it can. Raises RunError where no site is left.
    """
    numbered = []
    for site in _numbered(facts, num_clients, data, say):
        if reason := misfit(site.inputs):
            say(f"site {site.site} left out: inputs of shape {list(site.inputs)}: {reason}")
        else:
            numbered.append(site)
    if not facts:
        raise RunError("no site answered; start at least one and run again")
    if not numbered:
        raise RunError("no site that answered can take part; see above why each is left out")
    [(kind, _)] = Counter(map(kind_of, numbered)).most_common(1)
    return _alike(numbered, kind, "most sites have", say)


def joinable_sites(
    facts: Sequence[SiteFacts],
    num_clients: int,
    data: DataSettings,
    kind: DataKind,
    say: Callable[[str], None],
) -> list[SiteFacts]:
    """Return the sites that fit a run whose sites have this kind of data, sorted by number.

    say: prints why a site is left out.
    """
    return _alike(_numbered(facts, num_clients, data, say), kind, "the run has", say)


def kind_of(facts: SiteFacts) -> DataKind:
    """Return the kind of a site's data, which must be equal at all sites of a run."""
    return facts.inputs, facts.classes, facts.split_digest


def check_server_images(facts: SiteFacts, kind: DataKind) -> None:
    """Raise RunError where the server's own images are not of the run's kind.

    With another split the server could train on images that are test images of a site.
    """
    for name, mine, ours in zip(DATA_KIND_NAMES, kind_of(facts), kind, strict=True):
        if mine != ours:
            raise RunError(
                f"the server's own images: their {name} is {mine!r}, the sites' is {ours!r}; give "
                "the server the data and the split.manifest that the sites have"
            )


def _numbered(
    facts: Sequence[SiteFacts], num_clients: int, data: DataSettings, say: Callable[[str], None]
) -> list[SiteFacts]:
    """Return the sites that the settings ask for, each once, sorted by number."""
    fitting: dict[int, SiteFacts] = {}
    for site in facts:
        if not 0 <= site.site < num_clients:
            of = counted(num_clients, "sites")
            say(f"site {site.site} left out: the preset's {of} count from 0")
        elif problem := preset_mismatch(site, data):
            say(f"site {site.site} left out: {problem}")
        elif site.site in fitting:
            say(f"a second node that says it is site {site.site} is left out")
        else:
            fitting[site.site] = site
    return [site for _, site in sorted(fitting.items())]


def _alike(
    facts: Sequence[SiteFacts], kind: DataKind, whose: str, say: Callable[[str], None]
) -> list[SiteFacts]:
    """Return the sites whose data are of this kind; print why others are left out."""
    for site in facts:
        for name, mine, ours in zip(DATA_KIND_NAMES, kind_of(site), kind, strict=True):
            if mine != ours:
                say(f"site {site.site} left out: its {name} is {mine!r}, {whose} {ours!r}")
    return [site for site in facts if kind_of(site) == kind]


def preset_mismatch(facts: SiteFacts, data: DataSettings) -> str:
    """Return how the facts of a site differ from the settings; empty: they do not.

    For a published data set the settings fix the sites' names alone, where they name any; in all
    else the sites are only compared with each other.
    """
    if in_memory(data.name):
        return ""  # they come from one program, which may have named them
    names = data.site_names
    if data.name != OWN:
        agreed = names[facts.site] if 0 <= facts.site < len(names) else ""
        if facts.name == agreed:
            return ""
        if not agreed:
            return f"it has a name, {facts.name!r}, data of its own"
        return f"its name is {facts.name!r}, the preset says {agreed!r}"
    for what, found, wanted in (
        ("name", facts.name, dict(enumerate(names)).get(facts.site) if names else facts.name),
        ("input shape", facts.inputs, data.inputs),
        ("findings" if data.findings else "classes", facts.classes, data.names),
    ):
        if found != wanted:
            return f"its {what} is {found!r}, the preset says {wanted!r}"
    return ""


def fact_changes(facts: SiteFacts, before: SiteFacts) -> str:
    """Return the facts that a site reports otherwise than before, as text."""
    return ", ".join(
        f"{f.name} is {getattr(facts, f.name)!r}, was {getattr(before, f.name)!r}"
        for f in fields(SiteFacts)
        if getattr(facts, f.name) != getattr(before, f.name)
    )


def check_same_sites(standings: Standings, facts: Sequence[SiteFacts]) -> None:
    """Raise RunError where a run would be resumed with other sites or data than it had.

    Sites may be missing or new, but at least one earlier site must be here.
    """
    before = {k: standing.facts for k, standing in standings.sites.items()}
    now = {f.site: f for f in facts if f.site in before}
    if not now:
        raise RunError(
            f"checkpoint of sites {sorted(before)}, but sites {sorted(f.site for f in facts)} are "
            "here; start those sites to resume"
        )
    changed = sorted(k for k in now if now[k] != before[k])
    if changed:
        raise RunError(
            f"site {changed[0]} holds other data than before "
            f"({fact_changes(now[changed[0]], before[changed[0]])}); restore its data to resume, "
            "or start again"
        )
