"""A hospital leaves, or joins: to the bit what a federation is that never, or always, had it."""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedapp.data.hospitals import CENTRES, NAMES, files
from fedapp.experiment.config import load_experiment
from fedapp.methods.closed_form._contents import SOLUTION, Solution
from fedapp.methods.closed_form._discriminant import Classes, Sums, sum_of
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.loopback import run_loopback
from tests import vectors

DATA = Path(os.environ.get("FEDAPP_DATA", "/nonexistent"))
"""Read here: no test sees the developer's own."""
HERE = all((DATA / file).exists() for file in files())


def invented(root):
    """Write four tables in UCI's form: of 40 to 70 patients, a tenth of the numbers missing."""
    (root / files()[0]).parent.mkdir()
    for number, file in enumerate(files()):
        draw = np.random.default_rng(number)
        lines = []
        for _ in range(40 + 10 * number):
            ill = int(draw.random() < 0.3 + 0.15 * number)
            age, pulse = draw.normal(50 + 6 * ill, 8), draw.normal(150 - 15 * ill, 20)
            cells = [
                f"{age:.0f}", draw.integers(2), draw.integers(1, 5), 130, 240, draw.integers(2),
                draw.integers(3), f"{pulse:.0f}", draw.integers(2), f"{draw.random() + ill:.1f}",
                draw.integers(1, 4), draw.integers(4), draw.choice([3, 6, 7]),
            ]  # fmt: skip
            gap = draw.random(13) < 0.1
            lines.append(",".join("?" if no else str(c) for c, no in zip(cells, gap, strict=True)))
            lines[-1] += f",{ill}"
        (root / file).write_text("\n".join(lines))


def published(root):
    for file in files():
        (root / file).parent.mkdir(exist_ok=True)
        shutil.copy(DATA / file, root / file)


HEART = {"split.label_share": 0.3}
OWN = {
    "data.classes": ",".join(vectors.CLASSES), "data.vector_size": vectors.SIZE,
    "data.encoder": vectors.ENCODER, "method.preset": "one_round", "method.guesses": 2,
    "rounds.num_rounds": 1,
}  # fmt: skip


class Federation(NamedTuple):
    """A folder with the data of sites of these names, and the settings of a run on them."""

    root: Path
    names: tuple[str, ...]
    preset: str
    settings: dict[str, object]

    def forget(self, name: str) -> None:
        """Delete a site's data."""
        if self.preset == "heart":
            [file] = [file for file, called in CENTRES.items() if called == name]
            (self.root / f"heart/{file}.csv").unlink()
        else:
            shutil.rmtree(self.root / name)

    def run(self, *names: str) -> "Ended":
        """Run the sites of these names."""
        who = {"data.sites": ",".join(names), "split.num_clients": len(names)}
        where = {"data.root": str(self.root), "runtime.out": str(self.root / "runs")}
        over = {**self.settings, **who, **where, "runtime.device": "cpu"}
        return Ended(run_loopback(load_experiment(self.preset, over))[1], names)


class Ended(NamedTuple):
    """A run's folder, and its sites by number."""

    folder: Path
    names: tuple[str, ...]

    def content(self, whose: str) -> dict[str, torch.Tensor]:
        """The newest content of the run's pool, such as "-2 solution" or "0 sums"."""
        digest = json.loads((self.folder / "checkpoint.json").read_text())["pool"][whose][1]
        return load_file(self.folder / "pool" / digest[:2] / f"{digest}.safetensors")

    @property
    def solution(self) -> dict[str, torch.Tensor]:
        return self.content(f"-2 {SOLUTION}")

    def sent(self, name: str, role: str) -> dict[str, torch.Tensor]:
        """What a site sent: its "sums", "other_sums", or "votes"."""
        return self.content(f"{self.names.index(name)} {role}")

    def answers(self, name: str) -> list[bytes]:
        """The model that a site kept, and its answer to every validation and test patient."""
        models = self.folder / "models"
        kept = models / name / "model.safetensors", models / f"{name}.evidence.safetensors"
        return [file.read_bytes() for file in kept]


def assert_equal(a: Ended, b: Ended, *names: str) -> None:
    same(a.solution, b.solution)
    for name in names:
        for role in ("sums", "votes"):
            same(a.sent(name, role), b.sent(name, role))
        assert a.answers(name) == b.answers(name), name


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(params=["invented", "published", "own"])
def federation(request, tmp_path):
    if request.param == "own":
        vectors.three_sites(tmp_path)
        return Federation(tmp_path, vectors.NAMES, "own_vectors", OWN)
    if request.param == "published" and not HERE:
        pytest.skip("needs the Heart Disease data in $FEDAPP_DATA")
    globals()[request.param](tmp_path)
    return Federation(tmp_path, NAMES, "heart", HEART)


def test_a_site_that_left_was_never_there(federation, monkeypatch):
    """Not named, named but not there, or its data deleted: the same bits at all others.

    The first one leaves, so that the numbers of all others change.
    """
    leaver, *rest = federation.names
    without = federation.run(*rest)
    with monkeypatch.context() as patch:
        introduce = Loopback.introduce
        patch.setattr(Loopback, "introduce", lambda carrier: introduce(carrier)[1:])
        assert_equal(federation.run(*federation.names), without, *rest)
    federation.forget(leaver)
    assert_equal(last := federation.run(*rest), without, *rest)
    files_left = [file for file in last.folder.rglob("*") if file.is_file()]
    assert files_left and not any(f'"{leaver}"' in file.read_text("latin-1") for file in files_left)
    assert leaver not in (last.folder / "config.yaml").read_text().split("sites:")[1].split("\n")[0]


def test_the_solution_without_a_site_is_that_of_the_others_sums(federation):
    """Sums that a site sends do not depend on who else is there, so its own can be taken out."""
    rest = federation.names[1:]
    before, without = federation.run(*federation.names), federation.run(*rest)
    for name in rest:
        same(before.sent(name, "sums"), without.sent(name, "sums"))
    if federation.preset == "heart":  # elsewhere sites guessed, and the means are of guesses too
        found = Solution.from_params(without.solution).classes
        total = sum_of(Sums.from_params(before.sent(name, "sums")) for name in rest)
        wanted = Classes.of(total)
        assert torch.equal(found.means.float(), wanted.means.float())
        # The server adds up in another order.
        torch.testing.assert_close(found.within, wanted.within, rtol=1e-6, atol=1e-9)


def test_a_site_that_joins_was_always_there(federation):
    """At the end of the list, as a newcomer stands, or where it would have stood at first."""
    first, *rest = federation.names
    assert_equal(federation.run(*rest, first), federation.run(first, *rest), *federation.names)
