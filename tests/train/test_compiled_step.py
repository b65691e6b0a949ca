"""Compiled steps: what they compute, and how often they are compiled."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.data.batches import Batch
from longhaul.model.head import SummedLoss
from longhaul.train.parts import build_step
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

TINY = (
    "model.width=16", "model.layers=2", "model.heads=2", "model.context=16",
    "model.vocab_multiple=64", "batch.sequence_length=16", "batch.stages=[]",
    "machine.compile=true",
)  # fmt: skip


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Captured as graphs, without generating code, which a machine may lack a compiler for."""
    plain = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model, **_: plain(model, backend="aot_eager", dynamic=False)
    )
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def make_step(*overrides: str) -> TrainingStep:
    recipe = load_recipe("drill", [*TINY, *overrides]).recipe
    return build_step(recipe, 30, 0, torch.device("cpu"), sources=("books", "web"))


def some_batch(number: int, sequences: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(number)
    window_BT = torch.randint(30, (sequences, 17), generator=generator)
    source_B = torch.arange(sequences) % 2
    return Batch(window_BT[:, :-1], window_BT[:, 1:], sequences * 16, number, 0, source_B)


def num_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(
    "recompute",
    ["none", *(pytest.param(how, marks=pytest.mark.slow) for how in ("full", "selective"))],
)
def test_steps_with_gauges_are_one_more_graph_with_the_same_readings(recompute: str) -> None:
    """Also of the several micro-batches of a step, and where a layer is computed again."""
    options = (f'machine.activation_checkpointing="{recompute}"',)
    eager, compiled = make_step(*options, "machine.compile=false"), make_step(*options)
    before = num_graphs()
    for number in range(6):
        gauges = number % 3 == 1
        expected = eager(some_batch(number), 2, 1e-2, gauges)
        found = compiled(some_batch(number), 2, 1e-2, gauges)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        if number == 1:
            assert expected.numel() > 20, "the gauges are among the figures"
    assert num_graphs() - before == 2


def test_a_rehearsal_on_a_cpu_compiles_nothing() -> None:
    """Its operations are followed one by one."""
    step, before = make_step(), num_graphs()
    step.rehearse(2, 16)
    assert num_graphs() == before
    assert step.passes.forms.is_new(2, 16, None, True)


def test_each_form_is_compiled_at_its_first_pass_and_counted() -> None:
    step = make_step()
    assert step.passes.compilations is not None
    found = []
    for number, gauges in enumerate((False, False, True, False, True)):
        step(some_batch(number), 2, 1e-2, gauges)
        found.append(step.passes.compilations.drain())
    assert [compiled is not None for compiled in found] == [True, False, True, False, False]
    for compiled in filter(None, found):
        assert (compiled.graphs, compiled.graph_breaks, compiled.recompilations) == (1, 0, 0)
        assert compiled.took_s > 0.1
        assert compiled.message == ""
    assert make_step("machine.compile=false").passes.compilations is None


def test_a_recompilation_that_no_form_explains_is_told_with_torchs_reason() -> None:
    step = make_step()
    assert step.passes.compilations is not None
    step(some_batch(0), 2, 1e-2, False)
    step.passes.compilations.drain()
    step.model.residual_clamp = 7.0
    step(some_batch(1), 2, 1e-2, False)
    compiled = step.passes.compilations.drain()
    assert compiled is not None
    assert compiled.recompilations == 1
    assert "clamp" in compiled.message
    step.settle(step.model.settings.model_copy(update={"residual_clamp": 5.0}), 2)
    step(some_batch(2), 2, 1e-2, False)
    compiled = step.passes.compilations.drain()
    assert compiled is not None, "a run may change it, which is another form"
    assert compiled.recompilations == 0


def test_a_graph_break_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SummedLoss.forward

    def broken(*given: Any, **named: Any) -> torch.Tensor:
        torch._dynamo.graph_break(msg="enough of it")
        return plain(*given, **named)

    monkeypatch.setattr(SummedLoss, "forward", broken)
    step = make_step()
    assert step.passes.compilations is not None
    step(some_batch(0), 2, 1e-2, False)
    compiled = step.passes.compilations.drain()
    assert compiled is not None
    assert compiled.graph_breaks >= 1
    assert compiled.graphs > 1
    assert compiled.recompilations == 0
    assert "enough of it" in compiled.message
    step(some_batch(1), 2, 1e-2, False)
    assert step.passes.compilations.drain() is None


def test_a_run_writes_down_what_was_compiled(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer("machine.compile=true", "train.steps=5", "batch.stages=[]")
    events = [e for e in trainer.steps() if isinstance(e, Event) and e.kind == EventKind.COMPILED]
    assert [(event.step, event.data["graphs"]) for event in events] == [(1, 1), (3, 1)]
    assert all(event.data["text"] for event in events)


STAGES = "model.window_stages=[{from_step=0, tokens=3}, {from_step=1, tokens=7}]"


@pytest.mark.parametrize("documents", ["false", "true"])
def test_another_window_compiles_nothing(documents: str) -> None:
    """Neither that of the next stage nor the last one; those that hide nothing are another form."""
    options = ("model.window=12", STAGES, f"model.document_mask={documents}", "model.dropout=0")
    eager, step = make_step(*options, "machine.compile=false"), make_step(*options)
    assert step.passes.compilations is not None
    before = num_graphs()
    for number, window in enumerate((3, 7, None, 16, 20)):
        assert step.passes.forms.is_new(2, 16, window, False) == (number in (0, 3))
        expected = eager(some_batch(number), 2, 1e-2, False, window)
        found = step(some_batch(number), 2, 1e-2, False, window)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        compiled = step.passes.compilations.drain()
        assert compiled is None or compiled.recompilations == 0
        assert num_graphs() - before == (1 if number < 3 else 2)
