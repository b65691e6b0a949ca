"""What follows a failure: start again, from where, after how long, or stop. Pure policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from longhaul.config.recover import SuperviseSection
from longhaul.core.errors import ExitCode
from longhaul.core.units import Seconds, short_seconds
from longhaul.supervise.causes import Remedy

ATTEMPTS_AT_ONE_STEP = 3
"""Failures of one cause at one step before a restart goes further back (incident M18: 44)."""
CURED_BY_TIME = ("port-taken", "node-gone")
"""Causes that say nothing against program, data or checkpoints where no step was made."""
PATIENCE_S: Seconds = 1800.0
"""A machine that reboots is there again by then; one that is not needs a person."""
_LAG_STEPS = 2
_LONGEST_WAIT_S: Seconds = 60.0
_AGAIN_AFTER_S: Seconds = 2.0
"""A first failure is answered at once; what made the same one twice may need a moment to pass."""
DAY_S: Seconds = 86_400.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that failed."""

    cause: str
    remedy: Remedy
    step: int | None
    """Furthest step that the attempt had reached; None if it had not got as far as training."""
    time: Seconds
    went_back: bool = False
    """What followed was a restart from further back."""
    cordoned: str = ""
    """Machine that must not be used again because of it, while others take its place."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do."""

    restart: bool
    reason: str
    wait_s: Seconds = 0.0
    """Before the restart."""
    poison: int | None = None
    """Step of the newest checkpoint, which is not to be used again."""
    exit_code: ExitCode = ExitCode.NEEDS_PERSON
    """Where there is no restart."""


def next_plan(
    failures: Sequence[Failure], usable: Sequence[int], exit_code: int, settings: SuperviseSection
) -> Plan:
    """What follows the last of `failures`; `usable`: checkpoints that a restart might use."""
    last = failures[-1]
    if last.remedy == "stop":
        tells = set(ExitCode) - {ExitCode.FINISHED, ExitCode.FAILED}
        code = ExitCode(exit_code) if exit_code in tells else ExitCode.NEEDS_PERSON
        return Plan(False, f"{last.cause}: starting again would change nothing", exit_code=code)
    if _cured_by_time(last):
        return _once_more(failures)
    failures = [failure for failure in failures if not _cured_by_time(failure)]
    if last.remedy == "cordon":
        return Plan(False, f"{last.cause}: this machine must not be used, and there is no other")
    # Each machine fails for good once: a thousand of them do so many times a day.
    lately = [f for f in failures if last.time - f.time <= DAY_S and not f.cordoned]
    if len(lately) > settings.restarts_per_day:
        allowed = f"supervise.restarts_per_day is {settings.restarts_per_day}"
        return Plan(False, f"{len(lately)} failures within 24 hours, and {allowed}")
    same = without_progress(failures)
    place = "before any step" if last.step is None else f"at step {last.step}"
    if len(same) >= 2 and any(failure.went_back for failure in same[:-1]):
        return Plan(False, f"{last.cause} {place}, {len(same)} times, from an older checkpoint too")
    if len(same) >= ATTEMPTS_AT_ONE_STEP:
        where = f"{last.cause} {place}, {len(same)} times without progress"
        if len(usable) < 2:
            return Plan(False, f"{where}, and there is no older checkpoint to go back to")
        newest, older = sorted(usable)[:-3:-1]
        return Plan(True, f"{where}: going back to step {older}", poison=newest)
    return Plan(True, f"{last.cause}", 0.0 if len(same) == 1 else _AGAIN_AFTER_S)


def _cured_by_time(failure: Failure) -> bool:
    return failure.cause in CURED_BY_TIME and failure.step is None


def _once_more(failures: Sequence[Failure]) -> Plan:
    """Try again as long as there is patience; neither budget nor checkpoints are touched."""
    last = failures[-1]
    alike = takewhile(lambda f: f.cause == last.cause and f.step is None, reversed(failures))
    row = len(list(alike))
    waited = last.time - failures[-row].time
    if waited > PATIENCE_S:
        return Plan(False, f"{last.cause} for {short_seconds(waited)}, {row} times in a row")
    return Plan(True, f"{last.cause}", min(2.0 ** (row - 1), _LONGEST_WAIT_S))


def without_progress(failures: Sequence[Failure]) -> Sequence[Failure]:
    """The last failures: all of one cause and at one step, or before any step. Machines that were
    cordoned one after the other say nothing of program, data or checkpoints.
    """
    count, step = 0, None
    last = failures[-1].cause, failures[-1].cordoned
    for failure in takewhile(lambda f: (f.cause, f.cordoned) == last, reversed(failures)):
        if failure.step is not None:
            step = failure.step if step is None else step
            # What a device computes is known to be complete a step or two later.
            if abs(failure.step - step) > _LAG_STEPS:
                break
        count += 1
    return failures[-count:]
