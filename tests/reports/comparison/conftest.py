"""Comparisons that several tests look at; none of them changes a file."""

import pytest

from tests.reports.comparison.synthetic import realistic


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Two settings, three methods, three seeds."""
    return realistic(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """Training alone and ten other methods, in two settings with one seed."""
    methods = ["local_only", *(f"m{number}" for number in range(10))]
    return realistic(tmp_path_factory.mktemp("many"), ["a", "b"], methods, (0,))
