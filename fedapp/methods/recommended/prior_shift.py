"""Prior shift: sites learn a common model together, and each keeps its own class mix.

Sites are assumed to share p(x | y) and to differ in how often each class occurs (label shift). So
one model is averaged in whose training every site's loss is corrected by its own class mix pi_k
(logits + ln pi_k), and a site answers with that model's answer times pi_k (`learn.class_priors`).
pi_k is estimated from the site's labels and, by EM, from its unlabelled images, and does not leave
the site. With a closed form, however, the counts of its labelled images in each class do leave it,
and the expected counts of its unlabelled images.

Where sites differ in their images too, the common answer is wrong. So a site has up to three
answers: the common one, that of the model that it trained last, and that of a model that it trained
alone. It weighs them by its own validation images (`class_priors.mixture_weights`).

The closed form of all sites' images (`methods.one_round`) may be a part of the common answer: its
logits and the model's are added, with weights fitted on all sites' validation images (`_stack`). It
errs on other images than the model, and needs no training.

Pseudo-labels are the common answers. They are weighted by how often such answers are right: sites
count that on validation images, the server adds the counts up and sends the totals along.

For findings, of which an image may show several, all of this is done for each finding: its class
mix has two classes, without and with it; its answer becomes a pseudo-label by itself, weighted by
how often the site is right about it. The totals of all sites, and the weights of network and closed
form, are over all findings together. Findings that were not read are not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import Incompatibility, ProtocolError
from fedapp.core.settings import CLOSED, Share
from fedapp.data.sites import TEST, UNLABELLED, VAL
from fedapp.evaluation.confidence_intervals import wilson
from fedapp.learn.class_imbalance import PLAIN
from fedapp.learn.class_priors import class_mix, mean_answer, mixture_weights, reweighted, site_mix
from fedapp.learn.metrics import count_pseudo_labels
from fedapp.learn.networks.base import Network, NetworkSettings
from fedapp.learn.params import Params, Schema, assign
from fedapp.learn.predictors import Predictor
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import WARM_UP, aggregate_round, train_alone, work_of
from fedapp.methods.base import (
    Arrived,
    Method,
    MethodState,
    Phases,
    Round,
    SiteContext,
    SiteReport,
    check_counts,
)
from fedapp.methods.closed_form._contents import (
    ACTIONS,
    FILTERS,
    MIX_METRICS,
    OPTIONAL,
    SOLUTION,
    check_asked,
    check_closed,
    check_role_asked_for,
    closed_schemas,
    lasting_contents,
    role_asked_for,
)
from fedapp.methods.closed_form._features import (
    NO_FEATURES,
    SAME_ALONE,
    FeatureNameOrNone,
    closed_incompatibilities,
    features_suited_to,
)
from fedapp.methods.closed_form._findings import closed_side_of, finding_schemas, solve
from fedapp.methods.closed_form._server import MOST_GUESSES, Refinements
from fedapp.methods.closed_form._site import deciding_images, label_counts, samples_of
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.methods.recommended._corrected import corrected_steps
from fedapp.methods.recommended._stack import (
    FIT,
    FITTED,
    STACK,
    START_WEIGHTS,
    Stacked,
    check_fitted,
    fit_of,
    fit_weights,
    put_stack,
    stack_schemas,
)
from fedapp.protocol.messages import (
    EVALUATE,
    ONE_ROUND,
    SERVER_SITE,
    ModelRef,
    Reply,
    SiteFacts,
    Task,
)

SURE_COUNTS = ("sure_right", "sure_total")
"""Metrics in which sites count confident answers to validation images: those that are right, and
all."""
MAX_SHARED_IMAGES = 10
"""The totals of all sites count as at most this many images beside a site's own count."""


@plain_dataclass(frozen=True)
class Sure(MethodState):
    """Totals of all sites: confident answers to validation images that are right, and all of them.

    Sites report their own counts in metrics of the same names. stack: the weights of network and
    closed form.
    """

    sure_right: float = 0.0
    sure_total: float = 0.0
    stack: tuple[float, ...] = START_WEIGHTS


@dataclass(frozen=True, config=CLOSED)
class PriorShift(Method[Sure]):
    """Fields are the method's hyper-parameters."""

    name: ClassVar[str] = "prior_shift"
    counted: ClassVar[tuple[str, ...]] = ("learned_from", *SURE_COUNTS, *MIX_METRICS)
    state: ClassVar[type[MethodState]] = Sure
    unsupported: ClassVar = {"privacy.sums": "", "training.uneven": "", "data.findings": ""}
    optional: ClassVar[frozenset[str]] = OPTIONAL

    answer: Literal["common", "tuned", "mixture"] = "mixture"
    """What a site uses: the common model, its own after training, or a mixture of all that it
    has."""
    alone: bool = True
    """Each site also trains a model alone, on its labelled images, as a further answer."""
    pseudo_labels: bool = True
    """False, an ablation: sites learn from their labelled images only."""
    confidence: Share = 0.8
    """Minimum probability of a pseudo-label."""
    weigh: bool = True
    """Weight pseudo-labels by how often they are right, 2 q - 1. False: they count as much as
    labels."""
    closed: FeatureNameOrNone = NO_FEATURES
    """Features of the closed form that is a part of the common answer, by name. none: there is no
    closed form, and no sums leave a site."""
    guesses: NonNegativeInt = MOST_GUESSES
    """How often at most sites guess the classes of unlabelled images for the closed form."""
    regression_steps: NonNegativeInt = 0
    """How many steps at most of a regression follow the closed form (`one_round`)."""

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: Sure, rnd: Round) -> Phases[Sure]:
        """Average; let every site evaluate, and add up how often confident answers are right."""
        numbers = {name: getattr(state, name) for name in SURE_COUNTS}
        lent: dict[str, list[ModelRef]] = {}
        if self.closed != NO_FEATURES:
            lent = yield from self._lent(state, rnd)
        newest = yield from aggregate_round(rnd, self.weight, numbers, extra_payloads=lent)
        stack = state.stack
        if lent:
            stack = yield from fit_weights(rnd, stack, newest, lent)
            lent[STACK] = [put_stack(rnd, stack)]
        replies = yield [
            rnd.task(site, EVALUATE, 0, {}, server=[newest], **lent) for site in rnd.sites
        ]
        sure = {name: sum(r.metrics.get(name, 0) for r in replies) for name in SURE_COUNTS}
        return Sure(**sure, stack=stack)

    def _lent(self, state: Sure, rnd: Round) -> Phases[dict[str, list[ModelRef]]]:
        """Solve the closed form when sums came; before any training let sites evaluate it."""
        then = Refinements(True, self.guesses, self.regression_steps)
        lent = yield from solve(rnd, self.closed, then)
        if not rnd.number:
            replies = yield [rnd.task(site, EVALUATE, 0, {}, **lent) for site in rnd.sites]
            found = [r.evaluations.get(f"test_{ONE_ROUND}") for r in replies]
            tested = [one.accuracy for one in found if one and one.accuracy is not None]
            if tested:
                mean = 100 * sum(tested) / len(tested)
                rnd.say(f"the closed form, before any training: {mean:.1f} % right, sites' mean")
        return {**lent, STACK: [put_stack(rnd, state.stack)]}

    @property
    def called(self) -> str:
        """`recommended` where the settings are those of that preset."""
        common = self.answer == "common" and not self.alone and self.closed != NO_FEATURES
        return "recommended" if common else self.name

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """Weighted pseudo-labels need labels at the sites; a closed form has its own limits."""
        reasons = {}
        if self.pseudo_labels:
            counted = "its sites count which pseudo-labels are right: set method.weigh=false"
            reasons["split.labels"] = counted if self.weigh else ""
        if self.closed != NO_FEATURES:
            closed = "it sends sums beside models (method.closed=none: it does not)"
            reasons["privacy.clip"] = closed
        found = super().incompatibilities(conditions, {**reasons, **why})
        return found + closed_incompatibilities(self.closed, self.regression_steps, conditions)

    def suited_to(self, network: NetworkSettings) -> Self:
        """Take the features of a pretrained network, if the closed form's are `auto`."""
        return replace(self, closed=features_suited_to(network, self.closed))

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """The number of images that the site reports as learned from, pseudo-labels weighted."""
        said = reply.metrics.get("learned_from", 0.0)
        return min(max(said, 0.0), facts.labelled + facts.unlabelled)

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """The contents of the closed form and of the stack, where there is a closed form."""
        assert isinstance(model, Network)
        if self.closed == NO_FEATURES:
            return {}
        found = {**closed_schemas(self.closed, model), **stack_schemas()}
        return found | finding_schemas(found) if model.finds else found

    def check_reply(self, task: Task, reply: Reply, facts: SiteFacts) -> None:
        """Refuse a reply without the content asked for, or with counts above the possible."""
        if (said := reply.metrics.get("learned_from", 0)) < 0:
            raise ProtocolError(f"metric learned_from = {said:g}; must not be negative")
        most = reply.metrics.get("sure_total", 0)
        measured = reply.evaluations.get("val")  # of findings those that were read
        samples_of = facts.val if measured is None else measured.samples
        check_counts(reply.metrics, {"sure_total": samples_of, "sure_right": most})
        check_role_asked_for(task, reply, {FIT: FITTED})

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Refuse sums that no images of this site can have."""
        check_closed(arrived, facts)
        check_fitted(arrived, facts)

    def summed(self, task: Task) -> Mapping[str, bool]:
        """Sums for the closed form and the stack; otherwise models."""
        role = FITTED if task.action == FIT else role_asked_for(task)
        return {role: False} if role else super().summed(task)

    # --- site -------------------------------------------------------------------------------------

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """The model that a site trains alone, starting from w_0."""
        return dict(w_0) if self.alone else {}

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Do a task, and keep the contents that later tasks name again."""
        asked_again = task.models["server"] if task.action == FIT else ()  # to measure it
        return replace(self._done(task, site), holds=(*lasting_contents(task), *asked_again))

    def _done(self, task: Task, site: SiteContext) -> SiteReport:
        """Evaluate; or train the common model and the site's own; or compute sums."""
        if task.action == EVALUATE:
            return self._report(task, site) if "server" in task.models else self._first(task, site)
        if task.action == FIT:
            return SiteReport(contents={FITTED: fit_of(self.closed, task, site)})
        if task.action in ACTIONS:
            check_asked(task, self.guesses, self.regression_steps, protected=False)
            return closed_side_of(self.closed, task, site).answer(task)
        data = site.data
        taught = Taught.nothing(label_counts(site))
        metrics: dict[str, float] = {}
        pseudo = None
        if self.pseudo_labels and task.action != WARM_UP and len(data.unlabelled):
            taught = self._taught(task, site)
            pseudo = (
                None if data.finds else count_pseudo_labels(taught.soft, data.audit, taught.kept)
            )
            if data.audit is not None:
                wrong, total = data.audit.pseudo_label_errors(taught.soft.argmax(1), taught.kept)
                metrics |= {"pseudo_wrong": wrong, "pseudo_total": total}
        site.load(task.models["server"][0])
        with site.drawing(task):
            steps = corrected_steps(
                work_of(task, site), taught.kept, taught.soft, taught.worth, taught.mix
            )
            loss = descend(site.model, steps, site.training)
        if loss is None:  # no images to learn from
            return SiteReport()
        params = site.params()
        learned_from = len(data.labels) + taught.images
        metrics |= {"loss": site.finite(loss, task), "learned_from": learned_from}
        alone = self._trained_alone(task, site)
        return SiteReport(params, learned=True, metrics=metrics, memory=alone, pseudo=pseudo)

    def _taught(self, task: Task, site: SiteContext) -> "Taught":
        """Return the pseudo-labels: the common model's answers to the unlabelled images."""
        mix, [unlabelled, val] = self._common(task, site, UNLABELLED, VAL)
        worth = self._worth(val, task, site) if self.weigh else torch.ones(len(mix)).double()
        if site.data.finds:
            sure = (torch.maximum(unlabelled, 1 - unlabelled) >= self.confidence) & (worth > 0)
            soft, kept = unlabelled.where(sure, -1.0), sure.any(1)
        else:
            soft, worth = unlabelled, worth[0]
            kept = (unlabelled.max(1).values >= self.confidence) & (worth > 0)
        return Taught(mix, kept.nonzero().flatten(), soft[kept].float(), worth)

    def _worth(self, val: Tensor, task: Task, site: SiteContext) -> Tensor:
        """Return 2 q - 1, at least 0: how much more often a pseudo-label is right than wrong.

        q is the lower confidence limit (one standard deviation) of the share of right answers, from
        the site's own count plus the totals of all sites, which count as at most
        `MAX_SHARED_IMAGES`. Float64 [1]; for findings [F], where the totals are over all findings.
        """
        all_right, everything = (task.numbers.get(name, 0.0) for name in SURE_COUNTS)
        share, found = min(everything, MAX_SHARED_IMAGES), []
        for right, total in zip(*self._sure(val, site), strict=True):
            low, _ = wilson(right + share * all_right / max(everything, 1), total + share, z=1)
            found.append(max(2 * low - 1, 0.0))
        return torch.tensor(found, dtype=torch.float64)

    def _sure(self, answers: Tensor, site: SiteContext) -> tuple[list[int], list[int]]:
        """Return the numbers of confident answers to validation images that are right, and of all.

        For findings, separately for each; only those that were read count.
        """
        chosen = deciding_images(site)
        said, truth, of = samples_of(answers[chosen], site.data.val_labels.cpu()[chosen])
        top, label = said.max(1)
        sure, groups = top >= self.confidence, answers.shape[1] if site.data.finds else 1
        right = sure & (label == truth)
        both = (torch.bincount(of[which], minlength=groups).tolist() for which in (right, sure))
        return next(both), next(both)

    @property
    def lone_model(self) -> str:
        """The network that it trains alone, else the closed form of its own images."""
        if self.alone:
            return "a network"
        return SAME_ALONE if self.closed != NO_FEATURES else super().lone_model

    def _trained_alone(self, task: Task, site: SiteContext) -> Params | None:
        """Train the site's own model on its labelled images and return it."""
        if not self.alone or not len(site.data.labels) or task.site == SERVER_SITE:
            return None
        assign(site.model, site.memory)
        train_alone(task, site)
        return site.params()

    def _first(self, task: Task, site: SiteContext) -> SiteReport:
        """Evaluate the closed form by itself, and that of the site's images alone."""
        names = {"tuned": ONE_ROUND} if self.alone else {"tuned": ONE_ROUND, "alone": "alone"}
        return SiteReport(evaluations=closed_side_of(self.closed, task, site).measured(task, names))

    def _report(self, task: Task, site: SiteContext) -> SiteReport:
        """Evaluate every answer that the site has, and the one that it uses."""
        _, [val, test] = self._answers(task, site, VAL, TEST)
        every = [("val", name, a) for name, a in val.items()]
        every += [("test", name, a) for name, a in test.items()]
        results = {
            f"{part}_{name}": site.evaluation(answers.float(), site.labelled_part(part)[1])
            for part, name, answers in every
        }
        _, [likely] = self._common(task, site, VAL)
        sure = dict(zip(SURE_COUNTS, map(sum, self._sure(likely, site)), strict=True))
        val = self._chosen(val)
        test = {name: test[name] for name in val}
        for part, answers in (
            ("val", self._held_out(val, site)),
            (
                "test",
                mean_answer(list(test.values()), self._trust(val, site, deciding_images(site))),
            ),
        ):
            results[part] = site.evaluation(answers.float(), site.labelled_part(part)[1])
        return SiteReport(metrics=sure, evaluations=results)

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return the common model, the tuned one and the one trained alone, as far as used.

        answer: "common" or "tuned", times the site's class mix, or "alone"; or that of the closed
        form by itself, which is "alone" where no network is trained alone.
        """
        if answer:
            return self._single(answer, task, site)
        mix, [found] = self._answers(task, site, VAL)
        val = self._chosen(found)
        trust = self._trust(val, site, deciding_images(site)).tolist()
        return {
            name: self._predictor(name, task, site, weight, mix)
            for name, weight in zip(val, trust, strict=True)
        }

    def _single(self, answer: str, task: Task, site: SiteContext) -> dict[str, Predictor]:
        """Return the predictor of this one answer."""
        if answer == ONE_ROUND or (answer == "alone" and not self.alone):
            of = "tuned" if answer == ONE_ROUND else answer
            return {answer: closed_side_of(self.closed, task, site).predictor(of, task)}
        return {answer: self._predictor(answer, task, site, 1.0, self.mix(task, site))}

    def _predictor(
        self, answer: str, task: Task, site: SiteContext, weight: float, mix: Tensor
    ) -> Predictor:
        """Return the network of an answer; the one trained alone takes no class mix."""
        if answer == "alone":
            return Predictor(site.memory, weight)
        if answer == "common" and self.closed != NO_FEATURES:
            return Stacked.of(self.closed, task, site).predictor(mix, weight)
        ref = task.models["server"][0] if answer == "common" else task.own
        return Predictor(site.contents(ref), weight, mix)

    def _chosen(self, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return those of a site's answers that it uses."""
        if self.answer == "mixture":
            return dict(answers)
        name = self.answer if self.answer in answers else "common"
        return {name: answers[name]}

    def _answers(
        self, task: Task, site: SiteContext, *parts: str
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Return the mix that multiplies answers [C], and every answer [n, C] to each part."""
        mix, common = self._plain(task, site, *parts)
        mix = _answer_mix(mix, site)
        answers = [{"common": reweighted(found, mix)} for found in common]

        def tuned(asked: Sequence[str]) -> Sequence[Tensor]:
            site.load(task.own)
            return site.of_parts(asked)

        def alone(asked: Sequence[str]) -> Sequence[Tensor]:
            assign(site.model, site.memory)
            return site.of_parts(asked)

        if task.own.version and self.answer != "common":
            plain = site.answers("tuned", (task.own.digest,), parts, tuned)
            for found, own in zip(answers, plain, strict=True):
                found["tuned"] = reweighted(own, mix)
        if self.alone and task.private and len(site.data.labels):
            plain = site.answers("alone", (task.private,), parts, alone)
            for found, own in zip(answers, plain, strict=True):
                found["alone"] = own.double()
        return mix, answers

    def _common(self, task: Task, site: SiteContext, *parts: str) -> tuple[Tensor, list[Tensor]]:
        """Return the site's class mix [C], and the common answers to its parts, times the mix."""
        mix, plain = self._plain(task, site, *parts)
        return mix, [reweighted(one, mix) for one in plain]

    def _plain(self, task: Task, site: SiteContext, *parts: str) -> tuple[Tensor, list[Tensor]]:
        """Return the site's class mix [C], and the common model's answers to its parts."""
        roles = ("server", STACK, SOLUTION, FILTERS)
        of = tuple(ref.digest for role in roles for ref in task.models.get(role, ()))

        def common(asked: Sequence[str]) -> Sequence[Tensor]:
            if self.closed != NO_FEATURES:
                stacked = Stacked.of(self.closed, task, site)
                return [stacked.predicted(part) for part in asked]
            site.load(task.models["server"][0])
            return site.of_parts(asked)

        unlabelled, *plain = site.answers("common", of, (UNLABELLED, *parts), common)
        if self.closed == NO_FEATURES:
            mix = class_mix(label_counts(site), unlabelled)
        else:
            prior = closed_side_of(self.closed, task, site).solution(task).prior
            mix = site_mix(label_counts(site), unlabelled, prior)
        return mix, plain

    def mix(self, task: Task, site: SiteContext) -> Tensor:
        """Return the mix that multiplies answers [C]; the task must name the common model."""
        return _answer_mix(self._plain(task, site)[0], site)

    def _trust(self, val: Mapping[str, Tensor], site: SiteContext, chosen: Tensor) -> Tensor:
        """Return the weight of each answer [M], fitted on these validation images."""
        labels = site.data.val_labels.cpu()[chosen]
        held = [samples_of(answers[chosen], labels) for answers in val.values()]
        given = [said.gather(1, truth[:, None])[:, 0] for said, truth, _ in held]
        return mixture_weights(torch.stack(given, dim=1), torch.ones(len(val)))

    def _held_out(self, val: Mapping[str, Tensor], site: SiteContext) -> Tensor:
        """Return the used answers to all validation images [n, C].

        An image's own label must not influence its answer: the deciding images are split in halves,
        and each half is answered with weights fitted on the other.
        """
        chosen = deciding_images(site)
        answers = mean_answer(list(val.values()), self._trust(val, site, chosen))
        for one, other in ((chosen[::2], chosen[1::2]), (chosen[1::2], chosen[::2])):
            part = [found[one] for found in val.values()]
            answers[one] = mean_answer(part, self._trust(val, site, other))
        return answers


def _answer_mix(mix: Tensor, site: SiteContext) -> Tensor:
    """Return what a site multiplies answers by: its class mix, or an even one.

    With `training.uneven`, which gives all classes the same importance, the mix is even.
    """
    even = torch.full_like(mix, 1 / mix.shape[-1])
    return mix if site.training.uneven == PLAIN else even


@plain_dataclass(frozen=True)
class Taught:
    """What a site learns from beside its labels, all on the CPU.

    mix: its class mix [C]. kept: int64 [m], the images of D_u that have a pseudo-label. soft:
    float32 [m, C], the pseudo-labels. worth: the weight of one relative to a label, a scalar. For
    findings mix is [F, 2], worth is [F], and soft is negative where a finding has no pseudo-label.
    """

    mix: Tensor
    kept: Tensor
    soft: Tensor
    worth: Tensor

    @property
    def images(self) -> float:
        """The number of labelled images that the pseudo-labels count as."""
        if not self.worth.ndim:
            return float(self.worth * len(self.kept))
        return float(self.worth @ (self.soft >= 0).sum(0).double()) / len(self.worth)

    @classmethod
    def nothing(cls, counts: Tensor) -> Self:
        """Return the value for learning from labels only; counts: labelled images of each class."""
        none = torch.empty(0, len(counts))
        worth = torch.zeros(len(counts) if counts.ndim == 2 else (), dtype=torch.float64)
        return cls(class_mix(counts, none), torch.empty(0, dtype=torch.int64), none, worth)


METHOD = PriorShift
