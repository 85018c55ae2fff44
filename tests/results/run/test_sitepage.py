"""A site's page: its own numbers, and nothing by which another site could be told."""

from dataclasses import replace

import pytest

from fedapp.ground.errors import RunError
from fedapp.models.description import DESCRIPTION, Measured, Results, read_description
from fedapp.results.run_record import read_run
from fedapp.results.site_report import find_site, site_page, view_of_run
from tests.models.made import written
from tests.results.run.pages import check
from tests.results.run.written import write_run


def test_a_site_sees_its_own_numbers(tmp_path):
    text = check(site_page(view_of_run(read_run(write_run(tmp_path)), "east"))).text
    assert "Right on 3 more of 5 images than its own warm-up model: that may be chance." in text
    assert "4 of 5 80.0 37.6 to 96.4" in text
    assert "10 pseudo-labels, 3 of them wrong (30.0 %)." in text
    assert "Its model for use is not here: fedapp models mine makes it anew." in text


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
    val, test = Measured(4, 3, 0.75, (0.3, 0.95), None), Measured(5, 4, 0.8, (0.4, 0.96), None)
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
