"""How a process ends: errors become one message and an exit code.

Enters: a command. Leaves: nothing; the process ends. Never knows: what the command does.
"""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

import typer

from longhaul.core.addresses import scrubbed
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.output import flush_outputs, print_error
from longhaul.core.signals import ignore_notices
from longhaul.core.units import Seconds

_READ_WITHIN_S: Seconds = 2.0
"""A terminal that is paused, or a pipe nobody reads, does not keep a process from ending."""


def run_and_leave(command: Callable[[], object]) -> NoReturn:
    """Run a command and end the process; a user's mistake never shows a traceback."""
    sys.excepthook = _print_without_secrets
    try:
        code = command()
    except LonghaulError as error:
        print_error(f"{error.title}: {scrubbed(str(error))}")
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
        if memory := _refused_memory(error):
            print_error(f"longhaul: ran out of {memory}: {error}")
            print_error("  → free some, or give --set batch.micro_sequences=N with a smaller N")
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


def _print_without_secrets(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """A traceback goes into workers' logs too, and its last line may repeat an address."""
    text = "".join(traceback.format_exception(kind, error, frames))
    print_error(scrubbed(text).rstrip())


def _refused_memory(error: Exception) -> str | None:
    """Whose memory an error says was refused; without torch no allocator has said anything."""
    if "torch" not in sys.modules:
        return None
    from longhaul.train.allocation_errors import refused_memory

    return refused_memory(error)


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
