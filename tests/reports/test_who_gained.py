"""Who gained: the picture as a file, and the words of all places in 1,000 drawn runs."""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup

from fedapp.evaluation.verdict import Pairs
from fedapp.protocol.messages import SiteFacts
from fedapp.reports import run_accuracy
from fedapp.reports.charts import as_file
from fedapp.reports.layout import Picture
from fedapp.reports.run_accuracy import MOST_OF_A_KIND, joining_of, who_gained
from fedapp.reports.run_end import joining_of as console
from fedapp.reports.run_record import RunRecord, SiteRecord
from fedapp.reports.site_report import _verdict_line
from fedapp.server.standings import Standing, Standings
from tests.evaluation.test_verdict import drawn
from tests.reports.written import evaluation

WORDS = {"gained beyond chance": "Joining paid", "lost beyond chance": "Joining did harm",
         "cannot be told": "Cannot tell", "no labels of its own": "No labels"}  # fmt: skip


def site(number, labelled, pairs=None, right=None, name=""):
    """A site with these pairs; right: right answers and test images of one without pairs."""
    if right is None and pairs is not None:
        right = pairs.together, pairs.images
    found, of = right or (0, 0)
    latest = {"test": evaluation(((found, of - found), (0, 0)))} if of else {}
    facts = SiteFacts(number, (1, 8, 8), ("cat", "dog"), labelled, 95, 0, of, "ab" * 32, name=name)
    return SiteRecord(number, name or f"site {number}", Standing(facts, latest, pairs=pairs))


def run_of(sites):
    summary = {"lone_model": "a network"}
    standings = Standings({one.number: one.standing for one in sites})
    return RunRecord(Path("mine"), {}, {}, [], {}, summary, sites, standings, {})


SITES = [
    site(0, 5, Pairs(40, 24, 36, 40, 1, 13)),
    site(1, 0, right=(30, 40), name="north"),
    site(2, 5, Pairs(20, 10, 10, 20, 2, 2)),
    site(3, 5),
    site(4, 5, Pairs(40, 36, 20, 40, 18, 2)),
]


def test_the_file_shows_each_kind_under_its_heading_and_loads_nothing():
    [figure] = who_gained(run_of(SITES)).figures
    text = as_file(figure.picture)
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and float(root.get("width")) > 800
    assert text.count("http") == 1 and "prefers-color-scheme: dark" in text
    said = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    names = [word for word in said if word.startswith(("site", "north")) or word.endswith(")")]
    assert [name.split(":")[0] for name in names if ":" in name] == [
        "site 4", "site 0", "site 2", "north"
    ]  # fmt: skip
    assert [name for name in names if ":" not in name] == [
        "Gained beyond chance (1)", "Lost beyond chance (1)", "Cannot be told (1)",
        "No labels of its own (1)",
    ]  # fmt: skip
    assert {"1 gained, 1 lost, 1 cannot be told", "20 → 36 of 40", "30 of 40"} <= set(said)


def test_of_many_sites_some_are_drawn_and_the_table_has_all_and_lost_ones_are_never_cut():
    lost = site(0, 5, Pairs(40, 24, 36, 40, 1, 13), name="x" * 60)
    every = [lost, *(site(k, 5, Pairs(40, 36, 20, 40, 18, 2)) for k in range(1, 100))]
    [figure] = who_gained(run_of(every)).figures
    assert len(figure.table.rows) == 100 and figure.table.rows[-1][0] == "x" * 60
    drawn_rows = figure.picture.svg.count("20 → 36 of 40")
    assert drawn_rows == MOST_OF_A_KIND and "24 of 40" in figure.picture.svg
    assert f"Gained beyond chance (99), {MOST_OF_A_KIND} drawn" in figure.picture.svg


@pytest.mark.parametrize("sites", [[site(0, 0, right=(3, 4))], [site(0, 5)], [site(0, 5)] * 3])
def test_without_labels_or_test_images_anywhere_there_is_a_reason_and_no_picture(sites):
    assert not who_gained(run_of(sites)).figures and who_gained(run_of(sites)).missing
    assert joining_of(run_of(sites))[0].startswith("Cannot tell whether joining paid")


def row_of(one):
    """The site's row of per_site.csv."""
    facts, tested = one.standing.facts, one.standing.latest.get("test")
    row = {"site": one.number, "labelled": facts.labelled, "test": facts.test}
    pairs = one.standing.pairs
    return row | {"final_accuracy": tested.accuracy if tested else None,
                  "one_answer": one.standing.one_answer or None,
                  **(pairs.numbers if pairs else {})}  # fmt: skip


def test_screen_picture_table_and_pages_say_the_same_in_1000_runs(monkeypatch):
    shown = []

    def draws(title, rows, said, **_):
        shown.append((title, rows, said))
        return Picture(Markup(), 360)

    monkeypatch.setattr(run_accuracy, "intervals", draws)
    stream = np.random.default_rng(49)
    for _ in range(1000):
        sites = [
            site(k, one.labelled, one.verdict.pairs, one.right)
            for k, one in enumerate(drawn(stream, 0.4))
        ]
        run, shown[:] = run_of(sites), []
        lines, block = joining_of(run), who_gained(run)
        assert lines == console(run.summary, [row_of(one) for one in sites])
        if not block.figures:
            assert not any(one.standing.pairs for one in sites)
            continue
        [(title, rows, said)] = shown
        assert said == " ".join(lines)
        table = {row[0]: row[-1] for row in block.figures[0].table.rows}
        heading = ""
        for row in rows:
            heading = heading if row.shares else row.name.split(" (")[0].lower()
            assert not row.shares or table[row.name] == heading
        number = Counter(table.values())
        assert title == ", ".join(
            f"{number[word]} {short}"
            for word, short in zip(WORDS, ("gained", "lost", "cannot be told"), strict=False)
        )
        for one in sites:
            line = _verdict_line(run, one)
            if one.name in table:
                assert line.startswith(WORDS[table[one.name]])
            else:
                assert line.startswith("Cannot tell")
