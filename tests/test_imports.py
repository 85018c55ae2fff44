"""Who may import whom: the rules at the end of docs/ARCHITECTURE.md, read off the syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = {
    "settings", "errors", "rng", "protocol", "params", "uncertainty", "relation", "losses",
    "training", "metrics", "data", "models", "robust",
}  # fmt: skip
MATHEMATICS = ("uncertainty", "relation", "losses", "training", "metrics", "robust")


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, imports inside functions too, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write the whole name"
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(*parts: str) -> list[Path]:
    found = [path for part in parts for path in sorted((ROOT / part).rglob("*.py"))]
    assert found
    return found


def part_of(module: str) -> str:
    """The part of fedapp that a module belongs to: fedapp.data.sites -> data."""
    return module.split(".")[1]


def inner(path: Path) -> set[str]:
    """The parts of fedapp that a file imports."""
    known = {p.stem for p in (ROOT / "fedapp").iterdir()}
    parts = {part_of(name) for name in imports(path) if name.startswith("fedapp.")}
    return parts & known


def outer(path: Path) -> set[str]:
    """The top-level packages that a file imports."""
    return {name.split(".")[0] for name in imports(path)}


def core_files() -> list[Path]:
    return [
        path
        for path in files("fedapp")
        if path.relative_to(ROOT / "fedapp").parts[0].removesuffix(".py") in CORE
    ]


def test_the_core_knows_only_the_core():
    for path in core_files():
        assert inner(path) <= CORE, path


def test_the_mathematics_does_no_input_or_output():
    for name in MATHEMATICS:
        path = ROOT / "fedapp" / f"{name}.py"
        assert not outer(path) & {"os", "pathlib", "shutil", "socket", "io", "logging"}, path


@pytest.mark.parametrize("path", files("fedapp/methods"), ids=lambda path: path.stem)
def test_a_method_knows_neither_flower_nor_configuration_nor_another_method(path):
    assert not inner(path) & {"wire", "config", "engine", "loopback", "cli", "flower_local"}
    others = {p.stem for p in path.parent.glob("[!_]*.py")} - {"base"}
    reached = {n.split(".")[2] for n in imports(path) if n.startswith("fedapp.methods.")}
    assert not reached & others


def test_only_the_wire_and_the_list_of_sites_import_flower():
    users = {path.name for path in files("fedapp") if "flwr" in outer(path)}
    assert users == {"wire.py", "roster.py"}


def test_fedapp_does_not_know_flowers_components():
    for path in files("fedapp"):
        assert not outer(path) & {"server_app", "client_app"}, path


def test_the_two_components_do_not_know_each_other():
    for path in files("server_app"):
        assert "client_app" not in outer(path), path
    for path in files("client_app"):
        assert "server_app" not in outer(path), path


def test_nothing_is_unpickled():
    for path in files("fedapp", "server_app", "client_app"):
        assert not outer(path) & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}, path
        loads = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"
        ]
        assert not loads, path


def test_random_draws_come_from_rng():
    for path in files("fedapp", "server_app", "client_app"):
        assert "random" not in imports(path), path
