"""FedMatch (Jeong et al. 2021): agreement with helpers, and weights for labels apart from others.

The weights are sums, theta = sigma + psi. From labelled images sigma learns, by
lambda_s CE(D_s). From unlabelled ones psi does, by

    lambda_i mean_j KL(p_j || p) + lambda_a CE(strong view, vote)  [means over the sure images]
    + lambda_L1 sum |psi| + lambda_L2 sum (sigma - psi)^2

p is the network's answer to the image as it is; sure images are those of which it is at least
`confidence`. p_j are the answers of helpers: the network with their psi and the site's sigma. The
vote is the class that most of p and the p_j name. Helpers are the sites whose models answer a fixed
random image most alike; they are sent in every tenth round only, to sites that have trained before.
Without them an image's own class is learned from, as in FixMatch.

The server averages sigma and psi each by itself, all sites with equal weight. Where the server has
the labels, it learns sigma and the sites psi. A difference of at most `delta_threshold` is neither
applied nor, in the paper's count, sent (`fedmatch.sparse`); the messages here hold whole tensors.

Where this differs from the authors' code (docs/research/labels_at_the_server.md says why):

- DEVIATION: steps, learning rate, momentum and warm-up are those of all methods here.
- DEVIATION: helpers answer once a task, by the sigma that it began with.
- DEVIATION: the learning rate falls by the site's own validation images, not by the server's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import CLOSED, Count, NonNegative, Share
from fedapp.data.augment import STRONG_VIEWS
from fedapp.data.sites import Part, SiteData
from fedapp.learn.objectives import index_pairs
from fedapp.learn.params import Params, Schema, assign, schema_of
from fedapp.learn.predictors import Predictor
from fedapp.learn.steps import Step
from fedapp.methods.averaging.base import (
    WARM_UP,
    common_models,
    measurements,
    warm_up_sites,
    work_of,
)
from fedapp.methods.base import (
    Method,
    MethodState,
    Phases,
    Round,
    SiteContext,
    SiteReport,
    check_counts,
)
from fedapp.methods.two_networks.fedmatch.agreement import nearest, probe, unlabelled_loss
from fedapp.methods.two_networks.fedmatch.decomposed import Decomposed, first_psi, summed
from fedapp.methods.two_networks.fedmatch.sparse import applied, sparse_bytes
from fedapp.protocol.messages import EVALUATE, MODEL, SERVER_SITE, ModelRef, Reply, SiteFacts, Task

PSI = "psi"
"""Role of the second summand of a site's weights."""
ANSWER = "answer"
"""Role of a site's answer to the probe, by which it finds helpers."""
NonNegativeFloat = Annotated[float, Field(ge=0)]


@plain_dataclass(frozen=True)
class Sparse(MethodState):
    """Bytes so far, had only large differences been sent; sites count theirs in metrics so named.

    Of training alone, as the ledger's `bytes_up` and `bytes_down`, without messages' heads.
    """

    bytes_up_sparse: int = 0
    bytes_down_sparse: int = 0

    def shown(self) -> dict[str, float]:
        """Both."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def after(self, replies: Sequence[Reply]) -> "Sparse":
        """Return the counts after these replies."""
        return Sparse(
            *(int(n + sum(r.metrics.get(of, 0) for r in replies)) for of, n in self.shown().items())
        )


@dataclass(frozen=True, config=CLOSED)
class FedMatch(Method[Sparse]):
    """Fields are the paper's hyper-parameters, defaults the code's with labels at the sites."""

    name: ClassVar[str] = "fedmatch"
    state: ClassVar[type[MethodState]] = Sparse

    confidence: Share = 0.75
    """Least probability of a pseudo-label."""
    labelled_weight: NonNegativeFloat = 10.0
    """lambda_s."""
    helper_weight: NonNegativeFloat = 0.01
    """lambda_i: of agreement with helpers."""
    unlabelled_weight: NonNegativeFloat = 0.01
    """lambda_a: of pseudo-labels."""
    l1: NonNegativeFloat = 1e-4
    """lambda_L1, of the sum over all weights; 1e-5 with labels at the server."""
    l2: NonNegativeFloat = 10.0
    """lambda_L2, of the sum over all weights."""
    l1_threshold: NonNegativeFloat = 5e-6
    """Entries of psi of at most this count as 0 in an answer; 1e-5 with labels at the server."""
    delta_threshold: NonNegativeFloat = 5e-5
    """Differences of at most this are not applied; 1e-5 with labels at the server."""
    psi_factor: NonNegativeFloat = 0.2
    """Psi begins as this times sigma."""
    helper_count: NonNegative = 2
    """H, helpers of a site; 0: none."""
    helpers_every: Count = 10
    """Rounds from one sending of helpers to the next."""
    patience: NonNegative = 5
    """Visits without a smaller validation loss after which a site's learning rate falls; 0: never;
    20 with labels at the server."""
    decay: Annotated[float, Field(ge=1)] = 3.0
    """What it is divided by then."""
    strong_view: Literal["randaugment", "cutout", "weak"] = "randaugment"
    """What learns from a pseudo-label: RandAugment and Cutout, Cutout alone, a weak view."""
    labelled_repeat: Count = 1
    """How often each labelled image stands among those that a pass goes through."""
    as_official: bool = False
    """As in FedSiam's released code: the unlabelled images' loss has no gradient. What pulls psi,
    lambda_L1 and lambda_L2, does so all the same: it is of weights, not of images."""

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """An unlabelled image as it is and its strong view for each of a batch."""
        return 2 * batch_size

    unsupported: ClassVar = {
        "split.labels": "",  # sites learn psi, the server sigma
        "training.uneven": "",
        "privacy.clip": "it sends a second summand of the weights beside models",
        "method.name": "learns from random views of images",
    }

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Psi, shaped as the model, and a site's answer to the probe [C]."""
        whole = schema_of(model.state_dict())
        [classes], _ = whole["head.bias"]
        return {PSI: whole, ANSWER: {ANSWER: ((classes,), torch.float32)}}

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """What a site knows the server to have sent last, and how its learning rate stands."""
        psi = first_psi(w_0, model, self.psi_factor)
        known = {f"sigma.{n}": t for n, t in w_0.items()} | {f"psi.{n}": t for n, t in psi.items()}
        most = torch.finfo(torch.float32).max
        return known | {
            "rate": torch.tensor(1.0), "best": torch.tensor(most), "since": torch.tensor(0),
        }  # fmt: skip

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: Sparse, rnd: Round) -> Phases[Sparse]:
        """Average sigma and psi; then the server learns sigma, where it has labels."""
        warming_up = rnd.number == 0
        learners = warm_up_sites(rnd) if warming_up else sorted(rnd.cohort)
        action = WARM_UP if warming_up else "train"
        helpers = self._helpers(rnd)
        for phase in range(rnd.warmup_rounds if warming_up else 1):
            tasks = [self._task(rnd, k, action, phase, helpers.get(k, ())) for k in learners]
            replies = yield tasks
            self._average(rnd, tasks, replies)
            state = state.after(replies)
            if rnd.server_learns:
                yield [self._task(rnd, SERVER_SITE, action, phase)]
        yield measurements(rnd, (PSI,))
        return state

    def _task(
        self, rnd: Round, site: int, action: str, phase: int, helpers: Sequence[ModelRef] = ()
    ) -> Task:
        """Return a task that names sigma and psi; before the first psi it is sigma once more."""
        models: dict[str, Sequence[ModelRef]] = {**common_models(rnd, (PSI,))}
        if helpers:
            models["helpers"] = helpers
        return rnd.task(site, action, phase, {}, **models)

    def _helpers(self, rnd: Round) -> dict[int, list[ModelRef]]:
        """Return the psi of each site's helpers, where it is a round to send them."""
        if rnd.number == 0 or rnd.number % self.helpers_every:
            return {}
        refs = [rnd.pool.latest(k, ANSWER) for k in rnd.pool.having(ANSWER)]
        answers = {ref.site: rnd.pool.read(ref)[ANSWER] for ref in refs}
        return {
            site: [rnd.pool.latest(k, PSI) for k in nearest(site, answers, self.helper_count)]
            for site in sorted(rnd.cohort)
        }

    def _average(self, rnd: Round, tasks: Sequence[Task], replies: Sequence[Reply]) -> None:
        """Average the sigma that were sent, and the psi."""
        before = {task.site: task.own.digest for task in tasks}
        sent = {
            MODEL: [r.site for r in replies if r.model != before[r.site]],
            PSI: [r.site for r in replies if PSI in r.contents],
        }
        for role, sites in sent.items():
            if sites:
                rnd.pool.average([(1.0, rnd.pool.latest(k, role)) for k in sites], role=role)

    def check_reply(self, task: Task, reply: Reply, facts: SiteFacts) -> None:
        """The counts of what would have been sent are counts; who sends psi also answers."""
        check_counts(reply.metrics, dict.fromkeys(Sparse().shown(), math.inf))
        if (PSI in reply.contents) != (ANSWER in reply.contents):
            raise ProtocolError(f"sent one of {PSI} and {ANSWER}; they belong together")

    # --- site -------------------------------------------------------------------------------------

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Measure, or learn sigma from labels and psi from all others."""
        if task.action == EVALUATE:
            self._load(task, site)
            found = site.evaluate("val", "test", answer="common")
            found |= {part: found[f"{part}_common"] for part in ("val", "test")}
            return SiteReport(evaluations=found)
        return self._learned(task, site)

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return the server's sigma + psi."""
        self._load(task, site)
        return {"common": Predictor(site.params())}

    def _load(self, task: Task, site: SiteContext) -> None:
        """Load sigma + psi as it is used."""
        sigma, psi = self.received(task, site)
        assign(site.model, summed(sigma, psi, self.l1_threshold))

    def received(self, task: Task, site: SiteContext) -> tuple[Params, Params]:
        """Return the server's sigma and psi."""
        sigma, [ref] = site.contents(task.models["server"][0]), task.models[PSI]
        if ref.role == PSI:
            return sigma, site.contents(ref)
        return sigma, first_psi(sigma, site.model, self.psi_factor)

    def _learned(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn, and tell what became of sigma and psi."""
        threshold = 0.0 if task.site == SERVER_SITE else self.delta_threshold
        sigma, psi, down = self._begun(task, site, threshold)
        rate = site.training.learning_rate * float(site.memory["rate"])
        answers = self._asked(task, site, sigma)
        with site.drawing(task):
            both = Decomposed(site.model, sigma, psi, replace(site.training, learning_rate=rate))
            losses = [step(site.model) for step in self._steps(task, site, both, answers)]
        if not losses:
            return SiteReport()
        loss = site.finite(torch.stack(losses).mean().item(), task)
        site.params()  # refuses what is not finite
        new, up = both.parts(), 0
        sent = {}
        for role, part, base, learns in (
            (MODEL, new[0], sigma, len(site.data.labels)),
            (PSI, new[1], psi, task.action != WARM_UP and len(site.data.unlabelled)),
        ):
            if learns:
                sent[role], changed = applied(part, base, threshold, weights_of(site.model))
                up += sparse_bytes(changed, numbers_of(site.model))
        metrics = {"loss": loss, "bytes_up_sparse": up, "bytes_down_sparse": down}
        used = summed(sent.get(MODEL, sigma), sent.get(PSI, psi), self.l1_threshold)
        assign(site.model, used)
        known = {f"{name}.{n}": t for name, part in (("sigma", sigma), ("psi", psi))
                 for n, t in part.items()}  # fmt: skip
        contents = {}
        if PSI in sent:
            asked = probe(site.data.inputs, site.seed).to(site.device)
            contents = {PSI: sent[PSI], ANSWER: {ANSWER: site.predicted(asked)[0]}}
        return SiteReport(
            sent.get(MODEL),
            contents=contents,
            learned=True,
            metrics=metrics,
            memory=known | self._rate(site),
        )

    def _begun(self, task: Task, site: SiteContext, threshold: float) -> tuple[Params, Params, int]:
        """Return sigma and psi as the site begins with them, and the bytes that it took.

        What is within the threshold of what the site knows already stays as it knows it.
        """
        names, numbers = weights_of(site.model), numbers_of(site.model)
        begun, total = [], 0
        for name, part in zip(("sigma", "psi"), self.received(task, site), strict=True):
            known = {n: site.memory[f"{name}.{n}"] for n in part}
            one, changed = applied(part, known, threshold, names)
            begun.append(one)
            if name == "sigma" or task.models[PSI][0].role == PSI:
                total += sparse_bytes(changed, numbers)
        for ref in task.models.get("helpers", ()):
            psi = site.contents(ref)
            total += sparse_bytes(sum(int((psi[n] != 0).sum()) for n in names), numbers)
        return begun[0], begun[1], total

    def _asked(self, task: Task, site: SiteContext, sigma: Params) -> Tensor:
        """Return helpers' answers to D_u, float32 [H, n, C]."""
        answers = []
        for ref in task.models.get("helpers", ()):
            assign(site.model, summed(sigma, site.contents(ref), self.l1_threshold))
            answers.append(site.predicted(site.data.unlabelled))
        if not answers:
            return torch.empty((0, len(site.data.unlabelled), site.data.num_classes))
        return torch.stack(answers).to(site.device)

    def _steps(
        self, task: Task, site: SiteContext, both: Decomposed, answers: Tensor
    ) -> Iterator[Step]:
        """Yield mini-batches: of labelled images for sigma, then of others for psi.

        Steps are those of `objectives.two_views`; in the warm-up, of labelled images alone. Each
        takes its two steps down as its loss is asked for.
        """
        work = replace(work_of(task, site), labelled_repeat=self.labelled_repeat)
        data = site.data
        if task.action == WARM_UP:
            work = replace(work, data=data.with_parts(unlabelled=Part(data.unlabelled[:0])))
        draws, strong = site.stream("augment", task), STRONG_VIEWS[self.strong_view]
        shift = work.shift
        weights = self.confidence, self.helper_weight, self.unlabelled_weight
        teaches = not self.as_official and any(weights[1:])
        passes = len(work.data.labels), 2 * len(work.data.unlabelled)  # each by itself
        work.begin(min(filter(None, passes), default=0))

        def taken(network: nn.Module, labelled: Tensor, unlabelled: Tensor) -> Tensor:
            total = torch.zeros((), device=site.device)
            if len(labelled):
                x = site.normalise(work.view(data.labelled[labelled]))
                loss = F.cross_entropy(shift(network(x)), data.labels[labelled])
                both.learn_sigma(loss, self.labelled_weight)
                total += self.labelled_weight * loss.detach()
            if len(unlabelled):
                taught = None
                if teaches:
                    x = data.unlabelled[unlabelled]
                    views = site.normalise(torch.cat([x, strong(x, site.flip, draws)]))
                    plain, seen = network(views).chunk(2)
                    taught = unlabelled_loss(plain, seen, answers[:, unlabelled], *weights)
                    total += taught.detach()
                both.learn_psi(taught, self.l1, self.l2)
            return total

        return work.passes(lambda: (Step(taken, pair) for pair in index_pairs(work)))

    def _rate(self, site: SiteContext) -> Params:
        """Return how the site's learning rate stands after this visit; see `patience`."""
        rate, best, since = (site.memory[name].clone() for name in ("rate", "best", "since"))
        if self.patience and len(site.data.val):
            labels = site.data.val_labels.cpu()
            given = site.predicted(site.data.val)[torch.arange(len(labels)), labels]
            loss = -given.clamp_min(torch.finfo(given.dtype).tiny).log().mean()
            since = torch.tensor(0) if loss < best else since + 1
            best = torch.minimum(best, loss)
            if since >= self.patience:
                rate, since = rate / self.decay, torch.tensor(0)
        return {"rate": rate, "best": best, "since": since}


def weights_of(model: nn.Module) -> list[str]:
    """Return the names of the tensors that are sums."""
    return [name for name, _ in model.named_parameters()]


def numbers_of(model: nn.Module) -> int:
    """Return how many numbers they are."""
    return sum(weight.numel() for weight in model.parameters())


METHOD = FedMatch
