"""One site's page: what it may see of a run, and no more.

Its own counts, results and pseudo-labels are all there. Of the others it sees quartiles without
names, and these only where at least `ENOUGH` others were measured: fewer are no crowd to hide in.
"""

from collections.abc import Sequence

from fedapp.evaluation.reliability_warnings import warnings_about
from fedapp.ground.errors import RunError, nearest
from fedapp.ground.text import percent
from fedapp.models.card import SAID
from fedapp.models.description import DESCRIPTION, read_description
from fedapp.results.layout import Table
from fedapp.results.run.about import method_of
from fedapp.results.run.accuracy import BY_IMAGE, dumbbell_chart, quartiles, starts_common
from fedapp.results.run.blocks import Block, Figure, band, over_rounds
from fedapp.results.run.classes import (
    MOST_CLASSES,
    PSEUDO,
    confusion,
    latest,
    shown,
    true_counts,
    trust,
)
from fedapp.results.run.drawing import Bar, Line, bars
from fedapp.results.run.page import render
from fedapp.results.run.record import Right, RunRecord, SiteRecord

ENOUGH = 5
"""Other sites below which nothing is said of them."""


def site_page(run: RunRecord, name: str, more: Sequence[Block] = ()) -> str:
    """Return the page of the site of this name or number. Raises RunError where there is none.

    more: blocks that stand below, of the site's own record.
    """
    site = find_site(run, name)
    tested = site.standing.latest.get("test")
    evaluations = [tested] if tested and tested.samples else []
    blocks = [
        _joining(run, site),
        _curve(run, site),
        _counts(site),
        _mix(run, site),
        confusion(evaluations, run.classes),
        trust(evaluations),
        _pseudo(run, site),
        _model(run, site),
        *more,
    ]
    lead = (
        f"What run {run.name} ({method_of(run)}, {run.last} rounds) brought this site. The page "
        "shows the site's own numbers; it names no other site."
    )
    title = f"Site {site.name.removeprefix('site ')}: did joining pay?"
    first = [_paid(run, site)]
    if tested and tested.samples:
        labelled = site.standing.facts.labelled
        first += [f"Warning: {light}" for light in warnings_about(tested, labelled, run.classes)]
    return render(
        title, [*first, lead, *run.counted], [], [[(site.name, block)] for block in blocks]
    )


def _paid(run: RunRecord, site: SiteRecord) -> str:
    """Return the verdict of the site's own model where it is here, else as the counts tell it."""
    folder = run.path / "models" / (site.standing.facts.name or str(site.number))
    if (folder / DESCRIPTION).is_file() and (own := read_description(folder).choice.verdict):
        return own.line
    return site.standing.verdict.line


def find_site(run: RunRecord, name: str) -> SiteRecord:
    """Return a site by its name, else by its number. Raises RunError naming the nearest."""
    by_number = {str(site.number): site for site in run.sites}
    # A site may be called "1" and be number 0: nobody shall read the page of another.
    by_name = {site.name: site for site in run.sites}
    if found := by_name.get(name) or by_number.get(name.removeprefix("site ")):
        return found
    known = [site.name for site in run.sites]
    raise RunError(f"--site {name!r}: no such site in {run.name}; {nearest(name, known)}")


def _joining(run: RunRecord, site: SiteRecord) -> Block:
    title = "Did joining help?"
    reading = "Right answers to the site's own test images, before and after. " + BY_IMAGE
    now, rows = site.now(), []
    start = "the common warm-up" if starts_common(run) else "its own warm-up model"
    references = [(start, site.before), ("its own model, trained alone", site.now("test_alone"))]
    if now is None:
        why = "the site has no test images, so nobody can tell. Label some and check."
        return Block(title, reading, missing=why)
    lines = []
    known = [(what, before) for what, before in references if before]
    for what, before in known:
        rows.append([what, str(before), percent(before.share), _ends(before)])
        lines.append(_verdict(what, before, now))
    rows.append(["the model now", str(now), percent(now.share), _ends(now)])
    table = Table("Right answers", ["Model", "Right", "%", "95 % interval, %"], rows, labels=1)
    said = f"Now {now}. " + " ".join(lines)
    pairs = [("alone" if "alone" in what else "warm-up", before, now) for what, before in known]
    picture = dumbbell_chart("Before and now", site.group, pairs, said)
    return Block(title, reading, [Figure(picture, f"Now {now}.", table)], lines=lines)


def _ends(found: Right) -> str:
    return " to ".join(map(percent, found.interval))


def _verdict(what: str, before: Right, now: Right) -> str:
    change = now.right - before.right
    if not change:
        return f"As many right as {what}."
    more = "more" if change > 0 else "fewer"
    low, high = now.interval
    other_low, other_high = before.interval
    sure = low > other_high or high < other_low
    strength = "that is not chance" if sure else "that may be chance"
    return f"Right on {abs(change)} {more} of {now.of} images than {what}: {strength}."


def _curve(run: RunRecord, site: SiteRecord) -> Block:
    title = "Its learning curve"
    reading = "The site's accuracy by round; round 0 is the warm-up."
    own = run.curve(site.number)
    if len(own) < 2:
        why = "the run did not record single sites by round, or the site was not measured."
        return Block(title, reading, missing=why)
    lines = [
        Line("test", [(n, r.share) for n, r in own.items()], "c0"),
        Line("validation", [(n, r.share) for n, r in run.curve(site.number, "val").items()], "c1",
             dashed=True),
    ]  # fmt: skip
    others = [other for other in run.sites if other.number != site.number and other.now()]
    bands: list[Line] = []
    if len(others) >= ENOUGH:
        bands = band(quartiles(run, others), "c3")
        reading += " The band is the middle half of the other sites."
        missing = ""
    else:
        missing = f"the other sites: with fewer than {ENOUGH} each could be told."
    last = own[max(own)]
    said = f"Test accuracy {percent(last.share)} % ({last}) at the end."
    picture = over_rounds(run, "Accuracy", lines, said, bands)
    rows = [[str(n), str(r), percent(r.share)] for n, r in own.items()]
    table = Table("Test images by round", ["Round", "Right", "%"], rows, labels=1)
    return Block(title, reading, [Figure(picture, said, table)], missing=missing)


def _counts(site: SiteRecord) -> Block:
    facts = site.standing.facts
    rows = [
        ["labelled, to train", str(facts.labelled)],
        ["unlabelled, to train", str(facts.unlabelled)],
        ["for validation", str(facts.val)],
        ["for testing", str(facts.test)],
        ["share of labels, %", percent(facts.mu)],
        ["rounds it trained in", str(site.standing.rounds_trained)],
        ["rounds it was skipped in", str(site.standing.rounds_skipped)],
    ]
    reading = "What the site told the server of its images."
    return Block("Its images", reading, tables=[Table("Images", ["", ""], rows, labels=1)])


def _mix(run: RunRecord, site: SiteRecord) -> Block:
    title = "Its class mix"
    reading = "Its labelled validation and test images by class."
    counts = true_counts(site, len(run.classes))
    if not sum(counts):
        return Block(title, reading, missing="the site has none.")
    if len(counts) > MOST_CLASSES:
        return Block(title, reading, missing=f"{len(counts)} classes are too many for a picture.")
    given = [Bar(name, [(n, "c0")], str(n)) for name, n in zip(run.classes, counts, strict=True)]
    lacking = [name for name, n in zip(run.classes, counts, strict=True) if not n]
    said = f"{sum(counts)} images." + (f" None of: {', '.join(lacking)}." if lacking else "")
    rows = [[name, str(n)] for name, n in zip(run.classes, counts, strict=True)]
    table = Table("Images by class", ["Class", "Images"], rows, labels=1)
    return Block(title, reading, [Figure(bars("Images by class", given, said), said, table)])


def _pseudo(run: RunRecord, site: SiteRecord) -> Block:
    found = latest(run, site.number)
    if found is None:
        why = "the site had none, or the run did not count them."
        return Block(PSEUDO, "Labels that models gave to its images.", missing=why)
    return shown([found], run.classes)


def _model(run: RunRecord, site: SiteRecord) -> Block:
    called = site.standing.facts.name or str(site.number)
    folder = run.path / "models" / called
    if not (folder / DESCRIPTION).is_file():
        lines = [f"Its model for use is not here: fedapp models {run.name} makes it anew."]
    else:
        found = read_description(folder)
        when = f"of round {found.origin.round}" if found.origin.round else "after the warm-up"
        measured = {"validation": found.results.val, "test": found.results.test}
        right = [f"{m.right} of {m.images} {what}" for what, m in measured.items() if m.images]
        worth = f", right on {' and '.join(right)} images" if right else ""
        lines = [
            f"Its model for use: models/{called} in the run's folder.",
            f"It is {SAID[found.choice.answer]}, {when}{worth}. All else on this page is of the "
            "last round.",
        ]
    reading = "The model that the site keeps; it need not be the last."
    return Block("Its model", reading, lines=lines)
