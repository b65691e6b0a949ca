import errno
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import longhaul.checkpoint.tensor_file
import longhaul.checkpoint.write
import longhaul.store.manifest
from longhaul.core.clocks import FakeClock, RealClock
from longhaul.data.batches import BatchReader
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.run.drill.machine_faults import Hands
from longhaul.run.drill.machine_seams import let_in
from longhaul.store.catalogue import catalogue
from longhaul.store.transfers import Calls, StoreError
from longhaul.supervise.faults.machines import parse_fault, read_done
from longhaul.supervise.faults.numbers import lay
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

BURNT_S = 0.02


def computed(step: object, tokens_BT: torch.Tensor) -> torch.Tensor:
    """A loss that takes some processor time."""
    until = time.thread_time() + BURNT_S
    while time.thread_time() < until:
        pass
    return (WEIGHT * tokens_BT.float()).sum()


WEIGHT = torch.ones((), requires_grad=True)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hands]:
    """Makes this process a drill's worker; undone at the end."""
    folder = create_run(tmp_path / "run", RealClock())
    for where, name in (
        (Trainer, "_step"), (TrainingStep, "_backward"), (BatchReader, "_read"), (Calls, "within"),
        (longhaul.checkpoint.write, "_save"), (longhaul.checkpoint.write, "write_listed_file"),
        (longhaul.checkpoint.tensor_file, "write_listed_file"),
        (longhaul.store.manifest, "write_listed_file"),
    ):  # fmt: skip
        monkeypatch.setattr(where, name, getattr(where, name))
    monkeypatch.setattr(TrainingStep, "_loss", computed)
    monkeypatch.setattr(Trainer, "_step", lambda trainer: None)
    monkeypatch.setattr(TrainingStep, "_backward", lambda step, loss: loss.backward())
    monkeypatch.setattr(BatchReader, "_read", lambda reader, request: request)

    def make(*faults: str) -> Hands:
        lay(folder, machine=[parse_fault(fault) for fault in faults])
        hands = Hands(folder, {})
        let_in(hands)
        return hands

    return make


STEP = SimpleNamespace(device=torch.device("cpu"))


def make_step(number: int) -> None:
    trainer = SimpleNamespace(position=SimpleNamespace(step=number - 1), training_step=STEP)
    Trainer._step(trainer)


def loss_of(sequences: int = 2) -> torch.Tensor:
    WEIGHT.grad = None
    return TrainingStep._loss(STEP, torch.ones(sequences, 3))


def test_a_loss_is_no_number_in_its_step_alone(worker: Callable[..., Hands]) -> None:
    worker("nan@rank0:step3")
    losses = []
    for number in (2, 3, 4):
        make_step(number)
        losses.append(loss_of().item())
    assert (losses[0], losses[2]) == (6.0, 6.0)
    assert math.isnan(losses[1])


def test_memory_runs_out_while_micro_batches_are_too_large(worker: Callable[..., Hands]) -> None:
    hands = worker("oom:2@rank0:step3")
    make_step(2)
    loss_of(4)
    make_step(3)
    assert loss_of(2).item() == 6.0
    for number in (3, 4):
        make_step(number)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            loss_of(3)
    assert len(read_done(hands.folder)) == 1


def test_a_slow_rank_takes_more_processor_time(worker: Callable[..., Hands]) -> None:
    worker("slow:3@rank0:step2")
    make_step(2)
    began = time.thread_time()
    loss_of()
    assert time.thread_time() - began >= 3 * BURNT_S


def test_a_wrong_gradient_is_wrong_on_its_way_alone(worker: Callable[..., Hands]) -> None:
    worker("bitflip-grad@rank0:step2-3")
    gradients = []
    for number in (1, 2, 3, 4):
        make_step(number)
        loss = loss_of()
        assert loss.item() == 6.0
        TrainingStep._backward(STEP, loss)
        gradients.append(float(WEIGHT.grad))
    assert gradients[0] == gradients[3] == 6.0
    assert gradients[1] == gradients[2] != 6.0


def test_a_batch_cannot_be_read(worker: Callable[..., Hands]) -> None:
    worker("loader-crash@rank0:step2")
    make_step(2)
    with pytest.raises(RuntimeError, match="reader of batches"):
        BatchReader._read(None, "batch")
    make_step(2)
    assert BatchReader._read(None, "batch") == "batch"


def save(folder: RunFolder, step: int) -> list[str]:
    stages = longhaul.checkpoint.write.write_checkpoint(
        folder.checkpoints, step=step, attempt=1, tensors={"w": torch.ones(4)}, facts=b"{}",
        still_owner=lambda: True, clock=FakeClock(),
    )  # fmt: skip
    return [stage for stage, _, _ in stages]


def test_a_full_disk_takes_no_checkpoint_and_leaves_the_one_before(
    worker: Callable[..., Hands],
) -> None:
    hands = worker("enospc:60@rank0:step2")
    assert save(hands.folder, 1)[-1] == "verified"
    make_step(2)
    with pytest.raises(OSError, match="No space left") as full:
        save(hands.folder, 2)
    assert full.value.errno == errno.ENOSPC
    assert [checkpoint.step for checkpoint in catalogue(hands.folder.checkpoints)] == [1]
    assert [path.name for path in hands.folder.checkpoints.iterdir()] == ["step-1"]


def test_a_torn_write_kills_with_a_file_cut_in_two(
    worker: Callable[..., Hands], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(pid: int, number: int) -> None:
        (partial,) = folder.checkpoints.iterdir()
        sizes.append((partial / "__0_0.safetensors").stat().st_size)
        raise Killed

    sizes: list[int] = []
    hands = worker("torn-write@rank0:step2")
    folder = hands.folder
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
    worker: Callable[..., Hands],
) -> None:
    worker("store-gone:60@rank0:step2", "store-hang:60@rank0:step5")
    calls = Calls()
    assert calls.within(9.0, "listing", lambda: "there") == "there"
    make_step(2)
    with pytest.raises(ConnectionRefusedError):
        calls.within(9.0, "listing", lambda: "there")
    make_step(5)
    with pytest.raises(StoreError):
        calls.within(0.01, "listing", lambda: "there")
