"""Who gained: three kinds of verdict, sites without labels or test images, the picture."""

from fedapp.evaluation.verdict import Pairs
from fedapp.reports.comparison.figures import png
from fedapp.reports.who_gained import DRAWN, gains, who_gained


def row(site, mu, test, final, pairs=None, **more):
    return {"site": site, "mu": mu, "train": 100, "labelled": round(100 * mu), "test": test,
            "classes": 4, "final_accuracy": final, **more,
            **(pairs.numbers if pairs else {})}  # fmt: skip


ROWS = [
    row(0, 0.5, 40, 0.8, Pairs(40, 24, 36, 40, 1, 13)),
    row(1, 0.0, 40, 0.75, name="north"),
    row(2, 0.2, 20, 0.5, Pairs(20, 10, 10, 20, 2, 2)),
    row(3, 0.1, 0, None),
    row(4, 0.3, 40, 0.9, Pairs(40, 36, 20, 40, 18, 2)),
]


def test_each_site_by_its_share_of_labels_alone_and_together():
    """A site without labels has no model of its own; without test images nothing is said."""
    found = gains(ROWS)
    assert [(one.name, one.alone, one.together, one.outcome) for one in found] == [
        ("north", None, 30, "unknown"), ("site 2", 10, 10, "unknown"),
        ("site 4", 20, 36, "paid"), ("site 0", 36, 24, "harmed"),
    ]  # fmt: skip


def test_the_picture_draws_the_three_kinds_differently():
    figure = who_gained(gains(ROWS))
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "north: 0 of 100 labelled", "site 2: 20 of 100 labelled", "site 4: 30 of 100 labelled",
        "site 0: 50 of 100 labelled",
    ]  # fmt: skip
    assert [list(line.get_xdata()) for line in axes.lines[1::3]] == [[50, 50], [50, 90], [90, 60]]
    shown = [(line.get_color(), line.get_marker()) for line in axes.lines[3::3]]
    assert shown == [DRAWN[kind][:2] for kind in ("unknown", "paid", "harmed")]
    assert len(set(shown)) == len({mark for _, mark in shown}) == 3
    title = axes.get_title(loc="left")
    assert title == "Beyond chance: 1 gained, 1 lost; 1 cannot be told"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["gained", "lost", "cannot be told", "alone (hollow)", "no labels: together"]
    assert png(figure).startswith(b"\x89PNG") and len(png(figure)) < 100_000


def test_what_no_site_is_stands_in_no_legend():
    figure = who_gained(gains(ROWS[:1]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lost", "alone (hollow)"]
