"""Every command that a page shows is there: its name, its options, its module, its target."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from fedapp.cli import app
from tests.docs.pages import PAGES, ROOT, blocks, prose

COMMANDS = typer.main.get_command(app).commands
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The changelog also names what earlier versions had."""
AT = re.compile(r"\bcommit [0-9a-f]{7}")
MODULE, NAMED = r"-m (bench\S+)", r"`(?:python -m )?(bench\.[a-z_]+)`"


def earlier(page: Path) -> set[str]:
    """The modules of the paragraphs and blocks that name the commit at which their command runs."""
    parts = page.read_text(encoding="utf-8").split("\n\n")
    at = [part for part in parts if AT.search(part)]
    return {module for part in at for rule in (MODULE, NAMED) for module in re.findall(rule, part)}


def shown(page: Path, start: str) -> list[list[str]]:
    """The words after `start`, of each place of a page where a command begins with it."""
    lines = "\n".join(text for _, text in blocks(page)).replace("\\\n", " ").splitlines()
    code = [*lines, *re.findall(r"`([^`]+)`", prose(page))]
    begins = [re.match(rf"\s*(?:\S+/bin/)?{start} ([^#|;]+)", line) for line in code]
    return [found[1].split() for found in begins if found]


@pytest.mark.parametrize("page", NOW, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_there(page):
    for name, *words in shown(page, "fedapp"):
        if name.startswith("-") or name == "fedapp":  # of publisher and name: the app's title
            continue
        assert name in COMMANDS or name == "COMMAND", f"{page.name}: fedapp {name}"
        options = {o for p in COMMANDS[name].params for o in p.opts} if name in COMMANDS else set()
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= options | {"--help"}, f"{page.name}: fedapp {name}: {used - options}"
    for module, *_ in shown(page, "python3? -m"):
        assert find_spec(module) or module in earlier(page), f"{page.name}: python -m {module}"
    for target, *_ in shown(page, "make"):
        if re.fullmatch(r"[a-z-]+", target):
            assert target in TARGETS, f"{page.name}: make {target}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/results").glob("*.md")), ids=lambda p: p.stem)
def test_a_command_of_results_whose_program_is_gone_says_where_it_is(page):
    for part in page.read_text(encoding="utf-8").split("\n\n"):
        named = re.findall(r"-m (bench\.\w+)", part)
        gone = [name for name in named if find_spec(name) is None]
        assert not gone or AT.search(part), f"{page.name}: {gone}"


def test_they_are_looked_at():
    """The search finds what is known to be there."""
    deploy = shown(ROOT / "docs/DEPLOY.md", "fedapp")
    assert ["sites", "hospitals"] in deploy
    assert any(words[:1] == ["check"] and "--server" in words for words in deploy)
    choices = ROOT / "docs/research/choices.md"
    assert "bench.helper_choice" in [words[0] for words in shown(choices, "python3? -m")]
    assert earlier(choices) == {"bench.helper_choice"}, "its script is gone"
    assert ["deploy-demo"] in shown(ROOT / "docs/DEPLOY.md", "make")
