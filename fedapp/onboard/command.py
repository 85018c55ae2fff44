"""`fedapp onboard` as a person sees it: the rounds, then what the new site has gained."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedapp.figures import percent
from fedapp.onboard.plan import NewSite, plan_for
from fedapp.onboard.run import AVERAGE, MODEL, RESULT, Onboarded, onboard
from fedapp.peers import finished_run
from fedapp.presetfiles import Scalar
from fedapp.progress import Progress
from fedapp.protocol import SiteFacts
from fedapp.runfolder import runs_root

SHOWN = 4
"""Peers that are named, the most related first."""


def onboard_site(
    run: str, new: NewSite, rounds: int, overrides: Mapping[str, Scalar], console: Console
) -> None:
    """Onboard a site onto the run of this name or folder, and show what came of it."""
    ours = runs_root() / run
    finished = finished_run(ours if ours.is_dir() else Path(run).expanduser())
    plan = plan_for(finished, new, rounds, overrides)
    with Progress() as progress:
        done = onboard(finished, plan, progress)
    show(done, console)


def show(done: Onboarded, console: Console) -> None:
    """Print the comparison, or that nothing can be measured, and where the model is."""
    facts, peers = done.facts, done.comparison.peers
    console.print()
    if facts.test:
        title = f"Accuracy on the {facts.test} labelled test images of site {_name(facts)}, %"
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for label, accuracy in done.comparison.table():
            table.add_row(label, percent(accuracy))
        console.print(table)
        console.print(f"by round: {' '.join(map(percent, done.rounds))}", highlight=False)
    else:
        console.print(
            f"site {_name(facts)} has no labelled test images: how good its model is cannot be "
            "measured here. Label some (docs/OWN_DATA.md) before you rely on it.",
            soft_wrap=True,
        )
    related = ", ".join(
        f"{peer.name or f'site {peer.site}'} {peer.relation:.3f}"
        for peer in peers[:SHOWN]
        if peer.relation is not None
    )
    console.print(f"most related peers: {related}", highlight=False, soft_wrap=True)
    for name in (MODEL, AVERAGE, RESULT):
        console.print(f"{done.folder / name}", highlight=False, soft_wrap=True)


def _name(facts: SiteFacts) -> str:
    return facts.name or str(facts.site)
