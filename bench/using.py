"""What is a model worth in use? `python -m bench.using answers RUN | labels | colour`.

answers: of a finished run with its models written, accuracy by the share of images answered, and
the coverage of prediction sets, measured on the sites' test images. labels: accuracy after more
labels, chosen by `next-to-label` and otherwise (Fashion-MNIST). colour: from colour images as files
to run, models, predictions and ONNX with resnet18 at 128 x 128, each step timed.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from PIL import Image
from torch import Tensor

from bench.record import Cells, Row, save
from fedapp.data.datasets import load_dataset
from fedapp.data.images import channel_stats
from fedapp.data.inputs import normalise
from fedapp.ground.rng import seeded, torch_stream
from fedapp.ground.settings import DataSettings, TrainSettings
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.params import digest_of
from fedapp.learn.predictors import Predictor
from fedapp.learn.training import train
from fedapp.learn.uncertainty import SCORING_BATCH
from fedapp.models.choose import candidates, spread
from fedapp.models.conformal import Calibration, Sets, prediction_sets
from fedapp.models.description import Recipe
from fedapp.models.model import SiteModel, in_parts, load_model
from fedapp.models.study import Study, embedding, study
from fedapp.server.peers import finished_run
from fedapp.site.federation import federation_of

CPU = torch.device("cpu")
COVERAGES = (0.8, 0.9, 0.95)
SETS: tuple[Sets, ...] = ("lac", "aps")
app = typer.Typer()


@app.command()
def answers(run: Path) -> None:
    """Measure answers and sets of every site's model on its own test images."""
    experiment = finished_run(run).experiment
    federation = federation_of(experiment)
    sites = []
    for number in range(experiment.split.num_clients):
        model, description = load_model(run / "models" / str(number), CPU)
        test = federation.dealt.site(number).parts["test"]
        if len(test.labels):
            said = model.probabilities(test.inputs)
            sites.append((str(number), said, test.labels, description.calibration))
    rows = [_measured(name, said, labels, kept) for name, said, labels, kept in sites]
    save("using-answers", [_pooled(sites), *rows], {"run": run.name})


def _measured(name: str, said: Tensor, labels: Tensor, kept: Calibration) -> Row:
    right = (said.argmax(1) == labels)[said.max(1).values.argsort(descending=True, stable=True)]
    row: Cells = {
        "site": name, "calibration images": kept.images, "test images": len(labels),
    }  # fmt: skip
    for share in (0.5, 0.8, 0.9, 1.0):
        first = right[: max(round(share * len(right)), 1)]
        row[f"right of {share:.0%}"] = float(first.double().mean())
    for sets in SETS:
        for coverage in COVERAGES:
            inside = prediction_sets(said, kept, sets, coverage)
            held = inside.gather(1, labels[:, None]).double().mean()
            row[f"{sets} {coverage:g}: covered"] = float(held)
            row[f"{sets} {coverage:g}: size"] = float(inside.sum(1).double().mean())
    return row


def _pooled(sites: list[tuple[str, Tensor, Tensor, Calibration]]) -> Row:
    """Return means over all images: each site's sets are by its own calibration."""
    rows = [_measured(*one) for one in sites]
    counts = [len(labels) for _, _, labels, _ in sites]
    whole = _measured(
        "all", torch.cat([one[1] for one in sites]), torch.cat([one[2] for one in sites]),
        Calibration(),
    )  # fmt: skip
    sums = {
        key: sum(float(row[key] or 0) * n for row, n in zip(rows, counts, strict=True))
        / sum(counts)
        for key in whole
        if ":" in key
    }
    return {**whole, **sums, "calibration images": sum(one[3].images for one in sites)}


# --- labels ---------------------------------------------------------------------------------------

FIRST, MORE, POOL, TEST = 100, 100, 4000, 2000
EPOCHS, CLASSES, WIDTH = 60, 10, 8
SETTINGS = TrainSettings(learning_rate=0.01, batch_size=32)


@app.command()
def labels(seeds: Annotated[int, typer.Option()] = 3) -> None:
    """Train on `FIRST` labels, choose `MORE` of `POOL` images, train anew, test."""
    pool = load_dataset(DataSettings(name="fashion_mnist"), 0)
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        order = torch.randperm(len(pool.labels), generator=torch_stream(seed, "using labels"))
        first, rest = order[:FIRST], order[FIRST : FIRST + POOL]
        test = order[-TEST:]
        begun = _trained(pool.inputs[first], pool.labels[first], seed)
        asked = [study(begun, part, 20, n) for n, part in _parts(pool.inputs[rest])]
        found.setdefault("none", []).append(_accuracy(begun, pool.inputs[test], pool.labels[test]))
        for name, choose in WAYS.items():
            more = rest[choose(begun, pool.inputs[rest], asked, seed)]
            both = torch.cat([first, more])
            model = _trained(pool.inputs[both], pool.labels[both], seed)
            accuracy = _accuracy(model, pool.inputs[test], pool.labels[test])
            found.setdefault(name, []).append(accuracy)
            print(seed, name, f"{accuracy:.4f}", flush=True)
    rows: list[Row] = [
        {"chosen by": name, "mean accuracy": mean(each), "deviation": stdev(each),
         **{f"seed {number}": one for number, one in enumerate(each)}}
        for name, each in found.items()
    ]  # fmt: skip
    save("using-labels", rows, {"first": FIRST, "more": MORE, "pool": POOL, "test": TEST})


def _parts(images: Tensor) -> Iterator[tuple[int, Tensor]]:
    yield from enumerate(images.split(SCORING_BATCH))


def _random(model: SiteModel, images: Tensor, asked: list[Study], seed: int) -> Tensor:
    return torch.randperm(len(images), generator=torch_stream(seed, "using random"))[:MORE]


def _unsure(model: SiteModel, images: Tensor, asked: list[Study], seed: int) -> Tensor:
    doubt, even = _doubt(asked)
    return candidates(doubt, even, MORE)[:MORE]


def _entropy(model: SiteModel, images: Tensor, asked: list[Study], seed: int) -> Tensor:
    return _doubt(asked)[1].argsort(descending=True)[:MORE]


def _ours(model: SiteModel, images: Tensor, asked: list[Study], seed: int) -> Tensor:
    some = candidates(*_doubt(asked), MORE)
    return some[spread(embedding(model, images[some]), MORE)]


def _doubt(asked: list[Study]) -> tuple[Tensor, Tensor]:
    doubt = torch.cat([one.mutual_information for one in asked])
    return doubt, torch.cat([one.entropy for one in asked])


WAYS: dict[str, Callable[[SiteModel, Tensor, list[Study], int], Tensor]] = {
    "random": _random,
    "entropy": _entropy,
    "mutual information": _unsure,
    "mutual information, k-centre (next-to-label)": _ours,
}


def _trained(images: Tensor, targets: Tensor, seed: int) -> SiteModel:
    """Train a small ResNet-9 on labelled images alone, with SGD as of the presets."""
    mean_of, std_of = channel_stats(images)
    classes = tuple(map(str, range(CLASSES)))

    def scaled(pixels: Tensor) -> Tensor:
        return normalise(pixels, mean_of, std_of)

    with seeded(CPU, seed, "using model"):
        network = build_model(network_settings("resnet9", {"width": WIDTH}), (1, 28, 28), CLASSES)
        hot = torch.eye(CLASSES)[targets]
        shuffle = torch_stream(seed, "using order")
        train(network, images, hot, len(images), scaled, SETTINGS, EPOCHS, shuffle)
    blob, parts = in_parts({"own": Predictor(network.state_dict())})
    recipe = Recipe(
        network={"name": "resnet9", "width": WIDTH}, classes=classes, inputs=(1, 28, 28),
        images=True, mean=mean_of, std=std_of, precision="float32", parts=parts,
        sha256=digest_of(blob),
    )  # fmt: skip
    return SiteModel(recipe, blob, CPU)


def _accuracy(model: SiteModel, images: Tensor, targets: Tensor) -> float:
    said = torch.cat([model.probabilities(part) for _, part in _parts(images)])
    return float((said.argmax(1) == targets).double().mean())


# --- colour ---------------------------------------------------------------------------------------

SITES = ("north", "south", "west")
LABELLED, UNLABELLED, NEW = 120, 60, 100
SETTINGS_OF_RUN = (
    "data.image_size=128", "data.channels=3", "model.name=resnet18", "training.local_epochs=1",
    "training.warmup_epochs=3", "training.warmup_rounds=1", "training.learning_rate=0.01",
    "rounds.num_rounds=2",
)  # fmt: skip


@app.command()
def colour(images: Path, preset: Path) -> None:
    """Go from files to answers, each step by its command.

    images: a folder `<class>/*.png`, in colour. preset: conf/own_data.yaml without `model.width`.
    """
    needed = len(SITES) * (LABELLED + UNLABELLED) + NEW
    pool = load_dataset(DataSettings(name="folder", root=str(images), subset=needed), 0)
    order = torch.randperm(needed, generator=torch_stream(0, "using colour"))
    names = pool.classes
    rows: list[Row] = []
    with TemporaryDirectory(prefix="using-") as place:
        root = Path(place)
        _write_folders(root, pool.inputs[order], [names[k] for k in pool.labels[order].tolist()])
        model, runs = root / "runs/colour/models/north", f"runtime.out={root}/runs"
        steps: dict[str, list[str]] = {
            "run": ["run", str(preset), *SETTINGS_OF_RUN, f"data.root={root}/data", runs,
                    f"data.classes={', '.join(names)}", "runtime.run_name=colour"],
            "models": ["models", f"{root}/runs/colour"],
            "predict": ["predict", str(model), f"{root}/new/labels.csv", "--out", f"{root}/a.csv"],
            "next-to-label": ["next-to-label", str(model), f"{root}/new", "--count", "16",
                              "--out", f"{root}/label"],
            "export": ["export", str(model), "--to", "onnx", "--out", f"{root}/onnx",
                       "--images", f"{root}/new"],
        }  # fmt: skip
        for name, arguments in steps.items():
            began = time.monotonic()
            command = [sys.executable, "-m", "fedapp", *arguments]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            taken = round(time.monotonic() - began, 1)
            said = (done.stdout + done.stderr).replace(place, "").strip().splitlines()
            rows.append({"step": name, "seconds": taken, "said": " / ".join(said[-3:])})
            print(name, taken, flush=True)
    save("using-colour", rows, {"labelled": LABELLED, "unlabelled": UNLABELLED})


def _write_folders(root: Path, images: Tensor, names: list[str]) -> None:
    each = LABELLED + UNLABELLED
    for place, site in enumerate(SITES):
        for number in range(place * each, (place + 1) * each):
            known = number % each < LABELLED
            folder = f"labelled/{names[number]}" if known else "unlabelled"
            _write(root / "data" / site / folder / f"{number}.png", images[number])
    lines = ["path,label"]
    for number in range(len(SITES) * each, len(SITES) * each + NEW):
        _write(root / "new" / f"{number}.png", images[number])
        lines.append(f"{number}.png,{names[number]}")
    (root / "new/labels.csv").write_text("\n".join(lines) + "\n")


def _write(path: Path, image: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)


if __name__ == "__main__":
    app()
