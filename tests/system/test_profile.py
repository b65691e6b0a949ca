"""`longhaul profile` of a small recipe that something was planted in: the report names it."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

from longhaul.cli.entry import application
from longhaul.core.faults import HANDLERS
from longhaul.data.batches import BatchReader
from longhaul.model.gpt import GPT
from longhaul.model.weights import Table

WIDE = "model.vocab_multiple=4096"
"""A table of so many rows, most of them never read."""
Taken = dict[str, Any]
Profiled = Callable[..., Taken]


@pytest.fixture
def profiled(tmp_path: Path, prepared: Path) -> Profiled:
    """What the command says of a recipe, for programs."""

    def profile(*options: str) -> Taken:
        ended = CliRunner().invoke(application(), [
            "profile", "drill", "--steps", "3", "--json", "--out", str(tmp_path / "out"),
            "--prepared-dir", str(prepared), "--set", "batch.micro_sequences=8",
            "--set", "monitor.gauge_interval_steps=4", *options,
        ])  # fmt: skip
        assert ended.exit_code == 0, ended.output
        taken: Taken = json.loads(ended.stdout)
        return taken

    return profile


def _multiplied(table: Table, rows_BT: torch.Tensor) -> torch.Tensor:
    """The planted embedding."""
    one_hot = functional.one_hot(rows_BT, table.num_embeddings).to(table.weight.dtype)
    return one_hot @ table.weight


def surprise(taken: Taken, kind: str) -> Taken:
    (one,) = [one for one in taken["surprises"] if one["kind"] == kind]
    return dict(one)


def test_a_profile_adds_up_and_leaves_a_trace_and_a_page(profiled: Profiled) -> None:
    taken = profiled()
    stages = taken["stages"]
    assert sum(stages.values()) == pytest.approx(taken["step_s"])
    assert min(stages[name] for name in ("forward", "backward", "optimizer", "monitors")) > 0
    assert (taken["steps"], taken["gauge_steps"]) == (3, 1)
    products = [row for row in taken["operations"] if row["name"] == "aten::mm"]
    assert products
    assert all(row["flops"] > 0 and row["attainable"] > 0 for row in products)
    parts = {part["name"]: part for part in taken["parts"]}
    assert {"tokens", "blocks.*.mlp.up", "blocks.*.attention.qkv", "optimizer"} <= set(parts)
    # What it would be named for; how long its calls take is the machine's affair.
    assert parts["tokens"]["needs"] > 0
    assert not {"aten::mm", "aten::bmm", "aten::matmul"} & set(parts["tokens"]["calls"])
    assert not [one for one in taken["surprises"] if one["kind"] == "host wait"]
    trace = json.loads(gzip.decompress(Path(taken["trace"]).read_bytes()))
    named = {event["name"] for event in trace["traceEvents"]}
    assert {"longhaul/stage/forward", "longhaul/module/tokens", "aten::mm"} <= named
    page = Path(taken["page"]).read_text(encoding="utf-8")
    assert all(f'id="chart-{name}"' in page for name in ("stages", "parts", "roofline"))


def test_nothing_is_left_of_the_watch(profiled: Profiled) -> None:
    before, item = {point: list(found) for point, found in HANDLERS.items()}, torch.Tensor.item
    profiled()
    assert {point: found for point, found in HANDLERS.items() if found} == {
        point: found for point, found in before.items() if found
    }
    assert torch.Tensor.item is item


@pytest.mark.slow
def test_an_embedding_that_multiplies_by_one_hot_rows_is_named(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Table, "forward", _multiplied)
    taken = profiled("--set", WIDE)
    # On a busy machine something else may seem dear as well.
    one = next(one for one in taken["surprises"] if one["subject"] == "tokens")
    assert one["kind"] == "module"
    assert one in taken["surprises"][:3]
    assert one["sentence"].startswith("look-up table `tokens` takes ")
    assert "one-hot" in one["remedy"]


@pytest.mark.slow
def test_in_a_compiled_recipe_it_is_named_by_the_same_steps_uncompiled(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Table, "forward", _multiplied)
    taken = profiled("--set", WIDE, "--set", "machine.compile=true")
    assert taken["compiled"]
    one = next(one for one in taken["surprises"] if one["subject"] == "tokens")
    assert one["kind"] == "module"
    assert "one-hot" in one["remedy"]
    assert {"tokens", "blocks.*.mlp.up", "optimizer"} <= {part["name"] for part in taken["parts"]}
    # Stages and operations are the compiled code's.
    trace = gzip.decompress(Path(taken["trace"]).read_bytes())
    assert b"longhaul/module/tokens" not in trace
    assert b"CompiledFunction" in trace
    assert "of as many steps uncompiled" in Path(taken["page"]).read_text(encoding="utf-8")


def test_a_read_of_the_host_is_named_with_its_line(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GPT._before_head

    def looking(model: GPT, x_BTD: torch.Tensor) -> torch.Tensor:
        if x_BTD.abs().max().item() > 1e6:
            raise ValueError("it diverges")
        return original(model, x_BTD)

    monkeypatch.setattr(GPT, "_before_head", looking)
    taken = profiled()
    one = surprise(taken, "host wait")
    line = looking.__code__.co_firstlineno + 1
    assert f"2 times a step at system/test_profile.py:{line} (item)" in one["sentence"]
    assert "forward stage" in one["sentence"]


@pytest.mark.slow
def test_a_slow_loader_is_named_first(profiled: Profiled, monkeypatch: pytest.MonkeyPatch) -> None:
    original = BatchReader.read

    def slow(reader: BatchReader, *given: Any, **named: Any) -> Any:
        time.sleep(2.0)
        return original(reader, *given, **named)

    monkeypatch.setattr(BatchReader, "read", slow)
    taken = profiled()
    assert taken["surprises"][0]["kind"] == "data"
    assert taken["stages"]["data"] >= 2.0
    assert "waits for its batch" in taken["surprises"][0]["sentence"]
