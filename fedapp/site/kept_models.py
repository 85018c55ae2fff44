"""The best model of a run, kept at the site for later use. Nothing here is sent to anybody.

After every task with an evaluation, the rule of `fedapp.evaluation.model_selection` compares the
models with which the site can predict. Since a site does not know which round is the last, the
folder always holds the best model so far. It holds the candidates' results too, so that a run that
is resumed, or a round that is repeated, ends with the same bytes.

A model is only replaced by a later one of its own run, and only if the rule says that the later one
is as good. A run of the same name from another server has another folder
(`experiment.run_folder.folder_of`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from fedapp.core.errors import RunError
from fedapp.core.formatting import percent
from fedapp.data.sites import SiteData
from fedapp.evaluation.classification_metrics import MIN_CLASS_IMAGES
from fedapp.evaluation.model_selection import (
    RULE_WITHOUT_VALIDATION,
    SELECTION_RULE,
    USED,
    Candidate,
    Choice,
    candidates,
)
from fedapp.evaluation.verdict import Verdict, verdict
from fedapp.learn.params import Params, digest_of, to_bytes, without
from fedapp.learn.predictors import Predictor
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.models.description import (
    DESCRIPTION,
    Description,
    ModelChoice,
    Origin,
    read_description,
)
from fedapp.models.evidence import (
    Evidence,
    Kind,
    model_cautions,
    model_warnings,
    read_evidence,
    write_evidence,
)
from fedapp.models.folder import write_model
from fedapp.models.maker import ModelMaker
from fedapp.protocol.messages import ModelRef, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptModel:
    """Keeps a site's best model in a folder.

    If the folder holds a model of another run, that one stays and nothing of this run is kept.
    """

    folder: Path
    maker: ModelMaker

    def take(self, task: Task, report: SiteReport, site: SiteContext) -> Mapping[str, float]:
        """Keep the model of a task if the rule chooses it; return the pairs of the verdict so far.

        Raises StoreError.
        """
        apart = report.learned and task.round < self.maker.experiment.method.joins_at
        rounds = self.maker.experiment.rounds
        by = rounds.chosen_by, rounds.min_sensitivity, len(self.maker.facts.classes)
        new = candidates(task.round, report.evaluations, apart, *by)
        if not new:
            return {}
        held = self._held()
        if held is not None and not self._ours(held.origin):
            log.warning(
                "%s: holds a model of another run (%s, seed %d), which stays; of this run nothing "
                "is kept: move that folder away, or choose another runtime.run_name",
                self.folder, held.origin.preset, held.origin.seed,
            )  # fmt: skip
            return {}
        before = Choice(held.choice.candidates if held else ())
        choice = before.after(new)
        kept = choice.kept
        at = _Moment(choice, new, *as_measured(task, report, site))
        said = held.choice.verdict if held else None
        if kept in new and kept != before.kept:
            said = self._keep(kept, at, report)
        elif held is not None and choice != before:
            evidence = self._evidence(at)
            said = self._write(replace(held, others=None), None, at, evidence)
        return said.pairs.numbers if said and said.pairs else {}

    def _held(self) -> Description | None:
        """Return the description of the kept model; None if there is none, or if it is damaged."""
        if not (self.folder / DESCRIPTION).exists():
            return None
        try:
            return read_description(self.folder)
        except RunError as error:
            log.warning("%s; the site starts again to keep models", error)
            return None

    def _ours(self, found: Origin) -> bool:
        """Whether a model belongs to this run, judged by its settings and the site's data."""
        runs = self.maker.origin(found.round)
        # Code and versions do not count: a run may be resumed with newer ones.
        return replace(found, code=runs.code, versions=runs.versions) == runs

    def _keep(self, kept: Candidate, at: "_Moment", report: SiteReport) -> Verdict:
        """Write the networks of a candidate, with its results and the evidence for them."""
        ending = "" if kept.answer == USED else f"_{kept.answer}"
        reported = {
            part: report.evaluations[f"{part}{ending}"]
            for part in ("val", "test")
            if f"{part}{ending}" in report.evaluations
        }
        choice, site = at.choice, at.site
        why = ModelChoice(kept.answer, self._rule(kept, at), choice.helped, choice.candidates)
        made = self.maker.make(site, self._networks(kept, at), reported, kept.round, why)
        evidence = self._evidence(at, {kept: made.tested})
        evidence = evidence.with_answers("kept", kept, made.tested)
        inputs = site.labelled_part("test")[0]
        said = self._write(made.description, made.blob, at, evidence.with_mistakes(inputs))
        # A person reads the log of a real site; in a simulation all sites share one log.
        log.log(
            logging.INFO if site.data.audit is None else logging.DEBUG,
            "site %d: the model of round %d is its best so far, right on %d of %d validation "
            "%s; it is in %s%s",
            at.task.site, kept.round, kept.val_right, kept.val_images,
            "findings" if site.data.finds else "images", self.folder,
            "; the site trained it alone" * (choice.helped is False),
        )  # fmt: skip
        return said

    def _rule(self, kept: Candidate, at: "_Moment") -> str:
        """Return the rule by which a candidate is kept, as a text for a person."""
        if not kept.val_images:
            return RULE_WITHOUT_VALIDATION
        least = self.maker.experiment.rounds.min_sensitivity
        if not least:
            return SELECTION_RULE
        names, labels = self.maker.facts.classes, at.site.labelled_part("val")[1]
        images = torch.bincount(labels, minlength=len(names)).tolist()
        few = [f"{n!r} ({i})" for n, i in zip(names, images, strict=True) if i < MIN_CLASS_IMAGES]
        images_asked = f"in each class with {MIN_CLASS_IMAGES} validation images"
        said = f"a sensitivity of {percent(least)} % {images_asked}"
        short = f"none has {said}; this one lacks {percent(kept.short)} points in its worst class"
        unsaid = f"; of classes with fewer it cannot be said: {', '.join(few)}" if few else ""
        return f"{SELECTION_RULE}; {short if kept.short else f'it has {said}'}{unsaid}"

    def _networks(self, one: Candidate, at: "_Moment") -> Mapping[str, Predictor]:
        """Return the networks by which a candidate of this task predicts."""
        answer = "" if one.answer == USED else one.answer
        return self.maker.experiment.method.used(at.task, at.site, answer)

    def _evidence(
        self, at: "_Moment", asked: Mapping[Candidate, Tensor] = MappingProxyType({})
    ) -> Evidence:
        """Return what is known of both kinds of model, of this task too.

        asked: what candidates said of the test images, as far as they were asked already.
        """
        labels, data = at.site.labelled_part("test")[1], at.site.data
        learned = _learned(data)
        found = read_evidence(self.folder)
        if found is None or not torch.equal(found.labels, labels):
            found = Evidence(labels, learned)
        if data.test_groups is not None:
            found = replace(found, groups=data.test_groups)
        kinds: tuple[tuple[Kind, Candidate | None], ...] = (
            ("joined", at.choice.joined),
            ("alone", at.choice.alone),
        )
        for kind, one in kinds:
            if one is not None and one in at.new and len(labels):
                answers = asked.get(one)
                if answers is None:
                    answers = self.maker.tested(at.site, self._networks(one, at))
                found = found.with_answers(kind, one, answers)
        return found

    def _write(
        self, made: Description, blob: bytes | None, at: "_Moment", evidence: Evidence
    ) -> Verdict:
        """Write the evidence and the model, with the verdict and the warnings that follow."""
        write_evidence(self.folder, evidence)
        choice, labels = at.choice, evidence.labels.numpy()
        both = evidence.compared(choice)
        joined, alone = (None if one is None else one.double().numpy() for one in both)
        by, lone = self.maker.experiment.rounds.chosen_by, self.maker.experiment.method.lone_model
        said = verdict(joined, alone, labels, by, evidence.patients, lone)
        why = replace(made.choice, helped=choice.helped, candidates=choice.candidates, verdict=said)
        files = self.maker.experiment.model.files
        made = replace(made, choice=why)
        care = model_cautions(made, evidence)
        made = replace(made, lights=model_warnings(made, evidence, choice), cautions=care)
        write_model(self.folder, made, blob, files)
        return said


def _learned(data: SiteData) -> Tensor:
    """Return how many labelled images are of each class, or show each finding, int64 [C]."""
    if data.finds:
        return (data.labels.cpu() == 1).sum(0)
    return torch.bincount(data.labels.cpu(), minlength=data.num_classes)


@dataclass(frozen=True)
class _Moment:
    """The candidates of a task (`new`), and the task and context in which they were evaluated."""

    choice: Choice
    new: Sequence[Candidate]
    task: Task
    site: SiteContext


def as_measured(task: Task, report: SiteReport, site: SiteContext) -> tuple[Task, SiteContext]:
    """Return a task and a context in which the site's own model is the one that was evaluated.

    A report's evaluations are of the model that the rule has just made, while the task names the
    model before. The new model is not in a store, where it would be rounded
    (`transport.precision`).
    """
    params = report.params if report.personal is None else report.personal
    memory = site.memory if report.memory is None else report.memory
    if params is None:
        return task, replace(site, memory=memory)
    shared, before = without(params, site.kept), site.contents
    # By its own digest: a GPU knows models by theirs.
    own = replace(task.own, version=task.own.version + 1, digest=digest_of(to_bytes(shared)))
    kept = {name: params[name] for name in site.kept}

    def contents(ref: ModelRef) -> Params:
        return shared if ref == own else before(ref)

    return replace(task, own=own), replace(site, contents=contents, kept=kept, memory=memory)
