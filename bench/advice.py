"""How often advice at a small budget agrees with a whole study: on docs/results, without a run.

`python -m bench.advice` prints docs/WHICH_METHOD.md's table. Small: three of a setting's seeds, a
half of its rounds. Whole: all its seeds and rounds. A unit is a seed, as in `fedapp advise`.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean

from fedapp.ground.text import percent
from fedapp.tools.advise.plan import CANDIDATES
from fedapp.tools.advise.rule import MARGIN, Advice, advise

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
SEEDS = 3

Curves = Mapping[str, Mapping[int, Mapping[int, tuple[float, float]]]]
"""Candidate -> seed -> round -> (validation accuracy, test accuracy)."""


def studies() -> Iterator[tuple[str, Curves]]:
    """Yield every setting in which all candidates ran, or all but one, by name, with its curves."""
    for path in sorted(RESULTS.glob("*/rounds.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for setting in dict.fromkeys(row["setting"] for row in rows):
            curves: dict[str, dict[int, dict[int, tuple[float, float]]]] = {}
            for row in rows:
                if row["setting"] == setting and row["method"] in CANDIDATES:
                    at = curves.setdefault(row["method"], {}).setdefault(int(row["seed"]), {})
                    measured = (row["mean_val_accuracy"], row["mean_test_accuracy"])
                    at[int(row["round"])] = (float(measured[0]), float(measured[1]))
            if len(curves) >= len(CANDIDATES) - 1:  # the first comparison had no `one_round`
                known = {name: curves[name] for name in CANDIDATES if name in curves}
                yield f"{path.parent.name.removeprefix('results_')}, {setting}", known


def selected(curves: Curves, rounds: int) -> dict[str, dict[int, float]]:
    """Return each candidate's test accuracy by seed, at the best round by validation up to one."""
    return {
        name: {
            seed: max((val, -k, test) for k, (val, test) in at.items() if k <= rounds)[2]
            for seed, at in curves[name].items()
        }
        for name in curves
    }


def small(curves: Curves) -> Iterator[Advice]:
    """Yield the advice of every choice of `SEEDS` seeds, at half of the rounds."""
    found = selected(curves, last_round(curves) // 2)
    for seeds in combinations(sorted(found["local_only"]), SEEDS):
        advice = advise({name: {s: by[s] for s in seeds} for name, by in found.items()})
        assert advice is not None
        yield advice


def last_round(curves: Curves) -> int:
    """Return the number of the last round of a setting."""
    return max(number for at in curves.values() for by in at.values() for number in by)


def judged(curves: Curves) -> tuple[str, Counter[str], float]:
    """Return the whole study's best, a count of the small budgets' advice, and what it cost.

    "right": clear, and within `MARGIN` of the best; "wrong": clear, and not; "open": it says that
    it cannot tell, and takes the simplest that stands; "highest right": whether the highest mean
    of the small budget, clear or not, is within `MARGIN`. The cost is the mean loss, in accuracy,
    of taking that highest instead of the best.
    """
    whole = {n: fmean(by.values()) for n, by in selected(curves, last_round(curves)).items()}
    best = max(whole, key=lambda name: whole[name])
    count: Counter[str] = Counter()
    losses = []
    for advice in small(curves):
        right = whole[advice.method] >= whole[best] - MARGIN
        count["open" if not advice.clear else "right" if right else "wrong"] += 1
        losses.append(whole[best] - whole[advice.highest])
        count["highest right"] += losses[-1] <= MARGIN
    return best, count, fmean(losses)


def main() -> None:
    """Print the table, and all of it together."""
    total: Counter[str] = Counter()
    print("| study | best in full | advised, right | advised, wrong | cannot tell | highest right |"
          " loss, points |\n|---|---|---:|---:|---:|---:|---:|")  # fmt: skip
    for name, curves in studies():
        best, count, loss = judged(curves)
        total += count
        cells = [str(count[key]) for key in ("right", "wrong", "open", "highest right")]
        print(f"| {name} | {best} | {' | '.join(cells)} | {percent(loss)} |")
    print(dict(total))


if __name__ == "__main__":
    main()
