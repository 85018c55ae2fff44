"""One round: class statistics of fixed features, solved in closed form; no network is trained.

Sites send sums, the server adds them and solves (`learn.discriminant`); since sums are added, the
common answer is the one of all images in one place, whatever the split. A site answers with the
common head, or with one in which its own labelled images count more where all sites' validation
images want that, times its own mix of classes (`learn.priors`). The features are fixed, by name
(`learn.features`), and so all of it takes seconds.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import ClassVar, Literal

from pydantic import field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.ground.settings import CLOSED
from fedapp.learn.features import DEFAULT_FEATURES, feature_class
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks.base import Network, NetworkSettings
from fedapp.learn.overfeatures import Form, Head, answers_over
from fedapp.learn.params import Schema
from fedapp.learn.predictors import Predictor
from fedapp.learn.priors import weighted
from fedapp.messages.protocol import EVALUATE, Evaluation, Reply, SiteFacts, Task
from fedapp.methods._closed import (
    SOLUTION,
    ClosedSite,
    Solution,
    check_closed,
    features_for,
    schemas_of,
    solved,
)
from fedapp.methods.base import Arrived, Method, MethodState, Round, SiteContext, SiteReport


@plain_dataclass(frozen=True)
class Solved(MethodState):
    """What was chosen, for people to read."""

    ridge: float = 0.0
    temperature: float = 0.0
    own_weight: float = 0.0

    def in_summary(self) -> Mapping[str, float]:
        """lambda, temperature and the weight of a site's own images."""
        return {
            "closed_ridge": self.ridge,
            "closed_temperature": self.temperature,
            "closed_own_weight": self.own_weight,
        }


@dataclass(frozen=True, config=CLOSED)
class OneRound(Method[Solved]):
    """Fields are the method's hyper-parameters."""

    name: ClassVar[str] = "one_round"
    state: ClassVar[type[MethodState]] = Solved
    starts_common: ClassVar[bool] = True
    common_roles: ClassVar[tuple[str, ...]] = (SOLUTION,)

    features: str = DEFAULT_FEATURES
    """Fixed features of an input, by name."""
    answer: Literal["common", "tuned"] = "tuned"
    """What a site uses: the common head, or the one in which its own images count more."""

    @field_validator("features")
    @classmethod
    def _known(cls, name: str) -> str:
        feature_class(name)
        return name

    # --- server -----------------------------------------------------------------------------------

    def server_round(
        self, state: Solved, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], Solved]:
        """Solve where sums of new sites came; let every site measure."""
        newest = yield from solved(rnd, own=self.answer == "tuned")
        yield [rnd.task(site, EVALUATE, solution=[newest]) for site in rnd.sites]
        found = Solution.from_params(rnd.pool.read(newest))
        return Solved(found.ridge, found.temperature, found.own_weight)

    def needs_mean(self) -> str:
        """Sums are added."""
        return "it adds sums of sites, and averages no models"

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Sums, votes, and what the server makes of them."""
        assert isinstance(model, Network)
        return schemas_of(features_for(self.features, model), model.head.out_features)

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Refuse sums that no images of this site have."""
        check_closed(reply, arrived, facts)

    def unfit(self, model: NetworkSettings) -> str:
        """A frozen network needs weights from elsewhere: random ones tell classes apart badly."""
        if self.features != "network" or ":" in model.name or getattr(model, "weights_sha256", ""):
            return ""
        return "method.features=network needs a trained network: set model.weights, or take hog"

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Whether the features take such inputs."""
        return feature_class(self.features).misfit(inputs)

    # --- site -------------------------------------------------------------------------------------

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Count and vote, or measure."""
        if task.action == EVALUATE:
            return SiteReport(evaluations=self._measured(task, site))
        return ClosedSite.of(self.features, task, site).answer(task)

    def _measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Measure every answer, and the one that is used; once, since a solution stays."""
        known = (task.models[SOLUTION][0].digest,)
        if known not in site.evaluated:
            closed = ClosedSite.of(self.features, task, site)
            sets = [closed.features(site.labelled_part(part)[0]) for part in ("val", "test")]
            results: dict[str, Evaluation] = {}
            for name, (head, mix) in self._every(task, closed).items():
                for part, plain in zip(("val", "test"), answers_over(head, sets), strict=True):
                    labels = site.labelled_part(part)[1]
                    results[f"{part}_{name}"] = evaluation(weighted(plain, mix).float(), labels)
            results |= {part: results[f"{part}_{self.answer}"] for part in ("val", "test")}
            site.evaluated.clear()
            site.evaluated[known] = results
        return site.evaluated[known]

    def _every(self, task: Task, closed: ClosedSite) -> dict[str, tuple[Head, Tensor]]:
        """Return the head of every answer that the site has, and the class mix it is times."""
        solution, (known, labels) = closed.solution(task), closed.known()
        mix = closed.mix(solution)
        every = {
            "common": (solution.common, mix),
            "tuned": (solution.head(known, labels, solution.own_weight), mix),
        }
        if len(labels):
            every["alone"] = solution.alone(known, labels), closed.mix_alone()
        return every

    def used(self, task: Task, site: SiteContext) -> dict[str, Predictor]:
        """Return the answer that is used."""
        return self.single(self.answer, task, site)

    def single(self, answer: str, task: Task, site: SiteContext) -> dict[str, Predictor]:
        """Return one head over the features, times the site's class mix."""
        closed = ClosedSite.of(self.features, task, site)
        head, mix = self._every(task, closed)[answer]
        form = Form(self.features)
        return {answer: Predictor(form.params(head, closed.map, {}), 1.0, mix, form=form)}


METHOD = OneRound
