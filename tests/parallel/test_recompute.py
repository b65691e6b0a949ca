import importlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from longhaul.config.load import load_recipe
from longhaul.config.size import shrunken
from longhaul.model import attention, compiling, masks
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build
from longhaul.model.tap import Tap
from longhaul.parallel.recompute import CompiledBlocks, _selective, checkpoint_activations
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


@pytest.mark.parametrize("how", ["none", pytest.param("selective", marks=pytest.mark.slow)])
def test_blocks_are_compiled_in_training_passes_alone(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    plain = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda block, **_: plain(block, backend="aot_eager", dynamic=False)
    )
    torch.compiler.reset()
    graphs: Any = torch._dynamo.utils.counters["stats"]
    eager, model = model_of(how), model_of(how)
    blocks, before = CompiledBlocks(model), graphs["unique_graphs"]

    def pass_of(model: GPT, tap: Tap | None = None) -> tuple[torch.Tensor, int]:
        torch.manual_seed(5)
        return model(TOKENS[:, :-1], TOKENS[:, 1:], tap=tap), graphs["unique_graphs"] - before

    with Tap(GPT.gauges, len(model.blocks)).open_for_forward() as tap:
        assert pass_of(model, tap)[1] == 0
    with torch.no_grad():
        assert pass_of(model)[1] == 0
    blocks.enabled = False
    assert pass_of(model)[1] == 0
    blocks.enabled = True
    (expected, _), (loss, compiled) = pass_of(eager), pass_of(model)
    assert compiled == len(model.blocks)
    for one in (expected, loss):
        one.backward()
    torch.testing.assert_close(loss, expected)
    for (name, one), other in zip(eager.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-4, msg=name)
    assert pass_of(model)[1] == compiled
    torch.compiler.reset()


@pytest.mark.slow
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


@pytest.fixture
def flex_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """FlexAttention as on a GPU, but for the generation of code; its forward passes."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    operation = importlib.import_module("torch._higher_order_ops.flex_attention")
    options, passes = flex._apply_kernel_options, operation.math_attention
    made: list[str] = []

    def with_statistics(*given: Any, **named: Any) -> dict[str, Any]:
        return options(*given, **named) | {"OUTPUT_LOGSUMEXP": True}

    def counted(query: torch.Tensor, *given: Any, **named: Any) -> Any:
        if type(query) is torch.Tensor:
            made.append("forward")
        return passes(query, *given, **named)

    def plainly(function: Any, **_: Any) -> Any:
        return torch.compile(function, backend="aot_eager", dynamic=False)

    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_apply_kernel_options", with_statistics)
    monkeypatch.setattr(operation, "math_attention", counted)
    monkeypatch.setattr(compiling, "compiled_by_shape", plainly)
    monkeypatch.setattr(attention, "_compiled_flex_attention", None)
    monkeypatch.setattr(masks, "flex_attends", lambda *_: True)
    torch.compiler.reset()
    yield made
    torch.compiler.reset()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_flex_attention_is_kept_and_not_computed_again(
    flex_on_cpu: list[str], compiled: bool
) -> None:
    twin = shrunken(load_recipe("llama-1b").recipe)
    options = [*twin, "model.layers=2", "model.window=16", "model.context=256"]
    settings = load_recipe("llama-1b", options).recipe.model
    tokens = torch.randint(131, (2, 151), generator=torch.Generator().manual_seed(3))
    found = []
    for how in ("none", "selective"):
        model = build(settings, 131, 1, end_of_text=0)
        if how != "none":
            checkpoint_activations(model, how)
        forward: Any = model
        if compiled:  # as one graph: nothing of it falls back to eager in silence
            forward = torch.compile(model, backend="aot_eager", dynamic=False, fullgraph=True)
        flex_on_cpu.clear()
        forward(tokens[:, :-1], tokens[:, 1:]).backward()
        assert len(flex_on_cpu) == settings.layers, how
        found.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
def test_generated_code_is_kept_and_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What FlexAttention is on a GPU where the model is not compiled, as in gauge steps."""
    wrap, runs = importlib.import_module("torch._higher_order_ops.wrap"), []
    make = wrap.InductorCompiledCallable.__init__

    def counted(self: Any, code: Any, *given: Any, **named: Any) -> None:
        make(self, lambda inputs: (runs.append(1), code(inputs))[1], *given, **named)

    monkeypatch.setattr(wrap.InductorCompiledCallable, "__init__", counted)
    torch.compiler.reset()
    kernel = compiling.compiled_by_shape(
        lambda x, y: torch.softmax(x * y, -1).sin(), kept_by_checkpointing=True
    )
    x = torch.randn(8, 8, requires_grad=True)
    out = checkpoint(lambda x: kernel(x.exp(), x), x, use_reentrant=False, context_fn=_selective)
    forward = len(runs)
    out.sum().backward()
    assert (forward, len(runs)) == (1, 1)


@pytest.mark.parametrize("how", ["selective", "full"])
def test_gradients_are_the_same_when_gauges_are_read_and_attention_is_not_fused(how: str) -> None:
    """A GPU computes attention of such shapes by products, which selective recomputation keeps: one
    more product in the forward pass, and each later one would be taken for the one before it.
    """
    found = []
    for each in ("none", how):
        torch.manual_seed(5)
        model = model_of(each)
        tap = Tap(GPT.gauges, len(model.blocks))
        with sdpa_kernel(SDPBackend.MATH):
            with tap.open_for_forward():
                loss = model(TOKENS[:, :-1], TOKENS[:, 1:], tap=tap)
            loss.backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
