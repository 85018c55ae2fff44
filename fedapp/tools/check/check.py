"""`fedapp check`: checks a site's data and machine, and prints faults with their remedies."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from fedapp.core.errors import ConfigError
from fedapp.core.formatting import counted
from fedapp.core.settings import OWN, SplitSettings
from fedapp.data.folder import FORMATS
from fedapp.data.own import Entry, Listing, list_agreed, list_own
from fedapp.data.own.entries import one_entry_per_finding
from fedapp.data.own.train_test_split import Group, deal, groups_dealt_together
from fedapp.evaluation.findings import two_class_names
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import out_root, runs_root
from fedapp.learn.networks import build_model
from fedapp.learn.networks.base import Network
from fedapp.learn.networks.encoder import EncoderSettings
from fedapp.methods.base import schemas, sent_roles
from fedapp.site.terms import TermError, Terms
from fedapp.tools.check import machine
from fedapp.tools.check.composition import (
    Counts,
    bags_in_words,
    expected,
    remarks_on_bags,
    remarks_on_classes,
    remarks_on_copies,
    remarks_on_test,
)
from fedapp.tools.check.inputs import look_at_images, look_at_vectors
from fedapp.tools.check.remarks import Remark, fault, note, of_listing


@dataclass(frozen=True)
class Options:
    """What to check the data against.

    experiment: what the sites agreed upon; None: not known. site_name: the site's name, from which
    its images are split into train, val and test. server: host:port to connect to; empty: none.
    hide_below: counts from 1 to below this are not shown. store_path: where the node will keep
    models; None: the default place. terms: the site's own, from its site.yaml; None: not known.
    said: the experiment's settings by dotted key, as a run brings them.
    """

    experiment: Experiment | None = None
    site_name: str = ""
    server: str = ""
    hide_below: int = 0
    store_path: Path | None = None
    terms: Terms | None = None
    said: Mapping[str, Scalar] = field(default_factory=dict)


def check(data: Path, options: Options, console: Console) -> int:
    """Check a site's data and machine, and print remarks; return 1 if there is a fault, else 0.

    Raises ConfigError if the experiment is none of sites with data of their own, and what reading
    the list of the data raises.
    """
    experiment, terms = _agreed(options), options.terms
    settings = experiment.data if experiment else None
    patients = terms.patients if terms else ""
    network, unbuilt = _network(experiment)
    facts, machines = _machine(options, network)
    classes = settings.class_names if settings else ()
    named = settings.finding_names if settings else ()
    listing = list_agreed(data, settings, patients) if settings else list_own(data, (), patients)
    remarks = [*of_listing(listing.faults), *unbuilt]
    if settings and settings.patients:
        what = (
            "data.patients in the preset: sites refuse a run that names a pattern for their files"
        )
        remedy = (
            "have it left out; write `patients` into your own site.yaml, and give --site-folder"
        )
        remarks.append(fault(what, remedy))
    if terms and experiment and network:
        remarks += _refused(terms, experiment, network, options.said, len(listing.entries))
    if listing.entries:
        entries, hide_below = listing.entries, options.hide_below
        if listing.values is None:
            encoded = experiment is not None and isinstance(experiment.model, EncoderSettings)
            contents, seen, odd = look_at_images(entries, settings, console, encoded)
        else:
            contents, seen, odd = look_at_vectors(listing.values, settings)
        table = listing.values is not None and not (settings and settings.encoder)
        split, seed = (experiment.split, experiment.seed) if experiment else (SplitSettings(), 0)
        parts = deal(entries, split, seed, options.site_name, contents)
        groups = groups_dealt_together(entries, contents)
        samples = _samples(entries, parts, groups, named)
        counts = Counts(
            samples.entries, samples.parts, two_class_names(named) or classes, sums=not named
        )
        console.print(counts.table(hide_below))
        if accuracy := expected(entries, parts, hide_below):
            seen.append(("accuracy", accuracy))
        if listing.bags:
            seen.append(("bags", bags_in_words(listing, hide_below)))
        facts = [*seen, *facts]
        remarks += [
            *odd,
            *remarks_on_copies(entries, parts, contents, hide_below, table),
            *counts.remarks(hide_below),
            *remarks_on_classes(*samples, two_class_names(named) or classes, hide_below),
            *remarks_on_test(samples.entries, samples.parts, hide_below),
            *remarks_on_bags(listing, parts, experiment),
        ]
        if experiment and not options.site_name and not any(e.part for e in listing.entries):
            remedy = "the site's own split will differ a little; give its name with --site-name"
            remarks.append(note("no site named", remedy))
    remarks += [*_passed_over(listing), *machines]
    if settings is None:
        remedy = "labels, sizes and split are not compared; give the server's with --preset"
        remarks.append(note("no preset named", remedy))
    _print(console, facts, remarks)
    return int(any(remark.fault for remark in remarks))


def _network(experiment: Experiment | None) -> tuple[Network | None, list[Remark]]:
    """Return the agreed network; None, and a fault, where this machine lacks what it needs."""
    if experiment is None:
        return None, []
    data = experiment.data
    try:
        return build_model(experiment.model, data.inputs, len(data.names)), []
    except ConfigError as error:
        remedy = "then check again: the models' size and your terms were not compared with it"
        return None, [fault(str(error), remedy)]


def _refused(
    terms: Terms,
    experiment: Experiment,
    network: Network,
    said: Mapping[str, Scalar],
    images: int,
) -> list[Remark]:
    """Return a fault for each term that every run of the preset breaks, as at run time.

    What only a run has is not asked: its name, its signature, the hour, what other runs have spent.
    images: number of the site's images.
    """
    privacy = experiment.privacy
    steps: list[Callable[[Terms], None]] = [
        lambda terms: terms.check_said({k: v for k, v in said.items() if k != "data.patients"}),
        lambda terms: terms.check_run(experiment, ""),
        lambda terms: terms.check_roles(
            sent_roles(experiment.method, schemas(experiment.method, network))
        ),
    ]
    if privacy.clip or privacy.epsilon:
        steps.append(lambda terms: terms.check_delta(privacy.delta, images))
    terms, broken = replace(terms, runs=None), dict[str, str]()
    while steps:
        try:
            steps[0](terms)
        except TermError as error:
            if error.term not in broken:  # look for others, as if this one were not there
                broken[error.term] = str(error)
                terms = replace(terms, **{error.term: getattr(Terms(), error.term)})
                continue
        del steps[0]
    remedy = "the site would refuse every run of this preset: have it changed, or your site.yaml"
    return [fault(what, remedy) for what in broken.values()]


class _Samples(NamedTuple):
    """What is counted by class: images; or, of findings, each finding of each image."""

    entries: Sequence[Entry]
    parts: Sequence[str]
    groups: Sequence[Group]


def _samples(
    entries: Sequence[Entry], parts: Sequence[str], groups: Sequence[Group], named: Sequence[str]
) -> _Samples:
    if not named:
        return _Samples(entries, parts, groups)
    places, each = zip(*one_entry_per_finding(entries, named), strict=True)
    return _Samples(each, [parts[i] for i in places], [groups[i] for i in places])


def _machine(
    options: Options, network: Network | None
) -> tuple[list[tuple[str, str]], list[Remark]]:
    """Return facts about disk, GPU and server as (name, words), and what is wrong with them."""
    experiment = options.experiment
    runs = out_root(experiment) if experiment else runs_root()
    place = options.store_path or Path(os.environ.get("FEDAPP_SITES") or runs)
    parts = {
        "disk": machine.room(place.expanduser(), experiment, network),
        "GPU": machine.gpu(experiment.runtime.device if experiment else "auto"),
    }
    if experiment and experiment.privacy.epsilon:
        parts["noise"] = machine.noise()
    if options.server:
        parts["server"] = machine.reach(options.server)
    facts = [(name, said) for name, (said, _) in parts.items()]
    return facts, [remark for _, found in parts.values() for remark in found]


def _agreed(options: Options) -> Experiment | None:
    """Return the experiment, checked. Raises ConfigError if its sites have no data of their own."""
    experiment, name = options.experiment, options.site_name
    if experiment is None:
        return None
    if experiment.data.name != OWN:
        raise ConfigError(
            f"preset {experiment.name!r}: data.name = {experiment.data.name!r}, its images are not "
            "the sites' own: name the preset of your federation, with data.name: own"
        )
    names = experiment.data.site_names
    if name and names and name not in names:
        raise ConfigError(
            f"--site-name {name!r}: not in the preset's data.sites ({', '.join(names)}): correct "
            "it or have it added at the list's end"
        )
    return experiment


def _passed_over(listing: Listing) -> list[Remark]:
    if not listing.passed_over:
        return []
    endings = Counter(Path(name).suffix.lower() or "none" for name in listing.passed_over)
    said = ", ".join(f"{ending} ({count})" for ending, count in endings.most_common(5))
    what = f"{counted(endings.total(), 'files')} ignored, by ending: {said}"
    return [note(what, f"images must be {FORMATS}; save others as PNG")]


def _print(console: Console, facts: Sequence[tuple[str, str]], remarks: Sequence[Remark]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, said in facts:
        table.add_row(name, said)
    console.print(table, markup=False)
    console.print()
    for remark in sorted(remarks, key=lambda remark: not remark.fault):
        word, colour = ("fault", "red") if remark.fault else ("note", "yellow")
        console.print(f"{word:6}", style=colour, end="")
        console.print(remark.what, markup=False, highlight=False, soft_wrap=True)
        console.print(f"      {remark.remedy}", markup=False, highlight=False, soft_wrap=True)
    faults = sum(remark.fault for remark in remarks)
    if faults:
        number = "1 fault" if faults == 1 else f"{faults} faults"
        console.print(f"{number}: this site cannot join yet", style="red")
    else:
        console.print("no fault: this site can join", style="green")
