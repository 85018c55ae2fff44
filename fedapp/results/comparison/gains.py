"""What joining gains a site, run by run: the sites of a run share a model, so a run is one number.

A site's gain is its test accuracy less that of the model it trains alone, with the same seed and so
on the same test images.
"""

from collections.abc import Mapping
from statistics import fmean

from fedapp.ground.text import percent, points
from fedapp.learn.metrics import worst_decile
from fedapp.results.comparison.harm import ALONE, FINE_TUNED, harm
from fedapp.results.comparison.looks import looks
from fedapp.results.comparison.record import WORST_DECILE, Comparison
from fedapp.results.layout import DASH, Entry, Table, mean_percent
from fedapp.results.statistics import paired_difference


def gains_table(comparison: Comparison) -> Table | None:
    """Gains over training alone and shares of harmed sites, means over runs; None without any."""
    references = {preset: comparison.method(preset) for preset in (ALONE, FINE_TUNED)}
    alone = references[ALONE]
    if alone is None:
        return None
    names, seeds = looks(comparison.methods, comparison.presets), len(comparison.seeds)
    rows: list[list[Entry]] = []
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            gains = _gains(comparison, setting, method, alone)
            worst = {seed: worst_decile(of_run) for seed, of_run in gains.items()}
            shares = [
                _over_runs(_harmed(comparison, setting, method, other), share=True)
                for other in references.values()
                if other is not None
            ]
            of_sites = comparison.mean(setting, method, WORST_DECILE)
            rows.append(
                [
                    *(setting, names[method].label, str(len(gains))),
                    _over_runs({seed: fmean(of_run) for seed, of_run in gains.items()}),
                    _over_runs(worst),
                    *shares,
                    mean_percent(of_sites, seeds),
                ]
            )
    than = [names[other].label for other in references.values() if other is not None]
    columns = [
        *("Setting", "Method", "Runs", "Gain of a site, points", "Gain of the worst tenth, points"),
        *(f"Sites worse than {name}, %" for name in than),
        "Accuracy of the worst tenth, %",
    ]
    notes = [
        f"Gain: a site's test accuracy less {names[alone].label}'s at the same site and seed, at "
        "their selected rounds. Every column is made for each run by itself: the mean gain of its "
        "sites, the mean of the tenth that gains least, the share of its sites that are worse by "
        "more than a point, the accuracy of its worst tenth of the sites. What is printed is the "
        "mean over runs, in brackets its 95 % t-interval over runs (shares end at 0 and 100; none "
        "where runs do not vary), or ± sd. A run is one observation: its sites share a model and a "
        "split."
    ]
    return Table("What joining gains a site", columns, rows, notes)


def _gains(comparison: Comparison, setting: str, method: str, alone: str) -> dict[int, list[float]]:
    """Return seed -> gains of the sites that have both accuracies, as shares."""
    found = {
        seed: [our - their for _, our, their in pairs]
        for seed in comparison.seeds
        if (pairs := comparison.site_pairs(setting, method, alone, seeds=[seed]))
    }
    return {} if method == alone else found


def _harmed(comparison: Comparison, setting: str, method: str, reference: str) -> dict[int, float]:
    """Return seed -> share of that run's sites that are worse than under the reference."""
    if method == reference:
        return {}
    tallies = {
        seed: harm(comparison, setting, method, reference, seeds=[seed])[0]
        for seed in comparison.seeds
    }
    return {seed: share for seed, t in tallies.items() if (share := t.lower_share) is not None}


def _over_runs(by_run: Mapping[int, float], *, share: bool = False) -> str:
    """Return the mean over runs with its interval, in points; in percent where it is a share."""
    mean = paired_difference(by_run, dict.fromkeys(by_run, 0.0))
    if mean is None:
        return DASH
    words = percent if share else points
    if mean.low is None or mean.high is None:
        return words(mean.value)
    low, high = (max(mean.low, 0.0), min(mean.high, 1.0)) if share else (mean.low, mean.high)
    return f"{words(mean.value)} ({words(low)} to {words(high)})"
