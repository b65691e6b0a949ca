"""The `longhaul` command: collects the groups.

Enters: arguments. Leaves: an exit code. Never knows: what the commands do.
Torch, rich and DuckDB are imported inside the commands that need them, so that help and
mistakes answer at once.
"""

import typer

from longhaul.cli import (
    data,
    diagnose,
    drill,
    hands,
    look,
    nodes,
    preflight,
    preflight_rank,
    recipes,
    replay,
    train,
    tree,
    worker,
    write,
)
from longhaul.cli.ending import run_and_leave
from longhaul.cli.shown import text_only
from longhaul.core.signals import leave_in_order_on_interrupt

app = typer.Typer(
    name="longhaul",
    help="Pretrains language models that finish.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def begin(context: typer.Context) -> None:
    """Let no command print what a terminal would obey."""
    context.with_resource(text_only())


app.command()(train.train)
app.command(hidden=True)(worker.worker)
app.command("recipes")(recipes.list_recipes)
app.add_typer(recipes.app, name="recipe")
app.command()(look.runs)
app.command()(look.log)
app.command()(tree.tree)
app.command()(look.diff)
app.command()(tree.report)
app.command("set")(hands.set_setting)
app.command()(hands.rollback)
app.command()(hands.fork)
app.command()(hands.stop)
app.command()(hands.note)
app.command()(nodes.nodes)
app.command()(write.sample)
app.command("eval")(write.evaluate)
app.command()(diagnose.diagnose)
app.command()(replay.replay)
app.command()(preflight.preflight)
app.command("preflight-rank", hidden=True)(preflight_rank.preflight_rank)
app.add_typer(data.app, name="data")
app.command()(drill.drill)
app.command()(look.compact)


def main() -> None:
    """Run a command; a user's mistake never shows a traceback."""
    leave_in_order_on_interrupt()
    run_and_leave(lambda: app(standalone_mode=False))
