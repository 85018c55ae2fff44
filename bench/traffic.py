"""What is sent, beside what the paper allows, and what smaller encodings of a model do.

`python -m bench.traffic [counts] [encodings] [--quick]`

- counts: the paper's setting (K = 100, tau = 0.1, M = 5, F = 30, R = 2, nu = 10, 200 rounds) with a
  small network on handwritten digits: models sent by kind and part of the run, beside Cost_1 and
  Cost_2 (Eqs. 27 and 28) and beside the same run without update records.
- encodings: bytes and time of a trained model in each `transport.precision` and `.compression`, and
  the accuracy that float16 leaves on fashion_mnist_small. zlib is lossless and cannot change it.

`--quick`: toy sizes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from bench.command import Quick, carry_out
from bench.measure import side_by_side
from bench.record import Cells, Row, save
from bench.runs import Through, carried_through, finished
from fedapp.experiment.config import load_experiment
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.settings import TransportSettings
from fedapp.learn.params import Params, from_bytes, schema_of, to_bytes
from fedapp.messages.protocol import Incoming, Outgoing, Reply
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.server.phases import Carrier, Fetch

SEARCH, LATER, WARM_UP = "rounds below F", "later rounds", "warm-up"
ENCODINGS = [
    TransportSettings(precision, compression)
    for precision in ("float32", "float16")
    for compression in ("none", "zlib")
]


class Measurement(StrEnum):
    """What is measured."""

    counts = "counts"
    encodings = "encodings"


@dataclass(frozen=True)
class Sizes:
    """counts: settings of the counted run, beside those of the paper. accuracy: of the others."""

    counts: Mapping[str, Scalar]
    accuracy: Mapping[str, Scalar]
    preset: str
    widths: tuple[int, ...]
    repetitions: int
    seeds: tuple[int, ...]


SMALL: Mapping[str, Scalar] = {
    "data.name": "digits",
    "data.image_size": 16,
    "model.width": 2,
    "training.local_epochs": 1,
    "training.batch_size": 16,
    "training.learning_rate": 0.01,
}
"""A network and data that 200 rounds take minutes with."""

FULL = Sizes(
    counts=SMALL,
    accuracy={"data.subset": 7000, "rounds.num_rounds": 8},
    preset="fashion_mnist_small",
    widths=(8, 64),
    repetitions=9,
    seeds=(0, 1, 2, 3),
)
TOY = Sizes(
    counts={**SMALL, "split.num_clients": 8, "rounds.num_rounds": 6, "method.search_rounds": 3},
    accuracy={"rounds.num_rounds": 1, "model.width": 2, "training.warmup_epochs": 1},
    preset="digits_demo",
    widths=(4,),
    repetitions=2,
    seeds=(0,),
)


def main(
    parts: Annotated[list[Measurement] | None, typer.Argument()] = None,
    quick: Quick = False,
) -> None:
    """Measure both parts or those named."""
    torch.set_num_threads(1)
    for part in parts or Measurement:
        measure = {Measurement.counts: counts, Measurement.encodings: encodings}[part]
        measure(TOY if quick else FULL, quick)


# --- models sent ----------------------------------------------------------------------------------


@dataclass
class Counted(Through):
    """A transport that counts what passes, by part of the run and by why it is sent.

    sent: models that travel. blind: models that would travel if nobody noted who holds what: every
    newcomer, and at every refresh the newest version of all helpers but the R lowest.
    """

    method: UmPfssl
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    blind: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lists: dict[int, int] = field(default_factory=dict)

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterator[tuple[int, Incoming]]:
        """Count and pass on."""
        self._count_down(outbox)
        for asked, incoming in self.carrier.exchange(outbox, fetch, deadline_s):
            answer = incoming.answer
            if isinstance(answer, Reply):
                self._lists[answer.site] = len(answer.helpers)
                where = self._part(answer.round), "upload"
                self.sent[where] += len(incoming.payloads)
                self.blind[where] += len(incoming.payloads)
            yield asked, incoming

    def _count_down(self, outbox: Sequence[Outgoing]) -> None:
        number = outbox[0].task.round
        part = self._part(number)
        for out in outbox:
            newcomers = {ref.digest for ref in out.task.models.get("newcomers", ())}
            new = len(newcomers.intersection(out.attach))
            self.sent[part, "newcomers"] += new
            self.sent[part, "refresh"] += len(out.attach) - new
            self.blind[part, "newcomers"] += len(newcomers)
        if number and number % self.method.update_every == 0:
            kept = (max(held - self.method.num_replaced, 0) for held in self._lists.values())
            self.blind[part, "refresh"] += sum(kept)

    def _part(self, number: int) -> str:
        if number == 0:
            return WARM_UP
        return SEARCH if number < self.method.search_rounds else LATER


def counts(sizes: Sizes, quick: bool) -> None:
    """Run the paper's setting and save the models sent beside the formulas."""
    counted: list[Counted] = []

    def wrap(carrier: Carrier) -> Carrier:
        assert isinstance(experiment.method, UmPfssl)
        counted.append(Counted(carrier, experiment.method))
        return counted[0]

    with TemporaryDirectory(prefix="bench-") as folder:
        experiment = load_experiment("fashion_mnist", {**sizes.counts, "runtime.out": folder})
        totals = carried_through(experiment, wrap).totals()
    [found] = counted
    down = sum(n for (_, why), n in found.sent.items() if why != "upload")
    up = sum(n for (_, why), n in found.sent.items() if why == "upload")
    assert (down, up) == (totals["models_sent"], totals["models_up"])
    rounds, method = experiment.rounds, found.method
    setting = {
        "K": experiment.split.num_clients,
        "tau": rounds.sample_rate,
        "M": method.helper_list_size,
        "F": method.search_rounds,
        "R": method.num_replaced,
        "nu": method.update_every,
        "rounds": rounds.num_rounds,
    }
    notes = {"setting": setting, **{name: totals[name] for name in ("bytes_down", "bytes_up")}}
    save("traffic-counts", count_rows(found, experiment), notes, quick=quick)


def count_rows(counted: Counted, experiment: Experiment) -> list[Row]:
    """Return models by reason and part of the run, their sums, and each as a share of Cost_2.

    The sums leave the warm-up out, as the formulas do.
    """
    clients, rounds = experiment.split.num_clients, experiment.rounds
    size = (clients, rounds.sample_rate, rounds.num_rounds)
    costs = experiment.method.costs(*size)
    bound, greedy = costs["cost_bound_models"], costs["cost_greedy_models"]

    def row(models: str, by: Mapping[str, int]) -> Row:
        total = by[SEARCH] + by[LATER]
        return {"models": models, **by, "sum": total, "of_cost_2": round(total / bound, 3)}

    def parts(table: Counter[tuple[str, str]], reasons: Iterable[str]) -> dict[str, int]:
        return {p: sum(table[p, why] for why in reasons) for p in (WARM_UP, SEARCH, LATER)}

    down = ("newcomers", "refresh")
    return [
        row("down: newcomers", parts(counted.sent, ["newcomers"])),
        row("down: newer versions", parts(counted.sent, ["refresh"])),
        row("up", parts(counted.sent, ["upload"])),
        row("both ways", parts(counted.sent, [*down, "upload"])),
        row("both ways, no update records", parts(counted.blind, [*down, "upload"])),
        {"models": "Cost_2, Eq. 28", "sum": round(bound), "of_cost_2": 1.0},
        {"models": "Cost_1, Eq. 27", "sum": round(greedy), "of_cost_2": round(greedy / bound, 3)},
    ]


# --- encodings ------------------------------------------------------------------------------------


def encodings(sizes: Sizes, quick: bool) -> None:
    """Measure bytes, time and accuracy of every encoding; save them."""
    rows = [row for width in sizes.widths for row in encoding_rows(width, sizes.repetitions)]
    figures = {
        precision: [accuracy(sizes, precision, seed) for seed in sizes.seeds]
        for precision in ("float32", "float16")
    }
    for row in rows:
        runs = figures[str(row["precision"])]
        row |= {name: round(fmean(run[name] for run in runs), 4) for name in runs[0]}
    notes = {
        "accuracy_of": f"{sizes.preset}, mean of seeds {' '.join(map(str, sizes.seeds))}",
        "accuracy_with": dict(sizes.accuracy),
        "accuracy_by_seed": figures,
    }
    save("traffic-encodings", rows, notes, quick=quick)


def encoding_rows(width: int, repetitions: int) -> list[Cells]:
    """Return bytes and milliseconds of a trained network in every encoding.

    pays_below_mbit_s: the speed of a link from which on compressing and decompressing one transfer
    takes longer than it saves.
    """
    params = trained(width)
    schema = schema_of(params)
    blobs = {e: to_bytes(params, e) for e in ENCODINGS}
    names = {e: f"{e.precision} {e.compression}" for e in ENCODINGS}
    encode = side_by_side({names[e]: partial(to_bytes, params, e) for e in ENCODINGS}, repetitions)
    decode = side_by_side(
        {names[e]: partial(from_bytes, blobs[e], schema, "a model", e) for e in ENCODINGS},
        repetitions,
    )
    rows: list[Cells] = []
    for e in ENCODINGS:
        plain = TransportSettings(e.precision, "none")
        alike = from_bytes(blobs[e], schema, "", e), from_bytes(blobs[plain], schema, "", plain)
        assert all(torch.equal(alike[0][name], alike[1][name]) for name in schema)
        rows.append(
            {
                "width": width,
                "precision": e.precision,
                "compression": e.compression,
                "bytes": len(blobs[e]),
                "of_float32": round(len(blobs[e]) / len(blobs[ENCODINGS[0]]), 3),
                **_milliseconds("encode", encode[names[e]].row("ms", 1e3)),
                **_milliseconds("decode", decode[names[e]].row("ms", 1e3)),
                "pays_below_mbit_s": pays_below(
                    len(blobs[plain]) - len(blobs[e]),
                    sum(t[names[e]].median - t[names[plain]].median for t in (encode, decode)),
                ),
            }
        )
    return rows


def pays_below(saved_bytes: int, extra_s: float) -> float | None:
    """Return the Mbit/s at which sending `saved_bytes` takes `extra_s`; None if nothing is saved.

    Infinite where the smaller one is the faster one too.
    """
    if saved_bytes <= 0:
        return None
    return round(saved_bytes * 8 / extra_s / 1e6) if extra_s > 0 else float("inf")


def trained(width: int) -> Params:
    """Return a network after some epochs on the digits: fresh weights have other mantissas."""
    settings = {
        "split.num_clients": 1,
        "split.label_alpha": 1000.0,
        "model.width": width,
        "rounds.num_rounds": 0,
        "training.warmup_epochs": 5,
    }
    with finished(load_experiment("digits_demo", settings)) as run:
        return run.model(0)


def accuracy(sizes: Sizes, precision: str, seed: int) -> dict[str, float]:
    """Run the preset with models of this precision; return the mean test accuracies."""
    settings = {**sizes.accuracy, "transport.precision": precision, "seed": seed}
    with finished(load_experiment(sizes.preset, settings)) as run:
        found = run.summary["mean_test_accuracy"]
    return {"final": found["final"], "by_validation": found["best_by_validation"]}


def _milliseconds(what: str, row: Mapping[str, float]) -> dict[str, float]:
    ends = (("", "median"), ("_min", "min"), ("_max", "max"))
    return {f"{what}_ms{bound}": round(row[f"{name}_ms"], 2) for bound, name in ends}


if __name__ == "__main__":
    carry_out(main)
