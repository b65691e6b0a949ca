"""Snapshots that outlive their process: sealed or not there, and never in the way of anything."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from longhaul.checkpoint.capture import capture
from longhaul.checkpoint.host_buffers import SharedBuffers
from longhaul.checkpoint.shared_memory import DESCRIPTORS, SharedMemory, slots
from longhaul.checkpoint.snapshots import DamagedSnapshot, Snapshot, SnapshotRing

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only")
SIZE = 1000


class Owner:
    def __init__(self, number: int) -> None:
        self.held, self.number = {"weight": torch.full((SIZE,), float(number))}, number

    def tensors(self):
        return self.held

    def facts(self):
        return {"number": self.number}

    def take_back(self, tensors, facts):
        self.number = facts["number"]


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory()
    yield made
    made.close()


def ring(memory: SharedMemory, attempt: int = 1, layout: str = "0 of 1", **more) -> SnapshotRing:
    own = slots(memory.environment(0))
    assert own
    return SnapshotRing(1 << 20, shared=SharedBuffers(own, attempt, layout, lambda: 5.0), **more)


def take(held: SnapshotRing, step: int) -> None:
    assert held.take(step, 10 * step, capture({"part": Owner(step)}))


def in_child(body: Callable[[], None]) -> None:
    """Run in a forked process that is then killed, as where a worker dies."""
    child = os.fork()
    if child == 0:
        try:
            body()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_what_a_killed_process_took_is_handed_back_in_the_next(memory: SharedMemory) -> None:
    memory.environment(0)

    def dies() -> None:
        held = ring(memory)
        for step in (1, 2, 3):
            take(held, step)

    in_child(dies)
    held, owner = ring(memory, attempt=2), Owner(0)
    found = held.survivors()
    assert [(one.step, one.draw, one.attempt, one.time) for one in found] == [
        (1, 10, 1, 5.0), (2, 20, 1, 5.0), (3, 30, 1, 5.0),
    ]  # fmt: skip
    held.adopt(found[1:])
    assert held.kept() == (Snapshot(2, 20), Snapshot(3, 30))
    held.hand_back(3, lambda _: {"part": owner})
    assert owner.number == 3
    assert owner.held["weight"].eq(3).all()
    take(held, 4)
    held.hand_back(2, lambda _: {"part": owner})
    assert owner.held["weight"].eq(2).all()
    assert [one.step for one in ring(memory, attempt=3).survivors()] == [2, 3, 4]


@pytest.mark.parametrize("reused", [False, True])
def test_one_that_was_being_taken_is_never_chosen(memory: SharedMemory, reused: bool) -> None:
    memory.environment(0)

    def dies() -> None:
        held = ring(memory, most=2)
        for step in range(1, 4 if reused else 2):
            take(held, step)

        def killed(*given: object, **named: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        torch.Tensor.copy_ = killed
        take(held, 9)

    in_child(dies)
    assert [one.step for one in ring(memory).survivors()] == ([3] if reused else [1])


def test_bytes_that_changed_are_refused_and_another_layout_finds_nothing(
    memory: SharedMemory,
) -> None:
    first = ring(memory)
    take(first, 1)
    take(first, 2)
    assert ring(memory, layout="1 of 2").survivors() == []
    first._held[-1].buffer[17] += 1
    held, owner = ring(memory, attempt=2), Owner(7)
    held.adopt(held.survivors())
    with pytest.raises(DamagedSnapshot, match="step 2"):
        held.hand_back(2, lambda _: {"part": owner})
    assert owner.number == 7
    assert owner.held["weight"].eq(7).all()
    held.adopt(held.survivors())
    held.hand_back(1, lambda _: {"part": owner})
    assert owner.number == 1


def test_what_is_dropped_is_gone_for_the_next_process_too(
    memory: SharedMemory,
) -> None:
    held = ring(memory)
    for step in (1, 2, 3):
        take(held, step)
    held.drop(lambda kept: kept.step > 1)
    assert [one.step for one in ring(memory).survivors()] == [1]
    memory.keep_only([0, 1])
    assert [one.step for one in ring(memory).survivors()] == [1]
    memory.keep_only([1])  # this rank runs elsewhere now
    assert ring(memory).survivors() == []
    take(ring(memory), 5)


def test_what_nobody_adopts_gives_its_memory_back(memory: SharedMemory) -> None:
    take(ring(memory), 1)
    later = ring(memory, attempt=2)
    assert later.shared.held_bytes > 4 * SIZE
    later.adopt(())
    assert later.shared.held_bytes == 0
    assert later.survivors() == []


def test_memory_is_used_again_and_never_more_than_the_slots(memory: SharedMemory) -> None:
    held = ring(memory, most=3)
    for step in range(1, 4):
        take(held, step)
    taken = held.shared.held_bytes
    for step in range(4, 12):
        take(held, step)
        assert abs(held.shared.held_bytes - taken) < 100
    assert [one.step for one in ring(memory).survivors()] == [9, 10, 11]


def test_nothing_of_it_has_a_path_and_strangers_do_not_find_it(memory: SharedMemory) -> None:
    told = memory.environment(3)
    for number in told[DESCRIPTORS].split(","):
        assert str(Path(f"/proc/self/fd/{number}").readlink()).endswith("(deleted)")
        assert not os.get_inheritable(int(number))
    assert slots({}) == ()
    with Path(os.devnull).open() as other:
        assert slots({DESCRIPTORS: f"{other.fileno()},9999"}) == ()


def test_where_files_run_out_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of open files is full after three slots of the second rank."""
    made = SharedMemory()
    made.environment(0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    create, left = os.memfd_create, iter(range(3))

    def scarce(name: str) -> int:
        if next(left, None) is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return create(name)

    monkeypatch.setattr(os, "memfd_create", scarce)
    assert made.environment(1) == {}
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert made.environment(0), "the first rank keeps its own"
    made.close()
