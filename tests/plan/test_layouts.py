import pytest

from longhaul.config.load import load_recipe
from longhaul.config.size import known_vocabulary
from longhaul.core.devices import device_named
from longhaul.core.errors import UsageError
from longhaul.plan.layouts import Search, memory_by_kind
from longhaul.plan.memory import estimate_memory


def search(name="llama-8b", gpus=16, gpu="h100", overrides=()):
    recipe = load_recipe(name, overrides).recipe
    vocab_size, _ = known_vocabulary(recipe)
    return Search(recipe, vocab_size, device_named(gpu), gpus, "bf16", 0.6)


def test_candidates_use_every_device_and_fit_in_order_of_time():
    asked = search()
    ranked = asked.ranked()
    assert len(ranked) > 20
    assert all(one.layout.size == 16 for one in ranked)
    assert all(one.memory_bytes <= 80e9 for one in ranked)
    assert ranked[0].time.total <= ranked[-1].time.total
    assert any(one.memory_bytes > 80e9 for one in asked.candidates())


def test_a_layout_is_one_that_the_recipe_takes():
    best = search(gpus=8).ranked()[0]
    options = [f"{path}={value}" for path, value in best.settings.items()]
    load_recipe("llama-8b", options)  # raises what cannot be combined


def test_interleaved_stages_shrink_the_bubble_and_can_be_trained():
    options = ("batch.sequences=64", "machine.compile=false")
    every = list(search(gpus=16, overrides=options).candidates())
    alike = {
        one.stages_per_rank: one
        for one in every
        if (one.layout.pipeline, one.layout.shard, one.layout.tensor) == (4, 4, 1)
        and (one.micro_sequences, one.recompute) == (1, "full")
    }
    assert set(alike) == {1, 2, 4}
    assert alike[4].time.bubble == pytest.approx(alike[1].time.bubble / 4)
    assert alike[4].memory["activations"] > alike[1].memory["activations"]
    assert alike[2].dealt == "pipeline 4 × shard 4, 2 stages a rank"
    settings = [f"{path}={value}" for path, value in alike[4].settings.items()]
    recipe = load_recipe("llama-8b", [*options, *settings]).recipe
    assert recipe.parallel.stages_per_rank == 4
    assert {one.stages_per_rank for one in every if one.layout.pipeline == 1} == {1}


def test_memory_kinds_add_up_to_the_estimate_and_its_margins():
    best = search(gpus=8).ranked()[0]
    assert best.memory["fragmentation"] > 0
    recipe = load_recipe(
        "llama-8b", [f"{path}={value}" for path, value in best.settings.items()]
    ).recipe
    estimate = estimate_memory(recipe, 50_257, best.layout)
    assert memory_by_kind(estimate) == best.memory
    assert best.memory_bytes == pytest.approx(1.05 * estimate.total + 1e9, abs=1)
    assert sum(memory_by_kind(estimate, on_cpu=True).values()) == estimate.total


def test_what_does_not_fit_is_told_what_would():
    with pytest.raises(UsageError, match="most of it optimizer") as raised:
        search(gpus=2, gpu="4090").ranked()
    assert raised.value.remedy.startswith("--gpus 8 would hold it")
    more = search(gpus=8, gpu="4090").ranked()
    assert more


def test_more_devices_than_sequences_have_no_layout():
    with pytest.raises(UsageError, match="cannot share"):
        search(gpus=7 * 512 * 512).ranked()
