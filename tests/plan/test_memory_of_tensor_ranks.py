"""The estimate for one of several ranks that compute each layer, against what its tensors take."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.config.size import shrunken
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build, to_number_format
from longhaul.parallel.layout import Layout
from longhaul.parallel.recompute import checkpoint_activations
from longhaul.parallel.tensor import split_layers
from longhaul.plan.memory import estimate_memory
from longhaul.run.preflight.memory import VOCABULARY
from longhaul.train.memory import LiveBytes
from longhaul.train.precision import autocast

CPU = torch.device("cpu")
SHAPE = (
    "model.layers=6", "model.heads=8", "model.width=256", "model.mlp_width=768",
    "model.context=256", "batch.sequence_length=256", "batch.sequences=4",
    "batch.micro_sequences=4", 'optim.name="adamw"', "model.dropout=0", "model.attention_dropout=0",
)  # fmt: skip


@pytest.fixture(params=[2, 8])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """This rank of so many, whose others send nothing."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    torch.set_num_threads(1)
    yield request.param
    dist.destroy_process_group()


def shape_of(name: str, *options: str) -> Recipe:
    recipe = load_recipe(name).recipe
    heads = ("model.kv_heads=8",) if recipe.model.kv_heads else ()
    return load_recipe(name, [*shrunken(recipe), *SHAPE, *heads, *options]).recipe


def part_of(recipe: Recipe) -> GPT:
    model = build(recipe.model, VOCABULARY, recipe.seed)
    to_number_format(model, recipe.precision)
    how = recipe.machine.activation_checkpointing
    if how != "none":
        checkpoint_activations(model, how)
    split_layers(model, dist.group.WORLD)
    return model


def trained(model: GPT, recipe: Recipe) -> None:
    tokens_BT = torch.randint(VOCABULARY, (4, 257))
    with autocast(CPU, recipe.precision):
        loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:])
    loss.backward()


def peak(recipe: Recipe) -> int:
    model, live = part_of(recipe), LiveBytes()
    trained(model, recipe)
    model.zero_grad(set_to_none=True)
    with live:
        trained(model, recipe)
    return live.peak


def estimated(recipe: Recipe, ranks: int) -> int:
    step = estimate_memory(recipe, VOCABULARY, Layout(tensor=ranks), on_cpu=True).step
    return sum(size for name, size in step.items() if name not in ("weights", "optimizer state"))


@pytest.mark.parametrize("name", ["gpt2-124m", "llama-1b"])
@pytest.mark.parametrize("compute", ["float32", "bf16", "bf16_weights"])
def test_what_ranks_gather_is_whole_on_each(ranks: int, name: str, compute: str) -> None:
    recipe = shape_of(name, f'precision.compute="{compute}"')
    assert estimated(recipe, ranks) == pytest.approx(peak(recipe), rel=0.1)


@pytest.mark.parametrize("how", ["selective", "full"])
def test_what_is_computed_again_is_estimated_on_the_safe_side(ranks: int, how: str) -> None:
    again = f'machine.activation_checkpointing="{how}"'
    recipe = shape_of("gpt2-124m", 'precision.compute="bf16"', again)
    assert 0.95 < estimated(recipe, ranks) / peak(recipe) < 1.25


def test_whoever_computes_more_again_keeps_less(ranks: int) -> None:
    """Parts of sums are as long as all stretches: kept, they were more than all that is not."""
    peaks = [
        peak(shape_of("llama-1b", 'precision.compute="bf16"', f'{again}="{how}"'))
        for again, how in zip(3 * ["machine.activation_checkpointing"],
                              ("none", "selective", "full"), strict=True)
    ]  # fmt: skip
    assert peaks[2] < 0.6 * peaks[1] < 0.6 * 0.8 * peaks[0]


class Gathered(TorchDispatchMode):
    """The formats of what is sent to be whole on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: list[torch.dtype] = []
        self.summed: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_gather_into_tensor" in str(func):
            self.formats.append(args[0].dtype)
        if "reduce_scatter_tensor" in str(func):
            self.summed.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_stretches_are_gathered_as_products_read_them_and_their_gradients_summed_wide(
    ranks: int,
) -> None:
    recipe = shape_of("gpt2-124m", 'precision.compute="bf16"')
    model, sent = part_of(recipe), Gathered()
    with sent:
        trained(model, recipe)
    layers = recipe.model.layers
    # Attention and MLP forward, their sums backward; once more the head's float32 stream.
    assert sent.formats.count(torch.bfloat16) == 4 * layers
    assert sent.summed.count(torch.float32) >= 2 * layers
