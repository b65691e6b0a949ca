"""The supervisor: starts the workers of a run, watches them, and starts them again.

Enters: a run's folder, its lease, its settings. Leaves: the run's exit code, and the story of every
failure in the logbook.
Never knows: torch, or what is being trained.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from longhaul.config.supervise import SuperviseSection
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import Lease
from longhaul.supervise.classify import Cause, Signature, classify, first_cause, last_words
from longhaul.supervise.ears import PAUSE, STOPS, Ears, listening
from longhaul.supervise.ends import End, group_end
from longhaul.supervise.group import Group
from longhaul.supervise.history import Chronicle, failures, unbooked, usable_checkpoints
from longhaul.supervise.kernel_log import kernel_lines
from longhaul.supervise.restart import Failure, Plan, next_plan
from longhaul.supervise.watchdog import Learned, Verdict, judge, learn, who_did_not_arrive

_LOOK_EVERY_S: Seconds = 0.5
_CULPRIT_WITHIN_S: Seconds = 3.0
"""Ranks that die of another one's death may be gone before it; its end is waited for so long."""
_CULPRIT_LOOK_S: Seconds = 0.02
_LAST_WORDS: Bytes = 16_384
_TIDY_WITHIN_S: Seconds = 2.0
"""What workers get that have made no step yet when they are asked to end."""
_NOTICE_SHARE = 0.9
"""Share of the grace period after which a miss is told: later nobody may be there to tell it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be supervised."""

    folder: RunFolder
    settings: SuperviseSection
    processes: int
    """Workers on this machine."""
    work: Callable[[], None]
    """What a worker does in its process; leaves by SystemExit with its exit code."""
    signatures: Sequence[Signature]
    device: str = ""
    """The device's name, as far as it is known."""


class Supervisor:
    """Supervises one run, from a start to its end.

    Args:
        job: what is to be supervised.
        lease: held by this process.
        say: takes sentences for people.
        began: Unix time at which this process began; the first attempt books from there.
    """

    def __init__(self, job: Job, lease: Lease, say: Callable[[str], None], began: Seconds) -> None:
        self._job = job
        self._lease = lease
        self._say = say
        self._began = began
        self._clock = RealClock()
        self._stop: ExitCode | None = None
        self._stop_asked: Seconds = 0.0
        self._missed = False
        self._at_once = False

    def run(self) -> ExitCode:
        """Until the run is finished, somebody wants it to stop, or a person must look."""
        with listening() as ears:
            while True:
                started = self._clock.monotonic()
                group = Group(
                    self._job.folder, self._lease.attempt, self._job.processes,
                    self._job.work, self._began,
                )  # fmt: skip
                try:
                    end = self._watch(group, ears)
                    code = end.exit_code
                    if code is None:
                        plan = self._answer(group, end, started)
                finally:
                    group.close()
                if code is not None:
                    self._tell_last_words(group, end.rank)
                    return code
                if not plan.restart or not self._wait(plan.wait_s, ears):
                    return self._stop or plan.exit_code
                self._lease.renew()

    def _watch(self, group: Group, ears: Ears) -> End:
        """Until the group has ended, failed, or hangs."""
        learned, began, looked = Learned(), self._clock.monotonic(), 0.0
        while True:
            select.select([ears.descriptor, *group.descriptors()], [], [], _LOOK_EVERY_S)
            group.pass_on()
            before = self._clock.monotonic()
            self._obey(ears, group)
            now = self._clock.monotonic()
            if now - before > _LOOK_EVERY_S:  # a pause: nobody could give a sign of life
                learned, began = Learned(), now
            end = group_end(self._codes(group), self._stop, at_once=self._at_once)
            if end is not None:
                return end
            if self._nothing_to_save(group, now):
                return End(self._stop)
            self._tell_if_missed(group, now)
            if now - looked < _LOOK_EVERY_S:
                continue
            looked, ranks = now, group.look()
            learned = learn(learned, ranks)
            verdict = judge(now, began, ranks, learned, self._job.settings)
            if verdict.hung:
                # Rank 0 keeps the book: if it has ended well, whoever does not follow is ended.
                return group_end(self._codes(group)[:1], self._stop) or End(hang=verdict)

    def _obey(self, ears: Ears, group: Group) -> None:
        """Pass a wish to stop on to the workers; a second interrupt ends them at once."""
        for number in ears.heard():
            if number == PAUSE:
                group.send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's `fg` or `bg`
                group.send(signal.SIGCONT)
                continue
            if number == signal.SIGINT and self._stop == ExitCode.INTERRUPTED:
                self._at_once = True
                group.close()
                return
            self._stop, self._stop_asked = STOPS[number], self._clock.monotonic()
            interrupt = number == signal.SIGINT
            group.send(signal.SIGINT if interrupt else signal.SIGTERM)

    def _codes(self, group: Group) -> list[int | None]:
        """Exit codes, as they are meant: to torchrun, a rank that has lost another one says "start
        me again"; here that is a failure unless somebody has asked for an end.
        """
        codes = group.exit_codes
        if self._stop is None and ExitCode.START_AGAIN in codes:
            group.pass_on()
            for death in group.deaths(self._clock.monotonic()):
                if classify(death, self._job.signatures).name == "collective-failed":
                    codes[death.rank] = 1
        return codes

    def _nothing_to_save(self, group: Group, now: Seconds) -> bool:
        """An end was asked for before the first step of this attempt. Ranks that wait for each
        other then are deaf, and one that has left would keep the rest waiting.
        """
        asked = self._stop is not None and now - self._stop_asked > _TIDY_WITHIN_S
        return asked and not group.steps_made

    def _tell_if_missed(self, group: Group, now: Seconds) -> None:
        """A checkpoint that a scheduler's notice asked for and that is not there yet."""
        grace_s = self._job.settings.grace_s
        missed = now - self._stop_asked > _NOTICE_SHARE * grace_s
        if self._stop != ExitCode.START_AGAIN or self._missed or not missed:
            return
        self._missed = True
        message = (
            f"no checkpoint within the grace period of {grace_s:g} s (supervise.grace_s): if the "
            "scheduler kills the run now, the steps since the last one are lost"
        )
        self._say(f"WARNING: {message}")
        chronicle = Chronicle(self._job.folder, self._lease.attempt, self._clock)
        chronicle.tell("preemption-missed", group.step or 0, {"message": message}, {})
        chronicle.close()

    def _answer(self, group: Group, end: End, started: Seconds) -> Plan:
        """Find the cause of a failure, decide what follows, and write both down."""
        folder, now = self._job.folder, self._clock.wall()
        step = group.step
        if end.hang is not None:
            cause = self._name_the_missing(group, end.hang)
        else:
            cause = self._find_the_cause(group, started)
        codes = group.exit_codes
        group.close()
        seconds = unbooked(folder, self._lease.attempt, self._began, self._clock.wall())
        before = failures(folder)
        code = codes[cause.rank] if cause.rank is not None else None
        failure = Failure(cause.name, cause.remedy, step, now)
        usable = usable_checkpoints(folder)
        plan = next_plan([*before, failure], list(usable), code or 0, self._job.settings)
        if self._stop is not None:
            plan = Plan(False, f"{cause.name}, while stopping", exit_code=self._stop)
        chronicle = Chronicle(folder, self._lease.attempt, self._clock)
        if plan.poison is not None:
            chronicle.poison(plan.poison, usable[plan.poison], step or 0, plan.reason)
        event = chronicle.tell(
            "attempt-ended",
            step or 0,
            {
                "reason": _in_words(cause),
                "cause": cause.name,
                "remedy": cause.remedy,
                "rank": cause.rank,
                "exit_codes": codes,
                "said": cause.message,
                "reached": step,
                "poisoned": plan.poison,
                "follows": plan.reason,
            },
            seconds,
        )
        chronicle.close()
        self._began = event.time
        times = sum(earlier.cause == cause.name for earlier in before) + 1
        self._tell(group, cause, plan, times)
        return plan

    def _find_the_cause(self, group: Group, started: Seconds) -> Cause:
        deadline = time.monotonic() + _CULPRIT_WITHIN_S
        while True:
            group.pass_on()  # last words may still be on their way into rank 0's log
            deaths = group.deaths(self._clock.monotonic())
            cause = first_cause(deaths, self._job.signatures, self._job.device)
            if not cause.consequence or not group.running or time.monotonic() > deadline:
                break
            time.sleep(_CULPRIT_LOOK_S)
        kernel = kernel_lines(started)
        deaths = group.deaths(self._clock.monotonic(), kernel)
        return first_cause(deaths, self._job.signatures, self._job.device)

    def _name_the_missing(self, group: Group, verdict: Verdict) -> Cause:
        waiting = group.stacks()
        missing, how = who_did_not_arrive(group.look(), waiting)
        said = f"{verdict.reason}: {how}"
        return Cause("hang", said, "restart", missing[0] if missing else None, False, said)

    def _tell(self, group: Group, cause: Cause, plan: Plan, times: int) -> None:
        self._say(f"WARNING: {_in_words(cause)}" + (f" (time {times} in this run)" * (times > 1)))
        self._tell_last_words(group, cause.rank)
        if plan.restart:
            wait = f" in {short_seconds(plan.wait_s)}" if plan.wait_s else ""
            why = f": {plan.reason}" if plan.poison is not None else ""
            self._say(f"  starting again{wait}{why}")
        else:
            self._say(f"  stopping: {plan.reason}\n  → look into {self._job.folder.workers}")

    def _tell_last_words(self, group: Group, rank: int | None) -> None:
        """What rank 0 writes is seen anyway; the other ranks write into their logs."""
        if not rank:
            return
        worker = group.workers[rank]
        if said := last_words(worker.log_end(_LAST_WORDS)):
            self._say(f"  rank {rank} said: {said}")
        self._say(f"  its log is {worker.log}")

    def _wait(self, seconds: Seconds, ears: Ears) -> bool:
        """Let time pass; False if somebody wants the run to stop meanwhile."""
        deadline = self._clock.monotonic() + seconds
        while True:
            for number in ears.heard():
                if number == PAUSE:
                    os.kill(os.getpid(), signal.SIGSTOP)
                else:
                    self._stop = STOPS[number]
                    return False
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return True
            with suppress(InterruptedError):
                select.select([ears.descriptor], [], [], left)


def _in_words(cause: Cause) -> str:
    who = f"rank {cause.rank}: " if cause.rank is not None else ""
    return f"{who}{cause.name} ({', '.join(filter(None, (cause.words, cause.meaning)))})"
