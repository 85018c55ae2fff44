"""What a site does around a request: it checks its terms, before and after, and writes its record.

The site's folder is named by the node's own config (`site-folder`), which no run can change. A
simulated site has no folder, and neither has a real site whose config says `no-terms` and names no
folder. Then all that the program allows is allowed, and nothing is recorded.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load

from fedapp.core.errors import ConfigError, FedAppError, StoreError, one_line
from fedapp.core.formatting import counted
from fedapp.core.optional_dependencies import needs
from fedapp.data.sites import LABELLED, TEST, VAL, Part, SiteData
from fedapp.experiment.config import (
    load_experiment,
    own_method_preset,
    read_run_config,
    shared_settings,
    unchecked_settings,
)
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.signed_runs import SIGNED
from fedapp.methods.base import sent_roles
from fedapp.protocol.messages import (
    EPSILON,
    EVALUATE,
    Incoming,
    Origin,
    Refusal,
    Reply,
    Request,
    Scored,
    SiteFacts,
    Task,
)
from fedapp.site.record import Line, Record
from fedapp.site.site import SiteClient
from fedapp.site.terms import BY_CLASS, REMEDY_NO_TERMS, TERMS_FILE, TermError, Terms, read_terms

log = logging.getLogger(__name__)

INTRODUCED, ASKED, SENT, REFUSED = "introduced", "asked", "sent", "refused"
"""Events of the record. `SitePolicy` reads and counts their lines later."""
EPSILON_OF = "epsilon_of"
"""Key of the record, beside an epsilon: whether the epsilon protects an image or a patient. Records
of version 1.0.0 also have epsilons of a whole site."""

SITE_FOLDER, NO_TERMS = "site-folder", "no-terms"
"""Keys of the node config: the site's own folder, with its terms and its record; and a declaration
that the site has no terms."""


@dataclass
class SitePolicy:
    """What a site allows and records, for one request.

    folder: the site's folder; None if it has none. no_terms: a person has declared that the site
    has no terms, so that every run of an approved app is allowed; or the site is simulated. signer:
    fingerprint of the key that signed the run; empty if no run has to be signed.
    """

    folder: Path | None
    no_terms: bool = False
    signer: str = field(default="", init=False)
    _kept_back: list[str] = field(default_factory=list, init=False)
    """Parts of the data that the terms withhold from runs, for the log."""
    _simulated: tuple[tuple[str, Mapping[str, Scalar]], Experiment] | None = field(
        default=None, init=False
    )
    """The settings that were read last and their experiment: several simulated sites share them."""

    @cached_property
    def terms(self) -> Terms:
        """The site's terms.

        Raises ConfigError if there is no readable file of exactly that name although `no_terms` was
        not declared, and if the file is damaged, is a link, or is writable for others.
        """
        if self.folder is not None:
            return read_terms(self.folder / TERMS_FILE, absent=self.no_terms)
        if not self.no_terms:
            raise ConfigError(
                f"{TERMS_FILE}: is not there, since the node config names no {SITE_FOLDER}: "
                f"{REMEDY_NO_TERMS}"
            )
        return Terms()

    def note(
        self,
        event: str,
        origin: Origin,
        provided: Callable[[], None] = lambda: None,
        /,
        **facts: object,
    ) -> None:
        """Add a line to the record. provided, and what is raised: see `Record.add`."""
        if self.folder is not None:
            run = {"run": origin.run, "identity": origin.identity, "code": origin.code}
            settings = {"settings": origin.experiment}
            Record(self.folder).add(event, provided, **run, **settings, **facts)

    def refused(self, origin: Origin, request: Request, why: Exception) -> None:
        """Record a refusal, with the term that was broken if it was one."""
        term = {"term": why.term} if isinstance(why, TermError) else {}
        said = one_line(why, 500) if isinstance(why, FedAppError) else type(why).__name__
        self.note(REFUSED, origin, asked=_request_words(request), why=said, **term)

    def experiment(
        self, run_config: Mapping[str, Scalar], origin: Origin, placed: bool
    ) -> Experiment:
        """Return the experiment of a run, if the site's terms allow it.

        The terms are checked before any file is read and any module is imported that the run names.
        placed: see `Terms.check_said`. Raises TermError, and ConfigError as `load_experiment` and
        `terms` do.
        """
        preset, overrides = read_run_config(run_config)
        terms = self.terms
        if self.folder is None:
            if self._simulated is None or self._simulated[0] != (preset, overrides):
                self._simulated = (preset, overrides), load_experiment(preset, overrides)
            return self._simulated[1]
        terms.check_presets(preset, str(overrides.get("method.preset", "")))
        terms.check_presets("", own_method_preset(preset))  # error messages would quote that file
        said = unchecked_settings(preset, overrides)
        self._check_started(run_config.get(SIGNED, ""), said, origin)
        self._check_answers(origin)
        terms.check_said(said, placed)
        experiment = load_experiment(preset, overrides)
        if experiment.privacy.epsilon:  # later, nobody else may learn why the site fails
            needs("privacy", "dp_accounting")
        terms.check_run(experiment, origin.run)
        terms.check_hour(datetime.now())
        return experiment

    def shown(self, data: SiteData, protected: bool = False) -> SiteData:
        """Return a site's data as runs may see them: without the parts that have small counts.

        If a class has too few validation or test images (term `least_count`), runs do not use that
        part at all, so that no count over it can leave. protected: whether the run protects single
        images. Then no count over these parts leaves anyway, and the parts stay: one image more or
        less must not decide whether a part is there.
        """
        parts = () if protected else (VAL, TEST)
        small = [part for part in parts if self._withheld(data, part)]
        self._kept_back = small
        none = {part: data.parts[part] for part in small}
        empty = {part: Part(of.inputs[:0], of.labels[:0]) for part, of in none.items()}
        return data.with_parts(**empty) if empty else data

    def introduced(self, facts: SiteFacts, origin: Origin) -> None:
        """Record what the server is told of the site's data."""
        told = ("labelled", "unlabelled", "val", "test", "bagged")
        signed = {SIGNED: self.signer} if self.signer else {}
        counts = {name: getattr(facts, name) for name in told}
        withheld = {"withheld": self._kept_back} if self._kept_back else {}
        if withheld:
            log.warning(
                "this site's terms (least_count: %d): runs do not use the %s images here, since a "
                "class has 1 to %d of them: nothing is measured on these images",
                self.terms.least_count, " and the ".join(self._kept_back),
                self.terms.least_count - 1,
            )  # fmt: skip
        self.note(INTRODUCED, origin, counts=counts, **signed, **withheld)

    def before(self, task: Task, site: SiteClient, origin: Origin) -> None:
        """Check a task before it is done, and record it. Raises TermError, StoreError."""
        if self.folder is None:
            return
        terms = self.terms
        terms.check_round(task.round)
        if task.sum is not None:
            terms.check_sum(task.sum.members)
        if task.action != EVALUATE:
            # Also if sums are masked: the server learns a sum of contents of the same kinds, and
            # members that collude with it can subtract their own parts from the sum.
            terms.check_roles(sent_roles(site.experiment.method, site.shared))
            by_class = sorted(BY_CLASS.intersection(site.shared))
            protected = site.experiment.protection is not None  # counts then have noise
            if by_class and not protected and self._withheld(site.data, LABELLED):
                known = LABELLED in site.data.patients
                counted = "patients with labelled images" if known else "labelled images"
                why = f"a class has fewer than {terms.least_count} {counted} here"
                raise TermError("least_count", f"{', '.join(by_class)}: {why}")
        pinned = _pinned(site.experiment)

        def allowed() -> None:
            self._check_pinned(pinned, origin)
            if self.signer:
                self._check_order(task.round, site.experiment.rounds.num_rounds, origin)
            privacy = site.experiment.privacy
            if task.action != EVALUATE and (privacy.clip or privacy.epsilon):
                terms.check_delta(privacy.delta, sum(site.data.counts.values()))
                self._check_epsilon(site, origin)

        # The check and the line are one step: no other run can spend epsilon in between.
        names, cost = sorted(task.models), _task_cost(task, site)
        self.note(
            ASKED, origin, allowed, asked=_request_words(task), names=names, pinned=pinned, **cost
        )

    def after(self, incoming: Incoming, site: SiteClient, task: Task, origin: Origin) -> Incoming:
        """Return an answer as it may leave, and record what leaves. Raises as `before`."""
        answer = incoming.answer
        if isinstance(answer, Refusal):
            self.note(REFUSED, origin, asked=_request_words(task), why=answer.reason)
        if self.folder is None or not isinstance(answer, Reply):
            return incoming
        if not site.masks:  # what a masked row holds was checked in `before`
            self.terms.check_roles(answer.uploads(task.own.digest))
            if guesses := incoming.payloads.get(answer.contents.get("guesses", "")):
                counts = load(guesses)["counts"].round().int().tolist()
                if self.terms.withheld(dict(enumerate(counts))):
                    raise TermError("least_count", "guesses: a class has few unlabelled images")
        size = sum(map(len, incoming.payloads.values()))
        self.terms.check_size(size)
        cost = _task_cost(task, site) if answer.uploads(task.own.digest) else {}
        if EPSILON in answer.metrics:
            cost = _epsilon_facts(answer.metrics[EPSILON], site)
        pseudo = answer.pseudo
        if pseudo is not None and self.terms.withheld(dict(enumerate(pseudo.by_class))):
            log.warning("this site's terms (least_count): counts of guesses are not told")
            answer = replace(answer, pseudo=None)
        self.note(
            SENT,
            origin,
            asked=_request_words(task),
            round=task.round,
            digests=answer.uploads(task.own.digest),
            bytes=size,
            evaluations={
                name: [one.correct, one.samples] for name, one in sorted(answer.evaluations.items())
            },
            metrics=sorted(answer.metrics),
            told=told_by(answer),
            **cost,
        )
        return replace(incoming, answer=answer)

    def _check_started(self, token: Scalar, said: Mapping[str, Scalar], origin: Origin) -> None:
        """Check who signed a run, and that it began here before the signature expired."""
        if self.terms.started_by is None:
            return
        word, signer = self.terms.check_started(token, said, origin)
        begun = (line for line in self._lines(origin) if line["event"] == INTRODUCED)
        if word.over and not any(SIGNED in line for line in begun):
            raise TermError(
                "started_by", f"it was to begin here by {word.ends}: have it signed again"
            )
        self.signer = signer

    def _check_answers(self, origin: Origin) -> None:
        """Check how often a run was answered, before any of the site's data are read.

        Introductions count as answers. So do refusals, unless a term caused them: both say
        something of the site's data.
        """
        if self.terms.answers_at_most is None:
            return
        told = sum(
            line["event"] in (INTRODUCED, SENT) or (line["event"] == REFUSED and "term" not in line)
            for line in self._lines(origin)
        )
        self.terms.check_answers(told + 1)

    def _check_pinned(self, pinned: str, origin: Origin) -> None:
        """Check that a run of this identity has the settings with which it began at this site.

        Otherwise a run could change its settings and spend a new epsilon with each of them.
        """
        if any(line.get("pinned", pinned) != pinned for line in self._lines(origin)):
            raise ConfigError(
                "this site did tasks of this run's identity under other settings: begin another "
                "run, in a folder of its own"
            )

    def _check_order(self, number: int, rounds: int, origin: Origin) -> None:
        """Check that a signed run stays within its number of rounds and never goes back."""
        if number > rounds:
            raise TermError("started_by", f"round {number} is past the {rounds} that were signed")
        done = [line.get("round", 0) for line in self._lines(origin) if line["event"] == SENT]
        if number < max(done, default=0):
            why = f"round {number} is over: round {max(done)} of this run was done here"
            raise TermError("started_by", f"{why}; a run that begins again is signed again")

    def _lines(self, origin: Origin) -> Iterator[Line]:
        """Yield the lines of the record that belong to a run."""
        assert self.folder is not None
        for line in Record(self.folder).lines(holding=origin.identity):
            if line.get("identity") == origin.identity:
                yield line

    def _withheld(self, data: SiteData, part: str) -> bool:
        """Whether a part has a class of too few images, or patients where these are known."""
        labels = data.parts[part].labels.cpu()
        whose = data.patients.get(part, torch.arange(len(labels)))
        if labels.ndim == 2:  # findings: images that show one, and images that do not, both count
            image, finding = (labels >= 0).nonzero(as_tuple=True)
            labels, whose = 2 * finding + labels[image, finding], whose[image]
        pairs = set(zip(labels.tolist(), whose.tolist(), strict=True))
        counts = Counter(label for label, _ in pairs)
        return self.terms.least_count > 1 and self.terms.withheld(counts)

    def _check_epsilon(self, site: SiteClient, origin: Origin) -> None:
        privacy = site.experiment.privacy
        if self.folder is None or not privacy.epsilon:
            return
        spent: dict[tuple[str, str], list[float]] = {}
        sent = False
        for line in Record(self.folder).lines(holding=EPSILON):
            if EPSILON in line:
                run = str(line.get("run", "")), str(line.get("identity", ""))
                sent |= line["event"] == "sent" and run == (origin.run, origin.identity)
                spent.setdefault(run, []).append(float(line[EPSILON]))
        spent.pop((origin.run, origin.identity), None)
        # With a new key, the site would answer the same question again with other noise.
        made = site.releases.made()  # raises RecordError for an older copy of the list
        if sent and not made:
            raise StoreError(
                "the list of this run's noisy releases is gone, and the record knows of some: "
                "begin another run"
            )
        self.terms.check_epsilon(privacy.epsilon, sum(map(max, spent.values())))


def stands_in(folder: Path) -> bool:
    """Whether a site's terms let the installed app do other versions' runs. Raises ConfigError."""
    return (folder / TERMS_FILE).exists() and SitePolicy(folder).terms.stand_in


def _pinned(experiment: Experiment) -> str:
    """Return a hash of the settings that a run of one identity must keep.

    The number of rounds may change, unless the noise was computed from it (`privacy.epsilon`).
    """
    said = shared_settings(experiment)
    if not experiment.privacy.epsilon:
        del said["rounds.num_rounds"]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def told_by(answer: Reply) -> list[str]:
    """Return in words what an answer tells beside the contents that it sends."""
    scores = ", and by score"
    told = [
        f"{name}: {one.samples} answers by true and by given class, and by confidence"
        f"{scores * isinstance(one, Scored)}"
        for name, one in sorted(answer.evaluations.items())
        if one.samples
    ]
    if answer.pseudo is not None:
        told.append(f"{answer.pseudo.total} pseudo-labels by class and by uncertainty")
    if answer.helpers:
        told.append(f"its relation to {counted(len(answer.helpers), 'peers')}")
    if answer.sum is not None:
        told.append("a step of a masked sum")
    if answer.metrics:
        told.append(f"numbers: {', '.join(sorted(answer.metrics))}")
    return told


def _task_cost(task: Task, site: SiteClient) -> dict[str, object]:
    """Return the epsilon that is recorded for a task: all that its run may spend."""
    cost = site.experiment.privacy.epsilon
    return _epsilon_facts(cost, site) if cost and task.action != EVALUATE else {}


def _epsilon_facts(cost: float, site: SiteClient) -> dict[str, object]:
    """Return an epsilon as the record has it, with what it protects."""
    return {EPSILON: cost, EPSILON_OF: "patient" if site.data.by_patient else "image"}


def _request_words(request: Request) -> str:
    return f"{request.action} {request.when}" if isinstance(request, Task) else "who are you"
