import os
import socket

import pytest

from longhaul.parallel.layout import KEPT_PORT, Layout
from longhaul.supervise.nodes.ledger import node_of
from longhaul.supervise.nodes.placement import Machine, World, posts_here, posts_on
from longhaul.supervise.ranks.group import Meeting


def taken(port: int, reuse: bool) -> bool:
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            thief.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("reuse", [False, True])
def test_nobody_takes_the_port_before_rank_0_listens(reuse: bool) -> None:
    meeting = Meeting(posts_here(2))
    port = int(meeting.environment["MASTER_PORT"])
    assert not taken(port, reuse)
    with pytest.raises(ConnectionRefusedError):  # the others try again until somebody answers
        socket.create_connection(("127.0.0.1", port))
    copy = os.dup(int(meeting.of_first[KEPT_PORT]))  # as a fork has it
    meeting.close()
    assert not taken(port, reuse), "the copy holds it"
    os.close(copy)
    assert taken(port, True)


def test_other_hosts_reach_a_run_that_has_some() -> None:
    machines = tuple(Machine(n, 1, node_of(n, [f"board:{n}"]), address="10.0.0.1") for n in "ab")
    meeting = Meeting(posts_on(World(machines, Layout(2), 2)))
    kept = socket.socket(fileno=os.dup(int(meeting.of_first[KEPT_PORT])))
    assert kept.getsockname()[0] in ("::", "0.0.0.0")
    kept.close()
    meeting.close()


def test_a_rank_0_behind_a_command_inherits_nothing_and_one_rank_alone_meets_nobody() -> None:
    machines = tuple(Machine(n, 1, node_of(n, [f"board:{n}"]), ("env",)) for n in "ab")
    meeting = Meeting(posts_on(World(machines, Layout(2), 2)))
    assert (set(meeting.environment), meeting.of_first) == ({"MASTER_PORT"}, {})
    alone = Meeting(posts_here(1))
    assert (alone.environment, alone.of_first) == ({}, {})
    alone.close()
