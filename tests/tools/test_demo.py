"""`fedapp demo` ends with a picture; a folder that is there or cannot be made is one line."""

import sys
from subprocess import run

import pytest

from fedapp.cli import main
from fedapp.tools.demo import PICTURE, demo
from tests.docs.test_commands import COMMANDS

SHORT = {"data.subset": 300, "data.image_size": 0}


def test_it_ends_with_a_verdict_a_picture_and_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    blank, picture, page, *following = demo(**SHORT)
    shown = capsys.readouterr().out
    assert "6 simulated clinics" in shown and "oining" in shown
    assert "Gained beyond chance: " in shown and "north" in shown
    assert not blank and picture.endswith(str(tmp_path / "demo" / PICTURE))
    assert (tmp_path / "demo" / PICTURE).read_text().startswith("<svg ")
    assert page.endswith("report.html") and "</html>" in (tmp_path / "demo/report.html").read_text()
    commands = [line.split()[1] for line in following if line.startswith("  fedapp ")]
    assert commands == ["site", "compare", "advise"] and set(commands) <= set(COMMANDS)
    assert "activate " in following[1] and following[2] == "  fedapp site demo"


def test_a_second_time_it_takes_a_new_folder_and_has_the_same_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    demo(**SHORT), demo(**SHORT)
    first, second = ((tmp_path / name / "per_site.csv").read_text() for name in ("demo", "demo-2"))
    assert first == second


@pytest.mark.parametrize(("options", "said"), [
    ([], "PyTorch starts: a few seconds"),
    (["--flower"], "Flower and Ray start: half a minute"),
])  # fmt: skip
def test_before_the_slow_imports_it_says_how_long_they_take(tmp_path, options, said):
    """Read from a program of its own, whose PyTorch is not yet imported when the line is there."""
    unfit = "__import__('sys').modules['torch'] = None; import fedapp.__main__ as m; m.main()"
    words = ["demo", "--out", str(tmp_path / "new"), *options]
    ran = run([sys.executable, "-c", unfit, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and "torch is not installed" in ran.stderr
    assert ran.stdout == f"{said}, but up to two minutes the first time.\n"


@pytest.mark.parametrize(("place", "said"), [
    ("there", "there: is there already: name a new folder (fedapp demo --out FOLDER)"),
    ("file/new", "a file is in the way; choose another folder (fedapp demo --out FOLDER)"),
    ("/proc/new", "/proc/new: cannot be written (No such file or directory"),
    ("/proc/new", "choose another folder (fedapp demo --out FOLDER)"),
    ("two words", "--out 'two words': must be letters, digits, dot, dash and underscore"),
])  # fmt: skip
def test_a_folder_that_will_not_do_is_one_line(tmp_path, monkeypatch, capsys, place, said):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["fedapp", "demo", "--out", str(tmp_path / place)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert list((tmp_path / "there").iterdir()) == []
