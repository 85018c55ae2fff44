"""What an encoder trained on other data is worth, beside a network trained from random weights.

    python -m bench.encoder make low.safetensors --data cifar10 --classes 0,1,2,3,4
    python -m bench.encoder table halves low.safetensors --data cifar10 --classes 5,6,7,8,9

`make` trains a small network on some classes of a data set and writes its state dict, with mean,
std and size in the file. `table` learns others from few labels, with each encoder and without any.
Every run's result is kept, so the same command goes on where it was cut. Data lie in FEDAPP_DATA.
"""

import csv
import hashlib
import json
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Annotated, Any

import typer
from safetensors.torch import save_file

from bench.command import Seeds, several
from bench.encoder.pool import SIZE, pool_of
from bench.encoder.teaching import SCALE, taught
from bench.record import Cells, save
from bench.runs import codes, finished, kept_before, kept_runs
from fedapp.data.memory import give
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import FedAppError
from fedapp.ground.ours import process_is_ours

app = typer.Typer(add_completion=False)
File = Annotated[Path, typer.Argument(help="the encoder's .safetensors")]
Classes = Annotated[str, typer.Option(help="numbers with commas between; empty: all")]


@app.command()
def make(
    file: File,
    data: Annotated[str, typer.Option(help="data set that teaches it")] = "mnist",
    classes: Classes = "",
    how: Annotated[str, typer.Option(help="supervised, or self-supervised")] = "supervised",
    images: Annotated[int, typer.Option(min=0, help="0: all")] = 0,
    epochs: Annotated[int, typer.Option(min=0, help="0: weights stay random")] = 6,
    seed: int = 0,
) -> None:
    """Train a small encoder on a data set; write its weights with their record."""
    began, pool = process_time(), pool_of(data, classes, images, seed)
    network = taught(pool, how, data != "mnist", epochs, seed)
    said = {"mean": [SCALE] * 3, "std": [SCALE] * 3, "size": SIZE}
    tensors = {n: t.contiguous() for n, t in network.state_dict().items() if n[:5] != "head."}
    save_file(tensors, file, {k: json.dumps(v) for k, v in said.items()})
    took = process_time() - began
    print(f"{file}: {len(pool.labels)} images, {took:.0f} s, SHA-256 {_sha256(file)}")


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="the record is encoder-NAME")],
    files: Annotated[list[Path], typer.Argument(help="encoders, each a row of its own")],
    data: Annotated[str, typer.Option(help="data set that is learned")] = "fashion_mnist",
    classes: Classes = "",
    images: Annotated[int, typer.Option(min=100)] = 4000,
    shares: Annotated[str, typer.Option(help="of labelled training images")] = "0.01,0.05",
    rounds: Annotated[int, typer.Option(min=1, help="of ResNet-9")] = 20,
    rates: Annotated[str, typer.Option(help="compare these of the last block alone")] = "",
    seeds: Seeds = 3,
    only_kept: Annotated[bool, typer.Option("--only-kept", help="run nothing more")] = False,
) -> None:
    """Compare right answers, and the most bytes that a site sends, on few labels."""
    pool = pool_of(data, classes, images, 0)
    given, _held = give(pool)  # as long as it is held here, the runs find it
    rows = rows_at(files[0], rates) if rates else rows_of(files, rounds)
    common: dict[str, Scalar] = {**STUDY, "data.name": given, "rounds.num_rounds": rounds}
    cases = {
        (row, share, seed): load_experiment(
            "digits_demo", {**common, "split.label_share": share, "seed": seed, **cell}
        )
        for share in map(float, several(shares))
        for row, cell in rows.items()
        for seed in range(seeds)
    }
    said = {"name": name, **common, "encoders": ", ".join(_sha256(file)[:8] for file in files)}
    if only_kept:
        before = {
            "-".join(case) for case in kept_before("encoder", said, next(iter(cases.values())))
        }
        cases = {case: one for case, one in cases.items() if "-".join(map(str, case)) in before}
    found = kept_runs("encoder", said, cases, measured)
    table = [
        _row(row, share, [found[case] for case in cases if case[:2] == (row, share)])
        for row, share in dict.fromkeys(case[:2] for case in cases)
    ]
    notes = {
        "classes": ", ".join(pool.classes),
        "images": images,
        "encoders": said["encoders"],
        "code of runs": codes(found),
    }
    save(f"encoder-{name}", table, notes)


STUDY: dict[str, Scalar] = {
    "data.image_size": 0,
    "split.dirichlet_alpha": 100.0,
    "split.label_alpha": 5.0,
    "runtime.device": "cpu",
    "runtime.models": False,
}


def rows_of(files: list[Path], rounds: int) -> dict[str, dict[str, Scalar]]:
    """Return the rows' settings, by their names."""
    scratch: dict[str, Scalar] = {"model.name": "resnet9", "model.width": 16}
    one: dict[str, Scalar] = {"rounds.num_rounds": 1, "method.name": "one_round"}
    rows = {"no network: hog, one_round": {**scratch, **one, "method.features": "hog"}}
    for file in files:
        encoder = encoder_of(file)
        of = f"encoder {file.stem}"
        few: dict[str, Scalar] = {"rounds.num_rounds": 10}
        rows[f"{of}, one_round"] = {**encoder, **one, "method.features": "network"}
        rows[f"{of}, head by fedavg, 10 rounds"] = {**encoder, **few, "method.preset": "fedavg"}
        rows[f"{of}, recommended, 10 rounds"] = {
            **encoder, **few, "method.preset": "recommended", "method.closed": "network",
        }  # fmt: skip
    rows[f"ResNet-9 from scratch, fedavg, {rounds} rounds"] = {
        **scratch, "method.preset": "fedavg", "training.augment": "weak",
    }  # fmt: skip
    return rows


def rows_at(file: Path, rates: str) -> dict[str, dict[str, Scalar]]:
    """Return the settings for the last block and the head, by learning rate."""
    last: dict[str, Scalar] = {"model.trained": "last", "method.preset": "fedavg"}
    encoder = {**encoder_of(file), **last, "rounds.num_rounds": 5}
    rows: dict[str, dict[str, Scalar]] = {}
    for rate in several(rates):
        rows[f"last block by fedavg, 5 rounds, rate {rate}"] = {
            **encoder, "training.learning_rate": float(rate)
        }  # fmt: skip
    return rows


def encoder_of(file: Path) -> dict[str, Scalar]:
    """Return the settings of an encoder."""
    return {
        "model.name": "encoder",
        "model.body": "bench.encoder.body:small",
        "model.weights": str(file),
        "model.weights_sha256": _sha256(file),
    }


def measured(case: tuple[str, float, int], experiment: Experiment) -> dict[str, Any]:
    """Run once; return the right answers, how they rose, and bytes."""
    began = process_time()
    with finished(experiment) as run:
        scores = run.summary["mean_test_accuracy"]
        assert isinstance(scores, dict)
        result = {
            "right": 100 * float(scores["best_by_validation"]),
            "last": 100 * float(scores["final"]),
            "sent": _most_sent(run.folder.path),
            "seconds": process_time() - began,
        }
    print(case, result, flush=True)
    return result


def _row(row: str, share: float, found: list[dict[str, Any]]) -> Cells:
    right = [one["right"] for one in found]
    return {
        "labelled, %": 100 * share,
        "network and method": row,
        "right, %": round(mean(right), 1),
        "of seeds": ", ".join(f"{one:.1f}" for one in right),
        "after the last round": round(mean(one["last"] for one in found), 1),
        "kB sent by a site": round(max(one["sent"] for one in found) / 1000),
        "seconds a run": round(mean(one["seconds"] for one in found), 1),
    }


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
