"""Methods compared with a reference: paired by seed and by site, with gains and harm.

Harm is counted against two references: the best that a site learned alone (`record.BEST_ALONE`),
and FedAvg fine-tuned at the site. A site counts as worse or better only if the accuracies differ by
more than `MARGIN`. A site's gain is its test accuracy less that of its best alone, with the same
seed and so on the same test images. The sites of a run share a model, so a run counts as one
observation.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedapp.core.formatting import percent, points
from fedapp.learn.metrics import LABEL_GROUPS, label_group, worst_decile
from fedapp.reports.comparison.record import (
    BEST_ALONE,
    SELECTED,
    SITE_FINAL,
    SITE_SELECTED,
    WORST_DECILE,
    Column,
    ComparisonRecord,
    by_method,
    spread,
)
from fedapp.reports.layout import DASH, Entry, Table
from fedapp.reports.statistics import (
    Difference,
    PairCounts,
    count_pairs,
    holm,
    interval_factor,
    paired_difference,
)

if TYPE_CHECKING:
    from pandas import DataFrame

FINE_TUNED = "fedavg_ft"
WHAT_ALONE = (
    "Alone: the best that a site could have done without others, the better by its own validation "
    "images of a network that it trains (local_only) and the closed form of its own images, where "
    "the comparison has both; without validation accuracies of both, the network. A site without "
    "labels has an untrained network."
)
MARGIN = 0.01
"""One percentage point of accuracy: a smaller difference is no harm."""


def references_of(comparison: ComparisonRecord) -> list[str]:
    """Return what harm is measured against, as far as this comparison has it."""
    tuned = comparison.method(FINE_TUNED)
    return [*([BEST_ALONE] if comparison.has_alone else []), *([tuned] if tuned else [])]


def paired_table(comparison: ComparisonRecord, reference: str) -> Table:
    """Return every method less the reference: paired by seed with a t-test, and counts by site."""
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
            counted = count_pairs(comparison.site_pairs(setting, method, reference))
            by_site = (counted.higher, counted.lower, counted.n) if counted.n else (DASH,) * 3
            rows.append(
                [
                    setting,
                    comparison.looks[method].label,
                    *_difference(difference, p),
                    *map(str, by_site),
                ]
            )
            if difference and difference.p is not None:
                pairs.add(difference.n)
    columns = [
        *("Setting", "Method", "Seeds", "Difference, points", "95 % interval", "p", "p, Holm"),
        *("Sites better", "Sites worse", "Sites"),
    ]
    label = comparison.looks[reference].label
    return Table(f"Each method less {label}", columns, rows, _caveats(pairs, label))


def _difference(difference: Difference | None, corrected: float | None) -> list[str]:
    """Return n, difference, interval, p and corrected p; dashes for what is not known."""
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


def gains_table(comparison: ComparisonRecord) -> Table | None:
    """Return gains over training alone and shares of harmed sites, as means over runs.

    None where no method of the comparison has a model alone.
    """
    references = references_of(comparison)
    if BEST_ALONE not in references:
        return None

    network = comparison.behind(BEST_ALONE)

    def pairs_by_seed(setting: str, method: str, reference: str) -> "dict[int, DataFrame]":
        return dict(list(comparison.site_pairs(setting, method, reference).groupby(level="seed")))

    def gains(setting: str, method: str) -> dict[int, list[float]]:
        """Return the gains of the sites by seed, as shares."""
        pairs = {} if method == network else pairs_by_seed(setting, method, BEST_ALONE)
        return {seed: (of["ours"] - of["theirs"]).tolist() for seed, of in pairs.items()}

    def gain(of: Callable[[Sequence[float]], float]) -> Column:
        return lambda s, m: _over_runs({seed: of(run) for seed, run in gains(s, m).items()})

    def harmed(reference: str) -> Column:
        """Return the share of each run's sites that are worse than under the reference."""

        def entry(setting: str, method: str) -> str:
            same = method == comparison.behind(reference)
            pairs = {} if same else pairs_by_seed(setting, method, reference)
            worse = {seed: count_pairs(of, MARGIN).lower / len(of) for seed, of in pairs.items()}
            return _over_runs(worse, share=True)

        return entry

    columns = {
        "Runs": lambda s, m: str(len(gains(s, m))),
        "Gain of a site, points": gain(fmean),
        "Gain of the worst tenth, points": gain(worst_decile),
        **{f"Sites worse than {comparison.label(r)}, %": harmed(r) for r in references},
        "Accuracy of the worst tenth, %": spread(comparison, WORST_DECILE),
    }
    notes = [
        f"Gain: a site's test accuracy less that of {comparison.label(BEST_ALONE)} at the same "
        f"site and seed, at their selected rounds. {WHAT_ALONE} Every column is made for each run "
        "by itself: the mean gain of its sites, the mean of the tenth that gains least, the share "
        "of its sites that are worse by more than a point, the accuracy of its worst tenth of the "
        "sites. What is printed is the mean over runs, in brackets its 95 % t-interval over runs "
        "(shares end at 0 and 100; none where runs do not vary), or ± sd. A run is one "
        "observation: its sites share a model and a split."
    ]
    return by_method("What joining gains a site", comparison, columns, notes)


def _over_runs(by_run: Mapping[int, float], *, share: bool = False) -> str:
    """Return the mean over runs with its t-interval, in points; a share in percent."""
    mean = paired_difference(by_run, dict.fromkeys(by_run, 0.0))
    if mean is None:
        return DASH
    words = percent if share else points
    if mean.low is None or mean.high is None:
        return words(mean.value)
    low, high = (max(mean.low, 0.0), min(mean.high, 1.0)) if share else (mean.low, mean.high)
    return f"{words(mean.value)} ({words(low)} to {words(high)})"


def harm_table(comparison: ComparisonRecord, reference: str) -> Table:
    """Return the share of sites worse and better than under a reference, at two rounds."""

    def of(which: str, column: str, group: int = 0) -> Column:
        def entry(setting: str, method: str) -> str:
            found = harm(comparison, setting, method, reference, column)[group]
            some = getattr(found, which)
            return f"{percent(some / found.n)} % ({some} of {found.n})" if found.n else DASH

        return entry

    columns = {
        "Worse, selected round": of("lower", SITE_SELECTED),
        "Better, selected round": of("higher", SITE_SELECTED),
        "Worse, last round": of("lower", SITE_FINAL),
        "Better, last round": of("higher", SITE_FINAL),
        **{
            f"Worse, selected round, {group}": of("lower", SITE_SELECTED, place)
            for place, group in enumerate(LABEL_GROUPS, 1)
        },
    }
    than = comparison.label(reference)
    notes = [
        f"Share of the sites whose test accuracy is more than a point below that of {than} (worse) "
        "or above it (better), at the same site, setting and seed; over all seeds, sites without "
        "test images left out. In brackets: how many of how many. At the selected round both stand "
        "at their own. mu: a site's share of labelled training images.",
        "One image is more than a point where a site has fewer than 100 test images: with about 80 "
        "a single image makes a site worse or better. So read worse and better together: where "
        "they are alike, it may be chance.",
    ]
    title = f"Sites worse and better than {than} by more than a point"
    notes += [WHAT_ALONE] if reference == BEST_ALONE else []
    return by_method(title, comparison, columns, notes, without=comparison.behind(reference))


def harm(
    comparison: ComparisonRecord,
    setting: str,
    method: str,
    reference: str,
    column: str = SITE_SELECTED,
) -> tuple[PairCounts, ...]:
    """Count the sites that are worse and better than under a reference method.

    column: of sites.csv, at which round the accuracies are.

    Returns counts over all sites and seeds, then over those of each of `LABEL_GROUPS`.
    """
    pairs = comparison.site_pairs(setting, method, reference, column)
    groups = pairs["mu"].map(label_group)
    of_groups = (pairs[groups == number] for number in range(len(LABEL_GROUPS)))
    return tuple(count_pairs(of, MARGIN) for of in (pairs, *of_groups))
