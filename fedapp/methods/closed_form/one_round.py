"""One round: class statistics of fixed features, solved in closed form; no network is trained.

Sites send sums of their labelled images; the server adds them up and solves (`_discriminant`).
Since sums can be added, the solution is that of all labelled images in one place, however they are
split. A site answers with the common head, or with a head in which its own labelled images count
more if all sites' validation images favour that, times its own mix of classes
(`learn.class_priors`). With that answer sites guess the classes of their unlabelled images, and
class means use these too, and where labels are few the covariance; from then on the split matters
(`guesses`). A regression may follow (`_regression`). Findings have a solution each (`_findings`),
which differs between sites only by their odds. The features are fixed and chosen by name
(`learn.features`). A run takes seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.errors import Incompatibility
from fedapp.core.settings import CLOSED
from fedapp.evaluation.verdict import EVEN_MIX_ALONE
from fedapp.learn.features import DEFAULT_FEATURES
from fedapp.learn.networks.base import Network, NetworkSettings
from fedapp.learn.params import Schema
from fedapp.learn.predictors import Predictor
from fedapp.methods._summed import NOISE_SHARE
from fedapp.methods.base import (
    Arrived,
    ImageLevel,
    Method,
    MethodState,
    Phases,
    Round,
    SiteContext,
    SiteReport,
)
from fedapp.methods.closed_form._contents import (
    GUESSED,
    MIX_METRICS,
    OPTIONAL,
    RELEASE,
    SOLUTION,
    Solution,
    check_asked,
    check_closed,
    check_role_asked_for,
    closed_schemas,
    lasting_contents,
    role_asked_for,
)
from fedapp.methods.closed_form._features import (
    SAME_ALONE,
    FeatureName,
    closed_incompatibilities,
    features_suited_to,
    learned_features_reason,
)
from fedapp.methods.closed_form._findings import closed_side_of, finding_schemas, solve
from fedapp.methods.closed_form._protected import SENSITIVITY
from fedapp.methods.closed_form._server import MOST_GUESSES, Refinements
from fedapp.methods.closed_form._site import ClosedSite
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.protocol.messages import EVALUATE, Evaluation, Reply, SiteFacts, Task


@plain_dataclass(frozen=True)
class Solved(MethodState):
    """The chosen settings, for people to read."""

    ridge: float = 0.0
    temperature: float = 0.0
    own_weight: float = 0.0
    guessed: float = 0.0
    regressed: float = 0.0

    def in_summary(self) -> Mapping[str, float]:
        """lambda, temperature, the weight of own images, and the number of guesses and of steps."""
        return {
            "closed_ridge": self.ridge,
            "closed_temperature": self.temperature,
            "closed_own_weight": self.own_weight,
            "closed_guessed": self.guessed,
            "closed_regressed": self.regressed,
        }


class NoisySums(ImageLevel):
    """A protected site sends sums with noise, once."""

    def released(self, task: Task, site: SiteContext) -> frozenset[str]:
        """Return the role that the task asks for."""
        return frozenset({role_asked_for(task)} - {""})

    def sensitivity(self, task: Task, site: SiteContext) -> Mapping[str, float]:
        """Return how much one image changes the sums that get noise."""
        return {role_asked_for(task): SENSITIVITY} if task.action == RELEASE else {}


@dataclass(frozen=True, config=CLOSED)
class OneRound(Method[Solved]):
    """Fields are the method's hyper-parameters."""

    name: ClassVar[str] = "one_round"
    image_level: ClassVar[ImageLevel | None] = NoisySums()
    counted: ClassVar[tuple[str, ...]] = (*MIX_METRICS, NOISE_SHARE)
    state: ClassVar[type[MethodState]] = Solved
    begins: ClassVar[str] = "solution"
    sends_models: ClassVar[bool] = False
    optional: ClassVar[frozenset[str]] = OPTIONAL

    features: FeatureName = DEFAULT_FEATURES
    """Fixed features of an input, by name: docs/research/features.md."""
    answer: Literal["common", "tuned"] = "tuned"
    """What a site uses: the common head, or the one in which its own images count more."""
    guesses: NonNegativeInt = MOST_GUESSES
    """How often at most sites guess the classes of their unlabelled images, so that class means use
    these too. 0: sums of features are of labelled images only, and the common answer does not
    depend on the split."""
    regression_steps: NonNegativeInt = 0
    """How many steps at most of a regression follow, each a sum over the sites' labelled images, as
    long as validation labels become likelier. None follow for findings, or where single images are
    protected. Own images need masked sums then (docs/SECURITY.md)."""
    own_mix: bool = True
    """Multiply answers by the site's own class mix. False: treat all classes as equally frequent,
    for images whose mix differs from the site's."""

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: Solved, rnd: Round) -> Phases[Solved]:
        """Solve when sums of new sites came; let every site evaluate."""
        then = Refinements(self.answer == "tuned", self.guesses, self.regression_steps)
        lent = yield from solve(rnd, self.features, then)
        yield [rnd.task(site, EVALUATE, 0, {}, **lent) for site in rnd.sites]
        params = rnd.pool.read(lent[SOLUTION][0])
        if rnd.finds:  # lambda and temperature are by finding
            return Solved(guessed=float(params[GUESSED]))
        found = Solution.from_params(params)
        return Solved(
            found.ridge, found.temperature, found.own_weight, found.guessed, found.regressed
        )

    unsupported: ClassVar = {
        "privacy.sums": "",
        "split.labels": "",  # the server's own images are in the sums
        "rounds.robust": "it adds sums of sites, and averages no models",
        "privacy.clip": "it sends sums, and no models",
        "data.findings": "",
    }

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """Features must fit inputs, those of protected images are fixed; gradients need masks."""
        reasons = {"privacy.epsilon": learned_features_reason(self.features)}
        found = super().incompatibilities(conditions, {**reasons, **why})
        return found + closed_incompatibilities(self.features, self.regression_steps, conditions)

    def suited_to(self, network: NetworkSettings) -> Self:
        """Take the features of a pretrained network, if no setting names others."""
        return replace(self, features=features_suited_to(network, self.features))

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Sums, votes, and what the server makes of them."""
        assert isinstance(model, Network)
        found = closed_schemas(self.features, model)
        return found | finding_schemas(found) if model.finds else found

    def check_reply(self, task: Task, reply: Reply, facts: SiteFacts) -> None:
        """Refuse a reply without the content that was asked for."""
        check_role_asked_for(task, reply)

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Refuse sums that no images of this site can have."""
        check_closed(arrived, facts)

    def summed(self, task: Task) -> Mapping[str, bool]:
        """Everything that sites send is added up."""
        return {role: False} if (role := role_asked_for(task)) else {}

    # --- site -------------------------------------------------------------------------------------

    @property
    def lone_model(self) -> str:
        """The same, of the site's own images alone."""
        return SAME_ALONE if self.own_mix else EVEN_MIX_ALONE

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Compute sums or votes, or evaluate; that is cached, since a solution does not change."""
        protected = site.protection is not None
        check_asked(task, self.guesses, self.regression_steps, protected)
        closed = self._closed(task, site)
        if task.action != EVALUATE:
            return replace(closed.answer(task), holds=lasting_contents(task))

        def measured() -> dict[str, Evaluation]:
            results = closed.measured(task, {name: name for name in ("common", "tuned", "alone")})
            return results | {part: results[f"{part}_{self.answer}"] for part in ("val", "test")}

        solution = task.models[SOLUTION][0].digest
        results = site.cache.get_or_make("measured", measured, of=solution)
        return SiteReport(evaluations=results, holds=lasting_contents(task))

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return one head over the features, times a class mix."""
        answer = answer or self.answer
        return {answer: self._closed(task, site).predictor(answer, task)}

    def _closed(self, task: Task, site: SiteContext) -> ClosedSite:
        return closed_side_of(self.features, task, site, self.own_mix)


METHOD = OneRound
