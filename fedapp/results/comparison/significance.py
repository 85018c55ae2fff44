"""The table of paired differences: is a method better than the reference, as far as seeds tell?"""

from fedapp.ground.text import points
from fedapp.results.comparison.looks import looks
from fedapp.results.comparison.record import SELECTED, Comparison
from fedapp.results.layout import DASH, Entry, Table
from fedapp.results.statistics import (
    Difference,
    holm,
    interval_factor,
    paired_difference,
    tally,
)


def paired_table(comparison: Comparison, reference: str) -> Table:
    """Every method less the reference, paired by seed, with a test; and by site, without one."""
    names = looks(comparison.methods, comparison.presets)
    rows: list[list[Entry]] = []
    pairs = set()
    for setting in comparison.settings:
        others = [m for m in comparison.ran(setting) if m != reference]
        theirs = comparison.by_seed(setting, reference, SELECTED)
        found = [
            paired_difference(comparison.by_seed(setting, m, SELECTED), theirs) for m in others
        ]
        corrected = holm([d.p if d else None for d in found])
        for method, difference, p in zip(others, found, corrected, strict=True):
            sites = comparison.site_pairs(setting, method, reference)
            counted = tally((ours, their) for _, ours, their in sites)
            by_site = (counted.higher, counted.lower, counted.n) if counted.n else (DASH,) * 3
            rows.append(
                [setting, names[method].label, *_difference(difference, p), *map(str, by_site)]
            )
            if difference and difference.p is not None:
                pairs.add(difference.n)
    columns = [
        *("Setting", "Method", "Seeds", "Difference, points", "95 % interval", "p", "p, Holm"),
        *("Sites better", "Sites worse", "Sites"),
    ]
    title = f"Each method less {names[reference].label}"
    return Table(title, columns, rows, _caveats(pairs, names[reference].label))


def _difference(difference: Difference | None, corrected: float | None) -> list[str]:
    """Return n, difference, interval, p and corrected p; dashes for what cannot be told."""
    if difference is None:
        return ["0", DASH, DASH, DASH, DASH]
    texts = [str(difference.n), points(difference.value)]
    if difference.low is None or difference.high is None:
        return [*texts, DASH, DASH, DASH]
    interval = f"{points(difference.low)} to {points(difference.high)}"
    return [*texts, interval, _p(difference.p), _p(corrected)]


def _p(value: float | None) -> str:
    if value is None:
        return DASH
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _caveats(pairs: set[int], reference: str) -> list[str]:
    notes = [
        f"Positive: better than {reference}. Both ran on the same split with the same seed, and "
        "the differences are averaged over those seeds. Interval and p are of the paired t-test; "
        "Holm's correction is over the methods within a setting. A dash: fewer than two seeds, or "
        "differences that do not vary."
    ]
    if pairs:
        n = min(pairs)
        notes.append(
            f"What the test can tell: whether a difference would hold for other seeds (other "
            f"splits and starts) of the same data set. With {n} seeds the interval reaches "
            f"{interval_factor(n):.2f} standard deviations of the differences each way, so only "
            "differences well above that spread can be told from chance."
        )
        notes.append(
            "What it cannot tell: that two methods are equal (a large p says that the seeds are "
            "too few to see a difference), whether the differences are normally distributed, which "
            "t assumes and so few seeds cannot show, or how it would be on other data. All seeds "
            "deal out images of the same data set, so they are not fully independent and the "
            "intervals are, if anything, too narrow."
        )
    notes.append(
        "Sites better, worse: sites with a higher, a lower test accuracy, over all seeds; the rest "
        "are equal. A description, no test: the sites of a run learn from each other."
    )
    return notes
