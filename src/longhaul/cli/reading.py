"""Commands that read a run: whatever lies in its folder, they end with a line and an exit code.

Files are read strictly (`core.strict`); this is for what gets past that: values of the right type
that make no sense together, which no table of types tells.

Enters: a command. Leaves: the same command, whose errors are a user's. Never knows: the command.
"""

from __future__ import annotations

import functools
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from longhaul.core.errors import ExitCode, LonghaulError, UsageError
from longhaul.core.output import visible

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_OUR_CODES = (ExitCode.RECIPE_WRONG, ExitCode.DATA_WRONG)
_ODD = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError,
        RuntimeError, TypeError, ValueError)  # fmt: skip


def reads_a_run(command: Callable[P, R]) -> Callable[P, R]:
    """A command that reads a run's folder, and ends with 2 or 3 where it cannot."""

    @functools.wraps(command)
    def reading(*given: P.args, **named: P.kwargs) -> R:
        try:
            return command(*given, **named)
        except LonghaulError as error:
            if error.exit_code in _OUR_CODES:
                raise
            raise UsageError(error.message, error.remedy) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(
                f"{error.filename or named.get('run', '?')}: {error.strerror or error}",
                "put the file back as it was, or leave this run",
            ) from error
        except _ODD as error:
            if type(error).__name__ in ("Abort", "Exit", "OutOfMemoryError"):
                raise
            raise as_usage_error(error, str(named.get("run") or named.get("where"))) from error
        except Exception as error:
            if not type(error).__module__.startswith(("duckdb", "_duckdb")):
                raise
            raise as_usage_error(error, str(named.get("run"))) from error

    return reading


def as_usage_error(error: Exception, run: str) -> UsageError:
    """What a run's files made of a command, in a line for who gave the command."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "longhaul" in f.filename]
    where = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    said = visible(str(error).partition("\n")[0])[:200]
    return UsageError(
        f"run {run}: its files hold what no run writes ({type(error).__name__}: {said}{where})",
        "it is damaged, or was made by another program: put its folder back from a copy",
    )
