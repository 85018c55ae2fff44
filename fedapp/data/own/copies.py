"""What must be dealt together: a group's images, and images of equal content.

Content is what a model would see: the decoded pixels at the agreed size. So a copy is found even if
it was saved anew, without loss, in another format; a digest of the file's bytes would miss it. No
file is read twice for it: a run decodes every image anyway.
"""

from collections.abc import Sequence

from fedapp.data.copies import numbers_of, tied
from fedapp.data.own.entries import Entry

Group = tuple[str, str]
"""("group", its name), or ("image", its file's name) for an image that belongs to no group."""


def together(entries: Sequence[Entry], contents: Sequence[str]) -> tuple[Group, ...]:
    """Return which group each entry is dealt with: its own, or the first by name of those tied.

    contents: `content_of` each entry's image; empty: unknown, equal to no other. Groups that hold
    images of equal content are tied, and so are groups that are tied to the same third one.
    """
    groups = [_group(entry) for entry in entries]
    if not any(contents):
        return tuple(groups)
    alone = (content or at for at, content in enumerate(contents))
    numbers = tied(numbers_of(groups), numbers_of(alone))
    first: dict[int, Group] = {}
    for number, group in zip(numbers, groups, strict=True):
        first[number] = min(group, first.get(number, group))
    return tuple(first[number] for number in numbers)


def _group(entry: Entry) -> Group:
    return ("group", entry.group) if entry.group else ("image", entry.name)
