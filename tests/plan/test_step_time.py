from dataclasses import replace

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.devices import device_named
from longhaul.core.errors import UsageError
from longhaul.parallel.layout import Layout
from longhaul.plan.practice import LONGHAUL
from longhaul.plan.step_time import NETWORK_HALF, Rates, StepModel, efficiency_of, element_of

A100 = device_named("a100-80")


EIGHT = Layout(shard=8)


def model(layout=EIGHT, micro=1, overrides=(), efficiency=0.65, practice=LONGHAUL):
    recipe = load_recipe("llama-8b", ["machine.compile=false", *overrides]).recipe
    rates = Rates.of(A100, "bf16", efficiency)
    return StepModel(recipe, 128_256, layout, rates, micro, practice)


def test_one_gpu_takes_the_products_that_palm_counts():
    """With neither recomputation nor attention nor memory the time is 6·N FLOPs a token."""
    made = model(Layout(), overrides=['machine.activation_checkpointing="none"'])
    counted = 6 * made.size.active * made.tokens_per_step / made.rates.products
    assert made.step_time().products == pytest.approx(counted, rel=0.01)


def test_parts_add_up_and_more_devices_take_less():
    one, many = model().step_time(), model(Layout(shard=64)).step_time()
    assert one.total == pytest.approx(sum(one.parts.values()))
    assert one.total / 8 <= many.total < one.total / 7


def test_full_recomputation_costs_a_third_more_products():
    none = model(overrides=['machine.activation_checkpointing="none"']).step_time()
    full = model(overrides=['machine.activation_checkpointing="full"']).step_time()
    assert full.products / none.products == pytest.approx(4 / 3, rel=0.02)


def test_the_bubble_is_that_of_1f1b():
    staged = model(Layout(shard=2, pipeline=4), overrides=["parallel.pipeline=4"])
    made = staged.step_time()
    computing = made.products + made.attention + made.elementwise
    assert made.bubble / computing == pytest.approx(3 / staged.micro_batches)
    interleaved = replace(staged, stages_per_rank=4).step_time()
    assert interleaved.bubble == pytest.approx(made.bubble / 4)
    assert interleaved.pipeline_links == pytest.approx(made.pipeline_links * 4)


def test_tensor_ranks_across_nodes_are_slower_than_within_one():
    within = model(Layout(shard=8, tensor=8)).step_time()
    across = model(Layout(shard=4, tensor=16)).step_time()
    assert across.tensor_links > 8 * within.tensor_links > 0


def test_gathers_that_compute_cannot_hide_show():
    hidden = model(Layout(shard=8), micro=1).step_time()
    slow = replace(model(Layout(shard=8)), rates=replace(model().rates, link=1e9))
    assert hidden.data_links == 0
    assert slow.step_time().data_links > hidden.total


def test_scores_that_are_written_out_cost_memory_traffic():
    plain = model(practice=replace(LONGHAUL, fused_attention=False)).step_time()
    assert plain.attention > 2 * model().step_time().attention


def test_mfu_falls_with_efficiency():
    peak = A100.peak["bf16"]
    low, high = model(efficiency=0.3).mfu(peak), model(efficiency=0.6).mfu(peak)
    assert 0 < low < high < 0.6 * 271.2 / 312


def test_formats_of_products():
    recipe = load_recipe("llama-8b").recipe
    auto = load_recipe("llama-8b", ['precision.compute="auto"']).recipe
    assert element_of(recipe, A100) == "bf16"
    assert element_of(auto, device_named("v100")) == "fp32"
    with pytest.raises(UsageError, match="v100-32 has no units for bf16"):
        element_of(recipe, device_named("v100"))


def test_only_devices_of_published_runs_have_a_published_efficiency():
    assert efficiency_of(A100)[1] == "published"
    assert efficiency_of(device_named("mi300x"))[1] == "assumed"


def test_small_payloads_do_not_reach_a_links_rate():
    """At 64 MiB over four nodes 157 of 382 GB/s are published, at 512 MiB 327."""
    for mib, published in ((64, 157), (128, 198), (512, 327)):
        reached = 382 * mib * 2**20 / (mib * 2**20 + NETWORK_HALF)
        assert reached == pytest.approx(published, rel=0.14)
    narrow = ["model.width=256", "model.mlp_width=1024", "model.heads=8", "model.kv_heads=8"]
    wide, thin = model(Layout(shard=64)), model(Layout(shard=64), overrides=narrow)
    slow = {name: replace(one, rates=replace(one.rates, network=1e7, products=1e18, memory=1e18))
            for name, one in (("wide", wide), ("thin", thin))}  # fmt: skip
    of_a_parameter = {
        name: one.step_time().data_links / one.size.total for name, one in slow.items()
    }
    assert of_a_parameter["thin"] > 5 * of_a_parameter["wide"]
