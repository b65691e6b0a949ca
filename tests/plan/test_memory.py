"""What a run will need: estimates against what tensors really take."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config import model as model_section
from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.recipe import Recipe
from longhaul.config.size import known_vocabulary, model_size, shrunken
from longhaul.model import gpt
from longhaul.parallel.layout import Layout, layout_for
from longhaul.plan import activations, memory
from longhaul.plan.memory import checkpoint_bytes, estimate_memory, way_to_cut
from longhaul.run.preflight import memory as preflight
from longhaul.run.preflight.memory import VOCABULARY, measured
from longhaul.train.equality import make_step

ONE = Layout()
CPU = torch.device("cpu")


def twin(name: str, *options: str) -> Recipe:
    return load_recipe(name, [*shrunken(load_recipe(name).recipe), *options]).recipe


SOME = ("quickstart", "llama-1b", "speedrun-124m")
some_shipped = pytest.mark.parametrize(
    "name",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.slow)
     for name in shipped_recipes()],
)  # fmt: skip
"""Forms that differ most; all others with the slow tests."""


@pytest.mark.parametrize("name", shipped_recipes())
def test_an_estimate_is_near_what_a_step_of_the_small_twin_takes(name: str) -> None:
    torch.set_num_threads(1)
    recipe = twin(name)
    estimate, real = estimate_memory(recipe, VOCABULARY, ONE, on_cpu=True), measured(recipe, CPU)
    assert sum(estimate.step.values()) == pytest.approx(real["step"], rel=0.08)
    assert sum(estimate.evaluation.values()) == pytest.approx(real["evaluation"], rel=0.08)
    assert estimate.total == pytest.approx(max(real["step"], real["evaluation"]), rel=0.08)


@some_shipped
def test_a_step_is_estimated_whose_logits_are_never_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are as much shorter than a micro-batch as they are at true size."""
    torch.set_num_threads(1)
    recipe = twin(name)
    whole = estimate_memory(recipe, VOCABULARY, ONE, on_cpu=True).step
    monkeypatch.setattr(model_section, "CHUNK_ON_CPU", 40 * VOCABULARY)
    monkeypatch.setattr(model_section, "_FEWEST_ROWS", 1)
    estimate = estimate_memory(recipe, VOCABULARY, ONE, on_cpu=True).step
    assert sum(estimate.values()) == pytest.approx(measured(recipe, CPU)["step"], rel=0.08)
    float16 = recipe.precision.half_weights == "fp16"
    assert (estimate == whole) if float16 else (estimate.get("logits", 0) < whole["logits"] / 2)


@pytest.mark.parametrize(
    "name",
    [name if name == "quickstart" else pytest.param(name, marks=pytest.mark.slow)
     for name in shipped_recipes()],
)  # fmt: skip
@pytest.mark.parametrize("vocabulary", [32, VOCABULARY], ids=["layers", "logits"])
def test_an_evaluation_is_estimated_where_layers_and_where_logits_take_most(
    name: str, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of the logits are shorter than a pass, as they are at true size."""
    torch.set_num_threads(1)
    for module in (gpt, activations):
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", 300 * vocabulary)
    monkeypatch.setattr(preflight, "VOCABULARY", vocabulary)
    recipe = twin(name, "batch.sequences=32")
    estimate = estimate_memory(recipe, vocabulary, ONE, on_cpu=True).evaluation
    real = measured(recipe, CPU)["evaluation"]
    assert sum(estimate.values()) == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize(
    "options",
    [
        ("batch.micro_sequences=2",),
        ('machine.activation_checkpointing="full"',),
        ('machine.activation_checkpointing="selective"',),
        ("model.qk_norm=false", 'model.positions="learned"'),
        ('precision.compute="bf16"',),
        ('precision.compute="bf16"', "model.attention_dropout=0.1"),
        ("batch.sequence_length=32",),
        ('model.activation="geglu"', "model.mlp_width=128"),
        ("model.z_loss=1e-4",),
        ("model.rotary_share=0.25",),
        ("model.parallel_residual=true",),
        ("model.ahead_stages=[{ from_step = 0, weights = [0.5, 0.2] }]",),
        ('optim.name="muon"',),
    ],
    ids=lambda options: options[0],
)
def test_an_estimate_follows_the_switches(options: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    recipe = twin("quickstart", 'optim.name="adamw"', *options)
    estimate, real = estimate_memory(recipe, VOCABULARY, ONE, on_cpu=True), measured(recipe, CPU)
    assert estimate.total == pytest.approx(real["step"], rel=0.12)
    assert sum(estimate.evaluation.values()) == pytest.approx(real["evaluation"], rel=0.12)


@pytest.mark.parametrize("name", ["quickstart", "opt-175b", "speedrun-124m", "yalm-100b"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb", "sgdw"])
def test_a_checkpoint_is_as_large_as_its_tensors(name: str, optimizer: str) -> None:
    recipe = twin(name, f"optim.name={optimizer}")
    step = make_step(recipe, VOCABULARY, CPU, None)
    tensors = [*step.model.parameters(), *step.optimizer.tensors().values()]
    real = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    # Counters of updates, and vectors among matrices that Muon leaves to AdamW.
    assert checkpoint_bytes(recipe, VOCABULARY) == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_rounding_loses_is_part_of_a_checkpoint(optimizer: str) -> None:
    options = ('precision.compute="bf16_weights"', 'optim.rounding="compensated"')
    recipe = twin("quickstart", f"optim.name={optimizer}", *options)
    step = make_step(recipe, VOCABULARY, CPU, None)
    tensors = [*step.model.parameters(), *step.optimizer.tensors().values()]
    real = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert checkpoint_bytes(recipe, VOCABULARY) == pytest.approx(real, rel=0.02)


def test_opt_175b_needs_what_its_authors_had_to_share() -> None:
    recipe = load_recipe("opt-175b").recipe
    alone = estimate_memory(recipe, 50_257, ONE)
    assert alone.classes["optimizer state"] == pytest.approx(8 * 175e9, rel=0.02)
    # OPT-175B: 992 A100 with 80 GB, tensor 8, the rest sharded (arXiv 2205.01068, section 2.5).
    shared = estimate_memory(recipe, 50_257, Layout(shard=124, tensor=8))
    assert shared.total < 80e9 < alone.total


@settings(max_examples=40, deadline=None)
@given(
    shard=st.sampled_from([1, 2, 4, 8]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    name=st.sampled_from(["llama-8b", "opt-175b", "yalm-100b"]),
)
def test_whoever_shares_more_holds_less(shard: int, tensor: int, pipeline: int, name: str) -> None:
    recipe = load_recipe(name).recipe
    here = estimate_memory(recipe, 50_257, Layout(1, shard, tensor, pipeline))
    for wider in (Layout(1, 2 * shard, tensor, pipeline), Layout(1, shard, 2 * tensor, pipeline)):
        there = estimate_memory(recipe, 50_257, wider)
        assert there.classes["optimizer state"] < here.classes["optimizer state"]
        assert there.classes["weights"] < here.classes["weights"]


@pytest.mark.parametrize(
    ("name", "micro", "largest", "way"),
    [
        ("llama-8b", 8, "activations", "batch.micro_sequences below 8"),
        ("llama-1b", 1, "activations", "activation_checkpointing"),
        ("speedrun-124m", 16, "activations", "batch.micro_sequences below 16"),
        ("llama-8b", 1, "optimizer state", "shard"),
    ],
)
def test_the_way_out_fits_what_takes_most(name: str, micro: int, largest: str, way: str) -> None:
    recipe = load_recipe(name, (f"batch.micro_sequences={micro}",)).recipe
    estimate = estimate_memory(recipe, 50_257, ONE)
    assert estimate.largest == largest
    assert way in way_to_cut(estimate, recipe)


def test_logits_take_most_where_they_are_whole() -> None:
    """Float16 weights want the loss scale before any gradient is taken."""
    options = ("batch.micro_sequences=16", 'precision.compute="fp16_weights"')
    recipe = load_recipe("speedrun-124m", options).recipe
    estimate = estimate_memory(recipe, 50_257, ONE)
    assert estimate.largest == "logits"
    assert way_to_cut(estimate, recipe) == "batch.micro_sequences below 16 (the global batch stays)"


def test_what_is_cut_was_the_cure() -> None:
    """Following the advice makes the class smaller."""
    before = load_recipe("llama-8b", ("batch.micro_sequences=8",)).recipe
    after = load_recipe("llama-8b", ("batch.micro_sequences=4",)).recipe
    big, small = (estimate_memory(recipe, 50_257, ONE) for recipe in (before, after))
    assert small.classes["activations"] == pytest.approx(big.classes["activations"] / 2, rel=0.01)


def test_state_that_is_offloaded_is_not_on_the_device() -> None:
    here, there = (
        estimate_memory(load_recipe("llama-8b", (f"optim.offload={to}",)).recipe, 50_257, ONE)
        for to in ("false", "true")
    )
    assert there.total <= here.total - here.classes["optimizer state"] + 2**28
    assert "optimizer state" not in there.classes


@pytest.mark.parametrize("name", shipped_recipes())
def test_an_evaluation_takes_no_more_than_a_step_however_many_sequences_are_asked_for(
    name: str,
) -> None:
    """With 32 at once whatever the context, `llama-8b` took 132 GB for logits alone."""
    layout = layout_for(load_recipe(name).recipe.parallel, 1)
    for sequences in (1, 32, 4096):
        recipe = load_recipe(name, (f"evaluation.sequences={sequences}",)).recipe
        estimate = estimate_memory(recipe, known_vocabulary(recipe)[0], layout)
        assert sum(estimate.evaluation.values()) <= sum(estimate.step.values())


def test_an_evaluation_that_takes_more_than_a_step_counts() -> None:
    """Its sequences are as long as the model's context; those of training may be short."""
    options = ("batch.sequence_length=64", "batch.sequences=1", "model.context=65536")
    recipe = load_recipe("quickstart", options).recipe
    estimate = estimate_memory(recipe, 4096, ONE)
    assert estimate.total == sum(estimate.evaluation.values()) > sum(estimate.step.values())
    assert estimate.largest.endswith("of an evaluation")


def test_a_micro_batch_of_auto_counts_as_the_least_there_is() -> None:
    recipe = load_recipe("llama-1b", ('batch.micro_sequences="auto"',)).recipe
    assert estimate_memory(recipe, 50_257, ONE).micro_sequences == 1


def test_muon_of_many_ranks_borrows_what_travels_too() -> None:
    recipe = load_recipe("speedrun-124m").recipe
    size = model_size(recipe.model, VOCABULARY)
    for layout, tensors in ((ONE, 6), (Layout(shard=2), 10)):
        assert memory._borrowed(recipe, size, layout, 0) == tensors * 4 * memory._STACK
