"""The `longhaul` command: collects the groups.

Torch, rich and DuckDB are imported inside the commands that need them, so that help and
mistakes answer at once.
"""

import typer

from longhaul.cli import control, data, diagnose, drill, preflight, recipes, runs, train
from longhaul.cli.common import run_and_leave, text_only
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
app.command(hidden=True)(train.worker)
app.command("recipes")(recipes.list_recipes)
app.add_typer(recipes.app, name="recipe")
app.command()(runs.runs)
app.command()(runs.log)
app.command()(runs.tree)
app.command()(runs.diff)
app.command()(runs.report)
app.command("set")(control.set_setting)
app.command()(control.rollback)
app.command()(control.fork)
app.command()(control.stop)
app.command()(control.note)
app.command()(control.nodes)
app.command()(runs.sample)
app.command("eval")(runs.evaluate)
app.command()(diagnose.diagnose)
app.command()(diagnose.replay)
app.command()(preflight.preflight)
app.command("preflight-rank", hidden=True)(preflight.preflight_rank)
app.add_typer(data.app, name="data")
app.command()(drill.drill)
app.command()(runs.compact)


def main() -> None:
    """Run a command; a user's mistake never shows a traceback."""
    leave_in_order_on_interrupt()
    run_and_leave(lambda: app(standalone_mode=False))
