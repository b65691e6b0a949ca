"""The supervisor: starts the workers of a run, watches them, and starts them again."""

import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from longhaul.checkpoint.shared_memory import SharedMemory
from longhaul.config.recover import SuperviseSection
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.events import EventKind
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import Lease
from longhaul.supervise.causes import LATELY_S, Cause, Signature, classify, kernel_lines, of_device
from longhaul.supervise.ends import (
    End,
    cause_of_death,
    cause_of_hang,
    ended,
    group_end,
    no_world,
    tell_failure,
    what_is_lost,
    write_last_message,
)
from longhaul.supervise.history import Chronicle, failures, unbooked, usable_checkpoints
from longhaul.supervise.nodes.answer import (
    SILENT_CORRUPTION,
    accused,
    distrusted,
    on_one_machine,
)
from longhaul.supervise.nodes.fleet import Fleet
from longhaul.supervise.nodes.health_monitor import Drain, NodeHealthMonitor
from longhaul.supervise.nodes.history import newest_corrupt
from longhaul.supervise.nodes.placement import NodePlan, posts_here, posts_on
from longhaul.supervise.nodes.qualify import probe_here
from longhaul.supervise.ownership import Ownership
from longhaul.supervise.pipes import PAUSE, STOPS, SignalPipe, listening
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.ranks.watchdog import Watch
from longhaul.supervise.restart import Failure, Plan, next_plan

_LOOK_EVERY_S: Seconds = 0.5
_TIDY_WITHIN_S: Seconds = 2.0
"""What workers get that have made no step yet when they are asked to end."""
_NOT_ASKED_FOR = ("collective-failed", "out-of-memory")
_NOTICE_SHARE = 0.9
"""Share of the grace period after which a miss is told: later nobody may be there to tell it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be supervised."""

    folder: RunFolder
    settings: SuperviseSection
    processes: int
    """Workers on this machine, where there are no `nodes`."""
    work: Callable[[], None]
    """What a worker does in its process; leaves by SystemExit with its exit code."""
    signatures: Sequence[Signature]
    device: Callable[[], str] = str
    """The device's name, as far as it is known by then: a new run's first attempt finds it out."""
    nodes: NodePlan | None = None
    """What the recipe says of nodes; None: this machine is all there is."""
    program: tuple[str, ...] = ()
    """A command line that does what `work` does, for nodes where a fork cannot be."""


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
        self._ownership = Ownership(job.folder, lease, self._clock, say)
        self._ranks = Watch(job.folder, job.settings)
        self._memory = SharedMemory()  # goes with this process, which may end as it likes
        self._stop: ExitCode | None = None
        self._stop_requested_at: Seconds = 0.0
        self._missed = False
        self._at_once = False
        self._held_back: signal.Signals | None = None
        """What the workers are told only when they have made a step."""
        self._fleet: Fleet | None = None
        if job.nodes is not None:
            self._fleet = Fleet(job.folder, job.nodes, lease, self._clock, say)
        self._health_monitor: NodeHealthMonitor | None = None
        self._drain: Drain | None = None
        self._newest: int | None = None
        """Newest checkpoint when a restart at the next one was wished for."""
        self._leaving = False
        """The workers have been told to leave for that restart."""

    def run(self) -> ExitCode:
        """Until the run is finished, somebody wants it to stop, or a person must look."""
        with listening() as signal_pipe:
            try:
                while True:
                    code = self._attempt(signal_pipe)
                    if code is not None:
                        self._ranks.close()
                        return code
                    if not self._ownership.renew(lambda seconds: self._wait(seconds, signal_pipe)):
                        return self._stop or ExitCode.NEEDS_PERSON
            finally:
                if self._fleet is not None:
                    self._fleet.close()

    def _attempt(self, signal_pipe: SignalPipe) -> ExitCode | None:
        """One attempt; the run's exit code, or None if there shall be another one."""
        started, plan = self._clock.monotonic(), None
        group = self._start(signal_pipe)
        if group is None:
            return self._stop or ExitCode.NEEDS_PERSON
        try:
            end = self._watch(group, signal_pipe)
            code = end.exit_code
            if code is None:
                self._ownership.await_folder(lambda seconds: self._wait(seconds, signal_pipe))
                plan = self._answer(group, end, started, signal_pipe)
        finally:
            group.close()
            if self._health_monitor is not None:
                self._health_monitor.close()
        if plan is not None:
            if not plan.restart:
                return self._stop or plan.exit_code
            if not self._wait(plan.wait_s, signal_pipe):
                if not self._is_ahead_in_memory():
                    return self._stop
                interrupted = self._stop == ExitCode.INTERRUPTED
                self._held_back = signal.SIGINT if interrupted else signal.SIGTERM
            return None
        if self._leaving and self._stop is None and code == ExitCode.START_AGAIN:
            self._tell_drained(group)
            return None
        write_last_message(self._say, group, end.rank)
        return code

    def _start(self, signal_pipe: SignalPipe) -> Group | None:
        """Start the workers; None if there are no nodes for them, or somebody wants an end."""
        job, attempt = self._job, self._lease.attempt
        self._drain, self._newest, self._leaving = None, None, False
        if self._fleet is None:
            posts = posts_here(job.processes)
        else:
            world = self._fleet.muster(lambda seconds: self._wait(seconds, signal_pipe))
            if world is None:
                if self._stop is None:
                    self._say(no_world(self._fleet.why_none))
                return None
            posts = posts_on(world)
            if self._fleet.changed:
                self._memory.keep_only(())  # it is that of ranks on other nodes
            signatures = of_device(job.signatures, job.device())
            self._health_monitor = NodeHealthMonitor(
                self._fleet, attempt, signatures, self._clock, self._say
            )
        return Group(job.folder, attempt, posts, job.work, job.program, self._began, self._memory)

    def _watch(self, group: Group, signal_pipe: SignalPipe) -> End:
        """Until the group has ended, failed, or hangs."""
        began, looked = self._ranks.blink(self._clock.monotonic()), 0.0
        while True:
            before = self._clock.monotonic()
            select.select([signal_pipe.descriptor, *group.descriptors()], [], [], _LOOK_EVERY_S)
            group.pass_on()
            self._obey(signal_pipe, group)
            now = self._clock.monotonic()
            # A pause, Ctrl-Z or a scheduler's: the workers could give no sign of life either.
            if now - before > 2 * _LOOK_EVERY_S:
                began = self._ranks.blink(now)
            leaving = ExitCode.START_AGAIN if self._leaving else None
            end = group_end(self._codes(group), self._stop or leaving, at_once=self._at_once)
            if end is not None:
                return end
            if self._nothing_to_save(group, now):
                return End(self._stop)
            self._tell_if_missed(group, now)
            if now - looked < _LOOK_EVERY_S:
                continue
            looked, ranks = now, group.look()
            self._ownership.look(group.step)
            if self._health_monitor is not None and (
                broken := self._look_at_nodes(group, self._health_monitor)
            ):
                return End(cause=broken)
            verdict = self._ranks.look(now, began, ranks)
            if verdict.hung:
                # Rank 0 keeps the run log: if it has ended well, whoever does not follow is ended.
                return group_end(self._codes(group)[:1], self._stop) or End(hang=verdict)

    def _obey(self, signal_pipe: SignalPipe, group: Group) -> None:
        """Pass a wish to stop on to the workers; a second interrupt ends them at once."""
        for number in signal_pipe.heard():
            if number == PAUSE:
                group.send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's `fg` or `bg`
                group.send(signal.SIGCONT)
                continue
            if number == signal.SIGINT and self._stop == ExitCode.INTERRUPTED:
                self._at_once = True
                self._say(what_is_lost(group.step, list(usable_checkpoints(self._job.folder))))
                group.close()
                return
            self._stop, self._stop_requested_at = STOPS[number], self._clock.monotonic()
            asked = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            if not group.steps_made and self._is_ahead_in_memory():
                self._say("the newest state lies in memory alone: it is restored and saved first")
                self._held_back = asked
            else:
                group.send(asked)
        if self._held_back is not None and group.steps_made:
            group.send(self._held_back)
            self._held_back = None

    def _is_ahead_in_memory(self) -> bool:
        """Ending now would lose steps, as snapshots go with this process."""
        kept = max((label.get("step", 0) for label in self._memory.labels()), default=0)
        return bool(kept > max(usable_checkpoints(self._job.folder), default=0))

    def _codes(self, group: Group) -> list[int | None]:
        """Exit codes, as they are meant: to torchrun, a rank that has lost another one, or its
        memory, says "start me again"; here that is a failure unless somebody has asked for an end.
        """
        codes = group.exit_codes
        asked = self._stop is not None or self._leaving
        if not asked and ExitCode.START_AGAIN in codes:
            group.pass_on()
            for death in group.deaths(self._clock.monotonic()):
                if classify(death, self._job.signatures).name in _NOT_ASKED_FOR:
                    codes[death.rank] = 1
        return codes

    def _nothing_to_save(self, group: Group, now: Seconds) -> bool:
        """An end was asked for before the first step of this attempt. Ranks that wait for each
        other then are deaf, and one that has left would keep the rest waiting.
        """
        grace_s = _NOTICE_SHARE * self._job.settings.grace_s
        within = _TIDY_WITHIN_S if self._held_back is None else grace_s
        return (
            self._stop is not None
            and now - self._stop_requested_at > within
            and not group.steps_made
        )

    def _tell_if_missed(self, group: Group, now: Seconds) -> None:
        """A checkpoint that a scheduler's notice asked for and that is not there yet."""
        grace_s = self._job.settings.grace_s
        missed = now - self._stop_requested_at > _NOTICE_SHARE * grace_s
        if self._stop != ExitCode.START_AGAIN or self._missed or not missed:
            return
        self._missed = True
        message = (
            f"no checkpoint within the grace period of {grace_s:g} s (supervise.grace_s): if the "
            "scheduler kills the run now, the steps since the last one are lost"
        )
        self._say(f"WARNING: {message}")
        chronicle = Chronicle(self._job.folder, self._lease.attempt, self._clock)
        chronicle.emit(EventKind.PREEMPTION_MISSED, group.step or 0, {"message": message}, {})
        chronicle.close()

    def _look_at_nodes(self, group: Group, health_monitor: NodeHealthMonitor) -> Cause | None:
        """A cause to end the attempt for; or let the workers leave, if a restart is due."""
        if self._stop is not None or self._leaving:
            return None
        sight = health_monitor.look()
        if sight.drain is not None and self._drain is None:
            self._drain = sight.drain
            self._newest = max(usable_checkpoints(self._job.folder), default=0)
            when = "now" if sight.drain.at_once else "at the next checkpoint"
            self._say(f"a restart {when}: {sight.drain.reason}")
        if self._drain is not None and self._newest is not None and group.steps_made:
            newest = max(usable_checkpoints(self._job.folder), default=0)
            if self._drain.at_once or newest > self._newest:
                self._leaving = True
                group.send(signal.SIGTERM)
        return sight.cause

    def _answer(self, group: Group, end: End, started: Seconds, signal_pipe: SignalPipe) -> Plan:
        """Find the cause of a failure, decide what follows, and write both down."""
        folder, now, step = self._job.folder, self._clock.wall(), group.step
        cause = self._cause(group, end, started, signal_pipe)
        codes = group.exit_codes
        group.close()
        before, usable = failures(folder), usable_checkpoints(folder)
        corrupt = cause.name == SILENT_CORRUPTION
        verdict = newest_corrupt(folder, self._lease.attempt) if corrupt else None
        cause = accused(cause, verdict)
        if self._fleet is None:
            cause = on_one_machine(cause, verdict, before, now)
        unfit = self._unfit(cause, signal_pipe)
        seconds = unbooked(folder, self._lease.attempt, self._began, self._clock.wall())
        chronicle = Chronicle(folder, self._lease.attempt, self._clock, self._lease.may_decide)
        if verdict is not None:
            for checkpoint in distrusted(list(usable), verdict):
                chronicle.poison(checkpoint, usable.pop(checkpoint), step or 0, verdict.reason)
        code = codes[cause.rank] if cause.rank is not None else None
        # A node that must not be used any more need not end a run that has others.
        others = self._fleet is not None and cause.remedy == "cordon"
        failure = Failure(cause.name, "restart" if others else cause.remedy, step, now)
        plan = next_plan([*before, failure], list(usable), code or 0, self._job.settings)
        if unfit and plan.restart:
            plan = Plan(False, f"{plan.reason}, and this machine has not passed a probe: {unfit}")
        if self._stop is not None:
            plan = Plan(False, f"{cause.name}, while stopping", exit_code=self._stop)
        if plan.poison is not None:
            chronicle.poison(plan.poison, usable[plan.poison], step or 0, plan.reason)
        told = ended(cause, plan, cause.rank, codes, step)
        judged = self._fleet.judge(cause, step, verdict) if self._fleet is not None else None
        told |= judged[1] if judged else {}
        event = chronicle.emit(EventKind.ATTEMPT_ENDED, step or 0, told, seconds)
        chronicle.close()
        self._began = event.time
        times = sum(earlier.cause == cause.name for earlier in before) + 1
        tell_failure(self._say, group, cause, plan, times)
        if self._fleet is not None and judged is not None:
            self._fleet.carry_out(judged[0], cause)
        return plan

    def _cause(self, group: Group, end: End, started: Seconds, signal_pipe: SignalPipe) -> Cause:
        if end.cause is not None:
            return end.cause
        if end.hang is not None:
            cause = cause_of_hang(group, end.hang)
        else:
            cause = cause_of_death(
                group, self._job.signatures, self._job.device(), lambda: self._kernel(started)
            )
        gone = None
        if self._fleet is not None:
            gone = self._fleet.gone_of(lambda seconds: self._wait(seconds, signal_pipe))
        return gone or cause

    def _kernel(self, started: Seconds) -> list[str]:
        """By rank, its kernel's messages of this attempt, lately."""
        if self._fleet is None or self._fleet.world is None or self._health_monitor is None:
            since = max(started, self._clock.monotonic() - LATELY_S)
            lines = kernel_lines(since).splitlines()
            lines = point(Point.KERNEL_LOG, lines, since=since, node="")
            return ["\n".join(lines)] * self._job.processes
        world = self._fleet.world
        said = {m.name: "\n".join(self._health_monitor.messages(m)) for m in world.machines}
        return [said[world.machine_of(rank).name] for rank in range(world.layout.size)]

    def _unfit(self, cause: Cause, signal_pipe: SignalPipe) -> str:
        """Where there is no other machine: why this one does not pass the probe that the cause asks
        for; nothing if it passes, or need not.
        """
        if self._fleet is not None or cause.remedy != "probe":
            return ""
        probe = probe_here(
            self._job.folder.workers, self._job.processes, lambda s: self._wait(s, signal_pipe)
        )
        return "" if probe is None or probe.passed else probe.reason

    def _tell_drained(self, group: Group) -> None:
        """Write down why all were started again although nothing had failed."""
        assert self._drain is not None
        assert self._fleet is not None
        folder, attempt = self._job.folder, self._lease.attempt
        seconds = unbooked(folder, attempt, self._began, self._clock.wall())
        chronicle = Chronicle(folder, attempt, self._clock)
        data = self._fleet.drain(self._drain.node) | {"reason": self._drain.reason}
        event = chronicle.emit(EventKind.NODE_DRAINED, group.step or 0, data, seconds)
        chronicle.close()
        self._began = event.time

    def _wait(self, seconds: Seconds, signal_pipe: SignalPipe) -> bool:
        """Let time pass; False if somebody wants the run to stop meanwhile."""
        deadline = self._clock.monotonic() + seconds
        while True:
            for number in signal_pipe.heard():
                if number == PAUSE:
                    os.kill(os.getpid(), signal.SIGSTOP)
                else:
                    self._stop, self._stop_requested_at = STOPS[number], self._clock.monotonic()
                    return False
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return True
            with suppress(InterruptedError):
                select.select([signal_pipe.descriptor], [], [], left)
