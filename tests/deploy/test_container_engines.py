"""Services as containers, with an engine and a compose tool that only write down what is asked."""

import json
import os

import pytest

from fedapp.core.errors import ConfigError, RunError
from tests.deploy import containers
from tests.deploy.containers import Containers, compose_tool, engine_of

COMPOSE = """
services:
  keys: {command: [make]}
  link: {command: [serve], healthcheck: {test: [CMD, look]},
    depends_on: {keys: {condition: service_completed_successfully}}}
  site: {command: [join], healthcheck: {test: [CMD, look]},
    depends_on: {link: {condition: service_healthy}, keys: {condition: service_started}}}
"""
TOOL = """#!/bin/sh
echo "podman-compose $*" >>{folder}/asked
case "$*" in *" up "*) for name; do :; done; touch {folder}/up-$name ;; esac
"""
ENGINE = """#!/bin/sh
echo "podman $*" >>{folder}/asked
for last; do :; done
case "$1" in
ps) case "$last" in
    *service=*) [ ! -e {folder}/up-${{last##*=}} ] || printf 'once\\n%s\\n' ${{last##*=}} ;;
    *) ls {folder} | sed -n 's/^up-//p' ;;
    esac ;;
wait) cat {folder}/code ;;
inspect) cat {folder}/inspected ;;
logs) echo first; echo last ;;
exec) exit 3 ;;
esac
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / "code").write_text("0\n")
    for name, text in {"podman-compose": TOOL, "podman": ENGINE}.items():
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    says(tmp_path, "healthy")
    return Containers(("podman-compose",), tmp_path / "compose.yaml", "trial", "more")


def says(folder, health):
    (folder / "inspected").write_text(json.dumps([{"State": {"Health": {"Status": health}}}]))


def asked(made, word):
    lines = (made.file.parent / "asked").read_text().splitlines()
    return [line for line in lines if f" {word} " in f"{line} "]


def test_a_service_is_started_after_those_it_needs_and_once(made):
    made.start("site")
    made.start("site")
    start = f"podman-compose -p trial -f {made.file} --profile more up -d --no-deps"
    assert asked(made, "up") == [f"{start} {name}" for name in ("keys", "link", "site")]
    # Podman alone looks at nobody's health; and the oldest container is the service's.
    assert asked(made, "healthcheck") == [f"podman healthcheck run {n}" for n in ("link", "site")]


def test_what_runs_once_and_fails_ends_the_start_with_its_last_words(made):
    (made.file.parent / "code").write_text("3\n")
    with pytest.raises(RunError, match="keys ended with 3; its last lines: last"):
        made.start("site")
    assert len(asked(made, "up")) == 1


def test_one_that_does_not_get_well_is_named(made, monkeypatch):
    monkeypatch.setattr(containers, "_READY_S", 0.0)
    says(made.file.parent, "unhealthy")
    with pytest.raises(RunError, match="link is unhealthy, not healthy; its last lines: last"):
        made.start("link")


def test_removing_takes_what_bears_the_projects_name_and_no_more(made):
    made.remove()
    assert not asked(made, "rm")
    made.start("link")
    made.remove()
    assert asked(made, "rm") == ["podman rm -f keys link"]
    down = f"podman-compose -p trial -f {made.file} --profile more down -v"
    assert asked(made, "down") == [down] * 2
    mine = "--filter=label=com.docker.compose.project=trial"
    assert all(mine in line for line in asked(made, "ps"))


def test_a_command_inside_tells_its_exit_code_and_what_must_work_raises(made):
    made.start("keys")
    assert made.inside("keys", "look").returncode == 3
    with pytest.raises(RunError, match="podman exec keys: ended with 3"):
        made.do("keys", "exec")


def test_the_tool_is_the_first_that_works(made, monkeypatch):
    assert compose_tool() == ("podman-compose",)
    assert [engine_of(tool) for tool in containers.TOOLS] == ["docker", "podman", "podman"]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no compose tool works here; install"):
        compose_tool()
