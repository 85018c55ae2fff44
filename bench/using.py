"""What is a model worth in use? `python -m bench.using answers RUN | colour`.

answers: of a finished run with its models written, accuracy by the share of images answered, and
the coverage of prediction sets, measured on the sites' test images. colour: from colour images as
files to run, models, predictions and ONNX with resnet18 at 128 x 128, each step timed.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import typer
from PIL import Image
from torch import Tensor

from bench.record import Cells, Row, save
from fedapp.data.datasets import load_dataset
from fedapp.ground.rng import torch_stream
from fedapp.ground.settings import DataSettings
from fedapp.models.conformal import Calibration, Sets, prediction_sets
from fedapp.models.model import load_model
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
