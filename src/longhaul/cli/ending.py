"""How a process ends: errors become one message and an exit code.

Enters: a command. Leaves: nothing; the process ends. Never knows: what the command does.
"""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import typer

from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.run.signals import ignore_notices


def run_and_leave(command: Callable[[], object]) -> NoReturn:
    """Run a command and end the process; a user's mistake never shows a traceback."""
    try:
        code = command()
    except LonghaulError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
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
    finally:
        ignore_notices()
    _leave(code if isinstance(code, int) else ExitCode.FINISHED)


def _leave(code: int) -> NoReturn:
    """End the process. Everything of ours is closed by now, but torch would take half a second to
    take itself apart.
    """
    ignore_notices()
    if "torch" in sys.modules:
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
