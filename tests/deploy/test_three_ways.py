"""Sites' own images by loopback, by simulation and on real SuperNodes over TLS: the same bits."""

import csv
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from PIL import Image

from fedapp.data.published import read_digits
from fedapp.experiment.config import load_experiment
from tests.deployment import run_config
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
    "one_round": {"method.preset": "one_round"},
    # Another seed, so that no worker that stays takes west's data for those that it has read.
    "fedul": {"method.preset": "fedul", "seed": 1},
    # Half of the second network's layers travel in round 2.
    "fedsiam_d": {
        "method.preset": "fedsiam_d",
        "method.calm_rounds": 1,
        "method.curve": "rectangle",
        "method.end_round": 3,
    },
    # Helpers are sent in round 2.
    "fedmatch, labels at the server": {
        "method.preset": "fedmatch",
        "method.helpers_every": 2,
        "training.learning_rate": 0.001,
        "split.labels": "none",
        "runtime.server_data": "/tmp/server",
        "seed": 2,
    },
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


@contextmanager
def labels_to_measure_by(site):
    """Leave a site in folders the labels of some test images alone."""
    if not (site / "labelled").exists():  # a table, that has no others
        yield
        return
    named, lines = (site / "labelled").rename(site / "named"), ["path,label,split"]
    for number, path in enumerate(sorted(named.rglob("*.png"))):
        known = number % 5 == 0
        label, split = (path.parent.name, "test") if known else ("", "train")
        lines.append(f"{path.relative_to(site)},{label},{split}")
    lines += [f"{path.relative_to(site)},,train" for path in site.glob("unlabelled/*.png")]
    (site / "labels.csv").write_text("\n".join(lines) + "\n")
    try:
        yield
    finally:
        (site / "labels.csv").unlink()
        named.rename(site / "labelled")


def write_labelled(folder):
    """Give the server every twentieth digit."""
    digits = read_digits()
    for number in range(0, len(digits.labels), 20):
        path = folder / f"labelled/{int(digits.labels[number])}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.inputs[number, 0].numpy()).save(path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_loopback_simulation_and_supernodes_agree_to_the_bit(made, tmp_path, method):
    """With FedUL one of the three has bags in the place of labels; or the server has the labels."""
    images = made.place("images", "/images")
    with ExitStack() as changed:
        if method == "fedul":
            changed.enter_context(bags_at(images / "west"))
        if "runtime.server_data" in METHODS[method]:
            for site in sorted(path for path in images.iterdir() if path.is_dir()):
                changed.enter_context(labels_to_measure_by(site))
            write_labelled(made.place("register", "/tmp") / "server")
        agree_to_the_bit(made, tmp_path, method)


def agree_to_the_bit(made, tmp_path, method):
    tiny, name = TINY | METHODS[method], f"deployed-{method.partition(',')[0]}"
    # Where all sites are in one process, it finds their images below one folder.
    here = {
        "runtime.out": str(tmp_path / "runs"),
        "data.root": str(made.place("images", "/images")),
    }
    if "runtime.server_data" in tiny:  # there the path is that of the machine of the run's command
        here["runtime.server_data"] = str(made.place("register", "/tmp") / "server")
    own = {**tiny, **here, "runtime.run_name": "alone"}
    alone = loopback(load_experiment("digits_sites", own))
    pairs = [f"{key}={value}" for key, value in (tiny | here).items()]
    with copy_of_app(tmp_path) as copy:
        code, said = simulate(copy, ["digits_sites", *pairs, "runtime.run_name=simulated"])
    assert code == 0, said
    simulated = tmp_path / "runs/simulated"
    words = {**tiny, "runtime.run_name": name}.items()
    config = run_config("digits_sites", [f"{key}={value}" for key, value in words])
    run = made.run(
        "register", "flwr", "run", "/app", "hospitals", "--stream", "--run-config", config
    )
    deployed = made.volume("runs") / name
    assert (deployed / "summary.json").is_file(), run.stdout

    assert [row["skipped"] for row in rows(alone)] == [{}, {}, {}]
    assert results(alone) == results(simulated) == results(deployed)
    sites = {(folder / "per_site.csv").read_text() for folder in (alone, simulated, deployed)}
    assert len(sites) == 1
