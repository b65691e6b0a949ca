import pytest
import torch

from longhaul.checkpoint.capture import StateMismatch, TrainingState, capture
from longhaul.checkpoint.snapshots import DamagedSnapshot, Snapshot, SnapshotRing


class Owner:
    """A part of a run that holds tensors and one number."""

    def __init__(self, tensors, number=0):
        self.held, self.number = tensors, number

    def tensors(self):
        return self.held

    def facts(self):
        return {"number": self.number}

    def take_back(self, tensors, facts):
        self.number = facts["number"]


@pytest.fixture
def owner(tensors):
    return Owner({name.replace(".", "_"): tensor for name, tensor in tensors.items()}, number=7)


def filled_with(number):
    return Owner({"weight": torch.full((1000,), float(number))}, number)


def size_of_one():
    ring = SnapshotRing(1 << 30)
    ring.take(0, 0, capture({"part": filled_with(0)}))
    return ring._held[0].buffer.nbytes


def test_every_kind_of_tensor_comes_back_bit_by_bit(owner, same_bits, blank):
    ring, parts = SnapshotRing(1 << 20), {"part": owner}
    before = {name: tensor.detach().clone() for name, tensor in owner.held.items()}
    assert ring.take(5, 40, capture(parts))
    for name, zeros in blank(before).items():
        owner.held[name].detach().copy_(zeros)
    owner.number = 8
    ring.hand_back(5, lambda _: parts)
    same_bits(owner.held, before)
    assert owner.number == 7
    assert ring.kept() == (Snapshot(5, 40),)


def test_training_on_does_not_touch_a_snapshot():
    ring, owner = SnapshotRing(1 << 20), filled_with(1)
    ring.take(1, 1, capture({"part": owner}))
    owner.held["weight"].add_(1)
    ring.take(2, 2, capture({"part": owner}))
    owner.held["weight"].add_(1)
    ring.hand_back(1, lambda _: {"part": owner})
    assert owner.held["weight"].eq(1).all()
    ring.hand_back(2, lambda _: {"part": owner})
    assert owner.held["weight"].eq(2).all()


def test_the_oldest_make_room_within_the_budget_and_their_memory_is_used_again():
    ring = SnapshotRing(3 * size_of_one())
    for step in range(1, 4):
        ring.take(step, step, capture({"part": filled_with(step)}))
    addresses = {held.buffer.data_ptr() for held in ring._held}
    for step in range(4, 9):
        ring.take(step, step, capture({"part": filled_with(step)}))
    assert [kept.step for kept in ring.kept()] == [6, 7, 8]
    assert {held.buffer.data_ptr() for held in ring._held} == addresses
    owner = filled_with(0)
    ring.hand_back(7, lambda _: {"part": owner})
    assert owner.number == 7
    assert owner.held["weight"].eq(7).all()


def test_a_budget_for_fewer_than_two_holds_none():
    ring = SnapshotRing(2 * size_of_one() - 1)
    assert not ring.take(1, 1, capture({"part": filled_with(1)}))
    assert ring.kept() == ()


def test_a_state_of_another_layout_finds_room_too():
    ring = SnapshotRing(4 * size_of_one(), most=3)
    for step in range(3):
        ring.take(step, step, capture({"part": filled_with(step)}))
    larger = Owner({"weight": torch.arange(2000.0)})
    assert ring.take(3, 3, capture({"part": larger}))
    assert [kept.step for kept in ring.kept()] == [1, 2, 3]
    before = larger.held["weight"].clone()
    larger.held["weight"].zero_()
    ring.hand_back(3, lambda _: {"part": larger})
    assert larger.held["weight"].equal(before)


def test_the_same_step_is_held_once_and_what_is_dropped_is_gone():
    ring = SnapshotRing(1 << 20)
    for number in (1, 2):
        ring.take(5, number, capture({"part": filled_with(number)}))
    ring.take(9, 9, capture({"part": filled_with(9)}))
    assert ring.kept() == (Snapshot(5, 2), Snapshot(9, 9))
    ring.drop(lambda kept: kept.step > 5)
    assert ring.kept() == (Snapshot(5, 2),)
    with pytest.raises(KeyError, match="no snapshot of step 9"):
        ring.hand_back(9, lambda _: {"part": filled_with(0)})


@pytest.mark.parametrize("bit", [0, 31, 63])
def test_a_flipped_bit_is_found_before_anything_is_touched(bit):
    ring, owner = SnapshotRing(1 << 20), filled_with(3)
    ring.take(1, 1, capture({"part": owner}))
    ring._held[0].buffer.view(torch.int64)[100] ^= 1 << bit if bit < 63 else -(1 << 63)
    owner.held["weight"].fill_(4)
    with pytest.raises(DamagedSnapshot, match="snapshot of step 1 has changed"):
        ring.hand_back(1, lambda _: {"part": owner})
    assert owner.held["weight"].eq(4).all()
    assert ring.kept() == ()


def test_another_state_is_refused_by_name_and_untouched():
    ring = SnapshotRing(1 << 20)
    ring.take(1, 1, capture({"part": filled_with(1)}))
    other = Owner({"weight": torch.zeros(999)})
    with pytest.raises(StateMismatch, match="weight is float32"):
        ring.hand_back(1, lambda _: {"part": other})
    assert other.held["weight"].eq(0).all()


def test_facts_that_are_no_json_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        SnapshotRing(1 << 20).take(1, 1, TrainingState({}, {"part": {"loss": float("nan")}}))


def test_a_host_without_memory_ends_snapshots_not_training(monkeypatch):
    ring = SnapshotRing(1 << 20)
    ring.take(1, 1, capture({"part": filled_with(1)}))

    def refuse(*arguments, **named):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "zeros", refuse)
    assert not ring.take(2, 2, capture({"part": filled_with(2)}))
    monkeypatch.undo()
    assert not ring.take(3, 3, capture({"part": filled_with(3)}))
    assert ring.kept() == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_copies_are_queued_ahead_of_later_work():
    ring = SnapshotRing(1 << 30)
    owner = Owner({"weight": torch.arange(1 << 22, device="cuda", dtype=torch.float32)})
    before = owner.held["weight"].clone()
    for step in (1, 2, 3):
        assert ring.take(step, step, capture({"part": owner}))
        owner.held["weight"].add_(1)
    ring.hand_back(1, lambda _: {"part": owner})
    assert owner.held["weight"].equal(before)
    ring.hand_back(3, lambda _: {"part": owner})
    assert owner.held["weight"].equal(before + 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_copies_are_made_beside_work_and_ahead_of_changes():
    ring = SnapshotRing(4 << 30, settled=True)
    owner = Owner({"weight": torch.zeros(1 << 27, device="cuda")})
    product = torch.randn(4096, 4096, device="cuda")
    for step in (1, 2, 3):
        assert ring.take(step, step, capture({"part": owner}))
        for _ in range(10):
            product = torch.mm(product, product).clamp_(-1, 1)
        ring.settle()
        owner.held["weight"].add_(1)
    for step in (1, 3):
        ring.hand_back(step, lambda _: {"part": owner})
        assert owner.held["weight"].eq(step - 1).all()


class Ranks:
    """The control of a world whose other rank answers as it is told."""

    def __init__(self, other: bool) -> None:
        self.other = other

    def agree(self, fine: bool) -> bool:
        return fine and self.other


def test_a_snapshot_is_taken_and_handed_back_by_all_ranks_or_by_none() -> None:
    ranks, owner = Ranks(other=False), filled_with(1)
    ring = SnapshotRing(1 << 20, control=ranks)
    assert not ring.take(1, 10, capture({"part": owner}))
    assert ring.kept() == ()

    ranks.other = True
    ring = SnapshotRing(1 << 20, control=ranks)
    assert ring.take(1, 10, capture({"part": owner}))
    ranks.other = False
    live = filled_with(2)
    with pytest.raises(DamagedSnapshot, match="another rank's memory"):
        ring.hand_back(1, lambda facts: {"part": live})
    assert ring.kept() == ()
    same = capture({"part": filled_with(2)}).tensors
    for name, tensor in capture({"part": live}).tensors.items():
        assert torch.equal(tensor, same[name])
