"""Who gained: counts by hand, sites without labels or test images, the picture."""

import pytest

from fedapp.reports.comparison.figures import png
from fedapp.reports.comparison.style import BLUE, GREY, VERMILION
from fedapp.reports.who_gained import gains, in_words, who_gained


def row(site, mu, test, alone, final, **more):
    return {"site": site, "mu": mu, "train": 100, "labelled": round(100 * mu), "test": test,
            "classes": 4, "alone_accuracy": alone, "final_accuracy": final, **more}  # fmt: skip


ROWS = [
    row(0, 0.5, 40, 0.9, 0.8),
    row(1, 0.0, 40, None, 0.75, name="north"),
    row(2, 0.2, 20, 0.5, 0.5),
    row(3, 0.1, 0, None, None),
]


def test_each_site_by_its_share_of_labels_in_right_answers():
    """Without labels, of 4 classes, a quarter of 40 images; without test images, nothing."""
    found = gains(ROWS)
    assert [(one.name, one.alone, one.together, one.guesses) for one in found] == [
        ("north", 10, 30, True), ("site 2", 10, 10, False), ("site 0", 36, 32, False),
    ]  # fmt: skip
    assert [one.colour for one in found] == [BLUE, GREY, VERMILION]


def test_the_words_are_of_all_images():
    """72 of 100 together, 56 alone; p, q = 73 / 102, 57 / 102: 15.7 +- 1.96 * 6.639 points."""
    first, second = in_words(gains(ROWS))
    assert first == "Of 100 test images, 72 right together, 56 alone: 1 of 3 sites gained, 1 lost."
    assert second == (
        "Joining paid: +16.0 points of accuracy over training alone (95 % interval +2.7 to +28.7), "
        "on the same 100 test images."
    )


@pytest.mark.parametrize(("rows", "said"), [
    ([row(0, 1.0, 50, 1.0, 1.0)], "0 of 1 sites gained, none lost."),
    ([row(0, 0.1, 50, 0.0, 1.0)], "1 of 1 sites gained, none lost."),
    ([row(0, 0.1, 50, 1.0, 0.0)], "0 of 1 sites gained, 1 lost."),
])  # fmt: skip
def test_the_extremes(rows, said):
    assert in_words(gains(rows))[0].endswith(said)


def test_the_picture_has_a_row_and_an_arrow_for_each_site():
    figure = who_gained(gains(ROWS))
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "north: 0 of 100 labelled", "site 2: 20 of 100 labelled", "site 0: 50 of 100 labelled",
    ]  # fmt: skip
    assert [list(line.get_xdata()) for line in axes.lines[::3]] == [[25, 75], [50, 50], [90, 80]]
    assert axes.get_title(loc="left") == "1 of 3 sites gained, 1 lost"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["alone", "alone, without labels: guesses", "together"]
    assert png(figure).startswith(b"\x89PNG") and len(png(figure)) < 100_000


def test_where_no_site_guesses_nothing_is_said_of_it():
    figure = who_gained(gains(ROWS[:1]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["alone", "together"]
