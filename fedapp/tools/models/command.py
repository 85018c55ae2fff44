"""`fedapp models` as a person sees it."""

from rich.console import Console

from fedapp.experiment.runpaths import find_run
from fedapp.ground.text import percent, size
from fedapp.server.peers import finished_run
from fedapp.tools.models.export import Exported, export


def write_models(run: str, console: Console) -> None:
    """Write the models of the run of this name or folder, and say where they are."""
    finished = finished_run(find_run(run))
    notes = set()
    for done in export(finished):
        console.print(_line(done), highlight=False, soft_wrap=True, markup=False)
        notes.add(done.description.results.note)
    for note in sorted(notes - {""}):
        console.print(f"Note: {note}", highlight=False, soft_wrap=True, markup=False)


def _line(done: Exported) -> str:
    test = done.description.results.test
    worth = "no test images"
    if test.images:
        ends = " to ".join(map(percent, test.interval))
        worth = f"{test.right} of {test.images} test images right, {ends} %"
    return f"{done.folder}  {size(done.size)}  {worth}"
