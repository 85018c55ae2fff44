"""What must be dealt together: a group's images, and images of equal content.

Content is what a model would see: the decoded pixels at the agreed size. So a copy is found even if
it was saved anew, without loss, in another format; a digest of the file's bytes would miss it. No
file is read twice for it: a run decodes every image anyway.
"""

from collections.abc import Sequence

from fedapp.data.own.entries import Entry

Group = tuple[str, str]
"""("group", its name), or ("image", its file's name) for an image that belongs to no group."""


def together(entries: Sequence[Entry], contents: Sequence[str]) -> tuple[Group, ...]:
    """Return which group each entry is dealt with: its own, or the first by name of those tied.

    contents: `content_of` each entry's image; empty: unknown, equal to no other. Groups that hold
    images of equal content are tied, and so are groups that are tied to the same third one.
    """
    parents: dict[Group, Group] = {}

    def first(group: Group) -> Group:
        while (parent := parents.setdefault(group, group)) != group:
            parents[group] = parents[parent]  # shortens the way for the next to ask
            group = parent
        return group

    holders: dict[str, Group] = {}
    for entry, content in zip(entries, contents, strict=True):
        group = _group(entry)
        if content:
            low, high = sorted((first(group), first(holders.setdefault(content, group))))
            parents[high] = low
    return tuple(first(_group(entry)) for entry in entries)


def _group(entry: Entry) -> Group:
    return ("group", entry.group) if entry.group else ("image", entry.name)
