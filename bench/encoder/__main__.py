"""What an encoder trained on other data is worth, beside a network trained from random weights.

    python -m bench.encoder make FILE.safetensors --data mnist --images 6000 --epochs 3
    python -m bench.encoder table FILE.safetensors --data fashion_mnist --shares 0.01,0.05 --seeds 2

`make` trains torchvision's network with all labels of a data set and writes its state dict, with
mean, std and size in the file. `table` runs both on few labels; features are computed once.
"""

import csv
import hashlib
import json
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Annotated

import typer
from safetensors.torch import save_file

from bench.command import Seeds, several
from bench.encoder.pool import SIZE, pool_of
from bench.encoder.teaching import SCALE, taught
from bench.record import Cells, save
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import FedAppError
from fedapp.ground.ours import process_is_ours

app = typer.Typer(add_completion=False)
File = Annotated[Path, typer.Argument(help="the encoder's .safetensors")]
Classes = Annotated[str, typer.Option(help="numbers with commas between; empty: all")]
Root = Annotated[str, typer.Option(help="folder of the data")]


@app.command()
def make(
    file: File,
    data: Annotated[str, typer.Option(help="data set that teaches it")] = "mnist",
    classes: Classes = "",
    root: Root = "",
    how: Annotated[str, typer.Option(help="supervised, or self-supervised")] = "supervised",
    images: Annotated[int, typer.Option(min=0, help="0: all")] = 0,
    epochs: Annotated[int, typer.Option(min=0, help="0: weights stay random")] = 6,
    seed: int = 0,
) -> None:
    """Train a small encoder on a data set; write its weights with their record."""
    began, pool = process_time(), pool_of(data, classes, root, images, seed)
    network = taught(pool, how, data != "mnist", epochs, seed)
    said = {"mean": [SCALE] * 3, "std": [SCALE] * 3, "size": SIZE}
    tensors = {n: t.contiguous() for n, t in network.state_dict().items() if n[:5] != "head."}
    save_file(tensors, file, {k: json.dumps(v) for k, v in said.items()})
    took = process_time() - began
    print(f"{file}: {len(pool.labels)} images, {took:.0f} s, SHA-256 {_sha256(file)}")


@app.command()
def table(
    file: File,
    data: Annotated[str, typer.Option(help="data set that both learn")] = "fashion_mnist",
    body: str = "resnet18",
    images: Annotated[int, typer.Option(min=100)] = 6000,
    shares: Annotated[str, typer.Option(help="of labelled training images")] = "0.01,0.05",
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    width: Annotated[int, typer.Option(min=1, help="of ResNet-9; the paper's has 64")] = 32,
    seeds: Seeds = 2,
    out: Path = Path("encoder-runs"),
) -> None:
    """Compare right answers, and the most bytes that a site sends, on few labels."""
    encoder: dict[str, Scalar] = {
        "model.name": "encoder",
        "model.body": body,
        "model.weights": str(file),
        "model.weights_sha256": _sha256(file),
    }
    scratch: dict[str, Scalar] = {"model.name": "resnet9", "model.width": width}
    one: dict[str, Scalar] = {"rounds.num_rounds": 1, "method.name": "one_round"}
    cells: dict[str, dict[str, Scalar]] = {
        "ResNet-9 from scratch, fedavg": {**scratch, "method.preset": "fedavg"},
        "hog, one_round": {**scratch, **one, "method.features": "hog"},
        "encoder frozen, one_round": {**encoder, **one, "method.features": "network"},
        "encoder frozen, fedavg": {**encoder, "method.preset": "fedavg"},
    }
    rows = []
    for share in map(float, several(shares)):
        for name, cell in cells.items():
            began, right, most = process_time(), [], 0
            for seed in range(seeds):
                over: dict[str, Scalar] = {
                    "seed": seed,
                    "data.name": data,
                    "data.subset": images,
                    "data.image_size": 0,
                    "split.dirichlet_alpha": 100.0,
                    "split.label_alpha": 5.0,
                    "split.label_share": share,
                    "rounds.num_rounds": rounds,
                    "runtime.device": "cpu",
                    "runtime.models": False,
                    "runtime.out": str(out),
                    "runtime.run_name": f"{name}-{share}-{seed}".replace(" ", "_").replace(",", ""),
                }
                summary, folder = run_loopback(load_experiment("digits_demo", over | cell))
                right.append(100 * float(summary["mean_test_accuracy"]["best_by_validation"]))
                most = max(most, _most_sent(folder))
            row: Cells = {
                "labels": share,
                "network and method": name,
                "right, %": round(mean(right), 1),
                "of seeds": ", ".join(f"{one:.1f}" for one in right),
                "kB sent by a site": round(most / 1000),
                "seconds a run": round((process_time() - began) / seeds, 1),
            }
            rows.append(row)
            print(row, flush=True)
    save("encoder", rows, {"data": data, "images": images, "rounds": rounds, "file": _sha256(file)})


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _most_sent(folder: Path) -> int:
    """Return the bytes that a site has sent in a run, all rounds together, of the busiest one."""
    sent: dict[str, int] = {}
    with (folder / "traffic.csv").open() as file:
        for row in csv.DictReader(file):
            if row["direction"] == "up":
                sent[row["site"]] = sent.get(row["site"], 0) + int(row["bytes"])
    return max(sent.values())


if __name__ == "__main__":
    process_is_ours()
    try:
        app()
    except FedAppError as error:
        raise SystemExit(f"bench.encoder: {error}") from None
