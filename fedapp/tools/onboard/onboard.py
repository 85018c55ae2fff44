"""`fedapp onboard` as a person sees it: the rounds, then what the new site has gained."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from fedapp.experiment.presetfiles import Scalar
from fedapp.experiment.runfolder import RunFolder
from fedapp.experiment.runpaths import find_run
from fedapp.ground.progress import Progress
from fedapp.ground.text import percent
from fedapp.messages.protocol import SiteFacts
from fedapp.server.peers import finished_run
from fedapp.tools.onboard.plan import NewSite, plan_for
from fedapp.tools.onboard.run import RESULT, Onboarded, onboard


def onboard_site(
    run: str, new: NewSite, rounds: int, overrides: Mapping[str, Scalar], console: Console
) -> None:
    """Onboard a site onto the run of this name or folder, and show what came of it."""
    finished = finished_run(find_run(run))
    plan = plan_for(finished, new, rounds, overrides)
    with Progress() as progress:
        done = onboard(finished, plan, progress)
    show(done, console)


def show(done: Onboarded, console: Console) -> None:
    """Print the comparison, or that nothing can be measured, and where the model is."""
    facts = done.facts
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
    kept = RunFolder(done.folder).models_root / facts.folder
    console.print(
        f"the best by its validation images, for use: {kept}", highlight=False, soft_wrap=True
    )
    files = (str(done.folder / name) for name in (*done.files, RESULT))
    for line in (*done.comparison.notes(), *files):
        console.print(line, highlight=False, soft_wrap=True)


def _name(facts: SiteFacts) -> str:
    return facts.name or str(facts.site)
