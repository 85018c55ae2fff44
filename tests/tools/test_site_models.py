"""`fedapp site`: what a person at a site reads, wherever its models lie."""

import json
import shutil
from functools import partial

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import RunError
from fedapp.core.progress import slow_work_notice
from fedapp.experiment.config import load_experiment
from fedapp.models.card import joining_verdict
from fedapp.models.description import MeasuredAccuracy, read_description
from fedapp.models.folder import model_folders, summarise_sites
from fedapp.tools.site_models import _accuracy_in_words
from tests.flower.results import loopback
from tests.golden.numbers import SHRUNK


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in which joining helps few: UM-pFSSL is far below its warm-up."""
    overrides = {
        **SHRUNK,
        "method.preset": "um_pfssl",
        "runtime.out": str(tmp_path_factory.mktemp("runs")),
    }
    return loopback(load_experiment("digits_demo", overrides))


def said(folder):
    result = CliRunner().invoke(app, ["site", str(folder)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_names_the_model_the_round_the_reason_and_the_one_alone(run):
    text = said(run / "models")
    for folder in model_folders(run / "models"):
        found = read_description(folder)
        block = text[text.index(f"site {found.origin.called}, {found.origin.method}") :].split(
            "\n\n"
        )[0]
        test = found.results.test
        assert f"test          {test.right} of {test.images} images right" in block
        when = f"round {found.origin.round}" if found.origin.round else "after the warm-up"
        assert f", {when}\n" in block and found.choice.rule in block
        verdict = found.choice.verdict
        assert verdict.images == test.images
        assert block.splitlines()[1] == f"  joining       {joining_verdict(found)}", "first of all"
        assert all(f"  warning       {light}" in block for light in found.lights)
    assert "Joining did harm, beyond chance: " in text and "trained alone round 0: " in text


def test_few_test_images_tell_nothing_and_it_says_how_many_would(tmp_path):
    """The page that said that joining helped did so on 3 images."""
    overrides = {
        **SHRUNK, "method.preset": "um_pfssl", "runtime.out": str(tmp_path),
        "data.subset": 140, "split.test_images": 0,
    }  # fmt: skip
    folder = loopback(load_experiment("digits_demo", overrides))
    for one in map(read_description, model_folders(folder / "models")):
        verdict = one.choice.verdict
        assert verdict.images < 20 and verdict.gain is None and verdict.said == "unknown"
        assert (
            "Cannot tell whether joining paid with" in verdict.line
            or "without test images" in verdict.line
        )
    text = said(folder)
    assert "paid:" not in text and "helped" not in text
    assert "Fewer images than the 10 classes" in text


def test_a_run_a_nodes_place_and_a_folder_of_runs_are_read_alike(run, tmp_path, monkeypatch):
    place = tmp_path / "place/models" / run.name
    shutil.copytree(run / "models", place)
    places = run, run.parent, tmp_path / "place"
    counts = [said(folder).count("  joining  ") for folder in places]
    assert counts == [4, 4, 4]
    monkeypatch.setenv("FEDAPP_OUT", str(run.parent))
    assert said(run.name) == said(run), "a run is known by its name too"


def test_a_page_for_each_site_whose_making_says_what_it_does(run, tmp_path, monkeypatch, capsys):
    slow = partial(slow_work_notice, after_s=0)
    monkeypatch.setattr("fedapp.tools.site_models.slow_work_notice", slow)
    result = CliRunner().invoke(app, ["site", str(run), "--page", str(tmp_path)])
    assert result.exit_code == 0, result.output
    called = {read_description(one).origin.called for one in model_folders(run / "models")}
    assert {path.name for path in tmp_path.iterdir()} == {f"{run.name}-{c}.html" for c in called}
    assert all(f"page of {one}: " in result.stderr for one in called)


def test_a_folder_without_models_is_refused_in_one_line(tmp_path):
    result = CliRunner().invoke(app, ["site", str(tmp_path)])
    assert isinstance(result.exception, RunError) and "\n" not in str(result.exception)
    assert "no models of a site: name a node's FEDAPP_SITES" in str(result.exception)


def test_a_site_whose_terms_withheld_its_images_is_told_which_term():
    none = MeasuredAccuracy(0, 0, None, (0.0, 1.0), None)
    assert "terms withheld them (least_count" in _accuracy_in_words(none, "images")


def test_all_sites_together_are_the_sums_of_their_models(run):
    found = [read_description(folder) for folder in model_folders(run / "models")]
    others = summarise_sites(found)
    assert all(one.others == others for one in found)
    assert sum(group.sites for group in others.groups) == 4
    assert sum(g.right for g in others.groups) == sum(one.results.test.right for one in found)
    assert 0 <= others.harmed <= others.compared <= 4


def test_the_last_lines_and_the_summary_name_whom_joining_did_not_help(run, capsys):
    kept = json.loads((run / "summary.json").read_text())["kept"]
    found = {one.origin.called: one for one in map(read_description, model_folders(run / "models"))}
    alone = {k: one.origin.round for k, one in found.items() if one.choice.helped is False}
    assert kept["alone"] == alone and kept["told"] >= len(alone) > 0
    shares = [one.results.test.accuracy for one in found.values()]
    assert kept["mean"] == pytest.approx(sum(shares) / len(shares))


def test_models_checks_what_is_kept_and_makes_anew_what_is_gone(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    before = (copy / "models/0/model.json").read_bytes()
    shutil.rmtree(copy / "models/1")
    assert CliRunner().invoke(app, ["site", str(copy), "--check"]).exit_code == 0
    anew = read_description(copy / "models/1")
    assert "is gone" in anew.choice.rule and anew.origin.round == 3 and anew.results.exact is True
    found = json.loads((copy / "models/0/model.json").read_bytes())
    assert {**found, "others": None} == {**json.loads(before), "others": None}
