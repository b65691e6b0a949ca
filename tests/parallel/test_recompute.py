import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.config.shrink import shrunken
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build
from longhaul.model.tap import Tap
from longhaul.parallel.recompute import checkpoint_activations
from longhaul.train.memory import LiveBytes

TOKENS = torch.randint(131, (4, 65), generator=torch.Generator().manual_seed(3))


def model_of(how: str) -> GPT:
    twin = shrunken(load_recipe("speedrun-124m").recipe)
    settings = load_recipe("speedrun-124m", [*twin, "model.dropout=0.1"]).recipe.model
    model = build(settings, 131, 1, end_of_text=0)
    if how != "none":
        checkpoint_activations(model, how)  # type: ignore[arg-type]
    return model


def passed(model: GPT) -> tuple[torch.Tensor, int]:
    """The loss after a forward and a backward pass, and the most bytes that these took."""
    torch.manual_seed(5)
    live = LiveBytes()
    with live:
        loss = model(TOKENS[:, :-1], TOKENS[:, 1:])
        loss.backward()
    return loss, live.peak


@pytest.mark.parametrize("how", ["selective", "full"])
def test_what_is_computed_again_is_the_same_to_the_bit_dropout_included(how: str) -> None:
    plain, again = model_of("none"), model_of(how)
    assert torch.equal(passed(plain)[0], passed(again)[0])
    for (name, one), other in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def test_less_is_kept() -> None:
    everything, selective, full = (
        passed(model_of(how))[1] for how in ("none", "selective", "full")
    )
    assert full < selective < everything


@pytest.mark.parametrize("how", ["selective", "full"])
def test_a_compiled_step_computes_again_too(how: str) -> None:
    """As `machine.compile` compiles it, but for the generation of code, which needs a compiler."""
    torch.compiler.reset()
    twin = shrunken(load_recipe("llama-1b").recipe)
    settings = load_recipe("llama-1b", [*twin, "model.layers=2"]).recipe.model
    found = []
    for compiled in (False, True):
        model = build(settings, 131, 1, end_of_text=0)
        checkpoint_activations(model, how)  # type: ignore[arg-type]
        forward = torch.compile(model, backend="aot_eager", dynamic=False) if compiled else model
        loss = forward(TOKENS[:, :-1], TOKENS[:, 1:])
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_gauges_count_nothing_twice() -> None:
    readings = []
    for how in ("none", "full"):
        model = model_of(how)
        tap = Tap(model.gauges, len(model.blocks))
        torch.manual_seed(5)
        with tap.open_for_forward():
            loss = model(TOKENS[:, :-1], TOKENS[:, 1:], tap=tap)
        loss.backward()
        readings.append(tap.drain())
    assert torch.equal(*readings)


def test_names_of_weights_stay() -> None:
    assert model_of("full").state_dict().keys() == model_of("none").state_dict().keys()
