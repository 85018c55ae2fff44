"""What a method may ask of the pool: the weighted mean by hand, and who has trained."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from fedapp.aggregation import rule_of
from fedapp.aggregation.server_optimizers import FedAvgM
from fedapp.core.errors import StoreError
from fedapp.core.settings import TransportSettings
from fedapp.learn.params import from_bytes, schema_of, to_bytes
from fedapp.protocol.messages import MODEL, SERVER_SITE, ModelRef
from fedapp.protocol.store import ModelStore
from fedapp.server.pool import ModelPool
from fedapp.server.round_pool import RoundPool
from fedapp.server.run_state import ChangeLengths


def model(weight, statistic=0.0, count=0):
    return {
        "weight": torch.tensor([[float(weight), 1.0]]),
        "running_var": torch.tensor([float(statistic)]),
        "count": torch.tensor(count),
    }


SCHEMA = schema_of(model(0))
WEIGHTS = frozenset({"weight"})
PLAIN = TransportSettings()
HALF = TransportSettings(precision="float16", compression="zlib")


def pool_of(tmp_path, models, transport=PLAIN, server=None, robust="none"):
    """Sites 0, 1, ... have uploaded `models`; w_0, the server's model, is `server`."""
    pool = ModelPool(ModelStore(tmp_path))
    pool.start(range(len(models)), to_bytes(server or model(0), transport))
    for site, params in enumerate(models):
        blob = to_bytes(params, transport)
        pool.upload(site, pool.store.put(blob), blob, 1)
    return RoundPool(pool, {MODEL: SCHEMA}, WEIGHTS, transport, 7, rule_of(robust))


def content(rnd, ref):
    return from_bytes(rnd.pool.get(ref.digest), SCHEMA, "test", rnd.transport)


def test_the_mean_is_weighted_and_becomes_the_servers_next_version(tmp_path):
    rnd = pool_of(tmp_path, [model(1, 4.0, count=5), model(5, 8.0, count=6)])
    made = rnd.average([(3, rnd.latest(0)), (1, rnd.latest(1))])
    assert (made.site, made.version) == (SERVER_SITE, 1)
    assert made == rnd.latest(SERVER_SITE)
    found = content(rnd, made)
    assert found["weight"].tolist() == [[2.0, 1.0]]  # (3 * 1 + 1 * 5) / 4
    assert found["running_var"].tolist() == [5.0]  # (3 * 4 + 1 * 8) / 4
    assert rnd.pool.contents[SERVER_SITE, MODEL].round == 7
    again = rnd.average([(1, rnd.latest(1))])
    assert again.version == 2 and rnd.trained() == (0, 1), "the server is no site that trained"
    rnd.pool.collect_garbage()
    assert rnd.pool.store.has(again.digest) and not rnd.pool.store.has(made.digest)
    resumed = ModelPool.from_plain(rnd.pool.store, rnd.pool.to_plain())
    assert resumed.latest(SERVER_SITE) == again


def test_whole_numbers_are_the_servers_and_keep_their_type(tmp_path):
    rnd = pool_of(tmp_path, [model(1, count=5)], server=model(0, count=3))
    found = content(rnd, rnd.average([(1, rnd.latest(0))]))["count"]
    assert found.dtype == torch.int64 and found.item() == 3


@pytest.mark.parametrize(("last", "times"), [(2, 1), (1000, 2)])
def test_an_average_reads_each_model_once_and_again_only_without_one_that_is_left_out(
    tmp_path, monkeypatch, last, times
):
    rnd = pool_of(tmp_path, [model(1), model(2), model(2), model(last)])
    read, asked = RoundPool.read, Counter()
    monkeypatch.setattr(RoundPool, "read", lambda s, ref: asked.update([ref.site]) or read(s, ref))
    rnd.average([(1, rnd.latest(site)) for site in range(4)])
    assert asked == {SERVER_SITE: 1, 0: times, 1: times, 2: times, 3: 1}


@pytest.mark.parametrize(("beta", "weight"), [(0.5, 7.0), (1.0, 4.0), (2.0, -2.0)])
def test_beta_moves_the_weights_and_leaves_statistics_at_the_mean(tmp_path, beta, weight):
    """(1 - beta) 10 + beta 4; a variance of 1 seen to fall to 0.3 must not become -0.4."""
    rnd = pool_of(tmp_path, [model(3, 0.2), model(5, 0.4)], server=model(10, 1.0))
    rnd = replace(rnd, rule=FedAvgM(rnd.rule, beta))
    found = content(rnd, rnd.average([(1, rnd.latest(0)), (1, rnd.latest(1))]))
    assert found["weight"][0, 0].item() == pytest.approx(weight)
    assert found["running_var"].item() == pytest.approx(0.3)


def test_one_model_is_its_own_mean_bit_for_bit(tmp_path):
    third = model(1 / 3, 1 / 7)
    rnd = pool_of(tmp_path, [third])
    assert content(rnd, rnd.average([(1, rnd.latest(0))]))["weight"].equal(third["weight"])


def test_a_mean_is_written_down_as_the_transport_says(tmp_path):
    rnd = pool_of(tmp_path, [model(1 / 3), model(1 / 3)], HALF)
    made = rnd.average([(1, rnd.latest(0)), (1, rnd.latest(1))])
    assert content(rnd, made)["weight"][0, 0] == torch.tensor(1 / 3).half().float()
    assert rnd.pool.get(made.digest) == to_bytes(content(rnd, made), HALF)


@pytest.mark.parametrize(
    ("rule", "weight"),
    [("none", 53 / 3), ("bounded", 5 / 3), ("median", 2.0), ("filtered", 1.0)],
)
def test_the_run_says_how_models_are_averaged(tmp_path, rule, weight):
    """Changes 1, 2 and 50, bounded 1, 2 and 2; filtered 1 and 2, bounded 1 and 1."""
    models = [model(1, 4), model(2, 4), model(50, 4)]
    rnd = pool_of(tmp_path, models, server=model(0, 4), robust=rule)
    made = rnd.average([(1, rnd.latest(k)) for k in range(3)])
    found = content(rnd, made)
    assert found["weight"][0].tolist() == [pytest.approx(weight), 1.0]
    assert found["running_var"].item() == 4
    assert made == rnd.latest(SERVER_SITE)


def left_out_of(rnd):
    """The pool, and the sites that its averages are made without."""
    said = []
    return replace(rnd, left_out=lambda site, times: said.append((site, round(times, 3)))), said


@pytest.mark.parametrize("rule", ["none", "bounded", "median", "filtered"])
@pytest.mark.parametrize("factor", [61, 1e3, 1e6, 1e30])
def test_who_moved_far_beyond_the_others_is_left_out_and_named(tmp_path, rule, factor):
    """Changes 1, 2 and so many: above 30 times 2."""
    rnd, said = left_out_of(pool_of(tmp_path, [model(1), model(2), model(factor)], robust=rule))
    made = rnd.average([(1, rnd.latest(k)) for k in range(3)])
    alone, _ = left_out_of(pool_of(tmp_path / "two", [model(1), model(2)], robust=rule))
    honest = alone.average([(1, alone.latest(k)) for k in range(2)])
    assert made.digest == honest.digest
    assert said == [(2, pytest.approx(factor / 2))]


def test_a_statistic_far_beyond_the_others_is_no_reason_to_believe_the_weights(tmp_path):
    """Of statistics 300 times the usual length is the most: hospitals' images differ."""
    models = [model(1, 1), model(2, 2), model(3, 600), model(4, 601)]
    rnd, said = left_out_of(pool_of(tmp_path, models))
    found = content(rnd, rnd.average([(1, rnd.latest(k)) for k in range(4)]))
    assert said == [(3, 300.5)]
    assert found["weight"][0, 0].item() == 2 and found["running_var"].item() == 201


def test_in_a_round_with_more_bad_members_than_good_ones_earlier_rounds_say_what_is_usual(tmp_path):
    rnd, said = left_out_of(pool_of(tmp_path, [model(1), model(2), model(3)]))
    rnd.average([(1, rnd.latest(k)) for k in range(3)])  # to 2; the usual change is 2
    assert not said and rnd.moves[MODEL] == ChangeLengths(2.0, ((2, 1.5), (1, 1.0), (0, 0.5)))
    for site in (1, 2):
        blob = to_bytes(model(1e6 * (site + 1)), PLAIN)
        rnd.pool.upload(site, rnd.pool.store.put(blob), blob, 2)
    made = rnd.average([(1, rnd.latest(k)) for k in range(3)])
    assert content(rnd, made)["weight"][0, 0].item() == 1  # the good one's
    assert {site for site, _ in said} == {1, 2}
    assert rnd.moves[MODEL].largest == 2  # bad ones do not lift it


def test_who_did_not_move_does_not_say_what_is_usual(tmp_path):
    rnd, said = left_out_of(pool_of(tmp_path, [model(0), model(0), model(0), model(9)]))
    assert content(rnd, rnd.average([(1, rnd.latest(k)) for k in range(4)]))["weight"][0, 0] == 2.25
    assert not said and rnd.average([]).version == 2


def test_filtered_leaves_out_who_points_away_and_remembers_it(tmp_path):
    """Changes 1, 3 and -2, then by the same uploads: the third is known, so one can judge it."""
    rnd = pool_of(tmp_path, [model(1), model(3), model(-2), model(9)], robust="filtered")
    made = rnd.average([(1, rnd.latest(0)), (1, rnd.latest(1)), (1, rnd.latest(2))])
    assert content(rnd, made)["weight"][0, 0].item() == 1  # 3 is bounded to 1, of two the lower
    assert rnd.remembered == {0: 1, 1: 1, 2: -1}
    again = RoundPool(
        rnd.pool, {MODEL: SCHEMA}, WEIGHTS, PLAIN, 8, rule_of("filtered"), {1: 1.0, 2: -1.0}
    )
    parts = [(0, rnd.latest(0)), (1, rnd.latest(1)), (5, rnd.latest(2))]
    assert content(again, again.average(parts))["weight"][0, 0].item() == 3
    assert again.remembered == {1: 0.5, 2: -1.5}  # who has no weight is not judged


def test_where_all_are_left_out_the_server_keeps_its_model(tmp_path):
    rnd = pool_of(tmp_path, [model(1), model(3)], server=model(7), robust="filtered")
    rnd.remembered.update({0: -1.0, 1: -1.0})
    made = rnd.average([(1, rnd.latest(0)), (1, rnd.latest(1))])
    assert content(rnd, made)["weight"][0, 0].item() == 7


def test_beta_goes_beyond_a_robust_average_too(tmp_path):
    rnd = pool_of(tmp_path, [model(1), model(3), model(99)], server=model(10), robust="median")
    rnd = replace(rnd, rule=FedAvgM(rnd.rule, rate=2.0))
    found = content(rnd, rnd.average([(1, rnd.latest(k)) for k in range(3)]))
    assert found["weight"][0, 0].item() == -4.0  # 10 + 2 (3 - 10)


def test_a_content_that_is_lost_is_an_error_and_no_new_version(tmp_path):
    rnd = pool_of(tmp_path, [model(1)])
    with pytest.raises(StoreError):
        rnd.average([(1, ModelRef(0, 9, "0" * 64))])
    assert rnd.latest(SERVER_SITE).version == 0
