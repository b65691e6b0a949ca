"""The step through torch.compile, in whole runs."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config

from longhaul.checkpoint.loader import restore
from longhaul.core.records import StepRecord
from longhaul.train.state import training_state
from longhaul.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]

COMPILED = "machine.compile=true"
# Twelve stages of three lengths, and a window for each three of them.
LENGTHS = (16, 32, 8)
CURRICULUM = (
    "train.steps=24", "batch.micro_sequences=4", "batch.sequences=4", "batch.sequence_length=16",
    "model.window=8",
    "model.window_stages=[" + ", ".join(
        f"{{from_step={6 * number}, tokens={3 + number}}}" for number in range(4)
    ) + "]",
    "batch.stages=[" + ", ".join(
        f"{{from_step={2 * number}, sequences={4 * number}, sequence_length={LENGTHS[number % 3]}}}"
        for number in range(1, 12)
    ) + "]",
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    limit = torch._dynamo.config.recompile_limit
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = limit


class Recorder:
    """Captures graphs and runs them as they are, counting both."""

    def __init__(self) -> None:
        self.captured = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        self.captured += 1

        def run(*arguments: torch.Tensor) -> Any:
            self.runs += 1
            return graph.forward(*arguments)

        return run


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """In the place of code generation, so that no C++ compiler is needed."""
    recorder = Recorder()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=recorder))
    with torch._inductor.config.patch({"cpp.cxx": (None, sys.executable)}):
        yield recorder


def steps(trainer: Trainer) -> list[StepRecord]:
    return [record for record in trainer.steps() if isinstance(record, StepRecord)]


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.training_step.model.parameters()]


@pytest.mark.slow
def test_every_length_of_a_curriculum_is_compiled_once_for_all_windows_and_none_falls_back(
    make_trainer: MakeTrainer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With evaluations (a last batch of fewer sequences), gauges and saves in between."""
    compiled, track = make_trainer(*CURRICULUM, COMPILED), []
    time_buckets = compiled._parts.time_buckets
    honest = time_buckets.track
    monkeypatch.setattr(time_buckets, "track", lambda to: track.append(to) or honest(to))
    records = steps(compiled)
    forms = {(record.sequence_length, bool(record.gauges)) for record in records}
    assert {length for length, _ in forms} == set(LENGTHS)
    assert {record.attention_window for record in records} == {3, 4, 5, 6}
    assert recorder.captured == len(forms), "of lengths, with gauges and without; not of windows"
    assert track.count("compile") == len(forms)
    assert recorder.runs == sum(record.sequences // 4 for record in records)
    uncompiled = steps(make_trainer(*CURRICULUM, folder="other"))
    for one, other in zip(records, uncompiled, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
def test_a_resumed_run_has_the_same_bits_in_generated_code(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    """It begins at the second shape, the other came to it from the first; dropout is on."""
    whole = make_trainer(COMPILED)
    steps(whole), list(whole.saved(wait=True))
    torch.compiler.reset()
    resumed = make_trainer(COMPILED, folder="other")
    parts = resumed._parts
    restore(tmp_path / "checkpoints" / "step-8", training_state(parts.step, parts.progress))
    assert [record.step for record in steps(resumed)] == [9, 10, 11, 12]
    assert all(map(torch.equal, weights(whole), weights(resumed)))
