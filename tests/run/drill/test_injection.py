import errno
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fakes import FakeClock
from longhaul.checkpoint.write import write_checkpoint
from longhaul.core.clocks import RealClock
from longhaul.core.faults import HANDLERS, Point, point
from longhaul.data.batches import BatchReader, BatchRequest
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.injection import inject
from longhaul.run.drill.laid import lay, read_done
from longhaul.store.catalogue import catalogue
from longhaul.store.transfers import Calls, StoreError

BURNT_S = 0.02


WEIGHT = torch.ones((), requires_grad=True)
STEP = SimpleNamespace(device=torch.device("cpu"))
Rank = Callable[..., RunFolder]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """Makes this process a rank of a drilled run until the test ends; the run's folder."""
    folder = create_run(tmp_path / "run", RealClock())
    for at in Point:
        monkeypatch.setitem(HANDLERS, at, [])

    def make(*faults: str) -> RunFolder:
        lay(folder, [parse_fault(fault) for fault in faults])
        inject(folder)
        return folder

    return make


def make_step(number: int) -> None:
    point(Point.BEFORE_STEP, SimpleNamespace(training_step=STEP), step=number)


def loss_of(sequences: int = 2) -> torch.Tensor:
    """A loss that takes some processor time."""
    WEIGHT.grad = None
    until = time.thread_time() + BURNT_S
    while time.thread_time() < until:
        pass
    loss = (WEIGHT * torch.ones(sequences, 3)).sum()
    return point(Point.LOSS, loss, step=STEP, sequences=sequences)


def test_a_loss_is_no_number_in_its_step_alone(rank: Rank) -> None:
    rank("nan@rank0:step3")
    losses = []
    for number in (2, 3, 4):
        make_step(number)
        losses.append(loss_of().item())
    assert (losses[0], losses[2]) == (6.0, 6.0)
    assert math.isnan(losses[1])


def test_memory_runs_out_while_micro_batches_are_too_large(rank: Rank) -> None:
    folder = rank("oom:2@rank0:step3")
    make_step(2)
    loss_of(4)
    make_step(3)
    assert loss_of(2).item() == 6.0
    for number in (3, 4):
        make_step(number)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            loss_of(3)
    assert len(read_done(folder)) == 1


def test_a_slow_rank_takes_more_processor_time(rank: Rank) -> None:
    rank("slow:3@rank0:step2")
    make_step(2)
    began = time.thread_time()
    loss_of()
    assert time.thread_time() - began >= 3 * BURNT_S


def test_a_wrong_gradient_is_wrong_on_its_way_alone(rank: Rank) -> None:
    rank("bitflip-grad@rank0:step2-3")
    gradients = []
    for number in (1, 2, 3, 4):
        make_step(number)
        loss = loss_of()
        assert loss.item() == 6.0
        loss.backward()
        gradients.append(float(WEIGHT.grad))
    assert gradients[0] == gradients[3] == 6.0
    assert gradients[1] == gradients[2] != 6.0


def test_a_batch_cannot_be_read(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchReader, "__init__", lambda reader: None)
    monkeypatch.setattr(BatchReader, "_read", lambda reader, request: "batch")
    reader, request = BatchReader(), BatchRequest(0, 1, 8)
    reader._ahead, reader._dataset = None, SimpleNamespace(streaming=None)
    rank("loader-crash@rank0:step2")
    make_step(2)
    with pytest.raises(RuntimeError, match="reader of batches"):
        reader.read(request)
    make_step(2)
    assert reader.read(request) == "batch"


def save(folder: RunFolder, step: int) -> list[str]:
    stages = write_checkpoint(
        folder.checkpoints, step=step, attempt=1, tensors={"w": torch.ones(4)}, facts=b"{}",
        still_owner=lambda: True, clock=FakeClock(),
    )  # fmt: skip
    return [stage for stage, _, _ in stages]


def test_a_full_disk_takes_no_checkpoint_and_leaves_the_one_before(
    rank: Rank,
) -> None:
    folder = rank("enospc:60@rank0:step2")
    assert save(folder, 1)[-1] == "verified"
    make_step(2)
    with pytest.raises(OSError, match="No space left") as full:
        save(folder, 2)
    assert full.value.errno == errno.ENOSPC
    assert [checkpoint.step for checkpoint in catalogue(folder.checkpoints)] == [1]
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-1"]


def test_a_torn_write_kills_with_a_file_cut_in_two(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(pid: int, number: int) -> None:
        (partial,) = folder.checkpoints.iterdir()
        sizes.append((partial / "__0_0.safetensors").stat().st_size)
        raise Killed

    sizes: list[int] = []
    folder = rank("torn-write@rank0:step2")
    make_step(2)
    assert read_done(folder) == []
    monkeypatch.setattr("os.kill", die)
    with pytest.raises(Killed):
        save(folder, 2)
    monkeypatch.undo()
    assert len(read_done(folder)) == 1
    save(folder, 3)
    whole = (folder.checkpoints / "step-3" / "__0_0.safetensors").stat().st_size
    assert sizes == [whole // 2]


def test_a_store_that_is_away_refuses_and_one_that_hangs_is_given_up(
    rank: Rank,
) -> None:
    rank("store-gone:60@rank0:step2", "store-hang:60@rank0:step5")
    calls = Calls()
    assert calls.within(9.0, "listing", lambda: "there") == "there"
    make_step(2)
    with pytest.raises(ConnectionRefusedError):
        calls.within(9.0, "listing", lambda: "there")
    make_step(5)
    with pytest.raises(StoreError):
        calls.within(0.01, "listing", lambda: "there")
