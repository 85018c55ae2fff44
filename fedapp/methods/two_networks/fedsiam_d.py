"""FedSiam-D (Long et al.): of the online network only the layers travel that differ.

A site sends its target, how far each layer of its two networks differs (FSM, Eq. 10), and the
online layers whose FSM reaches the boundary that the server told it. The server puts the site's own
target layers in place of the others, then averages both networks.

- boundary: the (1 - tau)-quantile of all FSM values of the last phi_g rounds. tau = 0: no layer,
  tau = 1: all, which is FedSiam-MT.
- tau(t), the share of layers to send in round t of R, is 0 up to round phi_g; then, at most 1,
  linear (Eq. 11): 2 (1 - mu) R (R - t) / (R - phi_g)^2, or
  rectangle (Eq. 12): (1 - mu) R / (varphi_g - phi_g) before round varphi_g, 0 from there on.
- Up to round phi_g the target is the online network after every step (alpha = 0).

DEVIATION: the paper calls the boundary the tau-quantile; then tau = 0 would send all, against what
it says of Pi and MT. The authors' code has it as here.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass as plain
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.errors import Contradiction, ProtocolError
from fedapp.core.settings import CLOSED, Count, Share
from fedapp.learn.networks.parts import layers_of
from fedapp.learn.params import Params, Schema
from fedapp.methods.averaging.base import aggregate_round, measurements
from fedapp.methods.base import Arrived, MethodState, Phases, Round, Sent, SiteContext, SiteReport
from fedapp.methods.two_networks._siamese import ONLINE, REMEDY, TwoNetworks, require_layers
from fedapp.methods.two_networks._target import divergences
from fedapp.protocol.messages import MODEL, SERVER_SITE, Reply, Task

DIVERGENCE = "divergence"
"""Role of a site's FSM values, a number a layer."""
SHARE, BOUNDARY = "share", "boundary"
"""Numbers sent to sites: tau, and the minimum FSM of a layer to send."""


@plain(frozen=True)
class Divergences(MethodState):
    """The FSM values of the last rounds, one tuple a round, oldest first.

    sent, whole: how many of the online networks' numbers sites sent so far, and of how many.
    """

    rounds: tuple[tuple[float, ...], ...] = ()
    sent: int = 0
    whole: int = 0

    def in_summary(self) -> dict[str, float]:
        """The share of the online networks that was sent after the warm-up."""
        return {"sent_online_share": self.sent / self.whole} if self.whole else {}


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FedSiamD(TwoNetworks):
    """When how much of the online network is sent."""

    name: ClassVar[str] = "fedsiam_d"
    state: ClassVar[type[MethodState]] = Divergences

    curve: Literal["linear", "rectangle"] = "linear"
    """How the share of layers to send goes by rounds: Eq. 11 or Eq. 12."""
    saved_share: Share = 0.5
    """mu: share of the online network that is not sent, in the mean over rounds."""
    calm_rounds: Count = 3
    """phi_g: rounds before any online layer is sent; and rounds whose FSM the boundary comes of."""
    end_round: Count = 40
    """varphi_g: from this round on the rectangle sends no online layer."""

    def __post_init__(self) -> None:
        if self.curve == "rectangle" and self.end_round <= self.calm_rounds:
            rule = "end_round must be above calm_rounds: between them layers are sent"
            raise Contradiction(rule, "calm_rounds", "end_round")

    def share(self, number: int, last: int) -> float:
        """Return tau in round `number` of `last`, in [0, 1]."""
        start, end, kept = self.calm_rounds, self.end_round, 1 - self.saved_share
        if number <= start:
            return 0.0
        if self.curve == "linear":
            return min(2 * kept * last * (last - number) / (last - start) ** 2, 1.0)
        return min(kept * last / (end - start), 1.0) if number < end else 0.0

    def costs(self, num_clients: int, sample_rate: float, num_rounds: int) -> dict[str, float]:
        """The share of online networks that is to be sent: the mean of tau over the rounds."""
        shares = [self.share(number, num_rounds) for number in range(1, num_rounds + 1)]
        return {"planned_online_share": float(np.mean(shares))} if shares else {}

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """The online network, and a number for each layer."""
        numbers = {layer: ((), torch.float32) for layer in layers_of(model.state_dict())}
        return {**super().roles(model), DIVERGENCE: numbers}

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Tell the boundary, average both networks, take note of the FSM values."""
        assert isinstance(state, Divergences)
        found: list[float] = []
        sent, whole = state.sent, state.whole
        tau = self.share(rnd.number, rnd.last)
        numbers = {SHARE: tau, BOUNDARY: boundary(state.rounds, tau)}

        def on_replies(replies: Sequence[Reply]) -> None:
            nonlocal sent, whole
            sizes = sizes_of(rnd.pool.read(rnd.pool.common(ONLINE)))
            for reply in replies:
                if DIVERGENCE in reply.contents:
                    tensors = rnd.pool.read(rnd.pool.latest(reply.site, DIVERGENCE))
                    values = {layer: tensors[layer].item() for layer in sorted(tensors)}
                    found.extend(values.values())
                    sent += sum(sizes[layer] for layer in layers_to_send(numbers, values))
                    whole += sum(sizes.values())

        yield from aggregate_round(rnd, self.weight, numbers, self.extra_roles, on_replies)
        yield measurements(rnd, self.extra_roles)
        if not found:
            return state
        return Divergences((*state.rounds, tuple(found))[-self.calm_rounds :], sent, whole)

    def check_layers(self, task: Task, reply: Reply, arrived: Mapping[str, Arrived]) -> None:
        """Check the FSM values, and that just the layers came that were asked for by them.

        Raises ProtocolError.
        """
        if self.sends_whole(task):
            super().check_layers(task, reply, arrived)
            return
        if DIVERGENCE not in arrived:
            raise ProtocolError(f"learned, but sent no {DIVERGENCE}; {REMEDY}")
        values = {n: t.item() for n, t in arrived[DIVERGENCE].whole.items()}
        for layer, value in values.items():
            if not 0 <= value < math.inf:
                raise ProtocolError(
                    f"{DIVERGENCE} of {layer} = {value:g}: must be finite and at least 0; {REMEDY}"
                )
        require_layers(arrived[ONLINE], layers_to_send(task.numbers, values))
        if MODEL in arrived:  # else it is the site's last one over again
            check_divergences(arrived[MODEL].whole, arrived[ONLINE], values)

    def sends_whole(self, task: Task) -> bool:
        """Whether nothing is to be spared: one network, which is both, or the server's own two.

        As long as no layer is asked of the sites, the server's two are one as well.
        """
        return self.by_labels(task) or (task.site == SERVER_SITE and task.numbers[SHARE] > 0)

    # --- site -------------------------------------------------------------------------------------

    def decay_in(self, round_number: int) -> float:
        """Return 0 in the first rounds: the target is the online network after every step."""
        return 0.0 if round_number <= self.calm_rounds else self.largest_decay

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train both networks; send of the online one what is asked."""
        report = super().site_round(task, site)
        if report.params is None or self.sends_whole(task):
            return report
        online, weights = report.contents[ONLINE], dict(site.model.named_parameters())
        values = divergences(report.params, online, weights)
        chosen = layers_to_send(
            task.numbers, {layer: value.item() for layer, value in values.items()}
        )
        layers = layers_of(online)
        names = frozenset(name for layer in chosen for name in layers[layer])
        if not names:  # an equal content is sent once
            online = report.params
        sent = {ONLINE: Sent(names, None)} if 0 < len(chosen) < len(layers) else {}
        return replace(report, contents={ONLINE: online, DIVERGENCE: values}, sent=sent)


def boundary(rounds: Sequence[Sequence[float]], tau: float) -> float:
    """Return the (1 - tau)-quantile of all FSM values, between two of them linear; 0 of none."""
    values = [value for found in rounds for value in found]
    return float(np.quantile(values, 1 - tau)) if values else 0.0


def layers_to_send(numbers: Mapping[str, float], values: Mapping[str, float]) -> Collection[str]:
    """Return the layers that a site must send, by its FSM values and the numbers of its task.

    A layer that does not differ at all is never sent, since the server has it.
    """
    tau, least = numbers[SHARE], numbers[BOUNDARY]
    if tau <= 0:
        return ()
    return [n for n, value in values.items() if value > 0 and (tau >= 1 or value >= least)]


def sizes_of(params: Params) -> dict[str, int]:
    """Return how many numbers each layer has."""
    layers = layers_of(params)
    return {n: sum(params[name].numel() for name in names) for n, names in layers.items()}


def check_divergences(target: Params, online: Arrived, values: Mapping[str, float]) -> None:
    """Check that no FSM value is far larger than the difference of the layers that arrived.

    Such a value would raise the boundary for all sites. Only layers with nothing but weight and
    bias are checked, since the server does not know which other tensors are statistics. Rounding to
    float16 changes a difference by less than the tolerance, a factor of 2 and 0.1. Raises
    ProtocolError.
    """
    known = {
        name: online.whole[name]
        for names in layers_of(online.came).values()
        for name in names
        if {other.rpartition(".")[2] for other in names} <= {"weight", "bias"}
    }
    for layer, found in divergences(target, known, known).items():
        if values[layer] > 2 * found.item() + 0.1:
            raise ProtocolError(
                f"{DIVERGENCE} of {layer} = {values[layer]:g}, but its two networks differ by "
                f"{found.item():.3g} there; {REMEDY}"
            )


METHOD = FedSiamD
