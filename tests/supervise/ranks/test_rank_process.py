"""A rank's process, and what happens where it does not end."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from longhaul.supervise.ranks import rank_process
from longhaul.supervise.ranks.rank_process import Outfit, RankProcess


def test_nobody_waits_for_a_process_that_the_kernel_does_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep() -> None:
        time.sleep(60)

    monkeypatch.setattr(rank_process, "_KILLED_WITHIN_S", 0.05)
    worker = RankProcess(0, Outfit(sleep, {}, tmp_path / "0.log", on_terminal=False, closes=()))
    try:
        with monkeypatch.context() as deaf:  # as in a call that no signal interrupts
            deaf.setattr(rank_process.os, "killpg", lambda *given: None)
            deaf.setattr(RankProcess, "send", lambda *given: None)
            assert not worker.kill()
            assert worker.running
            assert worker.pid not in [child.pid for child in multiprocessing.active_children()]
    finally:
        os.kill(worker.pid, signal.SIGKILL)
    monkeypatch.setattr(rank_process, "_KILLED_WITHIN_S", 20.0)
    assert worker.kill()
    assert worker.exit_code == -signal.SIGKILL


def test_an_interrupt_before_the_work_listens_ends_it_with_130_and_no_traceback(
    tmp_path: Path,
) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    outfit = Outfit(interrupted, {}, tmp_path / "0.log", on_terminal=False, closes=())
    worker = RankProcess(0, outfit)
    worker._process.join(20)
    assert not worker.running
    assert (worker.exit_code, worker.log_end(1000)) == (130, "")


def test_what_rank_0_says_goes_to_a_writer_that_waits_for_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bytes] = []
    monkeypatch.setattr(rank_process, "output", lambda _: SimpleNamespace(write=told.append))

    def say() -> None:
        os.write(2, b"step 1\n")

    outfit = Outfit(say, {}, tmp_path / "0.log", on_terminal=True, closes=())
    worker = RankProcess(0, outfit)
    worker._process.join(20)
    worker.pass_on()
    assert b"".join(told) == b"step 1\n"
    assert worker.log_end(1000) == "step 1\n"
