"""A user's own function by its name: its form, and what is said where it cannot be had."""

from pathlib import Path

import pytest

from fedapp.core.errors import ConfigError
from fedapp.core.plugins import advice, function_of, names_function, source_of
from tests import arrays


@pytest.mark.parametrize("name", ["a:b", "package.module:function", "_a1.b_2:_c3"])
def test_such_names_are_functions(name: str) -> None:
    assert names_function(name)


@pytest.mark.parametrize(
    "name", ["", "digits", "a:", ":b", "a.:b", "a:b.c", "a b:c", "a/b:c", "1a:b"]
)
def test_such_names_are_not(name: str) -> None:
    assert not names_function(name)


def test_a_name_with_a_dot_or_a_colon_was_meant_as_a_function() -> None:
    for name in ("hospital.counts", "hospital:", "a.b.c"):
        assert advice(name, ["mlp"]) == "a function of your own is named package.module:function"
    assert advice("mpl", ["mlp"]) == "did you mean 'mlp'?"


def test_it_is_the_function_itself() -> None:
    assert function_of("tests.arrays:vectors") is arrays.vectors
    assert source_of("tests.arrays:vectors") == Path(arrays.__file__).parent
    assert source_of("this:s").name == "this.py"
    assert not source_of("no_such_package.module:f").exists()


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
        function_of(name)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_once.py").write_text("raise ValueError('a patient')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'fails_at_once' \(ValueError\); import it by"):
        function_of("fails_at_once:f")
