import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError


@pytest.mark.parametrize(
    ("overrides", "both"),
    [
        (["parallel.tensor=3"], ["parallel.tensor", "model.heads"]),
        (
            ["parallel.tensor=4", "model.heads=4", "model.kv_heads=2"],
            ["parallel.tensor", "model.kv_heads"],
        ),
        (
            ["parallel.tensor=2", "batch.sequence_length=63", "model.context=63"],
            ["parallel.tensor", "batch.sequence_length"],
        ),
        (["parallel.pipeline=99"], ["parallel.pipeline", "model.layers"]),
        (["parallel.elastic=true"], ["parallel.elastic", "machine.processes"]),
        (
            ["parallel.elastic=true", "machine.processes=2", "parallel.shard=2"],
            ["parallel.elastic", "machine.processes"],
        ),
        (
            ["parallel.elastic=true", "machine.processes=5", "parallel.shard=2"],
            ["parallel.elastic", "parallel.shard", "machine.processes"],
        ),
        (
            ["parallel.elastic=true", "machine.processes=4", "parallel.tensor=2"],
            ["parallel.elastic", "parallel.tensor"],
        ),
        (
            ["parallel.tensor=2", "model.token_smear=true"],
            ["parallel.tensor", "model.token_smear"],
        ),
        (
            ["parallel.tensor=2", "precision.float8=true"],
            ["parallel.tensor", "precision.float8"],
        ),
        (
            ["precision.compute=bf16_weights", "precision.float8=true"],
            ["precision.float8", "precision.compute"],
        ),
        (["parallel.stages_per_rank=2"], ["parallel.stages_per_rank", "parallel.pipeline"]),
        (
            ["parallel.pipeline=2", "parallel.stages_per_rank=2", "model.layers=6"],
            ["parallel.stages_per_rank", "parallel.pipeline", "model.layers"],
        ),
        (
            ["parallel.pipeline=2", "model.unet_skips=true"],
            ["parallel.pipeline", "model.unet_skips"],
        ),
        (
            ["parallel.pipeline=2", "batch.micro_sequences=auto"],
            ["parallel.pipeline", "batch.micro_sequences"],
        ),
        (
            ["parallel.pipeline=2", "machine.compile=true"],
            ["parallel.pipeline", "machine.compile"],
        ),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_with_both_names(
    overrides: list[str], both: list[str]
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("quickstart", overrides)
    assert all(name in str(refused.value) for name in both)


def test_layouts_that_fit_are_taken() -> None:
    both = load_recipe("quickstart", ["parallel.tensor=2", "parallel.pipeline=2"]).recipe.parallel
    assert (both.tensor, both.pipeline) == (2, 2)
    staged = load_recipe(
        "quickstart", ["parallel.pipeline=2", "parallel.stages_per_rank=2", "model.layers=8"]
    ).recipe.parallel
    assert (staged.pipeline, staged.stages_per_rank) == (2, 2)
