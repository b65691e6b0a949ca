"""`longhaul recipes`, `recipe show`, `recipe schema`, `recipe switches`."""

import json
from typing import Any

import typer

from longhaul.cli.common import DataPath, Overrides, RecipeName

app = typer.Typer(help="Recipes: show one, or what they may hold.", no_args_is_help=True)


def list_recipes() -> None:
    """The recipes that come with longhaul."""
    from longhaul.config.load import load_recipe, shipped_recipes

    for name in shipped_recipes():
        print(f"{name:22} {load_recipe(name).recipe.summary}")


@app.command()
def show(recipe: RecipeName, overrides: Overrides = None, data: DataPath = None) -> None:
    """Every value, where it came from, and the size of the model."""
    from longhaul.config.load import leaves, load_recipe
    from longhaul.config.problems import origin_of

    resolved = load_recipe(recipe, overrides or (), data)
    rows = {
        path: json.dumps(value, ensure_ascii=False)
        for path, value in leaves(resolved.recipe.model_dump(mode="json"))
    }
    given = dict(leaves(resolved.values))
    width, value_width = max(map(len, rows)), min(max(map(len, rows.values())), 40)
    for path, value in rows.items():
        origin = origin_of(path, resolved.origins) if path in given else "default"
        print(f"{path:{width}}  {value:{value_width}}  {origin}".rstrip())
    print()
    _print_size(resolved.recipe)


@app.command()
def schema() -> None:
    """JSON schema of a recipe, for editors."""
    from longhaul.config.switches import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@app.command()
def switches() -> None:
    """The model's switches: default, source, and which recipes use them (Markdown)."""
    from longhaul.config.switches import as_markdown

    print(as_markdown())


def _print_size(recipe: Any) -> None:
    from longhaul.config.size import known_vocabulary, model_size
    from longhaul.core.units import short_count

    vocab_size, known = known_vocabulary(recipe)
    size = model_size(recipe.model, vocab_size)
    span = recipe.block_length()
    note = "" if known else f" (with {vocab_size} tokens; the text decides how many it has)"
    print(
        f"parameters     total {size.total:,} ({short_count(size.total)}), "
        f"non-embedding {size.non_embedding:,}, active {size.active:,}{note}\n"
        f"FLOPs a token  {size.flops_per_token(span):,}, "
        f"causal {size.flops_per_token(span, causal=True):,}, at {span} tokens of context"
    )
    steps = recipe.total_steps()
    if steps is not None:
        stages = recipe.batch_stages()
        ends = [stage.from_step for stage in stages[1:]] + [steps]
        tokens = sum(
            max(0, min(end, steps) - stage.from_step) * stage.sequences * stage.sequence_length
            for stage, end in zip(stages, ends, strict=True)
        )
        flops = size.flops_per_token(span) * tokens
        print(f"training       {steps:,} steps, {short_count(tokens)} tokens, {flops:.3g} FLOPs")
