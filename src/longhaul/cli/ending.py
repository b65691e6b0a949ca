"""How a process ends: errors become one message and an exit code.

Enters: a command. Leaves: nothing; the process ends. Never knows: what the command does.
"""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import typer

from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.output import flush_outputs, print_error
from longhaul.core.units import Seconds
from longhaul.run.signals import ignore_notices

_READ_WITHIN_S: Seconds = 2.0
"""A terminal that is paused, or a pipe nobody reads, does not keep a process from ending."""


def run_and_leave(command: Callable[[], object]) -> NoReturn:
    """Run a command and end the process; a user's mistake never shows a traceback."""
    try:
        code = command()
    except LonghaulError as error:
        print_error(f"{error.title}: {error}")
        sys.exit(error.exit_code)
    except typer.Exit as leaving:
        _leave(leaving.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print_error("longhaul: interrupted")
        _leave(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has left: nothing is wrong.
        sys.stderr.close()
        sys.exit(ExitCode.FINISHED)
    except OSError as error:
        print_error(f"longhaul: {error.strerror or error}: {_where(error)}")
        print_error("  → mend what the path stands on, and give the same command again")
        sys.exit(ExitCode.NEEDS_PERSON)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            print_error(f"longhaul: the device ran out of memory: {error}")
            print_error("  → give --set batch.micro_sequences=N with a smaller N")
            sys.exit(ExitCode.NEEDS_PERSON)
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()
            sys.exit(ExitCode.RECIPE_WRONG)
        raise
    finally:
        ignore_notices()
        flush_outputs(_READ_WITHIN_S)
    _leave(code if isinstance(code, int) else ExitCode.FINISHED)


def _where(error: OSError) -> str:
    """The path that an error is about; of one that knows none, who met with it."""
    if error.filename is not None:
        return str(error.filename)
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _leave(code: int) -> NoReturn:
    """End the process. Everything of ours is closed by now, but torch would take half a second to
    take itself apart; a signal that comes while Python does that would show a traceback.
    """
    ignore_notices()
    flush_outputs(_READ_WITHIN_S)
    if code == ExitCode.INTERRUPTED or "torch" in sys.modules:
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
