"""`fedapp terms`: explains in plain words what a site's site.yaml allows."""

from collections.abc import Collection, Iterator
from pathlib import Path

from fedapp.core.formatting import counted
from fedapp.experiment.preset_files import CONF
from fedapp.experiment.signed_runs import fingerprint, public_key
from fedapp.protocol.secure_aggregation.site_session import MIN_MEMBERS
from fedapp.site.terms import KINDS, LARGEST_DELTA, TERMS_FILE, Terms, read_unfinished_terms

EXAMPLE = CONF / "terms" / TERMS_FILE
"""A commented site.yaml to begin with."""
STRICT = EXAMPLE.with_name("strict.yaml")
"""A commented one for patients: masks, noise, signed runs, few purposes."""


def explained(folder: Path) -> Iterator[str]:
    """Yield the lines that explain a site's terms. Raises ConfigError if they cannot be read."""
    path = folder / TERMS_FILE
    terms, unfinished = read_unfinished_terms(path)
    if unfinished:
        yield (
            f"NOT IN FORCE: in {path} no key is written into {' and '.join(unfinished)} yet, and "
            "until then every run is refused. With the keys it says:"
        )
    yield from sentences(terms, unfinished)


def sentences(terms: Terms, unfinished: Collection[str] = ()) -> Iterator[str]:
    """Yield a sentence for each thing that the terms allow or forbid.

    unfinished: names of terms whose keys are still to be written, as of `read_unfinished_terms`.
    """
    for names, what in (
        (terms.methods, "method"),
        (terms.networks, "network"),
        (terms.data, "data set"),
        (terms.runs, "name of a run"),
    ):
        yield f"{what.capitalize()}: {'any' if names is None else 'only ' + ', '.join(names)}."
    yield from _starters(terms, unfinished)
    folders = "only below " + ", ".join(terms.folders) if terms.folders else "none"
    yield f"Files of this machine that a run may name: {folders}."
    yield (
        "A run may have modules of this machine imported: any code in them runs here."
        if terms.own_modules
        else "A run may not have a module of this machine imported."
    )
    if terms.stand_in:
        yield (
            "The code installed here does the runs of other code, if both compute numbers by the "
            "same files."
        )
    kinds = [kind for kind in KINDS if terms.leaves is None or kind in terms.leaves]
    if terms.bounds_epsilon:
        yield f"What may leave: {', '.join(kinds)}, with noise, and how many images there are."
        yield "No evaluation leaves, since one says something of a single image."
    else:
        yield f"What may leave beside counts and evaluations: {', '.join(kinds)}."
        yield (
            "Counts of its test images' scores may leave too, if a run asks for them."
            if terms.score_counts
            else "Counts of its test images' scores may not leave."
        )
    if terms.leaves is None:
        yield "And whatever a method from outside this project sends."
    yield from _numbers(terms)
    yield from _privacy(terms, unfinished)


def _starters(terms: Terms, unfinished: Collection[str]) -> Iterator[str]:
    if "started_by" in unfinished:
        yield "Who may start a run: only the holders of the keys in started_by, by signing it."
        return
    if terms.started_by is None:
        yield "Who may start a run: whoever controls the server, since no signature is required."
        return
    keys = ", ".join(fingerprint(public_key(key)) for key in terms.started_by)
    yield f"Who may start a run: only the holder of {keys}, by signing it."


def _numbers(terms: Terms) -> Iterator[str]:
    rounds, most = terms.rounds_at_most, terms.megabytes_at_most
    yield (
        "Rounds of a run: any number." if rounds is None else f"Rounds of a run: {rounds} at most."
    )
    answers = terms.answers_at_most
    yield f"Answers in a run: {'any number' if answers is None else f'{answers} at most'}."
    yield "One answer: any size." if most is None else f"One answer: {most:g} MB at most."
    yield "Tasks are done at any hour." if terms.hours is None else f"Tasks are done {terms.hours}."
    if terms.bounds_epsilon:
        yield "Counts by class leave with noise only."
    elif (least := terms.least_count) > 1:
        yield (
            f"Small counts: if a class has 1 to {least - 1} validation or test images, runs do not "
            "use that part; with so few labelled ones, nothing is sent by class."
        )
    else:
        yield "Small counts are sent, even that of a class with a single image."
    if terms.patients:
        yield f"Patients are read from the paths of the images here: {terms.patients}"


def _privacy(terms: Terms, unfinished: Collection[str]) -> Iterator[str]:
    least = terms.least_members or MIN_MEMBERS
    most = f" and {terms.most_members} at most" if terms.most_members else ""
    if terms.masked_only:
        yield f"Sums are masked, of {least} sites or more{most}: a plain run is refused."
    elif terms.least_members or terms.most_members:
        yield f"If a run masks its sums: of {least} sites or more{most}. A plain run is allowed."
    if not terms.masked_only:
        noisy = ", with their noise" * terms.bounds_epsilon
        yield f"Masks: not required. Without them the server reads what this site sends{noisy}."
    if "members" in unfinished:
        yield "Only the holders of the keys in members may be in a masked sum."
    elif terms.members is not None:
        keys = ", ".join(terms.members)
        yield f"Only the holders of these keys may be in a masked sum: {keys}."
    elif terms.masked_only:
        yield "Who is in a masked sum: those that the run names, since these terms name nobody."
    if terms.masked_only or terms.members is not None or terms.colluding_at_least > 1:
        count = terms.colluding_at_least
        noise = "The noise" if terms.bounds_epsilon else "If a masked run has noise, the noise"
        yield (
            f"{noise} suffices even if {counted(count, 'members')} should tell the server "
            "everything."
        )
    yield from _noise(terms)


def _noise(terms: Terms) -> Iterator[str]:
    asked = {
        "privacy.clip at most": terms.clip_at_most,
        "epsilon of a run at most": terms.epsilon_at_most,
        "epsilon of all runs at most": terms.epsilon_of_all_runs,
    }
    if terms.bounds_epsilon:
        asked["delta at most"] = terms.delta_at_most or LARGEST_DELTA
    said = [f"{what} {value:g}" for what, value in asked.items() if value is not None]
    if said:
        yield f"Noise and clipping: {', '.join(said)}; a run without is refused."
    elif terms.masked_only:
        yield "Noise: none is required; the sum of all sites is exact."
    else:
        yield "Noise: none is required; models may leave as they were trained."
    if terms.delta_at_most and not terms.bounds_epsilon:
        yield f"A run with noise: delta at most {terms.delta_at_most:g}; its epsilon may be any."
    if terms.bounds_epsilon:
        yield (
            "Epsilon is of one patient, whom the term `patients` finds."
            if terms.patients
            else "Epsilon is of one IMAGE, since the term `patients` is not here: of a patient "
            "with n images it is up to n times as large, unless labels.csv has a column patient."
        )
