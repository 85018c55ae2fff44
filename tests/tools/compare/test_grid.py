"""Grids: what they say, and every fault in a line that names where, key, value, rule."""

import csv
from pathlib import Path

import pytest
import yaml
from yaml import safe_dump as dump

from fedapp.core.errors import ConfigError
from fedapp.experiment import preset_files
from fedapp.experiment.config import experiment_digest, load_experiment
from fedapp.experiment.preset_files import method_presets, presets, sweeps
from fedapp.experiment.resume import open_run
from fedapp.methods.bags._bagged import FromBags
from fedapp.methods.two_networks.fedsiam_d import FedSiamD
from fedapp.tools.compare.cells import build_cells, runs_of
from fedapp.tools.compare.grid import MIX, labels_of, one_of, read_grid, seeds_of
from tests.tools.compare.tiny import SET, cells, grid, grid_file

ROOT = Path(__file__).parents[3]
TABLES = ROOT / "conf" / "paper_tables.csv"


def problems(folder: Path, **changes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        cells(folder, **changes)
    lines = str(caught.value).splitlines()
    prefix = f"{folder / 'tiny.yaml'}: "
    return [line.removeprefix(prefix) for line in lines]


# --- what a grid says -----------------------------------------------------------------------------


def test_defaults_are_one_setting_and_three_seeds(tmp_path: Path):
    found = grid(tmp_path, seeds=None)
    assert [setting.name for setting in found.settings] == ["base"]
    assert (found.seeds, found.name, found.title) == ((0, 1, 2), "tiny", "tiny")
    assert list(found.methods) == ["fixavg", "um_pfssl"]


def test_a_later_layer_wins(tmp_path: Path):
    every = cells(
        tmp_path,
        settings={"few": {"training.batch_size": 8}, "many": None},
        methods={"fixavg": None, "slow": {"method.preset": "fixavg", "training.batch_size": 4}},
    )
    found = {(c.setting, c.method): c.experiment.training.batch_size for c in every}
    assert found == {
        ("few", "fixavg"): 8, ("few", "slow"): 4, ("many", "fixavg"): 16, ("many", "slow"): 4,
    }  # fmt: skip
    assert {c.experiment.rounds.num_rounds for c in every} == {SET["rounds.num_rounds"]}


def test_a_method_has_values_of_its_own_in_a_setting(tmp_path: Path):
    own = {"methods": {"fixavg": {"training.batch_size": 4}}, "training.batch_size": 8}
    every = cells(
        tmp_path,
        settings={"few": own, "many": {}},
        methods={"fixavg": {"training.batch_size": 16}, "um_pfssl": {}},
        set={**SET, "training.batch_size": 32},
    )
    found = {(c.setting, c.method): c.experiment.training.batch_size for c in every}
    assert found == {
        ("few", "fixavg"): 4, ("few", "um_pfssl"): 8,
        ("many", "fixavg"): 16, ("many", "um_pfssl"): 32,
    }  # fmt: skip
    assert every[0].folder == tmp_path / "out" / "cells" / "few" / "fixavg" / "seed-0"


def test_values_in_a_setting_of_no_method_or_of_no_key_are_refused(tmp_path: Path):
    where = "settings: few: methods"
    unknown = {"few": {"methods": {"fixavgg": {"training.batch_size": 4}}}}
    assert problems(tmp_path, settings=unknown) == [
        f"{where}: 'fixavgg': no such method here; did you mean 'fixavg'?"
    ]
    wrong = {"few": {"methods": {"fixavg": {"training.batch_size": -1}}}}
    (line,) = problems(tmp_path, settings=wrong)
    assert line.startswith(f"{where}: fixavg: training.batch_size = -1: ")
    varied = {"few": {"methods": {"fixavg": {"seed": 1}}}}
    (line,) = problems(tmp_path, settings=varied)
    assert line.startswith(f"{where}: fixavg: seed = 1: is varied by the cells")
    path = str(grid_file(tmp_path, settings=varied))
    assert read_grid(path, methods=["um_pfssl"]).settings[0].methods == {}  # it is not compared
    path = str(
        grid_file(tmp_path, settings={"few": {"methods": {"fixavg": {"training.momentum": 0.5}}}})
    )
    with pytest.raises(
        ConfigError, match=r"line: training\.momentum = 0\.1: is what the cells vary"
    ):
        read_grid(path, {"training.momentum": 0.1})


def test_a_row_of_another_answer_shares_the_run_of_one_with_its_settings(tmp_path: Path):
    average = {"method.preset": "fedavg_ft", "answer": "common"}
    methods = {
        "fedavg": average,
        "fedavg_ft": {},
        "slower": {**average, "training.learning_rate": 0.001},
        "again": {"method.preset": "fedavg_ft"},  # no answer of its own: a cell of its own
    }
    every = cells(tmp_path, methods=methods)
    places = {c.method: c.folder.parent.name for c in every}
    assert places == {
        "fedavg": "fedavg_ft", "fedavg_ft": "fedavg_ft", "slower": "slower", "again": "again",
    }  # fmt: skip
    assert [c.answer for c in every] == ["common", "", "common", ""]
    assert [c.method for c in runs_of(every)] == ["fedavg_ft", "slower", "again"]
    later = cells(tmp_path, methods={"fedavg_ft": {}, "fedavg": average})
    assert [c.method for c in runs_of(later)] == ["fedavg_ft"]
    alone = cells(tmp_path, methods={"fedavg": average})
    assert alone[0].folder.parent.name == "fedavg" and runs_of(alone) == list(alone)


def test_a_setting_may_name_another_preset_and_the_papers_rows(tmp_path: Path):
    paper = {"table": "I", "dataset": "FashionMNIST"}
    found = grid(
        tmp_path,
        settings={"a": {"preset": "cifar10"}, "b": {"paper": {**paper, "setting": "alpha=1"}}},
        paper=paper,
    )
    a, b = found.settings
    assert (a.preset, b.preset) == ("cifar10", "digits_demo")
    assert (a.paper.setting, b.paper.setting) == ("", "alpha=1")
    assert (a.paper.table, a.paper.paper) == ("I", "UM-pFSSL")


def test_the_command_line_chooses_methods_and_seeds_and_adds_overrides(tmp_path: Path):
    path = str(grid_file(tmp_path))
    found = read_grid(path, {"rounds.num_rounds": 1}, ["um_pfssl", "fedper"], [7, 3])
    assert list(found.methods.items()) == [
        ("um_pfssl", {"method.preset": "um_pfssl"}),
        ("fedper", {"method.preset": "fedper"}),
    ]
    every = build_cells(found, tmp_path)
    assert [(c.seed, c.method) for c in every[:2]] == [(7, "um_pfssl"), (7, "fedper")]
    assert {c.experiment.rounds.num_rounds for c in every} == {1}


def test_a_reference_is_one_of_the_methods_that_are_compared(tmp_path: Path):
    path = str(grid_file(tmp_path, reference="um_pfssl", tuned_from="results_cifar10"))
    found = read_grid(path)
    assert (found.reference, found.tuned_from) == ("um_pfssl", "results_cifar10")
    assert read_grid(path, {}, ["um_pfssl"]).reference == "um_pfssl"
    assert read_grid(path, {}, ["fixavg"]).reference == ""  # it is not compared now


def test_a_data_preset_alone_is_a_grid_once_methods_are_named():
    found = read_grid("digits_demo", {}, ["fixavg"])
    assert ([s.name for s in found.settings], found.seeds) == (["base"], (0, 1, 2))
    with pytest.raises(ConfigError, match="'digits_demo' is a data preset: say what to compare"):
        read_grid("digits_demo")


OWN_METHOD = "# Mine.\nmethod:\n  name: fedavg\n  objective: supervised\n"


def test_presets_and_method_presets_are_named_or_files_beside_the_grid(tmp_path, monkeypatch):
    """They are found from any folder: the cells' processes run elsewhere."""
    monkeypatch.chdir(tmp_path)
    beside = tmp_path / "grids"
    beside.mkdir()
    (beside / "mine.yaml").write_text(OWN_METHOD)
    data = dump({"name": "again", "split": {"num_clients": 4}, "method": {"name": "local_only"}})
    (beside / "data.yaml").write_text(data)
    (beside / "grid.yaml").write_text(dump({
        "settings": {"a": {"preset": "data.yaml"}, "b": {"preset": "digits_demo"}},
        "methods": ["fedavg", "mine.yaml"],
        "seeds": [0],
    }))  # fmt: skip
    mine, data = str(beside / "mine.yaml"), str(beside / "data.yaml")
    found = read_grid("grids/grid.yaml")
    assert [setting.preset for setting in found.settings] == [data, "digits_demo"]
    assert found.methods == {"fedavg": {"method.preset": "fedavg"}, "mine": {"method.preset": mine}}
    cells = build_cells(found, tmp_path / "out")
    assert [(cell.setting, cell.method, cell.experiment.name) for cell in cells] == [
        ("a", "fedavg", "again-fedavg"), ("a", "mine", "again-mine"),
        ("b", "fedavg", "digits_demo-fedavg"), ("b", "mine", "digits_demo-mine"),
    ]  # fmt: skip
    chosen = read_grid("grids/data.yaml", {}, ["um_pfssl", "grids/mine.yaml"], [3])
    assert [setting.preset for setting in chosen.settings] == [data]
    assert chosen.methods["mine"] == {"method.preset": mine}
    with pytest.raises(ConfigError, match="is a data preset: say what to compare"):
        read_grid("grids/data.yaml")
    with pytest.raises(ConfigError, match="'mine' stands twice"):
        read_grid("digits_demo", {}, ["grids/mine.yaml", mine])


def test_a_runs_settings_are_compared_on_as_any_preset(tmp_path):
    folder = open_run(load_experiment("digits_demo", {"runtime.out": str(tmp_path), "seed": 7}))
    config = str(folder.path / "config.yaml")
    [cell] = build_cells(read_grid(config, {}, ["um_pfssl"], [1]), tmp_path / "out")
    named = {"method.preset": "um_pfssl", "seed": 1}
    expected = load_experiment("digits_demo", named)
    assert experiment_digest(cell.experiment) == experiment_digest(expected)


def test_lists_of_the_command_line():
    assert labels_of(" um_pfssl, fixavg,") == ["um_pfssl", "fixavg"]
    assert (seeds_of("0, 2"), seeds_of("")) == ([0, 2], [])
    assert seeds_of("0 1 2") == [0, 1, 2]
    for text in ("0,-1", "1.5", "one", "0..3"):
        with pytest.raises(ConfigError, match=r"--seeds .*must be whole numbers from 0"):
            seeds_of(text)


# --- faults ---------------------------------------------------------------------------------------


def test_every_fault_of_the_file_is_a_line(tmp_path: Path):
    assert problems(
        tmp_path,
        title=3,
        prset="digits_demo",
        set={"rounds": {"num_rounds": 3}},
        settings={0.5: {"split.dirichlet_alpha": [1]}},
        seeds=[-1, "x"],
        paper={"tble": "I", "dataset": "d"},
    ) == [
        "title = 3: must be a valid string",
        "set: rounds = {'num_rounds': 3}: must be one number, text, true or false; write keys with "
        "their group, dotted",
        "settings: 0.5 = 0.5: a name must be text: put it in quotes",
        "settings: 0.5: split.dirichlet_alpha = [1]: must be one number, text, true or false; "
        "write keys with their group, dotted",
        "seeds: 0 = -1: must be greater than or equal to 0",
        "seeds: 1 = 'x': must be a valid integer",
        "paper: table: is missing; give it",
        "paper: tble = 'I': unknown key; did you mean 'table'?",
        "prset = 'digits_demo': unknown key; did you mean 'preset'?",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"methods": None}, "methods: is missing; give it"),
        ({"methods": "fixavg"}, "methods = 'fixavg': must be a list of method presets, or a map"),
        ({"methods": []}, "methods: name at least one; valid: ditto, "),
        ({"methods": ["fixavg", "fixavg"]}, "methods = ['fixavg', 'fixavg']: one stands twice"),
        ({"methods": ["fixavgg"]}, "methods: fixavgg: no such method preset, and method.preset is"),
        (
            {"methods": {"a": {"method.preset": "fixav"}}},
            "methods: a: method.preset = 'fixav': no ",
        ),
        ({"methods": {"a": {"method.update_every": 1}}}, "methods: a: no such method preset, and "),
        (
            {"methods": ["fixavg", "fixbn", "mix"]},
            "methods: mix: fixprox must be among the methods",
        ),
        ({"methods": {"mix": {"seed": 1}}}, "methods: mix: seed = 1: is varied by the cells"),
        (
            {"methods": {"fedavg": {"method.preset": "fedavg_ft", "answer": "alone"}}},
            "methods: fedavg: answer = 'alone': must be common or tuned",
        ),
        ({"reference": "fixbn"}, "reference = 'fixbn': no such method; "),
        ({"tuned_from": "results_cifar1"}, "tuned_from = 'results_cifar1': no such grid; did you"),
        (
            {"tuned_from": "table1", "tune": {"budget": 1, "seeds": [9], "values": {}}},
            "tuned_from = 'table1': the grid has a `tune` of its own: keep one",
        ),
        ({"seeds": "0"}, "seeds = '0': must be a list, such as [0, 1, 2]"),
        ({"seeds": []}, "seeds = []: must name at least one"),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: one stands twice; keep one"),
        ({"set": {"seed": 1}}, "set: seed = 1: is varied by the cells: give `seeds`, or --seeds"),
        ({"set": {"method.name": "x"}}, "set: method.name = 'x': is varied by the cells: give `me"),
        ({"set": {"runtime.out": "x"}}, "set: runtime.out = 'x': is the comparison's own: give --"),
        ({"settings": {"a": {"runtime.resume": True}}}, "settings: a: runtime.resume = True: is t"),
        ({"settings": {" a": None}}, "' a': a name must be 1 to 60 printable characters"),
        ({"preset": None}, "settings: base: names no preset, and the grid has none; valid: "),
        ({"preset": "digits"}, "base / fixavg: preset 'digits': no such preset and no such YAML"),
        ({"set": {"rounds.num_round": 1}}, "set: rounds.num_round = 1: unknown key; did you mean "),
        ({"set": {"rounds.num_rounds": "1"}}, "set: rounds.num_rounds = '1': must be a valid inte"),
        ({"settings": {"a": {"split.num_clients": 0}}}, "settings: a: split.num_clients = 0: must"),
        (
            {"methods": {"fixavg": {"method.num_replaced": 1}}},
            "methods: fixavg: method.num_replaced = 1: not a setting of fedavg; valid: ",
        ),
    ],
)
def test_each_fault_names_place_value_rule_and_remedy(tmp_path: Path, changes, line):
    assert problems(tmp_path, **changes)[0].startswith(line)


def test_a_fault_of_all_cells_is_said_once(tmp_path: Path):
    lines = problems(tmp_path, set={"rounds.num_round": 1}, seeds=[0, 1, 2])
    assert len(lines) == 1


def test_values_that_contradict_each_other_name_the_cell(tmp_path: Path):
    lines = problems(tmp_path, settings={"a": {"split.train_share": 0.95}}, methods=["fixavg"])
    assert len(lines) == 1
    assert lines[0].startswith(
        "a / fixavg: override over conf/digits_demo.yaml under conf/methods/"
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"rounds.num_round": 1}, "command line: rounds.num_round = 1: unknown key; did you mean"),
        ({"seed": 1}, "command line: seed = 1: is varied by the cells: give `seeds`, or --seeds"),
        ({"training.batch_size": 2}, "command line: training.batch_size = 2: is what the cells v"),
    ],
)
def test_overrides_of_the_command_line_are_checked_too(tmp_path: Path, given, line):
    path = grid_file(tmp_path, settings={"a": {"training.batch_size": 8}})
    with pytest.raises(ConfigError) as caught:
        build_cells(read_grid(str(path), given), tmp_path)
    assert str(caught.value).startswith(line)


def test_unknown_names_come_with_the_nearest(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"grid 'smal': no such .*; did you mean 'small'\?"):
        read_grid("smal")
    with pytest.raises(ConfigError, match=r"--methods: 'um_pfsl': .* did you mean 'um_pfssl'\?"):
        read_grid(str(grid_file(tmp_path)), {}, ["um_pfsl"])
    path = tmp_path / "broken.yaml"
    path.write_text("title: [")
    with pytest.raises(ConfigError, match="line 1: "):
        read_grid(str(path))


SEVERAL = """
.base: {preset: digits_demo, set: {seed: 1, data.subset: 9}, methods: {fedavg: {}, ditto: {a: 1}}}
one: {like: .base, seeds: [4]}
two: {like: one, set: {data.subset: 7}, methods: {ditto: {a: 2}}, title: Two}
three: {like: two, methods: [fedbn]}
four: {like: oen}
"""


def test_a_grid_is_like_another_one_of_its_file_but_for_what_it_says():
    several = yaml.safe_load(SEVERAL)
    two = one_of(several, "two", "here")
    assert two == {
        "preset": "digits_demo", "title": "Two", "seeds": [4],
        "set": {"seed": 1, "data.subset": 7}, "methods": {"fedavg": {}, "ditto": {"a": 2}},
    }  # fmt: skip
    assert one_of(several, "three", "here") == {**two, "methods": ["fedbn"]}  # a list adds nothing
    with pytest.raises(ConfigError, match=r"here: like = 'oen': no such grid .* 'one'\?"):
        one_of(several, "four", "here")


def test_grids_of_one_file_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "sweeps"
    folder.mkdir()
    (folder / "paper.yaml").write_text(SEVERAL)
    (folder / "small.yaml").write_text("methods: {fedavg: {method.name: fedavg}}\n")
    monkeypatch.setattr(preset_files, "CONF", tmp_path)
    assert list(sweeps()) == ["four", "one", "small", "three", "two"]
    assert {sweeps()[name].name for name in ("one", "two")} == {"paper.yaml"}
    with pytest.raises(ConfigError, match="holds several grids: name one: four, one, three, two"):
        read_grid(str(folder / "paper.yaml"))
    assert sweeps()["small"].name == "small.yaml"
    monkeypatch.undo()
    assert read_grid("table2").name == "table2"
    assert read_grid("tau").origin == "conf/sweeps/um_pfssl.yaml: tau"


def test_some_settings_of_a_grid(tmp_path: Path):
    settings = {"a": {"training.batch_size": 8}, "b, c": {}, "d": {}}
    path = str(grid_file(tmp_path, settings=settings))
    some = read_grid(path, settings=["d", "b, c"])
    assert [setting.name for setting in some.settings] == ["b, c", "d"]
    with pytest.raises(ConfigError, match=r"--setting: 'e': no such setting of .*tiny.yaml"):
        read_grid(path, settings=["a", "e"])


# --- the grids that ship --------------------------------------------------------------------------


def test_a_grids_name_is_no_presets_and_mix_is_no_method_preset():
    assert not set(sweeps()) & set(presets())
    assert MIX not in method_presets()


@pytest.mark.parametrize("name", sweeps())
def test_every_sweep_builds_all_its_cells(name: str, tmp_path: Path):
    found = read_grid(name)
    every = build_cells(found, tmp_path)
    assert len(every) == len(found.settings) * len(found.methods) * len(found.seeds)
    runs = runs_of(every)  # but for rows of another answer each cell is one of its own
    assert len({cell.digest for cell in runs}) == len(runs)
    assert all(cell.answer for cell in every if cell not in runs)


SMALL = {
    *("small", "mixed_sites", "fedul_table1_small", "fedul_noise_small", "fedsiam_cifar10_small"),
    *("fedul_sets_small", "fedul_cifar10_small", "crossing", "privacy", "advise"),
    *("encoder_labels", "encoder_labels_cifar10", "encoder_labels_xrays", "hospitals"),
    *(n for n in sweeps() if n.startswith(("results_", "second_", "flexproto_", "why_"))),
}
"""Sweeps that are not of a paper's size."""
OTHERS = {
    **{name: (100, 50) for name in set(sweeps()) - SMALL if name.startswith("fedsiam_")},
    **{"fedsiam_table6_mnist": (100, 200), "scratch_table1": (100, 100)},
    **{name: (100, 1) for name in sweeps() if name.startswith("one_round_")},
    **{name: (5, 95) for name in set(sweeps()) - SMALL if name.startswith("fedul_")},
}
"""Sites, and rounds after the warm-up, in sweeps of other papers; each has a part of a table's
settings."""


@pytest.mark.parametrize("name", sorted(set(sweeps()) - SMALL))
def test_sweeps_are_of_the_papers_size(name: str, tmp_path: Path):
    for cell in build_cells(read_grid(name), tmp_path):
        medical = cell.experiment.data.name in {"pathmnist", "organamnist"}
        sites, rounds = OTHERS.get(name, (20 if medical else 100, 200))
        if cell.method == "one_round":  # it has one, whatever the sweep
            rounds = 1
        assert cell.experiment.split.num_clients == sites
        assert cell.experiment.data.subset == 0
        assert cell.experiment.rounds.num_rounds == rounds


@pytest.mark.skipif(not TABLES.exists(), reason="conf/paper_tables.csv is not there")
@pytest.mark.parametrize("name", sweeps())
def test_the_papers_rows_that_a_sweep_names_are_all_there(name: str):
    lines = [t for t in TABLES.read_text(encoding="utf-8").splitlines() if not t.startswith("#")]
    rows: dict[tuple[str, str, str], set[str]] = {}
    for row in csv.DictReader(lines):
        key = (row["paper"], row["table"], row["dataset"])
        rows.setdefault(key, set()).add(row["setting"])
    named: dict[tuple[str, str, str], set[str]] = {}
    for setting in read_grid(name).settings:
        if (paper := setting.paper) is not None:
            key = (paper.paper, paper.table, paper.dataset)
            named.setdefault(key, set()).add(paper.setting or setting.name)
    for key, settings in named.items():
        some = name in SMALL or name in OTHERS
        assert settings == rows[key] or (some and settings < rows[key]), key


CURVES = {"mnist": ("linear", 3), "svhn": ("linear", 3), "cifar10": ("rectangle", 10)}
"""FedSiam-D's share of layers, and its first rounds without any, by data (Sec. 4.1 there)."""


@pytest.mark.parametrize("name", sorted(name for name in sweeps() if name.startswith("fedsiam_")))
def test_fedsiam_d_keeps_the_papers_curve_in_every_sweep(name: str, tmp_path: Path):
    found = [
        cell.experiment
        for cell in build_cells(read_grid(name), tmp_path)
        if cell.method in ("fedsiam_d", "fedsiam_d_kl")
    ]
    assert found
    for experiment in found:
        assert isinstance(method := experiment.method, FedSiamD)
        assert (method.curve, method.calm_rounds) == CURVES[experiment.data.name]


L1 = {10: {"mnist": 1e-5, "cifar10": 2e-5}, 20: {"mnist": 5e-6, "cifar10": 1e-5},
      40: {"mnist": 2e-6, "cifar10": 4e-6}}  # fmt: skip
"""Weight of the L1 term by bags a site and data: Table D.4 of FedUL's paper."""


@pytest.mark.parametrize("name", sorted(name for name in sweeps() if name.startswith("fedul_")))
def test_methods_with_bags_have_the_papers_l1_term_as_docs_bags_says(name: str, tmp_path: Path):
    """All of them, but in the table that was measured only FedUL."""
    for cell in build_cells(read_grid(name), tmp_path):
        experiment = cell.experiment
        if isinstance(method := experiment.method, FromBags):
            wanted = L1[experiment.split.bags][experiment.data.name]
            left_out = name == "fedul_table1_small" and cell.method != "fedul"
            assert method.l1 == (0.0 if left_out else wanted), cell.name
