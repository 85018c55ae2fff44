"""What a server that follows the rules learns of single images from a site's sums, and what a site
does not send to one that breaks them."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import one_hot

from fedapp.core.errors import ConfigError, ProtocolError
from fedapp.data.inputs import normalise
from fedapp.experiment.config import load_experiment
from fedapp.learn.class_priors import site_mix
from fedapp.learn.features import build_features
from fedapp.learn.params import load
from fedapp.methods.closed_form._contents import (
    COUNT,
    GRADIENT,
    GUESS,
    HEAD,
    OTHERS,
    REGRESS,
    RELEASE,
    SOLUTION,
    Solution,
    head_of,
)
from fedapp.methods.closed_form._discriminant import Guesses, Sums
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.methods.recommended.prior_shift import PriorShift
from tests.methods.conformance import Deal, Played, play, site_data, toy

FEW = (Deal(10, 0, 12), *[Deal(6, 0, 12)] * 3)
"""Four sites with a few labelled images."""
FOUND = 0.99
"""Cosine from which on a vector counts as an image's features."""


class Server:
    """What the server holds after a run: all that came to it and all that it sent."""

    def __init__(self, played: Played) -> None:
        self.held: dict[str, bytes] = {}
        for exchange in played.seen:
            self.held |= exchange.down | exchange.incoming.payloads
        self.played = played

    def sent(self, action: str) -> list[Mapping[str, Tensor]]:
        """What the first site sent for tasks of this kind, in their order."""
        asked = [e for e in self.played.of(0, action) if e.task.site == 0]
        return [load(self.held[ref]) for e in asked for ref in e.reply.contents.values()]

    def named(self, action: str, role: str) -> list[Mapping[str, Tensor]]:
        """The contents of a role in its tasks of this kind to the first site."""
        asked = [e.task for e in self.played.of(0, action) if e.task.site == 0]
        return [load(self.held[task.models[role][0].digest]) for task in asked]


def features_of(played: Played, part: str) -> Tensor:
    data = site_data(played.experiment, 0)
    inputs = normalise(data.parts[part].inputs, data.mean, data.std)
    return build_features("hog", (1, 8, 8)).of(inputs).double()


def span(sums: Sums, images: int) -> Tensor:
    """[n, d], such that the features are a rotation of it: all that a second moment tells."""
    values, vectors = torch.linalg.eigh(sums.second)
    return (vectors[:, -images:] * values[-images:].clamp_min(0).sqrt()).T


def solved(basis: Tensor, misfit: Callable[[Tensor], Tensor], tries: int = 20) -> Tensor:
    """The features [n, d] whose coordinates fit best what was sent, of some random starts."""
    draw, best = torch.Generator().manual_seed(0), (torch.inf, basis)
    for _ in range(tries):
        if best[0] < 1e-9:
            break
        start = torch.linalg.qr(torch.randn(len(basis), len(basis), generator=draw).double())[0]
        turned = start.contiguous().requires_grad_()
        turned.register_hook(torch.Tensor.contiguous)
        steps = torch.optim.LBFGS(
            [turned], max_iter=2000, history_size=50, tolerance_grad=1e-9,
            tolerance_change=1e-12, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure(turned=turned, steps=steps) -> Tensor:
            steps.zero_grad()
            loss = (turned @ turned.T - torch.eye(len(turned))).square().sum() + misfit(turned)
            loss.backward()
            return loss

        steps.step(closure)
        left = closure().detach().item()
        best = min(best, (left, turned.detach() @ basis), key=lambda one: one[0])
    return best[1]


def found(guessed: Tensor, true: Tensor) -> int:
    """How many images' features are among the guessed vectors."""
    cosine = torch.nn.functional.normalize(guessed) @ torch.nn.functional.normalize(true).T
    return int((cosine[linear_sum_assignment(-cosine)] > FOUND).sum())


@pytest.mark.parametrize("looks", [0, 1])
def test_one_gradient_tells_all_of_a_few_labelled_images(tmp_path, looks):
    """Beside the sums, which tell an image that is alone in its class, and else only their span."""
    method = OneRound(guesses=0, regression_steps=3)
    server = Server(play(toy(method, tmp_path, FEW, rounds__num_rounds=1)))
    [sums] = [Sums.from_params(params) for params in server.sent(COUNT)]
    counts, basis = sums.counts.long(), span(sums, FEW[0].labelled)
    labels = one_hot(torch.repeat_interleave(torch.arange(10), counts), 10).double()
    back = torch.linalg.pinv(basis)
    prior = Solution.from_params(server.named(REGRESS, SOLUTION)[0]).prior
    mix = site_mix(sums.counts, torch.empty(0, 10), prior).log()
    heads = [head_of(params) for params in server.named(REGRESS, HEAD)[:looks]]
    seen = [(basis @ weight.T.double(), bias.double() + mix) for weight, bias in heads]
    gradients = [
        params[GRADIENT].double().view(10, -1)[:, :-1] @ back
        for params in server.sent(REGRESS)[:looks]
    ]
    by_class = sums.by_class @ back

    def misfit(turned: Tensor) -> Tensor:
        loss = (labels.T @ turned - by_class).square().sum()
        for (weight, bias), gradient in zip(seen, gradients, strict=True):
            wrong = torch.softmax(turned @ weight + bias, 1) - labels
            loss = loss + ((wrong.T @ turned - gradient) / gradient.norm()).square().sum()
        return loss

    true = features_of(server.played, "labelled")
    told = found(solved(basis, misfit), true)
    assert told == len(true) if looks else (counts == 1).sum() <= told < len(true) / 2


def test_guesses_tell_all_of_a_few_unlabelled_images(tmp_path):
    """Where labels are few, so that their second moment leaves the site too."""
    method = OneRound(guesses=1, answer="common")
    deals = (Deal(4, 5, 12), *FEW[1:])
    server = Server(play(toy(method, tmp_path, deals, rounds__num_rounds=1)))
    labelled, others = (Sums.from_params(params) for params in server.sent(COUNT))
    [guesses] = [Guesses.from_params(params) for params in server.sent(GUESS)]
    basis = span(others, 5)
    back = torch.linalg.pinv(basis)
    solution = Solution.from_params(server.named(GUESS, SOLUTION)[0])
    weight, bias = basis @ solution.weight.T.double(), solution.bias.double()
    by_class = guesses.by_class @ back

    def misfit(turned: Tensor) -> Tensor:
        logits = turned @ weight + bias
        answers = torch.softmax(logits.detach(), 1)
        mix = site_mix(labelled.counts, answers, solution.prior).log()
        answers = torch.softmax(logits + mix, 1)
        loss = (answers.sum(0) - guesses.counts).square().sum()
        return loss + (answers.T @ turned - by_class).square().sum()

    true = features_of(server.played, "unlabelled")
    assert found(solved(basis, misfit), true) == len(true)


def test_a_server_that_breaks_the_rules_reads_one_of_many_images_from_guesses(tmp_path):
    """It asks for the sum over images whose first feature is above a bound, until there is one.

    Nothing stops it but an epsilon, or no guesses: SECURITY.md says so.
    """
    method = OneRound(guesses=1, answer="common")
    deals = (Deal(20, 200, 12), *FEW[1:])
    played = play(toy(method, tmp_path, deals, rounds__num_rounds=1))
    task, site = played.at_the_end(0)
    [ref] = task.models[SOLUTION]
    honest = Solution.from_params(site.contents(ref))
    low, high, questions = -1.0, 1.0, 0
    counts = guesses = torch.zeros(10)
    while round(counts[0].item()) != 1 and questions < 30:
        bound, questions = (low + high) / 2, questions + 1
        weight, bias = torch.zeros_like(honest.weight), torch.full_like(honest.bias, -1e6)
        weight[0, 0], bias[0], bias[1] = 1e6, -1e6 * bound, 0.0
        made = replace(honest, weight=weight, bias=bias, own_weight=0.0).to_params()
        lie = replace(ref, digest=f"{questions:064d}")
        there = replace(site, contents=lambda of, lie=lie, made=made: (
            made if of == lie else site.contents(of)
        ))  # fmt: skip
        asked = replace(task, action=GUESS, models={**task.models, SOLUTION: (lie,)})
        [sent] = method.site_round(asked, there).contents.values()
        found = Guesses.from_params(sent)
        counts, guesses = found.counts, found.by_class[0]
        low, high = (bound, high) if counts[0] > 1 else (low, bound)
    assert questions <= 10
    assert (features_of(played, "unlabelled") - guesses).norm(dim=1).min() < 1e-5


@pytest.mark.parametrize(("asked", "setting"), [
    ((GUESS, {}), "method.guesses"), ((COUNT, {OTHERS: 1.0}), "method.guesses"),
    ((REGRESS, {}), "method.regression_steps"), ((RELEASE, {}), "privacy.epsilon"),
])  # fmt: skip
@pytest.mark.parametrize("method", [
    OneRound(guesses=0), PriorShift(closed="hog", guesses=0, alone=False, answer="common"),
], ids=["one_round", "recommended"])  # fmt: skip
def test_a_site_sends_nothing_that_the_runs_settings_keep_at_home(tmp_path, method, asked, setting):
    played = play(toy(method, tmp_path, (Deal(9, 5), Deal(9, 5)), rounds__num_rounds=1))
    task, site = played.at_the_end(0)
    action, numbers = asked
    with pytest.raises(ProtocolError, match=rf"this run has {setting}=0"):
        method.site_round(replace(task, action=action, numbers=numbers), site)


@pytest.mark.parametrize("preset", ["one_round", "recommended"])
def test_gradients_of_own_images_are_masked(preset):
    settings = {"method.preset": preset, "method.regression_steps": 12}
    with pytest.raises(ConfigError, match=r"single images; set 0, or privacy\.sums=masked"):
        load_experiment("own_data", settings)
    load_experiment("own_data", {**settings, "privacy.sums": "masked"})
    load_experiment("digits_demo", settings)
