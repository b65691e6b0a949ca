"""The `longhaul` command: how it begins, and the table of its commands.

A scheduler's notice is handled before anything else is imported, as Python ends on it with a code
that no scheduler takes for "start me again". Torch, rich and DuckDB are imported inside the
commands that need them, so that help and mistakes answer at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from longhaul.core.heap import importing
from longhaul.core.signals import leave_in_order_on_interrupt, leave_on_interrupt, leave_on_notices

if TYPE_CHECKING:
    import typer

_TRAINING = ("train", "worker")


def main() -> None:
    """Run a command; a user's mistake never shows a traceback."""
    leave_on_interrupt()
    if sys.argv[1:2] and sys.argv[1] in _TRAINING:
        leave_on_notices()
    with importing():
        import typer

        from longhaul.cli.common import leaving_in_order

        app = application()
    interrupted = leave_in_order_on_interrupt()
    with leaving_in_order():
        code = app(standalone_mode=False) or 0
        if interrupted():  # typer makes a plain exit of it
            raise KeyboardInterrupt
        raise typer.Exit(code)


def application() -> typer.Typer:
    """All commands."""
    import typer

    from longhaul.cli import (
        board,
        control,
        data,
        diagnose,
        drill,
        evaluate,
        exchange,
        launch,
        mirror,
        move,
        plan,
        preflight,
        qualify,
        recipes,
        runs,
        simulate,
        study,
        train,
    )
    from longhaul.cli.common import print_text_only

    app = typer.Typer(
        name="longhaul",
        help="Pretrains language models that finish.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(print_text_only)
    app.command()(train.train)
    app.command(hidden=True)(train.worker)
    app.command("recipes")(recipes.list_recipes)
    app.add_typer(recipes.app, name="recipe")
    app.command()(runs.runs)
    app.add_typer(move.app, name="run")
    app.command()(runs.log)
    app.command()(runs.tree)
    app.command()(runs.diff)
    app.command()(runs.report)
    app.command()(board.board)
    app.command()(mirror.mirror)
    app.command("set")(control.set_setting)
    app.command()(control.rollback)
    app.command()(control.fork)
    app.command()(control.stop)
    app.command()(control.note)
    app.command()(control.nodes)
    app.command()(runs.sample)
    app.command("eval")(evaluate.evaluate)
    app.command()(exchange.export)
    app.command("import")(exchange.import_weights)
    app.command()(diagnose.diagnose)
    app.command()(diagnose.replay)
    app.command()(preflight.preflight)
    app.command("preflight-rank", hidden=True)(preflight.preflight_rank)
    app.command()(plan.plan)
    app.command()(launch.launch)
    app.command(hidden=True)(launch.launched)
    app.command()(launch.image)
    app.command()(qualify.qualify)
    app.command()(qualify.evidence)
    app.command()(study.profile)
    app.add_typer(data.app, name="data")
    app.command()(drill.drill)
    app.command()(study.ladder)
    app.command()(simulate.simulate)
    app.command()(runs.compact)
    return app
