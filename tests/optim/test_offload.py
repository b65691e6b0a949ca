"""State on the host: the same updates to the bit, in copies that are bounded and given back."""

import copy
import math

import pytest
import torch

import longhaul.optim.muon as muon
import longhaul.optim.state as half
from longhaul.config.model import ModelSection
from longhaul.config.optim import OptimSection
from longhaul.model.initialise import allocate
from longhaul.optim.state import lent
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.memory import LiveBytes

EVERY = pytest.mark.parametrize("name", ["adamw", "muon", "lamb", "sgdw"])
CPU = torch.device("cpu")


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_updates_are_those_of_state_on_the_device_to_the_bit(
    model, settings, fill_gradients, update, state, differing, monkeypatch, name, dtype
):
    # Several portions of every role; the model has weights of up to 3,072 elements.
    monkeypatch.setattr(half, "_MOST_AT_ONCE", 400)
    monkeypatch.setattr(muon, "_MOST_IN_STACK", 1000)
    ends = []
    for offload in (False, True):
        own = copy.deepcopy(model).to(dtype)
        changes = {"name": name, "offload": offload, "clip": 0.5}
        optimizer = build_optimizer(own, OptimSection(**{**settings.model_dump(), **changes}))
        for seed in range(6):
            fill_gradients(own, seed)
            # One of them is masked.
            update(optimizer, math.nan if seed == 3 else 2.0)
        ends.append(state(own, optimizer))
    assert differing(*ends) == []


@EVERY
def test_state_is_on_the_host_where_the_weights_are_elsewhere(name):
    sizes = ModelSection(layers=1, heads=2, width=16, context=8)
    model = allocate(sizes, 21, "meta", end_of_text=0)
    for offload, device in ((False, "meta"), (True, "cpu")):
        optimizer = build_optimizer(model, OptimSection(name=name, lr=1.0, offload=offload))
        large = [tensor for tensor in optimizer.tensors().values() if tensor.dim()]
        assert large
        assert {tensor.device.type for tensor in large} == {device}


@pytest.mark.parametrize(("name", "moments"), [("adamw", 2), ("lamb", 2), ("sgdw", 1)])
def test_no_more_is_lent_at_once_than_a_portion(
    model, settings, fill_gradients, monkeypatch, name, moments
):
    """Otherwise the device would have to hold what the host was to hold for it."""
    most = 400
    monkeypatch.setattr(half, "_MOST_AT_ONCE", most)
    largest = max(weight.numel() for weight in model.parameters())
    total = sum(weight.numel() for weight in model.parameters())
    peaks = {}
    for offload in (False, True):
        changes = {"name": name, "offload": offload}
        optimizer = build_optimizer(model, OptimSection(**{**settings.model_dump(), **changes}))
        fill_gradients(model, 1)
        gate = optimizer.judge(torch.tensor(2.0))
        live = LiveBytes()
        with live:
            optimizer.step(gate)
        peaks[offload] = live.peak
    lent_bytes = 4 * moments * max(most, largest)
    # A scalar beside each weight is of no account.
    assert peaks[False] + lent_bytes / 2 < peaks[True] < peaks[False] + 1.5 * lent_bytes
    assert 1.5 * lent_bytes < 4 * moments * total


def test_what_is_lent_is_a_copy_even_on_the_host():
    """Otherwise nothing here would ever run what a GPU runs."""
    own = torch.zeros(3)
    with lent([own], CPU, offloaded=True) as (copied,):
        copied += 1
        assert own.tolist() == [0, 0, 0]
    assert own.tolist() == [1, 1, 1]
    with lent([own], CPU, offloaded=False) as (itself,):
        assert itself is own
