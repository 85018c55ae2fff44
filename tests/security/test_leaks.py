"""What a run writes down and says: nothing of a single image, nothing of a single label."""

import csv
import json
import logging
import re

import numpy as np
import pytest

from fedapp.core.errors import ConfigError, DataError, ImageError, StoreError, message_for_server
from fedapp.core.progress import Progress
from fedapp.data.folder import decode
from fedapp.evaluation.verdict import PAIRS
from fedapp.experiment.resume import open_run
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import COLUMNS, Ledger
from fedapp.server.engine import Engine
from fedapp.server.standings import POOLED_METRICS
from fedapp.site.federation import federation_of
from tests.server.test_engine import Remote, no_mischief
from tests.small import small

FILES = {
    "config.yaml", "run.json", "run.id", "metrics.jsonl", "traffic.csv", "per_site.csv",
    "summary.json", "checkpoint.json", "evaluations.json", "sites.jsonl",
}  # fmt: skip
ROUND = {
    "round", "mean_test_accuracy", "std_test_accuracy", "worst_decile_accuracy",
    "mean_val_accuracy", "mean_test_accuracy_before_training", "sites_evaluated", "trained",
    "pseudo_label_error", "skipped", "wall_seconds", "models_sent", "models_up", "bytes_up",
    "bytes_down", "bytes_evaluation", "bytes_spared",
    *(f"pooled_{part}_{metric}" for part in ("val", "test") for metric in POOLED_METRICS),
}  # fmt: skip
SAID = {"val", "test", "test_before", "learned", "loss", "helpers", "pseudo", *(
    f"{part}_balanced_accuracy" for part in ("val", "test")
)}  # fmt: skip
SITE = {
    *PAIRS,
    "site", "mu", "train", "labelled", "val", "test", "classes", "test_classes",
    "warmup_accuracy", "final_accuracy",
    "best_round_accuracy", "by_validation_accuracy", "before_training_accuracy", "val_accuracy",
    "rounds_trained", "rounds_skipped", "helpers", *POOLED_METRICS,
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run whose sites keep their own elsewhere, as hospitals do; its folder, words and sites."""
    root = tmp_path_factory.mktemp("run")
    experiment = small(runtime__out=str(root), runtime__run_name="run")
    federation = federation_of(experiment)
    folder = open_run(experiment)  # a server of real sites has no manifest
    store = ModelStore(folder.pool_root)
    words = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        with Progress() as progress:
            real = progress.note
            progress.note = lambda text: (words.append(text), real(text))
            transport = Remote(experiment, federation, store, root / "elsewhere", no_mischief)
            Engine(experiment, transport, folder, store, progress, Ledger()).run()
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(level)
    return folder.path, "\n".join(words), [site.data for site in transport.sites.values()]


def test_these_files_and_no_others_are_written(ran):
    path, _, _ = ran
    found = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    models = {name for name in found if re.fullmatch(r"pool/../[0-9a-f]{64}\.safetensors", name)}
    assert found - models - {"pool/key"} == FILES
    assert models


def test_no_image_is_in_any_file_or_word(ran):
    path, words, sites = ran
    blobs = [p.read_bytes() for p in path.rglob("*") if p.is_file()] + [words.encode()]
    images = 0
    for site in sites:
        for kind in (site.labelled, site.unlabelled, site.val, site.test):
            for image in kind.numpy():
                images += 1
                raw = image.tobytes()
                floats = (image.astype(np.float32) / 255).tobytes()
                listed = ", ".join(map(str, image.flatten().tolist())).encode()
                assert not any(raw in b or floats in b or listed in b for b in blobs)
    assert images == 500


def test_what_is_written_are_sums_over_a_sites_images(ran):
    """Every name that there is; no list is as long as a site's images, but confusion matrices."""
    path, _, sites = ran
    for line in (path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row.keys() <= ROUND
        assert all(not isinstance(value, list) for value in row.values())
    for line in (path / "sites.jsonl").read_text().splitlines():
        for said in json.loads(line)["sites"].values():
            assert said.keys() <= SAID
            pseudo = said.get("pseudo", {})
            assert all(len(counts) == 10 for counts in pseudo.values())  # classes, bins
            assert all(len(said[part]) == 2 for part in said.keys() & {"val", "test"})
    # The last is of the counts in `evaluations.json`, and only written where a model is so.
    assert set(columns(path / "per_site.csv")) - {"one_answer"} == SITE
    assert columns(path / "traffic.csv") == list(COLUMNS)
    for site in json.loads((path / "evaluations.json").read_text()).values():
        assert site.keys() <= {"val", "test", "test_before"}
        for result in site.values():
            assert result.keys() == {"confusion", "bin_count", "bin_correct", "bin_confidence"}
            assert [len(row) for row in result["confusion"]] == [10] * 10
            assert len(result["bin_count"]) == 15
    state = json.loads((path / "checkpoint.json").read_text())
    assert state.keys() == {"round", "state", "pool", "ledger"}
    facts = {"site", "inputs", "classes", "labelled", "unlabelled", "bagged", "val", "test",
             "split_digest", "pool_key", "name"}  # fmt: skip
    for site in state["state"]["standings"]["sites"].values():
        assert site["facts"].keys() == facts and site["facts"]["pool_key"] == ""
    assert sites


def columns(path):
    return next(csv.reader(path.read_text().splitlines()))


def test_an_image_that_cannot_be_used_is_named_at_the_site_only(tmp_path):
    file = tmp_path / "melanoma" / "jane-doe.png"
    file.parent.mkdir()
    file.write_bytes(b"no image")
    with pytest.raises(ImageError, match="jane-doe") as caught:
        decode(file, 0)
    assert (
        message_for_server(caught.value)
        == "one of the site's images cannot be used; the site's own log names it"
    )
    assert "jane" not in message_for_server(ValueError("jane-doe.png"))
    assert message_for_server(ConfigError("seed = x:\n\x1b[2J wrong")) == "seed = x:  [2J wrong"


@pytest.mark.parametrize(("error", "what_is_told"), [
    (ConfigError("this site runs code ab from /home/jane/um pfssl/app, the server runs cd"),
     "this site runs code ab from [a path at the site], the server runs cd"),
    (StoreError("/srv/Jane Doe/models/ab.safetensors: cannot be written (No space left on device, "
                "26 MB needed, 0 B free): free space there"),
     "[a path at the site]: cannot be written (No space left on device, 26 MB needed, 0 B free): "
     "free space there"),
    (StoreError("make /srv/My Sites/a writable or choose another folder (FEDAPP_OUT)"),
     "make [a path at the site] writable or choose another folder (FEDAPP_OUT)"),
    (DataError("data.root = '~/jane/data': not there"),
     "data.root = '[a path at the site]': not there"),
    (ConfigError("conf/digits.yaml, line 3; docs/OWN_DATA.md and/or https://flower.ai/docs, 1/2"),
     "conf/digits.yaml, line 3; docs/OWN_DATA.md and/or https://flower.ai/docs, 1/2"),
])  # fmt: skip
def test_no_path_of_a_sites_disk_is_told(error, what_is_told):
    assert message_for_server(error) == what_is_told
