"""A frozen encoder through Flower: the loopback run's bits, and features kept on a site's disk."""

from dataclasses import replace

import pytest

from client_app.node import open_site
from fedapp.learn.networks import initial_params, network_settings
from fedapp.learn.networks.encoder import Body, _body
from fedapp.learn.params import digest_of, to_bytes
from fedapp.protocol.messages import ModelRef, Task
from fedapp.site.policy import SitePolicy
from tests.encoders import drawn, encoder_fields, written
from tests.flower.grids import origin_of, preset
from tests.flower.simulation import copy_of_app, simulate_and_loop_back
from tests.small import small


def over_an_encoder(out, fields):
    model = network_settings("encoder", fields)
    return small(model=model, runtime__out=str(out), rounds__num_rounds=2)


def started(tmp_path, experiment, identity):
    """Do a warm-up as a site's node that was begun anew; return its answer."""
    _body.cache_clear()
    origin = replace(origin_of(experiment), identity=identity)
    node = {"partition-id": 2, "store-path": str(tmp_path / "site")}
    run = {"preset": preset(experiment, tmp_path)}
    site, _ = open_site(run, node, origin, {}, SitePolicy(None, no_terms=True), lambda: None)
    blob = to_bytes(initial_params(experiment.model, (1, 8, 8), 10, experiment.seed))
    return site.handle(Task(2, 0, "warmup", ModelRef(2, 0, digest_of(blob))), {}).answer


def test_a_node_started_again_runs_the_encoder_on_no_image(tmp_path, monkeypatch):
    experiment = over_an_encoder(tmp_path / "runs", written(tmp_path / "w.safetensors", drawn()))
    asked = []
    whole = Body.__call__
    monkeypatch.setattr(Body, "__call__", lambda self, x: (asked.append(len(x)), whole(self, x))[1])
    first = started(tmp_path, experiment, "a" * 64)
    assert asked and len(list((tmp_path / "site/features").iterdir())) == 1
    asked.clear()
    second = started(tmp_path, experiment, "b" * 64)  # another run, too
    assert not asked and second.model == first.model


@pytest.mark.slow
@pytest.mark.parametrize("method", [
    {"method.preset": "fedavg"},
    {"method.name": "one_round", "method.features": "network"},
])  # fmt: skip
def test_a_run_through_flower_is_the_loopback_run_bit_for_bit(tmp_path, method):
    experiment = over_an_encoder(tmp_path / "runs", encoder_fields())
    file = preset(experiment, tmp_path)
    with copy_of_app(tmp_path) as copy:
        simulate_and_loop_back(copy, file, method)
