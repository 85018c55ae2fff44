"""A site's side of the closed form: it computes sums, votes, and answers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.core.rng import numpy_stream
from fedapp.data.sites import LABELLED, TEST, UNLABELLED, VAL
from fedapp.learn.class_priors import class_mix, reweighted, same_class_pair_sums, site_mix
from fedapp.learn.features import FeatureMap, LearnedFeatures
from fedapp.learn.linear_head import FeatureHead, Head, answers_from_features, compute_features
from fedapp.learn.params import Params
from fedapp.learn.predictors import Predictor
from fedapp.learn.uncertainty import scoring_batches
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.methods.closed_form._contents import (
    COUNT,
    FILTERS,
    GRADIENT,
    GRID,
    GUESS,
    HEAD,
    LEARN,
    LOGLIK,
    MIDDLE,
    MIN_LOGLIK,
    MIX_METRICS,
    OF_OTHERS,
    REGRESS,
    RELEASE,
    SOLUTION,
    STEP,
    TEMPERATURES,
    TOTALS,
    VOTERS,
    Solution,
    form_of,
    grid_heads,
    head_of,
    own_weights,
    role_asked_for,
)
from fedapp.methods.closed_form._discriminant import Guesses, Sums, raise_unseen_logits
from fedapp.methods.closed_form._features import FROZEN, Coordinates, features_for
from fedapp.methods.closed_form._protected import Released, chosen_at_home, clipped_rows, first_row
from fedapp.methods.closed_form._regression import gradient_of
from fedapp.methods.closed_form._rounded import DIRECTIONS
from fedapp.protocol.messages import Evaluation, Task

_LAST_SOLUTION: dict[str, Solution] = {}
"""The solution that this process read last, by digest: all its sites ask for the same."""


@dataclass(frozen=True, eq=False)
class ClosedSite:
    """A site's side of the closed form.

    name: of the features. map: computes them, on the site's device. made: identifies what they
    depend on. own_mix: whether answers are multiplied by the site's class mix. coordinates: of the
    heads where single images are protected; None: heads are over features.
    """

    site: SiteContext
    name: str
    map: FeatureMap
    made: str
    own_mix: bool
    coordinates: Coordinates | None

    @classmethod
    def of(cls, name: str, task: Task, site: SiteContext, own_mix: bool = True) -> "ClosedSite":
        """Return it for features of this name, with the filters that the task names."""
        filters = task.models.get(FILTERS, ())
        if name == FROZEN:
            site.load(filters[0])  # and not the site's own model, which learns
        features = features_for(name, site.model)
        if filters and name != FROZEN:
            features.load_state_dict(site.contents(filters[0]))
        made = name + "".join(ref.digest for ref in filters)
        coordinates = None
        if site.protection is not None:
            coordinates = Coordinates.made(features, site.data, site.seed, made)
        return cls(site, name, features, made, own_mix, coordinates)

    def answer(self, task: Task) -> SiteReport:
        """Do a task of the closed form."""
        metrics: dict[str, float] = {}
        if task.action == LEARN:
            found = self.patches(int(task.numbers[STEP]))
        elif task.action == COUNT:
            role = role_asked_for(task)
            sums = self.others() if role in OF_OTHERS else self.sums()
            found = sums.to_params(**form_of(role))
            if task.sum is not None and len(sums.counts):  # else the server has each site's counts
                metrics = dict(
                    zip(MIX_METRICS, same_class_pair_sums(label_counts(self.site)), strict=True)
                )
        elif task.action == GUESS:
            found = self.guesses(task).to_params()
        elif task.action == REGRESS:
            found = self.gradient(task) | self._voters()
        elif task.action == RELEASE:
            found = self.released(task)
        else:
            found = self.votes(task) | self._voters()
        return SiteReport(contents={role_asked_for(task): found}, metrics=metrics)

    def patches(self, step: int) -> Params:
        """Return the sums of patches over all the site's training images."""
        assert isinstance(self.map, LearnedFeatures)
        found: Params = {}
        for images in self.site.data.training:
            for batch in scoring_batches(images):
                more = self.map.sums(step, self.site.normalise(batch))
                found = {name: of + found.get(name, 0) for name, of in more.items()}
        return {name: of.cpu() for name, of in found.items()}

    def sums(self) -> Sums:
        """Return the sums over the site's labelled images."""
        return Sums.of(self.features(LABELLED), self.site.data.labels, self.site.data.num_classes)

    def others(self) -> Sums:
        """Return the sums over the site's unlabelled images."""
        features = self.features(UNLABELLED)
        return Sums.of(features, torch.full((len(features),), -1), 0)

    def released(self, task: Task) -> Params:
        """Return the row that a task asks for, before noise is added (`_protected`)."""
        data, middle, role = self.site.data, None, role_asked_for(task)
        if role != TOTALS:
            middle = self.site.contents(task.models[MIDDLE][0])[MIDDLE]
        both = map(self.features, (LABELLED, UNLABELLED))
        known, others = (clipped_rows(features, middle) for features in both)
        patients = None
        if data.by_patient and len(known) + len(others):
            there = [part for part in (LABELLED, UNLABELLED) if len(data.parts[part])]
            patients = torch.cat([data.patients[part] for part in there])
        if role == TOTALS:
            return first_row(torch.cat([known, others]), patients)
        labels = data.labels.cpu()
        return Released.of(known, labels, data.num_classes, others, patients).to_params()

    def guesses(self, task: Task) -> Guesses:
        """Return the sums over unlabelled images, by the classes that the site's head predicts."""
        answers, mix = self._unlabelled(task)
        return Guesses.of(self.features(UNLABELLED).cpu(), reweighted(answers, mix))

    def votes(self, task: Task) -> Params:
        """Return the log-likelihood of the deciding validation labels under each candidate."""
        return {LOGLIK: self._loglik(self.candidates(task))}

    def _loglik(self, heads: Iterable[Head]) -> Tensor:
        """Return the log-likelihood of the deciding validation labels under N heads, [N]."""
        chosen = deciding_images(self.site)
        labels = self.site.data.val_labels.cpu()[chosen]
        seen = self.features(VAL).cpu()[chosen].double()
        mix, rows = self.mix_alone().log(), torch.arange(len(labels))
        loglik = []
        for weight, bias in heads:
            logits = raise_unseen_logits(seen @ weight.double().T + bias.double())
            logs = torch.log_softmax(logits + mix, dim=1)
            loglik.append(logs[rows, labels].clamp_min(MIN_LOGLIK).sum())
        return torch.stack(loglik).float()

    def gradient(self, task: Task) -> Params:
        """Return the gradient at the head that a task names, and the votes on it.

        The gradient is at the common head, times the site's class mix; the votes are on the head
        that the site would use.
        """
        weight, bias = head_of(self.site.contents(task.models[HEAD][0]))
        mix = self.site.cache.get_or_make("mix", lambda: self.mix(task), of=self._of(task))
        own, common = self.head(task), self.shared(task).common
        used = weight + (own[0] - common[0]), bias + (own[1] - common[1])
        found = gradient_of(*self.known(), (weight, bias), mix).flatten().float()
        return {GRADIENT: found, LOGLIK: self._loglik([used])}

    def _voters(self) -> Params:
        """Return the number of images that vote."""
        return {VOTERS: torch.tensor([float(len(deciding_images(self.site)))])}

    def candidates(self, task: Task) -> Iterator[Head]:
        """Yield a head for every lambda and temperature of the grid that a task names.

        If the task names a solution instead: for every weight of the site's own labelled images.
        """
        if GRID in task.models:
            heads = zip(*grid_heads(self.site.contents(task.models[GRID][0])), strict=True)
            yield from ((weight / t, bias / t) for weight, bias in heads for t in TEMPERATURES)
        else:
            solution, known = self.solution(task), self.known()
            yield from (solution.head(*known, weight) for weight in own_weights(self.map))

    def shared(self, task: Task) -> Solution:
        """Return the solution that a task names, as the server made it."""
        both = [ref for role in (SOLUTION, DIRECTIONS) for ref in task.models.get(role, ())]
        key = " ".join(ref.digest for ref in both)
        if key not in _LAST_SOLUTION:
            _LAST_SOLUTION.clear()
            _LAST_SOLUTION[key] = Solution.from_params(*map(self.site.contents, both))
        return _LAST_SOLUTION[key]

    def solution(self, task: Task) -> Solution:
        """Return the solution that a task names, as the site uses it."""
        found = self.shared(task)
        return found if self.site.protection is None else self._at_home(found, task)

    def _at_home(self, solution: Solution, task: Task) -> Solution:
        """Return the solution with the site's own temperature and weight of own images.

        They are chosen once for a solution, by labels without noise.
        """

        def chosen_here() -> Tensor:
            chosen = deciding_images(self.site)
            seen = self.features(VAL).cpu()[chosen], self.site.data.val_labels.cpu()[chosen]
            return chosen_at_home(solution, self.known(), seen, self.mix_alone())

        found = self.site.cache.get_or_make("chosen at home", chosen_here, of=self._of(task))
        temperature, own = found.tolist()
        return solution.tempered(temperature, own)

    def _of(self, task: Task) -> str:
        """Return what identifies results that depend on the features and the solution."""
        return self.made + task.models[SOLUTION][0].digest

    def known(self) -> tuple[Tensor, Tensor]:
        """Return the features of the labelled images, [n, d], and the labels, on the CPU."""
        return self.features(LABELLED).cpu(), self.site.data.labels.cpu()

    def head(self, task: Task) -> Head:
        """Return the site's own head, in which its labelled images count more as the solution says.

        It is computed once for a solution.
        """

        def solved() -> Head:
            solution = self.solution(task)
            return solution.head(*self.known(), solution.own_weight)

        found: Head = self.site.cache.get_or_make("head", solved, of=self._of(task))
        return found

    def mix(self, task: Task) -> Tensor:
        """Return the site's class mix, which also uses its head's answers to unlabelled images."""
        return self._unlabelled(task)[1]

    def _unlabelled(self, task: Task) -> tuple[Tensor, Tensor]:
        """Return the site's head's answers to the unlabelled images [n, C], and the class mix.

        The own head is used because the common one may answer badly where images differ by site.
        """
        finds = self.site.data.finds
        [answers] = answers_from_features(self.head(task), [self.features(UNLABELLED)], finds)
        return answers, site_mix(label_counts(self.site), answers, self.solution(task).prior)

    def mix_alone(self) -> Tensor:
        """Return the class mix according to the site's labels only."""
        return class_mix(label_counts(self.site), torch.empty(0, self.site.data.num_classes))

    def every(self, task: Task) -> dict[str, tuple[Head, Tensor]]:
        """Return, for each answer that the site has, its head and the class mix that multiplies it.

        "alone": from the site's own labelled images; absent at a site without any.
        """
        solution, labels = self.solution(task), self.site.data.labels
        mix, labels_mix = self.mix(task), self.mix_alone()
        if not self.own_mix:
            mix = labels_mix = torch.full_like(mix, 1 / mix.shape[-1])
        found = {"common": (self.shared(task).common, mix), "tuned": (self.head(task), mix)}
        if len(labels):
            found["alone"] = solution.alone(*self.known()), labels_mix
        return found

    def measured(self, task: Task, names: Mapping[str, str]) -> dict[str, Evaluation]:
        """Evaluate answers of `every` on both parts. names: the name of each in the results."""
        found, results = self.every(task), {}
        sets = [self.features(part) for part in (VAL, TEST)]
        for answer, name in names.items():
            if answer not in found:
                continue
            head, mix = found[answer]
            plain = answers_from_features(head, sets, self.site.data.finds)
            for part, said in zip((VAL, TEST), plain, strict=True):
                labels = self.site.labelled_part(part)[1]
                answers = reweighted(said, mix).float()
                results[f"{part}_{name}"] = self.site.evaluation(answers, labels)
        return results

    def predictor(self, answer: str, task: Task) -> Predictor:
        """Return the predictor of an answer of `every`."""
        head, mix = self.every(task)[answer]
        if self.coordinates is not None:
            head = self.coordinates.over_features(head)
        form = FeatureHead(self.name)
        return Predictor(form.params(head, self.map), 1.0, mix, form=form)

    def features(self, part: str) -> Tensor:
        """Return the features of a part's images, float32 [n, d], on the site's device.

        Where single images are protected, their coordinates.
        """

        def made() -> Tensor:
            seen = compute_features(
                self.map, self.site.data.parts[part].inputs, self.site.normalise
            )
            return seen if self.coordinates is None else self.coordinates.seen(seen)

        found: Tensor = self.site.cache.get_or_make(("features", self.made, part), made)
        return found


def label_counts(site: SiteContext) -> Tensor:
    """Return the numbers of labelled images of each class, [C].

    For findings: without and with each, [F, 2]; an image in which it was not read counts in
    neither.
    """
    if site.data.finds:
        labels = site.data.labels.cpu()
        return torch.stack([(labels == 0).sum(0), (labels == 1).sum(0)], 1)
    return torch.bincount(site.data.labels.cpu(), minlength=site.data.num_classes)


def samples_of(answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return answers and labels as samples of classes: [N, C], labels [N], group [N].

    An image is a sample, all in one group. For findings, with answers and labels [n, F], each
    finding that was read is a sample of two classes; its group is the finding.
    """
    if labels.ndim == 1:
        return answers, labels, torch.zeros_like(labels)
    image, of = (labels >= 0).nonzero(as_tuple=True)
    there = answers[image, of]
    return torch.stack([1 - there, there], 1), labels[image, of], of


def deciding_images(site: SiteContext) -> Tensor:
    """Return the validation images whose labels may be used for a decision, int64 [n].

    At a real site these are all: the site labelled them. In a simulation all have labels for
    evaluation, but a site may use only as large a share of them as it has labels of its training
    images. Which ones depends on the site's name, if it has one, and not on its number: so they are
    the same whoever else takes part.
    """
    count = len(site.data.val_labels)
    if site.data.audit is None:
        return torch.arange(count)
    whose = site.data.name or site.data.site
    order = numpy_stream(site.seed, "deciding", whose).permutation(count)
    return torch.from_numpy(order[: round(site.data.mu * count)])
