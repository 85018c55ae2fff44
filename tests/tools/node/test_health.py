"""When a SuperNode is online, when it is given up and how long the next one waits."""

import pytest
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE

from fedapp.tools.node.supervisor import ANSWERS_S, FIRST_WAIT_S, LAST_WAIT_S, PATIENCE_S, Watch

LONG = PATIENCE_S + ANSWERS_S


def started(share=0.0):
    made = Watch(lambda: share)
    made.started(100.0)
    return made


def test_the_patience_is_the_servers():
    assert PATIENCE_S == HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL


def test_online_from_an_acknowledgement_until_the_servers_patience_ends():
    watch = started()
    assert not watch.online(100.0)
    watch.acknowledged(103.0)
    assert watch.online(103.0) and watch.online(103.0 + PATIENCE_S - 1)
    assert not watch.online(103.0 + PATIENCE_S)
    watch.acknowledged(200.0)
    watch.server(201.0, True)
    watch.started(202.0)
    assert not watch.online(202.0), "another SuperNode, which nobody has acknowledged yet"
    watch.server(261.0, True)
    assert not watch.given_up(262.0), "what was asked before it began does not count"


def test_one_that_never_comes_online_is_given_up_where_the_server_answers():
    watch = started()
    assert not watch.doubtful(100.0 + PATIENCE_S / 2 - 1) and watch.doubtful(100.0 + PATIENCE_S / 2)
    for now in range(130, 160):
        watch.server(float(now), True)
        assert not watch.given_up(float(now)), now
    watch.server(160.0, True)
    assert watch.given_up(160.0)


def test_one_that_goes_offline_while_it_lives_is_given_up():
    watch = started()
    for now in range(110, 410, 20):
        watch.acknowledged(float(now))
        watch.server(float(now), True)
        assert not watch.given_up(now + 19.0)
    assert not watch.given_up(390.0 + PATIENCE_S - 1) and watch.given_up(390.0 + PATIENCE_S)


def test_nobody_is_given_up_while_the_server_is_silent_nor_at_once_when_it_is_back():
    watch = started()
    watch.acknowledged(101.0)
    for now in (131.0, 200.0, 4000.0):
        watch.server(now, False)
        assert not watch.given_up(now)
    watch.server(4001.0, True)
    assert not watch.given_up(4001.0 + ANSWERS_S - 1), "Flower tries again within half a minute"
    watch.server(4005.0, False)
    watch.server(4006.0, True)
    assert not watch.given_up(4006.0 + ANSWERS_S - 1), "it was silent in between"
    assert watch.given_up(4006.0 + ANSWERS_S)


@pytest.mark.parametrize(("share", "factor"), [(0.0, 0.5), (1.0, 1.0)])
def test_waits_double_up_to_the_last_and_are_drawn_from_the_upper_half(share, factor):
    watch = started(share)
    waits = [watch.wait(101.0) for _ in range(40)]
    assert waits[:4] == [FIRST_WAIT_S * factor * 2**n for n in range(4)]
    assert set(waits[6:]) == {LAST_WAIT_S * factor}


def test_waits_are_short_again_after_one_that_stayed_online():
    watch = started()
    for _ in range(9):
        watch.wait(101.0)
    watch.started(200.0)
    watch.acknowledged(201.0)
    assert watch.wait(202.0) == LAST_WAIT_S / 2, "it fell at once"
    watch.started(300.0)
    for now in range(301, 381, 20):
        watch.acknowledged(float(now))
    assert watch.wait(382.0) == FIRST_WAIT_S / 2
