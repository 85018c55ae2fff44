"""Deal a site's images to training, validation and test, by group, where it has not done so."""

from collections import Counter
from collections.abc import Sequence

from fedapp import rng
from fedapp.data.own.entries import Entry
from fedapp.settings import SplitSettings

TRAIN, VAL, TEST, ASIDE = "train", "val", "test", "aside"


def deal(
    entries: Sequence[Entry], settings: SplitSettings, seed: int, site: str
) -> tuple[str, ...]:
    """Return the part of each entry: TRAIN, VAL, TEST or ASIDE.

    Where the site has made a split, it stands. Otherwise `settings`' shares are those of the
    labelled images, as near as whole groups allow, and unlabelled images are for training. Those of
    a group that went to val or test are set aside: a model must not learn from a patient that it is
    measured on, not even without labels.

    A group's place in the order is drawn from (seed, site, group) alone: neither the order of the
    files nor images that come later move more than the groups at the two borders.
    """
    if any(entry.part for entry in entries):
        return tuple(entry.part for entry in entries)
    sizes = Counter(_group(entry) for entry in entries if entry.label)
    order = sorted(sizes, key=lambda group: rng.key(seed, "own-deal", site, *group))
    total = sizes.total()
    train = round(total * settings.train_share)
    val = round(total * (settings.train_share + settings.val_share))
    parts, before = dict[tuple[str, str], str](), 0
    for group in order:
        middle = before + sizes[group] / 2
        parts[group] = TRAIN if middle < train else VAL if middle < val else TEST
        before += sizes[group]

    def part(entry: Entry) -> str:
        found = parts.get(_group(entry), TRAIN)
        return found if entry.label or found == TRAIN else ASIDE

    return tuple(map(part, entries))


def _group(entry: Entry) -> tuple[str, str]:
    """Return what is dealt together; an image without a group goes alone."""
    return ("group", entry.group) if entry.group else ("image", entry.name)
