"""How often is a hospital's verdict wrong? `python -m bench.verdicts`.

Real answers: logistic regression over histograms of gradients learns from some labelled images of
Fashion-MNIST ("alone") and from as many, or more, others ("joined"); both answer 20,000 images that
neither learned from. A hospital draws n of these and gets its verdict; then one with ten times the
images repeats it. Overturned: the verdict names a side and the repeat's gain is on the other.
"""

from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from bench.record import Row, save
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import normalise
from fedapp.ground.rng import numpy_stream
from fedapp.ground.settings import DataSettings
from fedapp.learn.features import build_features
from fedapp.learn.quality import METRICS, Metric, Values, confusion
from fedapp.learn.verdict import verdict

IMAGES = (7, 20, 40, 100, 300)
PAIRS = ((200, 200), (200, 260), (200, 800))
"""Labels that the two models learned from: alone, joined."""
LEARN, ASKED = 2000, 20_000


def main(draws: Annotated[int, typer.Option()] = 1000) -> None:
    """Print and save how verdicts fare, by gain and number of test images."""
    whole = load_dataset(DataSettings(name="fashion_mnist"), 0)
    order = numpy_stream(0, "verdicts").permutation(len(whole.labels))[: LEARN + ASKED]
    features = build_features("hog", (1, 28, 28), 0, None)
    with torch.inference_mode():
        found = [
            features.of(normalise(part, whole.mean, whole.std))
            for part in whole.inputs[order].split(1000)
        ]
    points, labels = torch.cat(found).double().numpy(), whole.labels[order].numpy()
    asked, truth = points[LEARN:], labels[LEARN:]
    rows: list[Row] = []
    for pair in PAIRS:
        alone, joined = (
            LogisticRegression(C=30, max_iter=300)
            .fit(points[start : start + size], labels[start : start + size])
            .predict_proba(asked)
            for start, size in zip((0, 1000), pair, strict=True)
        )
        for metric in ("accuracy", "balanced_accuracy"):
            rows += [_row(pair, metric, n, joined, alone, truth, draws) for n in IMAGES]
    save("verdicts", rows, {"draws": draws, "images asked": ASKED})


def _row(
    pair: tuple[int, int],
    metric: Metric,
    images: int,
    joined: Values,
    alone: Values,
    truth: NDArray[np.int64],
    draws: int,
) -> Row:
    """Return what became of the verdicts of so many hospitals."""
    of = METRICS[metric]
    gain = float(of(confusion(joined, truth)) - of(confusion(alone, truth)))
    said, overturned, held, told = dict.fromkeys(("paid", "harmed", "same", "unknown"), 0), 0, 0, 0
    for draw in range(draws):
        stream = numpy_stream(draw, "verdicts draw", images)
        here, again = (stream.integers(len(truth), size=n) for n in (images, 10 * images))
        first = verdict(joined[here], alone[here], truth[here], metric)
        said[first.said] += 1
        if first.gain is None or first.low is None or first.high is None:
            continue
        told += 1
        held += first.low <= gain <= first.high
        both = (float(of(confusion(one[again], truth[again]))) for one in (joined, alone))
        more = next(both) - next(both)
        overturned += (first.said == "paid" and more <= 0) or (first.said == "harmed" and more >= 0)
    return {
        "labels alone, joined": f"{pair[0]}, {pair[1]}", "metric": metric,
        "true gain, points": round(100 * gain, 1), "test images": images,
        **{f"{kind}, %": round(100 * n / draws, 1) for kind, n in said.items()},
        "overturned, %": round(100 * overturned / draws, 2),
        "interval holds the gain, %": round(100 * held / told, 1) if told else None,
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
