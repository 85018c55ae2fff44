"""Splits a site's images into training, validation and test, by class and in whole groups.

This happens only if the site has made no split of its own. What stays together: the images of a
group, and images of equal content. The content is what a model sees: the decoded pixels at the
agreed size. So a copy is found even if it was saved again, without loss, in another format, which
the digest of the file would miss. No file is read twice for this, because a run decodes every image
anyway.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from fedapp.core import rng
from fedapp.core.settings import SplitSettings
from fedapp.data.own.entries import Entry
from fedapp.data.split.groups import joined_groups, numbers_of

TRAIN, VAL, TEST, SET_ASIDE = "train", "val", "test", "aside"

MIN_GROUPS = 3
"""Groups that a class needs in order to be split separately, and so to be in every part."""

RULE = "by class, equal images together"
"""Name of this way of splitting. It is part of the digest of what all sites must share: a run that
began with another way is not resumed with this one, because images would move between training and
testing.
"""

Group = tuple[str, str]
"""("group", its name), or ("image", the name of its file) for an image without a group."""


def deal(
    entries: Sequence[Entry],
    settings: SplitSettings,
    seed: int,
    site: str,
    contents: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the part of each entry: TRAIN, VAL, TEST or ASIDE.

    contents: a digest of what each image shows, as `groups_dealt_together` takes it; empty: all
        images differ. Groups that contain images of equal content are dealt as one group.

    A split that the site has made itself is kept. Otherwise the labelled images of each class are
    dealt by the shares in `settings`, as closely as whole groups allow. A class with `MIN_GROUPS`
    groups or more has at least one group in every part whose share is above 0. A group counts for
    its most frequent class (of several, the first by name). Classes with fewer groups are dealt
    together, as if they were one class. Unlabelled images are for training, unless their group went
    to val or test: those are set aside, because a model must not learn from a patient on whom it is
    measured, not even without labels.

    The position of a group in the order of its class is drawn from (seed, site, group) alone. So
    the order of the files does not matter, and images that are added later move only groups at a
    border between two parts.
    """
    if any(entry.part for entry in entries):
        return tuple(entry.part for entry in entries)
    groups = groups_dealt_together(entries, contents or [""] * len(entries))
    labels: dict[Group, Counter[str]] = {}
    for entry, group in zip(entries, groups, strict=True):
        if entry.label:
            labels.setdefault(group, Counter())[entry.label] += 1
    parts: dict[Group, str] = {}
    for alike in _strata(labels):
        order = sorted(alike, key=lambda group: rng.key(seed, "own-deal", site, *group))
        train, val = _borders([labels[group].total() for group in order], settings)
        parts |= dict.fromkeys(order[:train], TRAIN)
        parts |= dict.fromkeys(order[train:val], VAL)
        parts |= dict.fromkeys(order[val:], TEST)

    def part(entry: Entry, group: Group) -> str:
        found = parts.get(group, TRAIN)
        return found if entry.label or found == TRAIN else SET_ASIDE

    return tuple(map(part, entries, groups))


def _strata(labels: Mapping[Group, Counter[str]]) -> Iterator[list[Group]]:
    """Yield the groups of each class that has `MIN_GROUPS`, then those of all others together."""
    classes: dict[str, list[Group]] = {}
    for group, found in labels.items():
        usual = min(found, key=lambda label: (-found[label], label))
        classes.setdefault(usual, []).append(group)
    yield from (alike for alike in classes.values() if len(alike) >= MIN_GROUPS)
    yield [group for alike in classes.values() if len(alike) < MIN_GROUPS for group in alike]


def _borders(sizes: Sequence[int], settings: SplitSettings) -> tuple[int, int]:
    """Return how many groups come before val, and how many before test.

    sizes: the number of images of each group, in order. A border is where it is nearest to its
        share of the images. No part stays empty if that is possible: test gets the last group, and
        training gives one to val. Of two groups, one is for training and one for testing, because
        nothing else shows how good a model is.
    """
    count = len(sizes)
    middles = [end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    train = bisect_left(middles, sum(sizes) * settings.train_share)
    val = bisect_left(middles, sum(sizes) * (settings.train_share + settings.val_share))
    if count < 2:
        return train, val
    least = int(settings.val_share > 0 and count >= MIN_GROUPS)  # groups for validation
    val = max(min(val, count - 1), 1 + least)
    return max(min(train, val - least), 1), val


def groups_dealt_together(entries: Sequence[Entry], contents: Sequence[str]) -> tuple[Group, ...]:
    """Return the group with which each entry is split; of joined groups, the first by name.

    contents: `content_digest` of each entry's image; empty: unknown, and equal to no other. Groups
        that contain images of equal content are joined, and so are groups that are joined to the
        same third one.
    """
    groups = [group_of(entry) for entry in entries]
    if not any(contents):
        return tuple(groups)
    alone = (content or at for at, content in enumerate(contents))
    numbers = joined_groups(numbers_of(groups), numbers_of(alone))
    first: dict[int, Group] = {}
    for number, group in zip(numbers, groups, strict=True):
        first[number] = min(group, first.get(number, group))
    return tuple(first[number] for number in numbers)


def group_of(entry: Entry) -> Group:
    """Return the group of an entry; its own where it names none."""
    return ("group", entry.group) if entry.group else ("image", entry.name)
