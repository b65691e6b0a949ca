import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.initialise import build
from longhaul.model.tap import Tap


@pytest.mark.parametrize("tapped", [False, True])
def test_the_model_is_one_graph_with_the_same_loss_gradients_and_gauges(tapped):
    """Captured whole (a graph break would fail it), forward and backward; the code generator is
    left out, so that a machine without a C++ compiler can test this too."""
    settings = ModelSection(layers=2, heads=2, width=16, context=8, vocab_multiple=8)
    generator = torch.Generator().manual_seed(0)
    tokens_BT, targets_BT = torch.randint(21, (2, 3, 8), generator=generator)
    found = []
    for compiled in (False, True):
        model = build(settings, 21, seed=0)
        tap = Tap(model.gauges, layers=2) if tapped else None
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        if tap is None:
            loss = forward(tokens_BT, targets_BT)
        else:
            with tap.open_for_forward():
                loss = forward(tokens_BT, targets_BT, tap)
        loss.backward()
        readings = tap.drain() if tap is not None else torch.zeros(0)
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append([loss.detach(), readings, *gradients])
    for eager, captured in zip(*found, strict=True):
        torch.testing.assert_close(captured, eager)
