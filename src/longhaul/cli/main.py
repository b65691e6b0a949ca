"""The `longhaul` command: collects the groups, and turns errors into one message and a code.

Enters: arguments. Leaves: an exit code. Never knows: what the commands do.
Torch, rich and DuckDB are imported inside the commands that need them, so that help and
mistakes answer at once.
"""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

import typer

from longhaul.cli import (
    data,
    diagnose,
    drill,
    hands,
    look,
    recipes,
    replay,
    train,
    tree,
    worker,
    write,
)
from longhaul.core.errors import ExitCode, LonghaulError

app = typer.Typer(
    name="longhaul",
    help="Pretrains language models that finish.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
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
app.command()(write.sample)
app.command("eval")(write.evaluate)
app.command()(diagnose.diagnose)
app.command()(replay.replay)
app.add_typer(data.app, name="data")
app.add_typer(drill.app, name="drill")
app.command()(look.compact)


def main() -> None:
    """Run a command; a user's mistake never shows a traceback."""
    try:
        code = app(standalone_mode=False)
    except LonghaulError as error:
        print(f"longhaul: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Exit as leaving:
        _leave(leaving.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("longhaul: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has left: nothing is wrong.
        sys.stderr.close()
        sys.exit(ExitCode.FINISHED)
    except OSError as error:
        print(f"longhaul: {error.strerror or error}: {error.filename or '?'}", file=sys.stderr)
        print("  → mend what the path stands on, and give the same command again", file=sys.stderr)
        sys.exit(ExitCode.NEEDS_PERSON)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            print(f"longhaul: the device ran out of memory: {error}", file=sys.stderr)
            print("  → give --set batch.micro_sequences=N with a smaller N", file=sys.stderr)
            sys.exit(ExitCode.NEEDS_PERSON)
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()
            sys.exit(ExitCode.RECIPE_WRONG)
        raise
    _leave(code if isinstance(code, int) else ExitCode.FINISHED)


def _leave(code: int) -> NoReturn:
    """End the process. Everything of ours is closed by now, but torch would take half a second to
    take itself apart.
    """
    if "torch" in sys.modules:
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
