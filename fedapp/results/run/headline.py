"""The head of a page: what ran, on what, and what came of it, with what was selected on what."""

from statistics import fmean

from fedapp.ground.text import count, duration, percent
from fedapp.results.layout import DASH, Table
from fedapp.results.run.record import RunRecord


def sentence(run: RunRecord) -> str:
    """Return the result in one sentence, with its protocol."""
    planned = run.setting("rounds", "num_rounds")
    done = f"{run.last} of {planned} rounds"
    what = f"{method_of(run)} on {run.setting('data', 'name')}, {len(run.sites)} sites, {done}"
    return f"{what}, seed {run.settings.get('seed')}. {_result(run)}"


def method_of(run: RunRecord) -> str:
    """Return the method's name."""
    return str(run.setting("method", "name"))


def _result(run: RunRecord) -> str:
    tested = run.evaluations()
    if not tested or not run.rounds:
        return "No site has test images: how good its models are is not known."
    final = run.rounds[-1].get("mean_test_accuracy")
    right, of = sum(e.correct for e in tested), sum(e.samples for e in tested)
    last = (
        f"After round {run.last} the sites' models are right on {percent(final)} % of their own "
        f"test images, the mean over {len(tested)} sites ({right} of {of} images together)"
    )
    start = [site.before.share for site in run.sites if site.before]
    began = f"; after the warm-up it was {percent(fmean(start))} %." if start else "."
    return last + began


def protocol(run: RunRecord) -> Table:
    """Return what a reader must know to judge the numbers."""
    facts = [site.standing.facts for site in run.sites]
    labelled, unlabelled = sum(f.labelled for f in facts), sum(f.unlabelled for f in facts)
    share = labelled / max(labelled + unlabelled, 1)
    val, test = sum(f.val for f in facts), sum(f.test for f in facts)
    chosen, best = run.standings.best_by_validation, run.standings.best
    rows = [
        ["Data", f"{run.setting('data', 'name')}: {len(run.classes)} classes"],
        [
            "Training images",
            f"{count(labelled)} labelled, {count(unlabelled)} unlabelled ({percent(share)} % have "
            "a label)",
        ],
        [
            "Images to measure on",
            f"{count(val)} for validation, {count(test)} for testing; each site is measured on its "
            "own",
        ],
        ["Sites", f"{len(facts)}; a round trains {_cohort(run)}"],
        ["Method", method_of(run)],
        ["Network", str(run.setting("model", "name"))],
        ["Rounds", f"{run.last} of {run.setting('rounds', 'num_rounds')} after the warm-up"],
        ["Seed", str(run.settings.get("seed"))],
        ["Time", duration(run.state.get("wall_seconds"))],
        [
            "Selected on validation images",
            DASH
            if chosen is None
            else f"round {chosen['round']}: "
            f"{percent(chosen['mean_test_accuracy'])} % mean test accuracy",
        ],
        [
            "Best by test images",
            DASH
            if best is None
            else f"round {best['round']}: "
            f"{percent(best['mean_test_accuracy'])} %; chosen by looking at the test images, so "
            "too good: for comparison with papers only",
        ],
    ]
    return Table("Protocol", ["", ""], rows, labels=2)


def _cohort(run: RunRecord) -> str:
    share = run.setting("rounds", "sample_rate")
    return "all" if share in {None, 1} else f"{percent(float(share))} % of them"


def side_by_side(runs: list[RunRecord]) -> Table:
    """Return the runs' results, a row each."""
    rows = []
    for run in runs:
        chosen = run.standings.best_by_validation or {}
        final = run.rounds[-1] if run.rounds else {}
        rows.append(
            [
                run.name,
                method_of(run),
                str(len(run.sites)),
                f"{run.last} of {run.setting('rounds', 'num_rounds')}",
                percent(chosen.get("mean_test_accuracy")),
                percent(final.get("mean_test_accuracy")),
                percent(final.get("worst_decile_accuracy")),
                count(final.get("models_sent")),
            ]
        )
    columns = [
        *("Run", "Method", "Sites", "Rounds", "Selected, %", "Final, %", "Worst decile, %"),
        "Models sent",
    ]
    notes = [
        "Mean accuracy over sites, each on its own test images. Selected: at the round with the "
        "best mean validation accuracy. Runs with other data, sites or splits cannot be compared.",
    ]
    splits = {site.standing.facts.split_digest for run in runs for site in run.sites}
    if len(splits) > 1:
        notes.append("These runs are not of the same split: their differences may come from that.")
    return Table("The runs", columns, rows, notes)
