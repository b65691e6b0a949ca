"""The update of one rank among several: it never waits for the device.

Collectives between ranks are stood in for: they give back nothing, at once.
"""

from types import SimpleNamespace

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.core.pieces import Pieces, pieces_of
from longhaul.model.initialise import build
from longhaul.monitor.gauges import ModelGauges
from longhaul.optim import early as early_module
from longhaul.optim import sharding as sharding_module
from longhaul.optim.gate import judge
from longhaul.optim.groups import Group
from longhaul.optim.muon import MuonRule, newton_schulz
from longhaul.optim.sharding import Dealing, Sharding
from longhaul.optim.update_rules import build_optimizer

OVERRIDES = ("model.layers=1", "optim.name=muon", "optim.cautious_decay=true")
SIZES = {"world": 2, "holders": 1, "replicas": 2}
NOTHING = SimpleNamespace(wait=lambda: None)


@pytest.fixture
def ranks(monkeypatch) -> dict[str, int]:
    sizes = dict(SIZES)
    stand_in = SimpleNamespace(
        get_world_size=sizes.__getitem__,
        get_rank=lambda group: 0,
        ReduceOp=SimpleNamespace(MAX="max"),
        all_reduce=lambda tensor, group, op=None: None,
        all_gather=lambda tensors, own, group, async_op: NOTHING,
        all_to_all_single=lambda received, sent, take, give, group, async_op: NOTHING,
    )
    monkeypatch.setattr(sharding_module, "dist", stand_in)
    monkeypatch.setattr(early_module, "dist", stand_in)
    return sizes


def test_muon_of_a_replica_and_its_gauges(fake, ranks) -> None:
    recipe = load_recipe("drill", OVERRIDES).recipe
    with fake.building():
        model = build(recipe.model, 512, recipe.seed, fake.device, end_of_text=0)
        pieces = {
            name: Pieces(tuple(w.shape), (tuple(pieces_of(w.shape, None, 1, 1)[0]),), 0, copies=2)
            for name, w in model.named_parameters()
        }
        ones = dict.fromkeys(("matrix", "head", "embedding", "position", "vector"), 1)
        sharding = Sharding(pieces, "world", "holders", "replicas", ones, ones, 1, 1)
        optimizer = build_optimizer(model, recipe.optim, sharding)
        gauges = ModelGauges(model, optimizer.groups, fake.device, ["text"], sharding)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    gate = optimizer.judge(torch.zeros((), device=fake.device))
    with gauges.watch(optimizer, gate, None, 8):
        optimizer.step(gate)
    assert gauges.drain(None).device == fake.device
    assert fake.waited <= {"tests"}


def test_a_stack_that_is_sharded(fake, ranks) -> None:
    ranks["holders"] = 2
    sharding = SimpleNamespace(holders="holders", replicas="replicas")
    pieces = Pieces((8, 4), tuple(map(tuple, pieces_of((8, 4), None, 2, 1))), 0)
    parts_Nrc = torch.empty(6, 4, 4, device=fake.device)
    travel = Dealing(sharding, pieces, 6, 3)(
        parts_Nrc, lambda whole_MRC: newton_schulz(whole_MRC, 5, torch.float32)
    )
    assert [next(travel) for _ in range(3)] == [None] * 3
    with pytest.raises(StopIteration) as ended:
        next(travel)
    assert ended.value.value.shape == parts_Nrc.shape
    assert fake.waited == set()


def test_what_sets_out_during_the_backward_pass(fake, ranks) -> None:
    ranks |= {"holders": 2, "replicas": 1}
    pieces = {"w": Pieces((8, 4), tuple(map(tuple, pieces_of((8, 4), None, 2, 1))), 0)}
    sharding = Sharding(pieces, "world", "holders", "replicas", {"matrix": 1}, {"matrix": 1}, 1, 1)
    with fake.building():
        weight = torch.nn.Parameter(torch.empty(4, 4, device=fake.device))
        settings = load_recipe("drill", OVERRIDES).recipe.optim
        rule = MuonRule(Group("matrix", ("w",), (weight,), ((8,),)), settings, sharding)
        rule.numbers = rule.wanted(settings, 0.1)
    assert rule.early is not None
    rule.early.open = True
    weight.grad = torch.zeros_like(weight)
    rule.early._summed(weight)
    gate = judge([weight.grad], torch.zeros((), device=fake.device), 1.0, None, sharding, ["w"])
    with torch.no_grad():
        rule.update(gate)
    rule.early.discard()
    assert fake.waited == set()
