"""UM-pFSSL: helpers chosen by uncertainty label a site's unlabelled images.

Shi, Chen, Zhang: Uncertainty Minimization for Personalized Federated Semi-Supervised Learning, the
final version; the preprint's differing choices are options.

A server that has labelled images of its own is one more site, which trains in every round: others
may list its model, and it theirs.

The server's rule is Algorithm 1 with Algorithms 2 and 3 folded into one message per site and round;
docs/research/choices.md lists every place where the paper is silent and what is done there.

DEVIATION: `mutual_information`, as `corr_variant` or `label_variant`, is ours; the paper has
"published".
"""

import logging
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.errors import Contradiction, Incompatibility
from fedapp.core.rng import seeded
from fedapp.core.settings import CLOSED, Count, NonNegative
from fedapp.learn.metrics import count_pseudo_labels, predict
from fedapp.learn.model_caches import Score, ScoreKey
from fedapp.learn.params import Params, assign, weighted_mean
from fedapp.learn.training import recalibrate
from fedapp.learn.uncertainty import mc_probabilities
from fedapp.methods.base import (
    Method,
    MethodState,
    Phases,
    Round,
    SiteContext,
    SiteReport,
    check_unchanged,
    warm_up,
    warm_ups,
)
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.methods.um_pfssl.costs import cost_bound, cost_greedy
from fedapp.methods.um_pfssl.helper_lists import HelperLists, check_list
from fedapp.methods.um_pfssl.relation import (
    CorrVariant,
    LabelVariant,
    Metric,
    admit,
    certainty,
    least_uncertain,
    most_informative,
    ranked,
    relation,
)
from fedapp.methods.um_pfssl.unlisted_peers import Peers, UnlistedPeers
from fedapp.protocol.messages import SERVER_SITE, ModelRef, Reply, ScoredRef, SiteFacts, Task

log = logging.getLogger(__name__)

SEARCH = "search"
"""Action of a task that only looks for helpers."""
PAPER_LIST_SIZE = 5
"""The size of a site's list in the paper, its own model included (Sec. VI-A)."""


@dataclass(frozen=True, config=CLOSED)
class UmPfssl(Method[HelperLists]):
    """Fields are the paper's hyper-parameters; defaults are its setting (Sec. VI-A)."""

    name: ClassVar[str] = "um_pfssl"
    state: ClassVar[type[MethodState]] = HelperLists
    joins_at: ClassVar[float] = 1

    helper_list_size: Annotated[int, Field(ge=1, le=64)] = PAPER_LIST_SIZE
    """M, models in a site's list, its own included, one of a site at most; 1: no helpers."""
    num_replaced: NonNegative = 2
    """R, helpers up for replacement, below M."""
    search_rounds: NonNegative = 30
    """F: helpers are searched while t < F; t counts from the round in which a site joined."""
    update_every: Count = 10
    """nu: stored helpers are refreshed when t % nu == 0."""
    mc_samples: Count = 10
    """T of Eq. 9, MC-dropout passes; the paper is silent."""
    helper_scope: Literal["all", "sampled"] = "all"
    """Who searches: all sites (final paper) or the cohort (preprint)."""
    corr_variant: CorrVariant = "published"
    """First term of Corr: published (Eq. 14), preprint (its Eq. 13), mutual_information."""
    label_variant: LabelVariant = "published"
    """Whose answer is the pseudo-label: published (Eq. 11), the least uncertain helper's;
    mutual_information, the one's that tells most."""
    metric: Metric = "both"
    """Table III: both terms of Corr, entropy alone (EN) or accuracy alone (TA)."""
    aggregation: bool = True
    """False, an ablation: a site trains its own model on, helpers only label."""
    pseudo_labels: bool = True
    """False, an ablation: helpers are averaged, the site trains on its labelled images alone."""
    recalibrate: bool = False
    """Recompute batch-norm statistics on the site's own images after averaging."""

    def __post_init__(self) -> None:
        if self.num_replaced >= self.helper_list_size:
            rule = "num_replaced must be below helper_list_size"
            raise Contradiction(rule, "helper_list_size", "num_replaced")

    @property
    def called(self) -> str:
        """`um_pfssl_mi_labels` where pseudo-labels are not the published ones (Eq. 11)."""
        return f"{self.name}{'_mi_labels' * (self.label_variant != 'published')}"

    unsupported: ClassVar = {"split.labels": ""}
    """A site may have helpers that have labels: the server is one."""

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """More places than there are sites; the paper's 5 pass anywhere, and count as all sites."""
        found, clients = super().incompatibilities(conditions, why), conditions.split.num_clients
        if self.helper_list_size > max(clients, PAPER_LIST_SIZE):
            rule = f"must be at most split.num_clients = {clients}: a list has one model of a site"
            found.append(Incompatibility("method.helper_list_size", rule))
        return found

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: HelperLists, rnd: Round) -> Phases[HelperLists]:
        """Algorithm 1, one round."""
        if rnd.number == 0:
            yield [rnd.task(site, "warmup") for site in rnd.everybody]
            return state
        peers = Peers(_trained(rnd))
        tasks = []
        for site in rnd.everybody:
            trains = site in rnd.cohort or site == SERVER_SITE
            in_scope = trains or self.helper_scope == "all"
            refreshes = in_scope and rnd.number % self.update_every == 0
            age = rnd.number - rnd.joined.get(site, 0)
            searches = in_scope and age < self.search_rounds
            if not (trains or refreshes or searches):
                continue  # nothing to tell or to ask
            # No longer than asked for, whatever the site listed: it is sent newcomers beside.
            listed = state.helpers.get(site, ())[: self.helper_list_size - 1]
            stored = [helper.model for helper in listed]
            helpers = stored
            if refreshes:
                helpers = self._refreshed(site, stored, rnd, peers)
            newcomers = self._newcomers(site, helpers, rnd, peers, trains, searches)
            if trains or newcomers or helpers != stored:
                action = "train" if trains else SEARCH
                tasks.append(rnd.task(site, action, helpers=helpers, newcomers=newcomers))
        replies = yield tasks
        return state.after(replies)

    def welcome(self, rnd: Round) -> Sequence[Task]:
        """The warm-up of sites that come late."""
        return warm_ups(rnd)

    def _refreshed(
        self, site: int, helpers: list[ModelRef], rnd: Round, peers: Peers
    ) -> list[ModelRef]:
        """UpdateHelper (Alg. 2): the newest version of all helpers but the R lowest.

        Of all, where every peer is listed: nobody can replace the R lowest then, and they would
        stay as they are for ever.
        """
        up_for_replacement = self.num_replaced if _unlisted_peers(site, helpers, peers) else 0
        keep = max(len(helpers) - up_for_replacement, 0)
        return [rnd.pool.latest(ref.site) for ref in helpers[:keep]] + helpers[keep:]

    def _newcomers(
        self,
        site: int,
        helpers: Sequence[ModelRef],
        rnd: Round,
        peers: Peers,
        trains: bool,
        searches: bool,
    ) -> list[ModelRef]:
        """R models to try (Alg. 3, line 7), or more where a list that trains is not full."""
        free = self.helper_list_size - 1 - len(helpers)
        wanted = max(self.num_replaced if searches else 0, free if trains else 0)
        if not wanted:  # a draw takes the time of all peers, and most sites need none
            return []
        others = _unlisted_peers(site, helpers, peers)
        drawn = rnd.stream("newcomers", site).permutation(len(others))[:wanted]
        return [rnd.pool.latest(others[i]) for i in drawn.tolist()]

    def check_reply(self, task: Task, reply: Reply, facts: SiteFacts) -> None:
        """A helper list in its order, without the site itself; nothing new of a search."""
        if task.action == SEARCH:
            check_unchanged(task, reply)
        check_list(task, reply)

    def costs(self, num_clients: int, sample_rate: float, num_rounds: int) -> dict[str, float]:
        """Cost_1 (Eq. 27) and Cost_2 (Eq. 28), in models."""
        bound = cost_bound(
            num_clients=num_clients,
            sample_rate=sample_rate,
            num_rounds=num_rounds,
            helper_list_size=self.helper_list_size,
            num_replaced=self.num_replaced,
            search_rounds=self.search_rounds,
            update_every=self.update_every,
        )
        greedy = cost_greedy(
            num_clients=num_clients, sample_rate=sample_rate, num_rounds=num_rounds
        )
        return {"cost_bound_models": bound, "cost_greedy_models": greedy}

    # --- site -------------------------------------------------------------------------------------

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Do the site's part of Algorithms 1 to 3."""
        if task.action == "warmup":
            return warm_up(task, site)
        helpers = admit(
            self._scored(task.models["helpers"], site),
            self._scored(task.models["newcomers"], site),
            self.helper_list_size - 1,
            self.num_replaced,
        )
        if task.action == SEARCH:
            return SiteReport(helpers=helpers)
        return self._train(task, site, helpers)

    def rank(self, refs: Sequence[ModelRef], site: SiteContext) -> tuple[ScoredRef, ...]:
        """Return models by their relation to a site, most related first, without broken ones."""
        return ranked(self._scored(refs, site))

    def _train(self, task: Task, site: SiteContext, helpers: tuple[ScoredRef, ...]) -> SiteReport:
        """Aggregate, pseudo-label, train (Alg. 1, lines 17 to 23)."""
        data = site.data
        members = list(helpers)
        if task.own.version > 0 or not helpers:  # w_0 knows nothing: no vote beside real helpers
            members = [*self._scored([task.own], site), *members]
        # Every score before the mean is loaded: scoring a model loads it into the same network.
        answers = [self._score(member.model, site).probabilities for member in members]

        mean = self._mean(task, site, members) if self.aggregation else site.contents(task.own)
        assign(site.model, mean)
        if self.recalibrate:
            recalibrate(site.model, torch.cat([data.labelled, data.unlabelled]), site.normalise)
        before = site.evaluate("test")["test"]

        images, targets = data.labelled, site.one_hot(data.labels)
        metrics: dict[str, float] = {}
        pseudo = None
        has_voters = answers and (helpers or task.own.version > 0)
        if self.pseudo_labels and len(data.unlabelled) and has_voters:
            soft, _ = self.pseudo_label(members, answers)
            images = torch.cat([images, data.unlabelled])
            targets = torch.cat([targets, soft.to(targets)])
            pseudo = count_pseudo_labels(soft, data.audit)
            if data.audit is not None:
                wrong, total = data.audit.pseudo_label_errors(soft.argmax(1))
                metrics |= {"pseudo_wrong": wrong, "pseudo_total": total}
        if len(images):
            count, epochs = len(data.labels), site.training.local_epochs
            metrics["loss"] = site.fit(images, targets, count, epochs, task)
        elif not helpers:  # no images to learn from and nobody to ask: the model stays as it was
            return SiteReport()
        evaluations = {"test_before": before, **site.evaluate("val", "test")}
        return SiteReport(
            site.params(),
            learned="loss" in metrics,
            helpers=helpers,
            metrics=metrics,
            evaluations=evaluations,
            pseudo=pseudo,
        )

    def pseudo_label(
        self, members: Sequence[ScoredRef], answers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the soft labels [n_u, C] and whose each is, [n_u]: an index into the members.

        answers: each member's probabilities for the site's unlabelled images, [n_u, C].
        """
        published = self.label_variant == "published"
        return least_uncertain(answers) if published else most_informative(answers)

    def _mean(self, task: Task, site: SiteContext, members: Sequence[ScoredRef]) -> Params:
        """Relation-weighted mean of the members' models (Alg. 1, line 18)."""
        weights = [member.score for member in members]
        if task.own.version == 0 and not any(weights):  # any peer's model is better than w_0
            weights = [1.0] * len(members)
        models = (site.contents(member.model) for member in members)
        return weighted_mean(zip(weights, models, strict=True), site.contents(task.own))

    def _scored(self, refs: Sequence[ModelRef], site: SiteContext) -> list[ScoredRef]:
        """Return the models with their relation Corr(k|j) (Eq. 13); broken ones are left out."""
        scored = []
        for ref in refs:
            score = self._score(ref, site)
            if not score.usable:
                log.warning("the model of site %d answers NaN here; it is left out", ref.site)
                continue
            sure = None
            if len(score.probabilities):
                sure = certainty(score.probabilities, self.corr_variant)
            corr = relation(site.data.mu, sure, score.accuracy, self.metric)
            scored.append(ScoredRef(ref, corr))
        return scored

    def _score(self, ref: ModelRef, site: SiteContext) -> Score:
        """Score a model's content on the site's data, once."""
        data = site.data
        key = ScoreKey(
            model=ref.digest,
            site=data.site,
            data=data.fingerprint,
            passes=self.mc_samples,
            dropout=site.model.dropout.p,
            precision=str(site.model.compute),
            seed=site.seed,
        )

        def compute() -> Score:
            site.load(ref)
            with seeded(site.device, site.seed, "score", data.site, ref.digest):
                uncertain = mc_probabilities(
                    site.model, data.unlabelled, self.mc_samples, site.normalise
                )
            plain = predict(site.model, data.labelled, site.normalise)
            usable = bool(uncertain.isfinite().all() and plain.isfinite().all())
            accuracy = None
            if len(data.labels):
                accuracy = (plain.argmax(1) == data.labels.cpu()).double().mean().item()
            return Score(uncertain, accuracy, usable)

        return site.scores.get_or_make(key.name, compute)


def _trained(rnd: Round) -> Sequence[int]:
    """Return the peers whose model has been trained, ascending; where it learns, the server."""
    peers = rnd.pool.trained()
    if rnd.server_learns and rnd.pool.latest(SERVER_SITE).version:
        return (SERVER_SITE, *peers)
    return peers


def _unlisted_peers(site: int, helpers: Sequence[ModelRef], peers: Peers) -> UnlistedPeers:
    """Return the trained peers that are not on a site's list."""
    return peers.but({site, *(ref.site for ref in helpers)})


METHOD = UmPfssl
