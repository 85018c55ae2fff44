"""A user's own function by its name: its form, and what is said where it cannot be had."""

from pathlib import Path

import pytest

from fedapp.core.errors import ConfigError
from fedapp.core.plugins import is_function_name, load_function, name_advice, source_path
from tests import arrays


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("a:b", "package.module:function", "_a1.b_2:_c3")),
        *((name, False) for name in ("", "digits", "a:", ":b", "a.:b", "a:b.c", "a b:c", "1a:b")),
    ],
)
def test_which_names_are_functions(name: str, is_one: bool) -> None:
    assert is_function_name(name) == is_one


def test_a_name_with_a_dot_or_a_colon_was_meant_as_a_function() -> None:
    for name in ("hospital.counts", "hospital:", "a.b.c"):
        assert "package.module:function" in name_advice(name, ["mlp"])
    assert name_advice("mpl", ["mlp"]) == "did you mean 'mlp'?"


def test_it_is_the_function_itself() -> None:
    assert load_function("tests.arrays:vectors") is arrays.vectors
    assert source_path("tests.arrays:vectors") == Path(arrays.__file__).parent
    assert source_path("this:s").name == "this.py"
    assert not source_path("no_such_package.module:f").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_package.module:f", r"cannot import 'no_such_package\.module' \(No module named"),
        ("tests.arrays:vector", "'tests.arrays' has no function 'vector'"),
        ("tests.arrays:np", "'tests.arrays' has no function 'np'"),
        ("tests.arrays:", r"must be package\.module:function"),
        (":vectors", r"must be package\.module:function"),
        ("os:abort", "'os' has no function 'abort'"),  # of the machine's, not a user's
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_function(name)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_once.py").write_text("raise ValueError('a patient')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'fails_at_once' \(ValueError\); import it by"):
        load_function("fails_at_once:f")
