from pathlib import Path

import pytest

from longhaul.supervise.ranks.stacks import look_from_outside, waiting_in

SAVER = """Thread 0x00007f01 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 5 in barrier
  File "/lib/longhaul/checkpoint/saver.py", line 90 in run

"""
WAITING = (
    SAVER
    + """Current thread 0x00007f02 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 2962 in all_reduce
  File "/lib/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/lib/longhaul/train/step.py", line 200 in __call__
"""
)
BUSY = (
    SAVER
    + """Current thread 0x00007f02 (most recent call first):
  File "/lib/longhaul/data/batches.py", line 12 in read
  File "/lib/longhaul/train/trainer.py", line 200 in _step
  File "/lib/longhaul/run/train/loop.py", line 20 in fly
  File "/lib/longhaul/run/train/run_attempt.py", line 20 in run_attempt
  File "/lib/torch/distributed/elastic.py", line 7 in main
"""
)


def test_where_the_main_thread_waits_for_other_ranks() -> None:
    assert waiting_in(WAITING) == "all_reduce (distributed_c10d.py:2962)"


def test_a_rank_that_does_something_else_waits_nowhere_whatever_its_other_threads_do() -> None:
    assert waiting_in(BUSY) == ""


def test_no_stacks_are_no_answer() -> None:
    assert waiting_in("") is None
    assert waiting_in("Thread 0x00007f01 (most recent call first):\n  <no Python frame>\n") is None


def test_a_rank_that_does_not_answer_is_looked_at_from_outside_if_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "7.native"
    monkeypatch.setenv("PATH", str(tmp_path))
    look_from_outside(123, found, 5.0)
    assert not found.exists()
    tool = tmp_path / "py-spy"
    tool.write_text('#!/bin/sh\necho "asked: $*"\n')
    tool.chmod(0o755)
    look_from_outside(123, found, 5.0)
    assert found.read_text() == "asked: dump --native --pid 123\n"
    tool.write_text("#!/bin/sh\nexit 1\n")  # as where ptrace is not allowed
    found.unlink()
    look_from_outside(123, found, 5.0)
    assert not found.exists()
