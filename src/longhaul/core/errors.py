"""Errors a person can act on, and the exit code each one ends the program with."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a longhaul process ends; launchers and schedulers branch on these."""

    FINISHED = 0
    FAILED = 1
    """Something broke; whoever supervises finds the cause and starts again."""
    RECIPE_WRONG = 2
    """The recipe or the arguments are wrong; starting again changes nothing."""
    DATA_WRONG = 3
    """The data is wrong; the message names the worst offenders."""
    START_AGAIN = 16
    """Stopped on purpose in a good state; start the same command again."""
    NEEDS_PERSON = 17
    """Stopped because going on would do harm; a person must look."""
    INTERRUPTED = 130


class LonghaulError(Exception):
    """What is wrong, naming the thing and its value; and a remedy: what to do, on its own line."""

    exit_code = ExitCode.NEEDS_PERSON
    title = "longhaul"
    """Stands before the message where a process ends of it; signatures of failures know it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.remedy}" if self.remedy else self.message


class RecipeError(LonghaulError):
    """The recipe or the arguments are wrong."""

    exit_code = ExitCode.RECIPE_WRONG


class UsageError(LonghaulError):
    """A command cannot do what was asked, such as opening a run that does not exist."""

    exit_code = ExitCode.RECIPE_WRONG


class DataError(LonghaulError):
    """The data is wrong beyond what the recipe tolerates."""

    exit_code = ExitCode.DATA_WRONG


class NeedsPerson(LonghaulError):
    """Going on would do harm, and longhaul cannot repair it by itself."""


class NotOwner(LonghaulError):
    """Another attempt owns this run now; this one must not touch it any more."""

    exit_code = ExitCode.START_AGAIN
