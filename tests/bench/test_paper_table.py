"""The pages of comparisons over an encoder say what docs/results say."""

import pytest
import yaml

from bench.paper_table import (
    BY_LABELS,
    COST,
    FORM_ALONE,
    MARK,
    PAGE,
    RESULTS,
    SHOWN,
    STUDIES,
    by_sites,
    curves,
    grid_of,
    megabytes,
    overview,
    page,
    picture,
    rows,
    settings_of,
    site_gains,
    table,
    take_in,
    who_gains,
)
from bench.record import csv_rows
from fedapp.core.errors import DataError

STUDY = RESULTS / "encoder_table1"


@pytest.mark.parametrize("study", STUDIES)
def test_the_page_is_made_from_the_numbers(study):
    below = (RESULTS / study / PAGE).read_text(encoding="utf-8").partition(MARK)[2]
    assert below == "\n".join(["", *page(RESULTS / study)]) + "\n"
    assert "data.root" not in grid_of(RESULTS / study)["set"]  # a path of one machine


def test_rows_are_of_the_runs_with_the_papers_number_and_the_closed_form_alone():
    """By hand: UM-pFSSL's Table I prints 79.00 for alpha = 0.5."""
    found = {row["method"]: row for row in rows(STUDY, SHOWN)}
    runs = [row for row in csv_rows(STUDY / "results.csv") if row["setting"] == SHOWN]
    own = [row for row in runs if row["method"] == "one_round"]
    assert len(found) == len({row["method"] for row in runs}) + 1
    theirs = found["UM-pFSSL"]
    assert theirs["printed"] == 79.0 and theirs["searches"] and theirs["rate"] == 0.003
    lone = sum(100 * float(row["alone_selected_test_accuracy"]) for row in own) / len(own)
    assert found[FORM_ALONE]["by validation"] == pytest.approx(lone)
    assert found["FedAvg (labelled)"]["worst tenth"] is None  # one model's answer for all sites
    assert not found["UM-pFSSL no search"]["searches"]
    assert next(iter(found)) == max(found, key=lambda name: found[name]["by validation"])


def test_gains_over_alone_by_hand(tmp_path):
    """Validation images choose the way alone, test images do not; of two alike the closed form.

    Site 0 chooses the network (0.5), though its closed form has more test images right (0.6); site
    1 has as many by both, so the closed form (0.9); site 2 has no closed form. x is 10, 0.5 and 1
    points below: only the first is more than a point. Sites have 20, 21 and 22 labels. y has a
    closed form of its own, which every site chooses. z has other features than the network: its
    sites have its closed form (0.1) alone, site 1 nothing.
    """
    sites = ["setting,method,seed,labelled,accuracy,alone,alone_validation", "b,x,740,,0.1,,"]
    for method, right, alone, chosen in (
        ("local_only", "0.5 0.6 0.7", "0.5 0.6 0.7", "0.6 0.5 0.5"),
        ("one_round", "0.8 0.8 0.7", "0.6 0.9 -", "0.5 0.5 -"),
        ("x", "0.4 0.895 0.69", "", ""),
        ("y", "0.9 0.8 0.7", "0.8 0.1 0.1", "0.9 0.9 0.9"),
        ("z", "0.4 0.4 0.4", "0.1 - 0.1", "0.2 - 0.2"),
    ):
        sites.append(f"a,{method},740,0 20 21,{right},{alone},{chosen}")
    (tmp_path / "sites.csv").write_text("\n".join(sites), encoding="utf-8")
    on_lite0 = {"model.body": "lite0"}
    methods = {name: on_lite0 for name in ("local_only", "one_round", "x", "y")}
    each = site_gains(tmp_path, "a", {**methods, "z": None})
    assert [gain for _, gain in each["y"]] == pytest.approx([0.1, 0.7, 0.6])
    assert [gain for _, gain in each["z"]] == pytest.approx([0.3, 0.3])
    assert [*by_sites(each["x"]).values()] == pytest.approx([100 / 3, -10, -0.5, -1, None, None])


def row(method, right, printed=None, spread=None):
    return {"method": method, "by validation": right, "printed": printed, "spread": spread}


def test_all_settings_side_by_side_by_hand():
    found = {
        "a": [row("x", 90, 80), row("y", 70, spread=1.26)],
        "b": [row("z", 60), row("x", 50.06)],
    }
    assert list(overview(found)) == [
        "| method | a | b |",
        "| --- | ---: | ---: |",
        "| x | 90.0 (80.0) | 50.1 |",
        "| y | 70.0 ± 1.3 |  |",
        "| z |  | 60.0 |",
    ]


@pytest.mark.parametrize(("by_validation", "printed", "shown"), [
    (70.0, None, "| last | best"),
    (71.0, None, "| by validation | last | best"),
    (70.0, 80.0, "| last | best"),
])  # fmt: skip
def test_a_table_has_no_column_that_says_nothing(by_validation, printed, shown):
    one = {**row("x", by_validation, printed), "last": 70.0, "best": 72.0, "rate": 0.1}
    every = {name: 1.0 for name in ("worst tenth", "sites worse", *BY_LABELS, *COST)}
    head, line, values = table([{**every, **one}])
    assert head.startswith(f"| method {shown} |") and ("printed" in head) == (printed is not None)
    assert head.count("|") == line.count("|") == values.count("|") and values.endswith("0.1 |")


def test_the_picture_has_a_dot_for_each_row():
    found = rows(STUDY, SHOWN)
    axes = picture(found).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    rings = [row for row in found if row["printed"] is not None]
    assert len(dots) == len(found) + len(rings)


def test_a_curve_has_a_point_for_each_share_of_labels():
    found = {"a=1, labels=0.5": [row("x", 90)], "a=1, labels=0.05": [row("x", 70)]}
    [line] = curves({**found, "a=2, labels=0.5": [row("x", 80)]}).axes[0].lines
    assert line.get_xydata().tolist() == [[0.05, 70], [0.5, 90]]


def test_a_method_may_have_other_settings_in_a_setting():
    other = {"methods": {"x": {"rate": 2}}}
    grid = {"methods": {"x": {"rate": 1, "size": 3}}, "settings": {"a": {}, "b": other}}
    assert settings_of(grid, "a", "x") == {"rate": 1, "size": 3}
    assert settings_of(grid, "b", "x") == {"rate": 2, "size": 3}


def test_bytes_of_a_site_by_hand():
    assert megabytes({"bytes_down": "3e6", "bytes_up": "1e6", "sites": "2"}) == 2


def test_gains_are_drawn_by_labels_and_a_missing_one_leaves_a_gap():
    gains = dict(zip(BY_LABELS, (70.0, 50.0, None, 5.0, 0.5), strict=True))
    axes = who_gains({"alpha=1": [{**row("One round", 90), **gains}, row("FixAvg", 80)]}).axes[0]
    line, _ = axes.lines  # the other one is at no gain
    assert str(line.get_ydata().tolist()) == "[70.0, 50.0, nan, 5.0, 0.5]"


def study(folder, runs, sites):
    """A folder with these lines of results.csv and of sites.csv, heads included."""
    folder.mkdir()
    (folder / "results.csv").write_text(runs, encoding="utf-8")
    (folder / "sites.csv").write_text(sites, encoding="utf-8")
    return folder


def test_runs_are_taken_in_by_hand(tmp_path):
    """A run of the same name is replaced, others are kept; only two methods have a way alone."""
    here = study(
        tmp_path / "study",
        "setting,method,seed,x\na,x,1,old\na,x,2,kept\n",
        "setting,method,seed,labelled,accuracy,alone,alone_validation\na,x,1,,0.1 0.1,,\n",
    )
    methods = {
        "x": {}, "common": {"answer": "common"}, "form": {"method.preset": "one_round"},
        "local_only": {},
    }  # fmt: skip
    grid = {"settings": {"a": {}}, "methods": methods}
    (here / "study.yaml").write_text(yaml.safe_dump(grid), encoding="utf-8")
    columns = "labelled,selected_accuracy,val_accuracy,alone_accuracy,alone_val_accuracy"
    lines = [f"setting,method,seed,site,{columns}"]
    for method in ("x", "common", "form", "local_only"):
        lines += [f"a,{method},1,0,30,0.75,0.5,0.25,0.125", f"a,{method},1,1,0,,,0.33333,"]
    new = "".join(f"a,{method},1,new\n" for method in methods)
    there = study(tmp_path / "new", "setting,method,seed,x\n" + new, "\n".join(lines))
    for _ in range(2):  # a second time changes nothing
        take_in(here, there)
        assert (here / "results.csv").read_text(encoding="utf-8") == (
            "setting,method,seed,x\na,x,1,new\na,x,2,kept\n"
            "a,common,1,new\na,form,1,new\na,local_only,1,new\n"
        )
        assert (here / "sites.csv").read_text(encoding="utf-8").splitlines()[1:] == [
            "a,x,1,,0.7500 -,,",
            "a,form,1,30 0,0.7500 -,0.2500 0.3333,0.1250 -",
            "a,local_only,1,30 0,0.7500 -,0.7500 -,0.5000 -",
        ]
    other = study(tmp_path / "other", "setting,method,seed,y\na,x,1,new\n", "\n".join(lines))
    with pytest.raises(DataError, match=r"results\.csv: has other columns"):
        take_in(here, other)
