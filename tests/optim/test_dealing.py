from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from longhaul.config.optim import OptimSection
from longhaul.core.pieces import Pieces, pieces_of
from longhaul.optim import muon
from longhaul.optim import sharding as sharding_module
from longhaul.optim.gate import judge
from longhaul.optim.groups import Group
from longhaul.optim.muon import MuonRule
from longhaul.optim.sharding import Dealing, Sharding, overlap


def cut_between(shape: tuple[int, ...], holders: int) -> Pieces:
    return Pieces(shape, tuple(map(tuple, pieces_of(shape, None, holders, 1))), holder=0)


@pytest.mark.parametrize(("replicas", "holders"), [(1, 1), (1, 4), (2, 2), (3, 2)])
def test_every_matrix_is_computed_once_and_the_work_is_even(
    monkeypatch: pytest.MonkeyPatch, replicas: int, holders: int
) -> None:
    sizes = {"replicas": replicas, "holders": holders}
    monkeypatch.setattr(sharding_module.dist, "get_world_size", sizes.__getitem__)
    sharding = SimpleNamespace(replicas="replicas", holders="holders")
    pieces = cut_between((4, 4), holders)
    work = dict.fromkeys(((r, h) for r in range(replicas) for h in range(holders)), 0)
    dealt = 0
    for count in (3, 1, 7, 5):
        numbers = Dealing(sharding, pieces, count, dealt)._numbers  # type: ignore[arg-type]
        flat = sorted(n for of_replica in numbers for of_rank in of_replica for n in of_rank)
        assert flat == list(range(count))
        for r, h in work:
            work[r, h] += len(numbers[r][h])
        dealt += count
    assert max(work.values()) - min(work.values()) <= 1


def test_tasks_are_one_yield_behind_each_other() -> None:
    said = []

    def task(name: str, yields: int) -> Iterator[None]:
        for number in range(yields):
            said.append(f"{name}{number}")
            yield
        said.append(f"{name} ends")

    overlap(task(name, 2) for name in "abc")
    assert said == ["a0", "b0", "a1", "c0", "b1", "a ends", "c1", "b ends", "c ends"]
    said.clear()
    overlap([task("a", 0), task("b", 1), task("c", 0)])
    assert said == ["a ends", "b0", "c ends", "b ends"]


class Calls:
    """`torch.distributed` between two ranks, of which the other one never writes anything; all
    calls are kept."""

    ReduceOp = sharding_module.dist.ReduceOp

    def __init__(self) -> None:
        self.made: list[str] = []

    def get_world_size(self, group: str) -> int:
        return {"holders": 2, "replicas": 1}[group]

    def get_rank(self, group: str) -> int:
        return 0

    def all_reduce(self, tensor, group, op=None) -> None:
        pass

    def all_to_all_single(self, received, sent, take, give, group, async_op=False):
        assert async_op
        number = sum(call.startswith("send") for call in self.made)
        self.made.append(f"send {number}")
        received.zero_()
        return SimpleNamespace(wait=lambda: self.made.append(f"wait {number}"))


def test_muon_begins_to_gather_a_stack_before_it_computes_the_one_before(monkeypatch) -> None:
    calls = Calls()
    monkeypatch.setattr(sharding_module, "dist", calls)
    products = muon.newton_schulz
    monkeypatch.setattr(
        muon, "newton_schulz", lambda *given: (calls.made.append("products"), products(*given))[1]
    )
    shapes = [(4, 8), (8, 4), (6, 2)]
    pieces = {f"w{n}": cut_between(shape, 2) for n, shape in enumerate(shapes)}
    weights = tuple(nn.Parameter(torch.ones(p.local_shape(0))) for p in pieces.values())
    sharding = Sharding(
        pieces, "world", "holders", "replicas", {"matrix": 3}, {"matrix": 3}, 1, 1  # type: ignore[arg-type]
    )  # fmt: skip
    settings = OptimSection(name="muon", lr=0.1)
    parts = tuple((shape[0],) for shape in shapes)
    rule = MuonRule(Group("matrix", tuple(pieces), weights, parts), settings, sharding)
    rule.numbers = rule.wanted(settings, 0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    gate = judge([w.grad for w in weights], torch.ones(()), 1.0, None, sharding, list(pieces))
    with torch.no_grad():
        rule.update(gate)
    # Of three matrices, this rank of two is dealt the first one and the last.
    assert calls.made == [
        "send 0",
        "send 1", "wait 0", "products", "send 2",
        "send 3", "wait 1", "send 4", "wait 2",
        "wait 3", "products", "send 5", "wait 4",
        "wait 5",
    ]  # fmt: skip
