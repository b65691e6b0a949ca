"""Who does not come is known at the deadline, and nobody waits longer."""

import socket
import threading
import time

import pytest

from longhaul.cluster.qualify.links import tournament
from longhaul.cluster.qualify.rendezvous import Place, Rendezvous, place_of
from longhaul.core.errors import NeedsPerson, UsageError


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_places_of_launchers() -> None:
    assert place_of({}) == Place()
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h",
                "MASTER_PORT": "7", "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
    assert place_of(torchrun) == Place(1, 4, 1, "h", 7, served=True)
    slurm = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0", "MASTER_ADDR": "h"}
    assert place_of(slurm) == Place(2, 3, 0, "h")


def test_a_launcher_that_does_not_say_where_rank_0_is() -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        place_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    with pytest.raises(UsageError, match="RANK: x"):
        place_of({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "h"})


def test_the_absent_are_not_among_those_gathered() -> None:
    port = free_port()
    first = Rendezvous(Place(0, 3, 0, "127.0.0.1", port), 5.0)
    second = Rendezvous(Place(1, 3, 0, "127.0.0.1", port), 5.0)
    first.hand_in("met", {"host": "a"})
    second.hand_in("met", {"host": "b"})
    began = time.monotonic()
    assert first.gather("met", 0.3) == {0: {"host": "a"}, 1: {"host": "b"}}
    assert time.monotonic() - began < 3.0
    assert second.hear("never", 0.1) is None
    first.announce("code", 17)
    assert second.hear("code", 5.0) == 17


def test_a_clock_is_compared_with_rank_0() -> None:
    port = free_port()
    first = Rendezvous(Place(0, 2, 0, "127.0.0.1", port), 5.0)
    second = Rendezvous(Place(1, 2, 0, "127.0.0.1", port), 5.0)
    serving = threading.Thread(target=first.serve_clock, args=([1], 10.0))
    serving.start()
    offset = second.clock_offset(10.0)
    serving.join(10.0)
    assert offset is not None
    assert abs(offset[0]) <= offset[1] + 1e-3


def test_a_rank_that_finds_no_rank_0_says_so() -> None:
    with pytest.raises(NeedsPerson, match="rank 1 did not reach rank 0 at 127"):
        Rendezvous(Place(1, 2, 0, "127.0.0.1", free_port()), 1.0)


def test_a_rank_that_loses_rank_0_does_not_wait_for_what_cannot_come() -> None:
    port = free_port()
    first = Rendezvous(Place(0, 3, 0, "127.0.0.1", port), 5.0)
    second = Rendezvous(Place(1, 3, 0, "127.0.0.1", port), 5.0)
    second.hand_in("met")
    waits = threading.Timer(0.3, lambda: first.__dict__.pop("store"))  # and its server with it
    waits.start()
    began = time.monotonic()
    with pytest.raises(NeedsPerson, match=f"rank 1 lost rank 0, and the store at 127.*:{port}"):
        second.gather("local", 60.0)
    waits.join()
    assert time.monotonic() - began < 20.0
    with pytest.raises(NeedsPerson, match="lost rank 0"):
        second.hand_in("local")
    assert second.hear("code", 60.0) is None


@pytest.mark.parametrize("players", range(2, 10))
def test_everybody_meets_everybody_and_no_two_share_a_partner(players: int) -> None:
    plans = [list(tournament(players, own)) for own in range(players)]
    for own, plan in enumerate(plans):
        assert sorted(p for p in plan if p is not None) == [p for p in range(players) if p != own]
        for turn, partner in enumerate(plan):
            assert partner is None or plans[partner][turn] == own
    assert list(tournament(players, None)) == [None] * len(plans[0])
