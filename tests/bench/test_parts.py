"""bench.parts: every part is found where it is looked for, and all parts make the whole."""

from dataclasses import replace

import pytest

from bench.parts import ALL, LOOP, PARTS, REST, by_part
from bench.peers.__main__ import TOY
from bench.peers.problem import Problem, write


def test_all_parts_make_the_whole_and_none_is_missed(tmp_path):
    write(replace(TOY[0], sites=3), tmp_path / "problem")
    problem = Problem.load(tmp_path / "problem", evaluate=True, rounds=3)
    spent = by_part(problem)
    assert spent.keys() == {*PARTS, REST, ALL, LOOP}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in spent.values())
    for number in range(2):
        parts = sum(spent[name][number] for name in (*PARTS, REST))
        assert parts == pytest.approx(spent[ALL][number])
