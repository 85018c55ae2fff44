"""Sites' own images by loopback, by simulation and on real SuperNodes over TLS: the same bits."""

import csv
import json
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from fedapp.data.published import read_digits
from fedapp.experiment.config import load_experiment
from tests.flower.results import loopback, results, rows
from tests.flower.simulation import copy_of_app, simulate

TINY = {
    "model.width": 4,
    "training.warmup_epochs": 1,
    "training.local_epochs": 1,
    "rounds.num_rounds": 2,
    "rounds.join_wait_s": 300.0,
}
METHODS = {
    "um_pfssl": {"method.helper_list_size": 2},
    # With a confidence that these short runs reach, so that there are pseudo-labels.
    "recommended": {"method.preset": "recommended", "method.confidence": 0.3},
    # Another seed, so that no worker that stays takes west's data for those that it has read.
    "fedul": {"method.preset": "fedul", "seed": 1},
}


@contextmanager
def bags_at(site):
    """Put a site's unlabelled digits into a bag for each class, most of which are of that class."""
    table, labels = site / "labels.csv", read_digits().labels
    before = table.read_text()
    lines, counts = ["path,label,split,bag"], Counter()
    for row in csv.DictReader(before.splitlines()):
        digit = int(labels[int(Path(row["path"]).stem)])
        bag = "" if row["label"] else (digit + counts.total() % 3 // 2) % 10
        if bag != "":
            counts[bag, digit] += 1
        lines.append(f"{row['path']},{row['label']},{row['split']},{bag}")
    shares = [",".join(("bag", *map(str, range(10))))]
    for bag in range(10):
        inside = [counts[bag, digit] for digit in range(10)]
        shares.append(",".join((str(bag), *(str(count / sum(inside)) for count in inside))))
    table.write_text("\n".join(lines) + "\n")
    (site / "bags.csv").write_text("\n".join(shares) + "\n")
    try:
        yield
    finally:
        table.write_text(before)
        (site / "bags.csv").unlink()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_loopback_simulation_and_supernodes_agree_to_the_bit(made, tmp_path, method):
    """With FedUL one of the three has bags in the place of labels."""
    west = made.place("images", "/images") / "west"
    with bags_at(west) if method == "fedul" else nullcontext():
        agree_to_the_bit(made, tmp_path, method)


def agree_to_the_bit(made, tmp_path, method):
    tiny, name = TINY | METHODS[method], f"deployed-{method}"
    # Where all sites are in one process, it finds their images below one folder.
    here = {
        "runtime.out": str(tmp_path / "runs"),
        "data.root": str(made.place("images", "/images")),
    }
    own = {**tiny, **here, "runtime.run_name": "alone"}
    alone = loopback(load_experiment("digits_sites", own))
    pairs = [f"{key}={value}" for key, value in (tiny | here).items()]
    with copy_of_app(tmp_path) as copy:
        code, said = simulate(copy, ["digits_sites", *pairs, "runtime.run_name=simulated"])
    assert code == 0, said
    simulated = tmp_path / "runs/simulated"
    words = {"preset": "digits_sites", **tiny, "runtime.run_name": name}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in words.items())
    run = made.run(
        "register", "flwr", "run", "/app", "hospitals", "--stream", "--run-config", config
    )
    deployed = made.volume("runs") / name
    assert (deployed / "summary.json").is_file(), run.stdout

    assert [row["skipped"] for row in rows(alone)] == [{}, {}, {}]
    assert results(alone) == results(simulated) == results(deployed)
    sites = {(folder / "per_site.csv").read_text() for folder in (alone, simulated, deployed)}
    assert len(sites) == 1
