"""How many labels does a choice of images save? `python -m bench.labels --seeds 20`.

Fashion-MNIST: logistic regression over histograms of gradients learns from 100 labelled images;
then as many again as it has are chosen, four times (200 to 1,600), out of a pool of 6,000, and it
learns anew from all. Every way has the same first images, pool and test images: differences are
paired by seed.
"""

from collections.abc import Callable
from statistics import mean, stdev
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import t as student
from sklearn.cluster import kmeans_plusplus
from sklearn.linear_model import LogisticRegression

from bench.record import Row, save
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import normalise
from fedapp.ground.rng import numpy_stream
from fedapp.ground.settings import DataSettings
from fedapp.learn.features import build_features

BUDGETS, POOL, TEST = (100, 200, 400, 800, 1600), 6000, 6000
Values = NDArray[np.float64]
Places = NDArray[np.int64]


def _random(said: Values, points: Values, count: int, seed: int) -> Places:  # noqa: ARG001
    return numpy_stream(seed, "labels random", count).permutation(len(said))[:count]


def _margin(said: Values, points: Values, count: int, seed: int) -> Places:  # noqa: ARG001
    """Return where the first class leads the second least (Scheffer, Decomain, Wrobel 2001)."""
    second, first = np.partition(said, -2, axis=1)[:, -2:].T
    return np.argsort(first - second, kind="stable")[:count]


def _entropy(said: Values, points: Values, count: int, seed: int) -> Places:  # noqa: ARG001
    return np.argsort((said * np.log(said + 1e-12)).sum(1), kind="stable")[:count]


def _clustered(said: Values, points: Values, count: int, seed: int) -> Places:
    """Return the best of k-means++ among the images of least lead: unsure and unlike."""
    some = _margin(said, points, 4 * count, seed)
    _, chosen = kmeans_plusplus(points[some], min(count, len(some)), random_state=seed)
    found: Places = some[chosen]
    return found


WAYS: dict[str, Callable[[Values, Values, int, int], Places]] = {
    "random": _random,
    "margin": _margin,
    "entropy": _entropy,
    "margin, k-means++": _clustered,
}


def main(seeds: Annotated[int, typer.Option()] = 20) -> None:
    """Print and save the curve of every way."""
    whole = load_dataset(DataSettings(name="fashion_mnist"), 0)
    found: dict[tuple[str, int], list[float]] = {}
    for seed in range(seeds):
        order = numpy_stream(seed, "labels").permutation(len(whole.labels))
        used = order[: BUDGETS[0] + POOL + TEST]
        pixels = normalise(whole.inputs[used], whole.mean, whole.std)
        with torch.inference_mode():
            points = build_features("hog", (1, 28, 28), 0, None).of(pixels).double().numpy()
        labels, test = whole.labels[used].numpy(), slice(BUDGETS[0] + POOL, None)
        for name, choose in WAYS.items():
            have, rest = np.arange(BUDGETS[0]), np.arange(BUDGETS[0], BUDGETS[0] + POOL)
            for budget in BUDGETS:
                model = LogisticRegression(C=30, max_iter=300).fit(points[have], labels[have])
                right = float((model.predict(points[test]) == labels[test]).mean())
                found.setdefault((name, budget), []).append(right)
                chosen = choose(model.predict_proba(points[rest]), points[rest], budget, seed)
                have, rest = np.concatenate([have, rest[chosen]]), np.delete(rest, chosen)
        print(seed, *(f"{name} {found[name, 800][-1]:.4f}" for name in WAYS), flush=True)
    rows = [
        _row(name, budget, each, found["random", budget]) for (name, budget), each in found.items()
    ]
    save("labels", rows, {"pool": POOL, "test": TEST, "seeds": seeds})


def _row(name: str, budget: int, each: list[float], chance: list[float]) -> Row:
    """Return a way's accuracy, and its lead over chance with the paired t interval over seeds."""
    ahead = [a - b for a, b in zip(each, chance, strict=True)]
    spread = stdev(ahead) / len(ahead) ** 0.5
    half = float(student.ppf(0.975, len(ahead) - 1)) * spread
    return {
        "chosen by": name, "labels": budget, "accuracy": mean(each), "ahead of chance": mean(ahead),
        "from": mean(ahead) - half, "to": mean(ahead) + half,
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
