"""What commands share: options, printing, and how an error becomes one message and an exit code.

A stranger may have written what a command prints: every command prints through `text_only`, and
tables through `console`, without what a terminal would obey.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from traceback import extract_tb, format_exception
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TextIO, TypeVar, cast

import typer

from longhaul.core.addresses import scrubbed
from longhaul.core.errors import ExitCode, LonghaulError, UsageError
from longhaul.core.output import flush_outputs, print_error, visible
from longhaul.core.signals import ignore_notices
from longhaul.core.units import Seconds, short_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

RunName = Annotated[str, typer.Argument(metavar="RUN", help="a run's name or folder")]
RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a shipped recipe's name or a .toml file")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="change one setting; may be repeated"),
]
DataPath = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="train on this file, folder or address")
]
Device = Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu", show_default="auto")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        envvar="LONGHAUL_TRUST",
        help="run the commands that the recipe, or the run's folder, names; said once",
    ),
]
RunsFolder = Annotated[Path, typer.Option("--runs-dir", help="folder that holds the runs")]
PreparedFolder = Annotated[
    Path, typer.Option("--prepared-dir", help="folder that holds prepared text")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="processes; one a core when absent")
]
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory", metavar="GB", help="of all processes together; half of it when absent"
    ),
]
RayCluster = Annotated[
    str,
    typer.Option("--ray", metavar="HOST:PORT", help="a Ray cluster that sees the same files"),
]
_DATED_AFTER_S = 48 * 3600
RUNS = Path("runs")
PREPARED = Path("prepared")


def options_of(
    recipe: str, data: str | None, overrides: list[str] | None, device: str | None, small: bool
) -> list[str]:
    """`path=value` of all that was typed; those of the small twin first, so that others win."""
    from longhaul.config.load import load_recipe
    from longhaul.config.size import shrunken

    twin = shrunken(load_recipe(recipe).recipe, own_data=data is not None) if small else ()
    own = [] if device is None else [f'machine.device="{device}"']
    return [*twin, *(overrides or ()), *own]


def since(then: float, now: float) -> str:
    """How long ago; what is older than two days gets its date."""
    if now - then > _DATED_AFTER_S:
        return time.strftime("%Y-%m-%d", time.localtime(then))
    return f"{short_seconds(max(now - then, 0.0))} ago"


class Shown:
    """A text stream over another one, which gets visible text only."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write what a person may see of it."""
        self.stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # typer writes to it where the terminal's encoding is ASCII
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextmanager
def text_only() -> Iterator[None]:
    """Let nothing but visible text reach standard output and error."""
    with ExitStack() as stack:
        for stream, redirected in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is not None:
                stack.enter_context(redirected(cast(TextIO, Shown(stream))))
        yield


def print_text_only(context: typer.Context) -> None:
    """Let no command print what a terminal would obey."""
    context.with_resource(text_only())


def console(file: TextIO | None = None, **options: Any) -> Console:
    """Where tables and trees are printed: its own styles, and nobody else's."""
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class VisibleConsole(Console):
        def render(
            self, renderable: Any, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else visible(segment.text)
                yield segment._replace(text=text)

    own: Any = sys.stdout if file is None else file
    while isinstance(own, Shown):  # the console's own styles are made of what `Shown` hides
        own = own.stream
    return VisibleConsole(file=own, highlight=False, markup=False, emoji=False, **options)


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
            # The reader of our output, such as `head`, has left: nothing is wrong. Typer would end
            # with 1, and Python complain of what it cannot flush.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.FINISHED) from None
        except OSError as error:
            raise UsageError(
                f"{error.filename or named.get('run', '?')}: {error.strerror or error}",
                "put the file back as it was, or leave this run",
            ) from error
        except Exception as error:
            kind = type(error)
            is_odd = isinstance(error, _ODD) or kind.__module__.startswith(("duckdb", "_duckdb"))
            if not is_odd or kind.__name__ in ("Abort", "Exit", "OutOfMemoryError"):
                raise
            frames = [f for f in extract_tb(error.__traceback__) if "longhaul" in f.filename]
            where = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            said = visible(str(error).partition("\n")[0])[:200]
            raise UsageError(
                f"run {named.get('run') or named.get('where')}: its files hold what no run writes "
                f"({kind.__name__}: {said}{where})",
                "it is damaged, or was made by another program: put its folder back from a copy",
            ) from error

    return reading


_READ_WITHIN_S: Seconds = 2.0
"""A terminal that is paused, or a pipe nobody reads, does not keep a process from ending."""


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """End the process with the body; a user's mistake never shows a traceback.

    A body that says nothing of its exit code, by `typer.Exit`, has done what it was asked.
    """
    sys.excepthook = _print_without_secrets
    try:
        yield
    except LonghaulError as error:
        print_error(f"{error.title}: {scrubbed(str(error))}")
        _leave(error.exit_code)
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
        _leave(ExitCode.NEEDS_PERSON)
    except Exception as error:
        if "torch" in sys.modules:  # else no allocator has said anything
            from longhaul.train.allocation_errors import refused_memory

            if memory := refused_memory(error):
                print_error(f"longhaul: ran out of {memory}: {error}")
                print_error("  → free some, or give --set batch.micro_sequences=N with a smaller N")
                _leave(ExitCode.NEEDS_PERSON)
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()
            _leave(ExitCode.RECIPE_WRONG)
        raise
    finally:
        ignore_notices()
        flush_outputs(_READ_WITHIN_S)
    _leave(ExitCode.FINISHED)


def _where(error: OSError) -> str:
    """The path that an error is about; of one that knows none, who met with it."""
    if error.filename is not None:
        return str(error.filename)
    frames = extract_tb(error.__traceback__)
    return f"in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _print_without_secrets(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """A traceback goes into workers' logs too, and its last line may repeat an address."""
    text = "".join(format_exception(kind, error, frames))
    print_error(scrubbed(text).rstrip())


def _leave(code: int) -> NoReturn:
    # Everything of ours is closed by now, but torch would take half a second to take itself apart;
    # a signal that comes while Python does that would show a traceback.
    ignore_notices()
    flush_outputs(_READ_WITHIN_S)
    if code == ExitCode.INTERRUPTED or "torch" in sys.modules:
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
