"""A bar for work of many images, on standard error: answers may go to standard output."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Rate(ProgressColumn):
    """Images a second, of late."""

    def render(self, task: Task) -> Text:
        """Return the text; empty before there is anything to say."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} a second")


@contextmanager
def counting(what: str, images: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield what is to be told how many more images are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=images)
        yield lambda more: bar.advance(task, more)
