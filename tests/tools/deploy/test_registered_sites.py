"""`fedapp sites`: names beside numbers, the state and since when; `test_deploy_doc` runs it."""

import io

from flwr.proto.node_pb2 import NodeInfo
from rich.console import Console

from fedapp.tools.deploy.registered_sites import table


def shown(*nodes):
    screen = io.StringIO()
    Console(width=120, file=screen).print(table(nodes))
    lines = [line for line in screen.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def node(number, name, status, **times):
    return NodeInfo(node_id=number, name=name, status=status, **times)


def test_sites_stand_by_name_with_the_time_of_their_state_and_their_number():
    early, late = "2026-01-02T03:04:05.678+00:00", "2026-02-03T04:05:06+00:00"
    assert shown(
        node(2**63 + 1, "west", "offline", registered_at=early, last_deactivated_at=late),
        node(7, "north", "online", registered_at=early, last_activated_at=late),
        node(8, "south", "registered", registered_at=early),
    ) == [
        ["north", "online", "2026-02-03 04:05:06 UTC", "7"],
        ["south", "registered", "2026-01-02 03:04:05 UTC", "8"],
        ["west", "offline", "2026-02-03 04:05:06 UTC", str(2**63 + 1)],
    ]


def test_who_was_taken_off_is_left_out_and_who_has_no_name_is_not():
    [row] = shown(node(1, "gone", "unregistered"), node(2, "", "online"))
    assert (row[0], row[3]) == ("-", "2")
