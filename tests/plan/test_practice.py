"""What another trainer's ways, and a pipeline's, change in the estimate of memory."""

from dataclasses import replace

import pytest

from longhaul.config.load import load_recipe
from longhaul.parallel.layout import Layout
from longhaul.plan.memory import estimate_memory
from longhaul.plan.practice import LONGHAUL, TORCHTITAN

STAGED = ("machine.compile=false", "parallel.pipeline=4", "batch.sequences=64")


def step(layout=None, practice=LONGHAUL, options=()):
    recipe = load_recipe("llama-8b", ["batch.micro_sequences=1", *options]).recipe
    return estimate_memory(recipe, 128_256, layout or Layout(shard=8), practice=practice).step


def test_shards_that_are_cast_need_no_second_copy():
    ours, theirs = step(), step(practice=replace(LONGHAUL, cast_shards=True))
    assert ours["weights in bf16"] > 0
    assert "weights in bf16" not in theirs
    assert theirs["gathered layers"] < ours["gathered layers"]
    assert theirs["activations"] < ours["activations"]


def test_whole_logits_take_three_float32_tensors():
    whole = step(practice=replace(LONGHAUL, logit_tensors=3))
    assert whole["logits"] == 8192 * 128_256 * 3 * 4
    assert whole["logits"] > step()["logits"]


def test_every_second_product_is_less_than_all():
    selective = ('machine.activation_checkpointing="selective"',)
    cast = replace(LONGHAUL, cast_shards=True)
    all_products = step(practice=cast, options=selective)["activations"]
    half = step(practice=replace(cast, alternate_products=True), options=selective)
    assert half["activations"] < all_products


def test_interleaved_stages_keep_more_micro_batches():
    layout = Layout(shard=2, pipeline=4)
    once = step(layout, options=STAGED)
    twice = step(layout, options=(*STAGED, "parallel.stages_per_rank=2"))
    # 1F1B keeps 4 × 8 layers, interleaved (2 · 3 + 4 + 1) × 4 (arXiv 2104.04473, section 2.2).
    assert twice["activations"] / once["activations"] == pytest.approx(44 / 32, rel=0.02)


def test_the_last_stage_keeps_logits_and_the_first_micro_batches():
    layout = Layout(shard=2, pipeline=4)
    first = step(layout, options=STAGED)
    assert "logits" not in first
    last = step(layout, practice=replace(LONGHAUL, logit_tensors=30), options=STAGED)
    assert last["logits"] > first["activations"] > 3 * last["activations"]


def test_whole_gradients_of_a_pipeline_are_a_stage_in_float32():
    layout = Layout(shard=2, pipeline=4)
    kept = step(layout, replace(TORCHTITAN, whole_gradients=True), STAGED)
    shed = step(layout, replace(TORCHTITAN, whole_gradients=False), STAGED)
    stage = 32 / 4 * 218_112_000
    more = kept["gathered layers"] - shed["gathered layers"]
    assert more == pytest.approx(4 * stage, rel=0.01)
