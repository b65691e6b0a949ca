import os
import subprocess
import sys
from dataclasses import replace

import pytest

from longhaul.logbook.holder import (
    STALE_S,
    Holder,
    Place,
    here,
    judge_holder,
    process_started,
    this_process,
)

HERE = Place("node1", "boot-a", 4026531836)
HOLDER = Holder(
    attempt=3, pid=77, started="500 ticks", place=HERE, user="anna", command="longhaul train x",
    since=1000.0, heartbeat=2000.0,
)  # fmt: skip
CONTAINER = replace(HERE, pid_namespace=1)
REBOOTED = replace(HERE, boot_id="boot-b")
ELSEWHERE = Place("node2", "boot-c", 4026531836)


@pytest.mark.parametrize(
    ("place", "now", "started", "live", "reason"),
    [
        (HERE, 2001.0, "500 ticks", True, "is running"),
        (HERE, 1e9, "500 ticks", True, "is running"),  # however old the heartbeat: it is there
        (HERE, 2001.0, None, False, "is gone"),
        (HERE, 2001.0, "900 ticks", False, "another one"),
        # A machine of the same name is as likely as a restart: a live holder must not lose to it.
        (REBOOTED, 2000.0 + STALE_S, "500 ticks", True, "another machine has its name"),
        (REBOOTED, 2000.1 + STALE_S, "500 ticks", False, "restarted"),
        (CONTAINER, 2000.0 + STALE_S, None, True, "heartbeat"),
        (CONTAINER, 2000.1 + STALE_S, None, False, "heartbeat"),
        (ELSEWHERE, 2000.0 + STALE_S, None, True, "heartbeat"),
        (ELSEWHERE, 2000.1 + STALE_S, None, False, "heartbeat"),
        (ELSEWHERE, 1900.0, None, True, "heartbeat"),  # its clock is ahead of ours
    ],
)
def test_a_holder_is_judged_by_what_can_be_known_from_here(place, now, started, live, reason):
    verdict = judge_holder(now, HOLDER, place, lambda pid: started)
    assert verdict.live is live
    assert reason in verdict.reason


@pytest.mark.parametrize("place", [HERE, ELSEWHERE])
def test_a_released_lease_is_free_whatever_runs(place):
    released = replace(HOLDER, released=2000.0)
    assert not judge_holder(2000.0, released, place, lambda pid: "500 ticks").live


def test_this_process_is_alive_to_itself():
    own = this_process(1, 1000.0, "anna", "longhaul")
    assert own.pid == os.getpid()
    assert judge_holder(1e9, own, here()).live


def test_a_killed_process_is_gone_even_before_anybody_has_reaped_it():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert process_started(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but still a zombie
        assert process_started(process.pid) is None
    finally:
        process.kill()
        process.communicate()
    assert process_started(process.pid) is None
