"""NCCL's flight recorder is asked for in time, and nobody waits for one that is not there."""

import os
from pathlib import Path

import pytest

from longhaul.logbook.folder import RunFolder
from longhaul.supervise.ranks import stacks
from longhaul.supervise.ranks.stacks import (
    ask_for_recordings,
    forget_recording,
    recorder_environment,
    recording_path,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path)
    run.workers.mkdir(parents=True)
    return run


def test_nothing_is_set_where_there_is_no_such_device(folder: RunFolder, tmp_path: Path) -> None:
    assert recorder_environment(folder, {}, tmp_path / "none") == {}


def test_files_and_pipes_lie_with_the_run_and_what_the_user_set_wins(folder: RunFolder) -> None:
    here = Path("/dev/null")
    wanted = recorder_environment(folder, {}, here)
    # torch adds the rank to the one, and rank and ".pipe" to the other.
    assert wanted["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "3" == str(recording_path(folder, 3))
    assert wanted["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"].startswith(str(folder.workers))
    assert int(wanted["TORCH_NCCL_TRACE_BUFFER_SIZE"]) > 0
    assert wanted["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    own = recorder_environment(folder, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}, here)
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in own
    assert list(folder.workers.iterdir()) == []


def test_where_pipes_cannot_be_made_workers_are_not_told_to(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(stacks.os, "mkfifo", refuse)
    wanted = recorder_environment(folder, {}, Path("/dev/null"))
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in wanted
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" in wanted


def test_ranks_that_listen_are_asked_and_others_are_not_waited_for(folder: RunFolder) -> None:
    pipes = [folder.workers / f"collectives-{rank}.pipe" for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    listening = os.open(pipes[1], os.O_RDONLY | os.O_NONBLOCK)  # as torch does
    try:
        # Rank 0 listens no more, rank 2 never did.
        assert ask_for_recordings(folder, [0, 1, 2]) == [recording_path(folder, 1)]
        assert os.read(listening, 8)
    finally:
        os.close(listening)


def test_what_an_earlier_attempt_left_does_not_count(folder: RunFolder) -> None:
    recording_path(folder, 0).write_bytes(b"old")
    os.mkfifo(folder.workers / "collectives-0.pipe")
    forget_recording(folder, 0)
    forget_recording(folder, 1)
    assert list(folder.workers.iterdir()) == []
