"""Sums of helpers in the place of everybody's? `python -m bench.helper_sums SETTING [--seeds N]`.

The closed form of `one_round`, computed in one process, for sites that weigh each other's sums by
relation. A site's relation to another one is what that one's solution (common, its own labelled
images 30 times more) says on the site's images: how likely it makes the labels; how sure it is of
unlabelled images, as UM-pFSSL has it; or how alike the means of all images are once the class mix
is taken out. Relations become weights exp(beta (z - max z)), z being standardised over helpers.

- "place": each site's solution is that of the weighted sums, its own at weight 1.
- "more": everybody's solution, the labelled images of related sites counting up to 100 times more.
  "The site's classes": each image of anybody, by how often its class occurs at the site.

beta, and how many times more, are chosen by the likelihood of all sites' validation labels, and
must beat doing nothing by e^2, as `one_round` chooses. "true groups" knows them.
docs/research/one_round.md has what came out. Right answers in %, mean over sites and seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from bench.command import carry_out, several
from bench.runs import scale
from fedapp.data.shift import shifted
from fedapp.data.sites import SiteData
from fedapp.experiment.config import load_experiment
from fedapp.learn.features import build_features
from fedapp.learn.overfeatures import Head, mapped
from fedapp.learn.priors import class_mix, mean_mix, site_mix
from fedapp.methods.closed_form._answers import deciding
from fedapp.methods.closed_form._calibration import bounded
from fedapp.methods.closed_form._contents import OWN_WEIGHTS, RIDGES, TEMPERATURES, WORST
from fedapp.methods.closed_form._discriminant import Classes, Sums, added
from fedapp.methods.closed_form._server import BEFORE, LEAD
from fedapp.site.federation import federation_of

SIZE = {
    "data.subset": 8000, "data.image_size": 0, "split.num_clients": 10, "split.train_share": 0.35,
    "split.val_share": 0.05, "split.dirichlet_alpha": 0.5,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "alpha 0.5": {},
    "alpha 5": {"split.dirichlet_alpha": 5.0},
    "alpha 0.1": {"split.dirichlet_alpha": 0.1},
    "shift 0.5": {"split.feature_shift": 0.5},
    "shift 1": {"split.feature_shift": 1.0},
    "5 % labels": {"split.label_share": 0.05},
    "two groups": {},
    "three scanners": {},
    "three scanners, alpha 5": {"split.dirichlet_alpha": 5.0},
}
GROUPS = {"two groups": 2, "three scanners": 3, "three scanners, alpha 5": 3}
"""Sites whose images are alike: every second one turned by 90 degrees; or one of three scanners."""
KINDS = ("rotation", "brightness", "contrast")
SHARPNESS = 2.0
"""beta."""
MOVED = 30.0
"""How many times more a helper's own labelled images count in the solution that is asked."""


@dataclass(frozen=True, eq=False)
class Site:
    """Features [n, d] float64 of a site's images by part, labels, log class mixes [C]."""

    known: Tensor
    labels: Tensor
    other: Tensor
    deciding: Tensor
    deciding_labels: Tensor
    test: Tensor
    test_labels: Tensor
    sums: Sums
    simple: Tensor


def grouped(data: SiteData, setting: str, seed: int) -> SiteData:
    """Return the site's data as its group's scanner sees it."""
    group = data.site % GROUPS[setting]

    def seen(images: Tensor) -> Tensor:
        if not len(images):
            return images
        if setting == "two groups":
            return images.rot90(group, (2, 3)).contiguous()
        return shifted(images, np.full(len(images), group, np.int32), seed, 1.0, KINDS)

    parts = {name: replace(part, inputs=seen(part.inputs)) for name, part in data.parts.items()}
    return replace(data, parts=parts)


def site_of(data: SiteData, features: Callable[[Tensor, Any], Tensor], seed: int) -> Site:
    """Compute a site's features, once."""
    known, other, val, test = (
        features(images, scale(data)).double()
        for images in (data.labelled, data.unlabelled, data.val, data.test)
    )
    chosen = deciding(SimpleNamespace(data=data, seed=seed))  # type: ignore[arg-type]
    sums = Sums.of(known, data.labels, other, data.num_classes)
    simple = class_mix(sums.counts, torch.empty(0, data.num_classes)).log()
    return Site(
        known, data.labels, other, val[chosen], data.val_labels[chosen], test, data.test_labels,
        sums, simple,
    )  # fmt: skip


def said(head: Head, x: Tensor, mix: Tensor) -> Tensor:
    """Return log-probabilities [n, C]."""
    return torch.log_softmax(bounded(x @ head[0].T + head[1]) + mix, dim=1)


def likely(site: Site, head: Head) -> float:
    """Return the log-likelihood of a site's validation labels."""
    logs = said(head, site.deciding, site.simple)
    return float(logs[torch.arange(len(logs)), site.deciding_labels].clamp_min(WORST).sum())


@dataclass(frozen=True, eq=False)
class Solved:
    """Each site's classes and head, the ridges and the temperature, and how likely it all is."""

    classes: list[Classes]
    heads: list[Head]
    levels: list[float]
    temperature: float
    likelihood: float


def solved(sites: Sequence[Site], classes: list[Classes]) -> Solved:
    """Choose lambda and temperature, one for all sites."""
    grids = [one.heads(RIDGES) for one in classes]
    scores = [
        sum(likely(s, (w[r] / t, b[r] / t)) for s, (w, b) in zip(sites, grids, strict=True))
        for r in range(len(RIDGES))
        for t in TEMPERATURES
    ]
    votes = torch.tensor(scores) + BEFORE
    r, place = divmod(int(votes.argmax()), len(TEMPERATURES))
    t = TEMPERATURES[place]
    heads = [(w[r] / t, b[r] / t) for w, b in grids]
    levels = [one.level(RIDGES[r]) for one in classes]
    return Solved(classes, heads, levels, t, float(votes.max()))


def likelier(found: Solved, base: Solved) -> Solved:
    """Return what was found where it is clearly likelier than what is there without it."""
    return found if found.likelihood - LEAD > base.likelihood else base


def counted_more(sites: Sequence[Site], start: Solved, rho: Tensor) -> Solved:
    """Let labelled images count up to 100 times more, by rho; start: where that loses.

    rho: [K, K], for all images of a site, or [K, n], for each image of all sites.
    """
    images, labels = torch.cat([s.known for s in sites]), torch.cat([s.labels for s in sites])
    if rho.shape[1] == len(sites):
        rho = rho.repeat_interleave(torch.tensor([len(s.labels) for s in sites]), 1)
    best = start
    for weight in OWN_WEIGHTS[1:]:
        heads = []
        for k, classes in enumerate(start.classes):
            used = rho[k] > 1e-3
            found = more(classes, images[used], labels[used], weight * rho[k, used])
            w, b = found.head(start.levels[k])
            heads.append((w / start.temperature, b / start.temperature))
        score = sum(likely(s, h) for s, h in zip(sites, heads, strict=True))
        if score - LEAD * (best is start) > best.likelihood:
            best = Solved(start.classes, heads, start.levels, start.temperature, score)
    return best


def more(classes: Classes, images: Tensor, labels: Tensor, each: Tensor) -> Classes:
    """Return `Classes.with_own` where each image has a weight of its own, [n]."""
    size = len(classes.counts)
    counts = classes.counts + torch.zeros(size).double().index_add_(0, labels, each)
    sums = classes.counts[:, None] * classes.means
    sums = sums.index_add(0, labels, each[:, None] * images)
    means = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1e-12)[:, None], classes.means)
    apart = images - means[labels]
    total = classes.images + float(each.sum())
    within = (classes.images * classes.within + (each[:, None] * apart).T @ apart) / total
    return Classes(counts, means, within, total)


def relations(sites: Sequence[Site], start: Solved, mixes: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return how related j is to k, [K, K], more is nearer, by name."""
    heads = []
    for s, classes, level in zip(sites, start.classes, start.levels, strict=True):
        if not len(s.labels):
            heads.append(start.heads[0])
            continue
        w, b = classes.with_own(s.known, s.labels, MOVED).head(level)
        heads.append((w / start.temperature, b / start.temperature))
    count = len(sites)
    found = {name: torch.zeros(count, count).double() for name in ("likelihood", "entropy")}
    for k, s in enumerate(sites):
        x, y = torch.cat([s.known, s.deciding]), torch.cat([s.labels, s.deciding_labels])
        for j, head in enumerate(heads):
            logs = said(head, x, s.simple)[torch.arange(len(y)), y].clamp_min(WORST)
            found["likelihood"][k, j] = logs.mean() if len(y) else 0.0
            logs = said(head, s.other, mixes[k])
            found["entropy"][k, j] = (logs.exp() * logs).sum(1).mean() if len(logs) else 0.0
    classes = start.classes[0]
    rest = torch.stack(
        [
            s.sums.total / s.sums.images - mix.exp() @ classes.means
            for s, mix in zip(sites, mixes, strict=True)
        ]
    )
    values, vectors = classes.spectrum
    whitened = rest @ vectors / (values + start.levels[0]).sqrt()
    found["means"] = -(torch.cdist(whitened, whitened) ** 2)
    shares = torch.stack([mix.exp() for mix in mixes])
    found["class mix"] = -(torch.cdist(shares, shares) ** 2)
    return found


def weights_of(relation: Tensor) -> Tensor:
    """Return weights [K, K] in [0, 1], 1 for a site itself."""
    others = ~torch.eye(len(relation), dtype=torch.bool)
    rho = torch.ones_like(relation)
    for k, row in enumerate(relation):
        among = row[others[k]]
        z = (among - among.mean()) / among.std().clamp_min(1e-12)
        rho[k, others[k]] = (SHARPNESS * (z - z.max())).exp()
    return rho


def answers(
    setting: str, seed: int, data: str, root: str, feature: str, wanted: Sequence[str]
) -> dict[str, float]:
    """Return the share of right answers of each rule, mean over sites, %."""
    over = SIZE | SETTINGS[setting] | {"seed": seed, "data.name": data, "data.root": root}
    if data == "folder":
        over["data.image_size"] = 32
    experiment = load_experiment("fashion_mnist_small", over)
    federation = federation_of(experiment)
    every = [federation.dealt.site(k) for k in range(experiment.split.num_clients)]
    if setting in GROUPS:
        every = [grouped(one, setting, seed) for one in every]
    features = build_features(feature, every[0].inputs)
    sites = [site_of(one, partial(mapped, features), seed) for one in every]
    prior = mean_mix(torch.stack([s.sums.counts for s in sites]))
    everybody = solved(sites, [Classes.of(added(s.sums for s in sites))] * len(sites))
    mixes = [
        site_mix(s.sums.counts, said(h, s.other, torch.zeros(())).exp(), prior).log()
        for s, h in zip(sites, everybody.heads, strict=True)
    ]

    def right(found: Solved) -> float:
        each = [
            (said(h, s.test, mix).argmax(1) == s.test_labels).double().mean()
            for s, h, mix in zip(sites, found.heads, mixes, strict=True)
        ]
        return 100 * float(torch.stack(each).mean())

    alone = torch.eye(len(sites)).double()
    with_own = counted_more(sites, everybody, alone)
    rows = {"everybody's": right(everybody), "everybody's, own more (one_round)": right(with_own)}
    labels, shares = torch.cat([s.labels for s in sites]), torch.stack(mixes).exp()
    by_class = (shares / shares.max(1, keepdim=True).values)[:, labels]
    rows["more, the site's classes"] = right(
        likelier(counted_more(sites, everybody, by_class), with_own)
    )
    known = relations(sites, everybody, mixes)
    sharp = {name: weights_of(known[name]) for name in wanted}
    if setting in GROUPS:
        group = torch.arange(len(sites)) % GROUPS[setting]
        sharp["true groups"] = (group[:, None] == group).double()
    for name, rho in sharp.items():
        classes = [
            Classes.of(added(scaled(s.sums, float(w)) for s, w in zip(sites, row, strict=True)))
            for row in rho
        ]
        place = likelier(solved(sites, classes), everybody)
        rows[f"place, by {name}"] = right(place)
        rows[f"place, by {name}, own more"] = right(counted_more(sites, place, alone))
        helped = counted_more(sites, everybody, rho)
        rows[f"more, by {name}"] = right(likelier(helped, with_own))
    return rows


def scaled(sums: Sums, weight: float) -> Sums:
    """Return the sums of so many times the images."""
    return Sums(**{field.name: weight * getattr(sums, field.name) for field in fields(sums)})


def main(
    setting: Annotated[list[str], typer.Argument(help=", ".join(SETTINGS))],
    data: Annotated[str, typer.Option(help="data.name")] = "fashion_mnist",
    root: Annotated[str, typer.Option(help="data.root")] = "",
    features: Annotated[str, typer.Option(help="by name")] = "hog",
    relation: Annotated[str, typer.Option(help="commas between")] = (
        "likelihood,entropy,means,class mix"
    ),
    first: Annotated[int, typer.Option(help="the first seed")] = 60,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Measure on one thread."""
    torch.set_num_threads(1)
    for name in setting:
        every = [
            answers(name, seed, data, root, features, several(relation))
            for seed in range(first, first + seeds)
        ]
        for rule in every[0]:
            each = [one[rule] for one in every]
            shares = " ".join(f"{share:.2f}" for share in each)
            print(f"{name}: {rule}: {sum(each) / seeds:.2f} ({shares})", flush=True)


if __name__ == "__main__":
    carry_out(main)
