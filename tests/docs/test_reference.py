"""What the reference pages take from the code, against settings that are known."""

import sys

import pytest

from fedapp.experiment.config import config_keys
from tests.docs.pages import ROOT


@pytest.fixture(scope="module", autouse=True)
def extensions():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs/_ext")
        yield
    for name in ("reference", "offline"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("row", [
    "| `split.val_share` | number, in [0, 1] | `0.1` | Share of all images for validation; "
    "0.1 in the paper; the rest is for testing. |",
    '| `training.augment` | `none` or `weak` | `"none"` | weak: every training',
    "| `seed` | whole number, ≥ 0 | `0` |",
    "| `training.momentum` | number, in [0, 1) |",
    "| `data.download` | true or false | `true` |",
    "\n## privacy\n\nWhat is done to a model before it leaves a site",
])  # fmt: skip
def test_a_setting_has_type_range_default_and_words(row):
    from reference import settings

    assert row in settings()


def test_every_setting_is_on_a_page(pytestconfig):
    from reference import methods, networks, settings

    pages = settings() + methods() + networks()
    absent = {key for key in config_keys() if f"| `{key}` |" not in pages}
    assert absent == {"method.preset", "method.name", "model.name"}


def test_a_method_has_its_presets_and_settings():
    from reference import methods

    text = methods()
    [fedprox] = [part for part in text.split("\n## ") if part.startswith("fedprox\n")]
    assert "their Eq. 2" in fedprox and "`method.preset=fixprox`: FixProx" in fedprox
    assert "| `method.proximal` | number, ≥ 0 |" in fedprox
    assert "```{py:class} FedProx\n:module: fedapp.methods.averaging.fedprox\n" in fedprox
    [alone] = [part for part in text.split("\n## ") if part.startswith("local_only\n")]
    assert "It has no settings of its own." in alone


def test_a_command_has_its_usage_and_options():
    from reference import commands

    [predict] = [p for p in commands().split("\n## ") if p.startswith("fedapp predict\n")]
    assert "Usage: fedapp predict [OPTIONS] MODEL IMAGES" in predict
    assert "| `--out`, `-o` | CSV file to write; else standard output |" in predict.replace(
        "--out, -o", "--out`, `-o"
    )


@pytest.mark.parametrize(
    ("page", "loads"),
    [
        ('<script src="https://cdn.example/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ("<style>@import 'https://x'</style>", True),
        ('<img src="_images/a.png"> <a href="https://flower.ai">Flower</a>', False),
        ('<link rel="stylesheet" href="_static/a.css">', False),
    ],
)
def test_a_page_that_loads_from_elsewhere_is_found(page, loads, tmp_path):
    from offline import loading

    (tmp_path / "a.html").write_text(page)
    assert loading(tmp_path) == ([str(tmp_path / "a.html")] if loads else [])
