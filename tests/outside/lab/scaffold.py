"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): gradients without a site's drift.

y <- y - eta (g(y) - c_i + c), K steps from x;  c_i+ = c_i - c + (x - y) / (K eta);
x <- x + mean over the cohort of (y - x);  c <- c + 1 / N sum over the cohort of (c_i+ - c_i).
It begins after the warm-up, with all c = 0. c_i stays at the site; what is sent is c_i+ - c_i.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedapp.core.errors import RunError
from fedapp.core.settings import CLOSED
from fedapp.learn.params import schema_of
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import FromLabelled, aggregate_round, measurements
from fedapp.methods.base import SiteReport
from fedapp.protocol.messages import SERVER_SITE

CONTROL = "control"


@dataclass(frozen=True, config=CLOSED)
class Scaffold(FromLabelled):
    name: ClassVar[str] = "lab.scaffold:Scaffold"

    def memory(self, model, w_0):  # c_i, at home
        return {name: torch.zeros_like(w_0[name]) for name, _ in model.named_parameters()}

    def roles(self, model):  # what travels beside the model
        return {CONTROL: schema_of({name: w.detach() for name, w in model.named_parameters()})}

    def weight(self, facts, reply):  # a plain mean
        return 1.0

    def server_round(self, state, rnd):
        known, heard = rnd.pool.has(SERVER_SITE, CONTROL), []
        lent = {CONTROL: [rnd.pool.common(CONTROL)]} if known else {}
        yield from aggregate_round(rnd, self.weight, on_replies=heard.extend, extra_payloads=lent)
        changes = [rnd.pool.read(rnd.pool.latest(r.site, CONTROL)) for r in heard if rnd.number]
        if changes:
            before = rnd.pool.read(lent[CONTROL][0]) if known else {}
            total = {name: sum(change[name] for change in changes) for name in changes[0]}
            c = {name: before.get(name, 0) + t / len(rnd.sites) for name, t in total.items()}
            rnd.pool.put(c, CONTROL)
        yield measurements(rnd)
        return state

    def site_round(self, task, site):
        if task.action != "train" or not len(site.data.labels):
            return super().site_round(task, site)
        if site.training.momentum:
            raise RunError("lab.scaffold: needs plain gradient steps: set training.momentum=0")
        site.load(task.models["server"][0])
        x = {name: w.detach().clone() for name, w in site.model.named_parameters()}
        control = task.models.get(CONTROL)
        c = site.contents(control[0]) if control else {name: torch.zeros(()) for name in x}
        own = {name: site.memory[name].to(w.device) for name, w in x.items()}
        shift = {name: c[name].to(w.device) - own[name] for name, w in x.items()}
        taken = 0

        def counted():
            nonlocal taken
            for step in self.steps(task, site):
                taken += 1
                yield step

        def correction(weights):  # its gradient is c - c_i
            return sum((w * s).sum() for w, s in zip(weights, shift.values(), strict=True))

        with site.drawing(task):
            loss = descend(site.model, counted(), site.training, correction)
        if not taken:
            return SiteReport()
        far = taken * site.training.learning_rate
        moved = {name: (x[name] - w.detach()) / far for name, w in site.model.named_parameters()}
        change = {name: (moved[name] - shift[name] - own[name]).cpu() for name in x}
        new = {name: (own[name].cpu() + step) for name, step in change.items()}
        report = site.trained(loss, task, memory=new)
        return replace(report, contents={CONTROL: change})
