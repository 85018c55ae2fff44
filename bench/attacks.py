"""Hostile sites, simulated for benchmarks: what they upload, and the labels they learn from.

w is the model that a hostile site trained, and w_0 the model that it started from, which the server
knows: the server's own or, with UM-pFSSL, the site's last one. The change is w - w_0.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from safetensors.torch import load
from torch import Tensor

from bench.runs import Through
from fedapp.core.rng import torch_stream
from fedapp.data.sites import Part, SiteData
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.protocol.messages import Incoming, Outgoing, Reply, Task
from fedapp.server.phases import Fetch
from fedapp.site.federation import LoadedSites, Sites

NOBODY = "nobody"
ATTACKS = {
    "sign": "the change's sign is turned",
    "random": "each tensor's numbers are put in random order",
    "scaled": "the change is 10 times as long",
    "x1e3": "1e3 times as long",
    "x1e6": "1e6 times as long",
    "x1e30": "1e30 times as long",
    "labels": "learns from labels c -> C - 1 - c",
    "one_class": "20 is added to the first class's bias",
    "old": "always the first model that it trained",
}
FACTORS = {"sign": -1.0, "scaled": 10.0, "x1e3": 1e3, "x1e6": 1e6, "x1e30": 1e30}
BIAS = 20.0


@dataclass
class Hostile(Through):
    """A carrier that changes the uploads of some sites in such a way that every check passes.

    A reply names the digest of the changed model, as a hostile program would. The site's facts and
    its evaluations stay true.
    """

    sites: Collection[int]
    attack: str
    seed: int
    accuracies: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    """Accuracies in [0, 1] by round, site and part of the images, from all replies."""
    _first: dict[int, Params] = field(default_factory=dict)

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterator[tuple[int, Incoming]]:
        """Carry the tasks and answers; change the uploads of hostile sites."""
        tasks = {outgoing.task.site: outgoing.task for outgoing in outbox}
        for asked, incoming in self.carrier.exchange(outbox, fetch, deadline_s):
            reply = incoming.answer
            if isinstance(reply, Reply):
                self._note(reply)
            if isinstance(reply, Reply) and self._attacks(reply, incoming):
                yield asked, self._changed(tasks[reply.site], reply, incoming, fetch)
            else:
                yield asked, incoming

    def _note(self, reply: Reply) -> None:
        found = {part: result.accuracy for part, result in reply.with_repeats().evaluations.items()}
        known = {part: accuracy for part, accuracy in found.items() if accuracy is not None}
        self.accuracies.setdefault(reply.round, {}).setdefault(reply.site, {}).update(known)

    def _changed(self, task: Task, reply: Reply, incoming: Incoming, fetch: Fetch) -> Incoming:
        known = task.models["server"][0] if "server" in task.models else task.own
        trained = load(incoming.payloads[reply.model])
        blob = to_bytes(self.upload(task, trained, load(fetch(known.digest))))
        digest = digest_of(blob)
        held = tuple(sorted({*reply.held, digest} - {reply.model}))
        others = {d: content for d, content in incoming.payloads.items() if d != reply.model}
        return replace(
            incoming,
            answer=replace(reply, model=digest, held=held),
            payloads={**others, digest: blob},
        )

    def _attacks(self, reply: Reply, incoming: Incoming) -> bool:
        """Return whether a hostile site sends a model; other contents, such as sums, stay true."""
        return reply.site in self.sites and reply.model in incoming.payloads

    def upload(self, task: Task, trained: Params, known: Params) -> Params:
        """Return what the site uploads in the place of what it trained."""
        if factor := FACTORS.get(self.attack):
            return _moved(trained, known, factor)
        if self.attack == "random":
            draws = torch_stream(self.seed, "hostile", task.when, task.site)
            return {name: _shuffled(tensor, draws) for name, tensor in trained.items()}
        if self.attack == "one_class":
            bias = trained["head.bias"].clone()
            bias[0] += BIAS
            return {**trained, "head.bias": bias}
        return self._first.setdefault(task.site, trained) if self.attack == "old" else trained


def _moved(trained: Params, known: Params, factor: float) -> Params:
    """Return w_0 + factor (w - w_0) of the weights.

    Statistics of batch norm stay, because a variance could become negative.
    """
    return {
        name: tensor
        if "running_" in name or not tensor.is_floating_point()
        else known[name] + factor * (tensor - known[name])
        for name, tensor in trained.items()
    }


def _shuffled(tensor: Tensor, draws: torch.Generator) -> Tensor:
    return tensor.flatten()[torch.randperm(tensor.numel(), generator=draws)].reshape(tensor.shape)


@dataclass(frozen=True)
class Mislabelled:
    """Sites of which some have wrong labels for training and validation: C - 1 - c instead of c."""

    dealt: Sites
    sites: Collection[int]
    _made: dict[int, SiteData] = field(default_factory=dict)

    def site(self, k: int) -> SiteData:
        """Return the data of site k; the same value each time."""
        if k not in self.sites:
            return self.dealt.site(k)
        if k not in self._made:
            true = self.dealt.site(k)
            last = true.num_classes - 1
            self._made[k] = true.with_parts(
                labelled=Part(true.labelled, last - true.labels),
                val=Part(true.val, last - true.val_labels),
            )
        return self._made[k]


def mislabelled(federation: LoadedSites, sites: Collection[int]) -> LoadedSites:
    """Return the federation with wrong labels at these sites."""
    return replace(federation, dealt=Mislabelled(federation.dealt, sites))
