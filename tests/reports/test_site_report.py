"""A site's page: its own numbers and its record, nothing by which another site could be told."""

from dataclasses import replace

import pytest

from fedapp.core.errors import ConfigError, RunError
from fedapp.models.description import DESCRIPTION, MeasuredAccuracy, Results, read_description
from fedapp.reports.report import write_reports
from fedapp.reports.run_record import read_run
from fedapp.reports.site_report import find_site, site_page, view_of_record, view_of_run
from fedapp.site.record import Record
from tests.models.made import written
from tests.reports.pages import check
from tests.reports.written import write_run


def test_a_site_sees_its_own_numbers(tmp_path):
    text = check(site_page(view_of_run(read_run(write_run(tmp_path)), "east"))).text
    assert "its own warm-up model 1 of 5" in text and "chance" not in text
    assert "4 of 5 80.0 37.6 to 96.4" in text
    assert "10 pseudo-labels, 3 of them wrong (30.0 %)." in text
    assert "Its model for use is not here: each site keeps its own model: at the site, f" in text


def test_a_simulated_sites_model_that_is_gone_can_be_made_anew(tmp_path):
    (write_run(tmp_path) / "sites").mkdir()
    text = check(site_page(view_of_run(read_run(tmp_path / "mine"), "east"))).text
    assert "Its model for use is not here: fedapp site mine --check rebuilds it." in text


def test_a_site_sees_nothing_of_another(tmp_path):
    run = read_run(write_run(tmp_path))
    for name, others in (("east", ("north", "west")), ("north", ("east", "west"))):
        text = site_page(view_of_run(run, name))
        assert not any(other in text for other in others)


def test_numbers_of_others_leave_a_page_of_few_sites_as_it_is(tmp_path):
    run = read_run(write_run(tmp_path))
    before = site_page(view_of_run(run, "east"))
    for row in run.history.values():
        row["sites"]["1"] = {"test": [5, 5]}
    assert site_page(view_of_run(run, "east")) == before
    assert "with fewer than 5 each could be told" in before


def test_a_site_is_found_by_number_too_and_its_models_folder_is_named(tmp_path):
    folder = write_run(tmp_path)
    kept = folder / "models" / "west"
    kept.mkdir(parents=True)
    made = read_description(written(kept))
    val, test = (
        MeasuredAccuracy(4, 3, 0.75, (0.3, 0.95), None),
        MeasuredAccuracy(5, 4, 0.8, (0.4, 0.96), None),
    )
    described = replace(made, results=Results(None, "", val, test))
    (kept / DESCRIPTION).write_text(described.to_json())
    text = check(site_page(view_of_run(read_run(folder), "2"))).text
    assert "models/west in the run's folder" in text
    assert "used, of round 3, right on 3 of 4 validation and 4 of 5 test images. All else" in text
    with pytest.raises(RunError, match="--site '9'"):
        site_page(view_of_run(read_run(folder), "9"))


def test_a_name_that_is_a_number_is_the_name(tmp_path):
    run = read_run(write_run(tmp_path, names=("2", "0", "1")))
    assert [find_site(run, name).number for name in ("0", "1", "2")] == [1, 2, 0]


RUN = {"run": "mine", "identity": "a" * 64}


@pytest.fixture
def folder(tmp_path):
    own = tmp_path / "own"
    record = Record(own)
    record.add("introduced", **RUN, counts={"val": 8})
    for number, cost in ((1, 1.5), (2, 2.25)):
        record.add("asked", **RUN, asked=f"train {number}")
        record.add("sent", **RUN, asked=f"train {number}", digests={"model": "d"}, bytes=2000,
                   epsilon=cost, evaluations={"val": [6, 8], "test": [0, 0]})  # fmt: skip
    record.add("refused", **RUN, asked="train 3", why="<b>this site's terms (hours)</b>")
    record.add("sent", run="other", identity="b" * 64, asked="train 1", digests={}, bytes=7,
               epsilon=4.0, evaluations={})  # fmt: skip
    record.add("refused", run="other", asked="who are you", why="not of this run")
    return own


def test_it_says_what_left_what_was_refused_and_epsilon_so_far(folder):
    page = site_page(view_of_record(folder, "mine"))
    for said in ("The record is whole: 8 lines.", "2 answers", "4.0 kB", "train 2",
                 "This run: 2.25.", "added up: 6.25.", "75.0 (6 of 8)",
                 "&lt;b&gt;this site&#39;s terms (hours)"):  # fmt: skip
        assert said in page, said
    assert "not of this run" not in page and "<b>" not in page


def test_a_record_that_was_changed_is_said_and_shown_as_far_as_it_is_true(folder):
    path = Record(folder).path
    path.write_text(path.read_text().replace("2.25", "0.25"))
    page = site_page(view_of_record(folder, "mine"))
    assert "BROKEN" in page and "line 5: was changed" in page and "This run: 1.5." in page


def test_a_run_without_noise_has_no_epsilon(tmp_path):
    Record(tmp_path).add("introduced", **RUN, counts={})
    assert "None: no run has sent models with noise" in site_page(view_of_record(tmp_path, "mine"))
    with pytest.raises(RunError, match="no run 'min'; did you mean 'mine'"):
        site_page(view_of_record(tmp_path, "min"))


def test_it_stands_in_the_sites_report_or_where_the_run_is_not_here_alone(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    [alone] = write_reports(["mine"], site="north", record=folder)
    assert alone.name == "site-north.html" and "Run mine at this site" in alone.read_text()
    run = write_run(tmp_path)
    record = Record(folder)
    record.add("refused", run=run.name, identity="c" * 64, asked="train 1", why="no such hour")
    [page] = write_reports([str(run)], site="east", record=folder)
    assert page.parent == run
    text = page.read_text()
    assert "Did joining help?" in text and "no such hour" in text and "record is whole" in text
    with pytest.raises(ConfigError, match="of one run and one site"):
        write_reports(["mine"], record=folder)
