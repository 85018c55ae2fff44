"""Who may import whom: the rooms in their order (docs/ARCHITECTURE.md) and some rules more."""

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from fedapp.methods import method_class, method_names

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedapp", "server_app", "client_app", "bench")
ROOMS = (
    "fedapp.core", "fedapp.privacy", "fedapp.protocol", "fedapp.data", "fedapp.evaluation",
    "fedapp.learn", "fedapp.aggregation", "fedapp.methods", "fedapp.experiment", "fedapp.models",
    "fedapp.site", "client_app", "fedapp.server", "fedapp.reports", "server_app",
    "fedapp.simulation", "fedapp.tools", "fedapp.api", "fedapp.cli", "fedapp.__main__", "bench",
)  # fmt: skip
"""A module imports its own room and those before it."""
SITES_SIDE = ("fedapp.site", "client_app")
SERVERS_SIDE = ("fedapp.server", "server_app")
"""Nothing passes between the two but messages."""
OWN_SITE = ("server_app.strategy", "fedapp.site.server_site")
"""But for the server's own site, which is a site in the server's process."""
WHOLE = {
    "docs", "flower", "deploy", "examples", "faults", "security", "golden", "outside",
}  # fmt: skip
"""Folders of tests that run all rooms together, or none; the others are named after a room."""
MATHEMATICS = (
    "protocol/secure_aggregation/fixed_point", "protocol/secure_aggregation/secret_sharing",
    "protocol/secure_aggregation/neighbour_graph", "protocol/secure_aggregation/masking",
    "protocol/secure_aggregation/site_session", "protocol/secure_aggregation/server_session",
    "learn/uncertainty", "learn/losses", "learn/training",
    "learn/metrics", "aggregation/base", "aggregation/changes", "aggregation/filtered",
    "aggregation/server_optimizers", "privacy/noise", "learn/steps", "learn/class_priors",
    "learn/prototypes", "evaluation/model_selection", "evaluation/findings",
    "evaluation/confidence_intervals", "evaluation/classification_metrics",
    "evaluation/ranking_metrics", "evaluation/reliability_warnings", "evaluation/verdict",
    "models/conformal", "methods/um_pfssl/relation", "methods/um_pfssl/costs",
    "methods/bags/_losses", "methods/prototypes/_episodes", "methods/two_networks/_target",
    "methods/closed_form/_discriminant", "methods/recommended/_calibration",
)  # fmt: skip
FAMILIES = {
    "averaging": (), "um_pfssl": (), "bags": ("averaging",), "prototypes": ("averaging",),
    "two_networks": ("averaging",), "closed_form": (), "recommended": ("averaging", "closed_form"),
}  # fmt: skip
"""Of methods, with those that they build on."""
FLOWER = {
    "fedapp.protocol.flower_records", "fedapp.tools.deploy.registered_sites",
    "fedapp.tools.deploy.superlink", "fedapp.tools.flower_compat", "fedapp.tools.check.server",
    "fedapp.tools.node.approval_hook", "fedapp.tools.node.supernode", "client_app.app",
    "client_app.resident.caller", "server_app.app", "server_app.carrier",
    "server_app.node_registry", "server_app.transport", "server_app.strategy",
    "bench.rivals",
}  # fmt: skip


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))}


def imports(text: str) -> set[str]:
    """Return the modules that a file imports, imports inside functions too, as dotted names.

    `from package import module` is the module alone; of what else is imported from one, both names.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import; write the whole name"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= FILES.keys() else {*names, str(node.module)}
    return found


IMPORTS = {name: imports(path.read_text()) for name, path in FILES.items()}


def room(name: str) -> int:
    """Return a module's place in ROOMS."""
    for place, known in enumerate(ROOMS):
        if name == known or name.startswith(f"{known}."):
            return place
    raise AssertionError(f"{name}: in no room; put it into one, or name its room here")


def wrong(name: str, imported: set[str]) -> list[str]:
    """Return the imports that the rooms forbid a module."""
    here, found = room(name), []
    for other in sorted(imported):
        if other.split(".")[0] not in PACKAGES or other == "fedapp":
            continue
        there = room(other)
        sides = ROOMS[here] in SERVERS_SIDE and ROOMS[there] in SITES_SIDE
        sides &= name != OWN_SITE[0] or not other.startswith(OWN_SITE[1])
        flower = name.startswith("fedapp.") and not other.startswith("fedapp.")
        if there > here or sides or flower:
            found.append(f"{name} ({ROOMS[here]}) imports {other} ({ROOMS[there]})")
    return found


def outer(name: str) -> set[str]:
    """The top-level packages that a module imports."""
    return {imported.split(".")[0] for imported in IMPORTS[name]}


def below(*tops: str) -> list[str]:
    return [name for name in FILES if name.startswith(tuple(f"{top}." for top in tops))]


def test_every_module_imports_only_its_own_room_and_earlier_ones():
    assert [line for name in FILES if name != "fedapp" for line in wrong(name, IMPORTS[name])] == []


def test_modules_import_each_other_without_a_circle():
    """Inside functions too: two modules that need each other are one, or lack a third."""
    known = {name: imported & FILES.keys() for name, imported in IMPORTS.items()}
    TopologicalSorter(known).prepare()  # CycleError names the circle


def test_importing_fedapp_imports_nothing_else():
    """What it offers stands in fedapp.api, which nothing inside imports."""
    code = "import fedapp, sys; print(*[m for m in sys.modules if m.partition('.')[0] in {TOPS}])"
    code = code.replace("{TOPS}", str({*PACKAGES, "torch", "numpy", "flwr", "pydantic"}))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["fedapp"], done.stderr
    inside = [name for name in FILES if name != "fedapp" and room(name) != room("fedapp.api")]
    assert not [name for name in inside if any("fedapp.api" in i for i in IMPORTS[name])]


@pytest.mark.parametrize(("name", "text"), [
    ("fedapp.data.x", "from fedapp.server.engine import Engine"),
    ("fedapp.core.x", "def f():\n    import fedapp.data.sites"),
    ("fedapp.tools.x", "from fedapp import cli"),
    ("fedapp.tools.x", "from server_app.transport import carried"),
    ("fedapp.site.x", "from fedapp.server import pool"),
    ("fedapp.server.x", "from fedapp.site import site"),
    ("client_app.x", "from fedapp.server.pool import ModelPool"),
    ("server_app.x", "from client_app.node import alone"),
])  # fmt: skip
def test_the_walk_finds_what_is_forbidden(name, text):
    assert wrong(name, imports(text))


@pytest.mark.parametrize("name", ["fedapp.cellar.x", "fedapp.x", "fedapp.sites.x"])
def test_a_module_without_a_room_is_found(name):
    with pytest.raises(AssertionError, match="in no room"):
        wrong(name, set())


def test_tests_mirror_the_rooms():
    named = {place.rpartition(".")[2] for place in ROOMS}
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("**/*.py"))}
    assert folders <= named | WHOLE


def test_the_mathematics_does_no_input_or_output():
    for path in MATHEMATICS:
        name = f"fedapp.{path}".replace("/", ".")
        assert not outer(name) & {"os", "pathlib", "shutil", "socket", "io", "logging"}, name


def test_a_method_knows_neither_flower_nor_another_method():
    """It knows its own files, and what families share: `base`, and files that begin with `_`."""
    methods = {method_class(name).__module__.removesuffix(".method") for name in method_names()}
    for name in below("fedapp.methods"):
        others = {one for one in methods if name != one and not name.startswith(f"{one}.")}
        known = [i for i in IMPORTS[name] for one in others if i == one or i.startswith(f"{one}.")]
        assert not known, name
        assert not IMPORTS[name] & FLOWER, name


def test_families_build_on_each_other_in_one_order():
    for name in below("fedapp.methods"):
        parts = [each.split(".") for each in IMPORTS[name] if each.startswith("fedapp.methods.")]
        reached = {each[2] for each in parts if each[2] in FAMILIES}
        family = name.split(".")[2]
        if family in FAMILIES:
            assert reached <= {family, *FAMILIES[family]}, name
        else:
            assert not reached, name


def test_flower_is_imported_where_it_is_named():
    assert {name for name in FILES if "flwr" in outer(name)} == FLOWER


@pytest.mark.parametrize("start", ["fedapp.simulation.loopback", "fedapp.api.comparing"])
def test_what_needs_no_flower_reaches_none(start):
    reached, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name in FILES and name not in reached:
            reached.add(name)
            todo += [*IMPORTS[name], name.rpartition(".")[0]]
    assert "fedapp.site.site" in reached and not reached & FLOWER


def test_what_the_extra_app_brings_is_not_imported_without_need(tmp_path):
    """Masked sums import cryptography when they are asked for."""
    for name in ("flwr", "ray", "cryptography"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    code = "import fedapp.cli, fedapp.tools.demo, fedapp.api.comparing, fedapp.api.runs"
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_unpickled():
    for name in below("fedapp", "server_app", "client_app"):
        assert not outer(name) & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}, name
        nodes = list(ast.walk(ast.parse(FILES[name].read_text())))
        loads = [
            node
            for node in nodes
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
        ]
        named = [
            n for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n) == "torch.load"
        ]
        # A file of weights that a person names, read as tensors only.
        assert len(named) == len(loads) == (name == "fedapp.learn.networks._weights"), name
        assert all("weights_only=True" in ast.unparse(load) for load in loads), name


def test_random_draws_come_from_rng():
    for name in below("fedapp", "server_app", "client_app"):
        assert "random" not in IMPORTS[name], name
