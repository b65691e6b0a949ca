"""The supervisor: starts the workers of a run, watches them, and starts them again; as one group,
or as replicas, of which the others train on when one dies.
"""

import os
import select
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress

from longhaul.checkpoint.shared_memory import SharedMemory
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.events import EventKind
from longhaul.core.units import Seconds
from longhaul.logbook.lease import Lease
from longhaul.supervise.causes import Cause, classify, of_device
from longhaul.supervise.ends import End, group_end, what_is_lost, write_last_message
from longhaul.supervise.failure_handler import FailureHandler, Job
from longhaul.supervise.history import SupervisedRun, usable_checkpoints
from longhaul.supervise.nodes.fleet import Fleet
from longhaul.supervise.nodes.health_monitor import Drain, NodeHealthMonitor
from longhaul.supervise.nodes.placement import Post, posts_here, posts_on
from longhaul.supervise.ownership import RETRY_S, Ownership
from longhaul.supervise.pipes import PAUSE, STOPS, heard, listening
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.ranks.watchdog import Watch
from longhaul.supervise.replicas import LEADER, Replicas

_LOOK_EVERY_S: Seconds = 0.5
_TIDY_WITHIN_S: Seconds = 2.0
"""What workers get that have made no step yet when they are asked to end."""
_NOT_ASKED_FOR = ("collective-failed", "out-of-memory")
_NOTICE_SHARE = 0.9
"""Share of the grace period after which a miss is told: later nobody may be there to tell it."""


class Supervisor:
    """Supervises one run, from a start to its end; the first attempt counts from `began`."""

    def __init__(self, job: Job, lease: Lease, say: Callable[[str], None], began: Seconds) -> None:
        self._job, self._lease, self._say, self._clock = job, lease, say, RealClock()
        self._run = SupervisedRun(job.folder, lease, self._clock, say)
        self._ownership = Ownership(self._run)
        self._ranks = Watch(job.folder, job.settings)
        self._memory = SharedMemory()  # goes with this process, which may end as it likes
        self._replicas: Replicas | None = None
        self._fleet = Fleet(self._run, job.nodes) if job.nodes else None
        self._failures = FailureHandler(job, self._run, began, self._fleet, self._wait)
        self._groups: dict[int, Group] = {}
        """Replicas that have been started; the only group is the leader."""
        self._due: dict[int, Seconds] = {}
        """When those that are not there are started."""
        self._renews = False
        """The next leader makes another attempt."""
        self._looked = 0.0
        self._stop: ExitCode | None = None
        self._stop_requested_at: Seconds = 0.0
        self._held_back: signal.Signals | None = None
        """What the leader is sent only when it has made a step."""
        self._missed = False
        self._drain: Drain | None = None
        self._newest = 0
        """Newest checkpoint when a restart at the next one was requested."""
        self._leaving = False
        """The workers have been told to leave for that restart."""

    def run(self) -> ExitCode:
        """Until the run is finished, somebody wants it to stop, or a person must look."""
        job = self._job
        with ExitStack() as leaving:
            self._signals: int = leaving.enter_context(listening())
            if self._fleet is not None:
                leaving.callback(self._fleet.close)
            if job.each is not None:
                self._replicas = Replicas(self._run, job.settings, job.processes, job.each)
                self._failures.replicas = self._replicas
                leaving.callback(self._replicas.close)
            leaving.callback(self._close_groups)
            self._due = dict.fromkeys(self._replicas.numbers if self._replicas else [LEADER], 0.0)
            while True:
                code = self._turn()
                if code is not None:
                    self._ranks.close()
                    return code

    def _turn(self) -> ExitCode | None:
        """Start who is due, look at who is there, answer ends; the run's exit code at its end."""
        leader, stopping = self._groups.get(LEADER), self._stop is not None
        running = any(group.running for group in self._groups.values())
        is_there = self._ownership.look(leader.step if leader else None, running, stopping)
        waits = [_LOOK_EVERY_S]
        if is_there:  # else nobody writes there until it is back
            self._look_at_sidecars()
            code = self._start_those_due()
            if code is not None:
                return code
            waits += [due - self._clock.monotonic() for due in self._due.values()]
        before = self._clock.monotonic()
        self._let_pass(min(waits))
        code = self._obey()
        if code is not None:
            return code
        now = self._clock.monotonic()
        # A pause, Ctrl-Z or a scheduler's: the workers could give no sign of life either.
        if now - before > 2 * _LOOK_EVERY_S:
            self._ranks.blink(now)
        ends = self._ends(now) if is_there or self._replicas is None else {}
        if ends and self._lease.gone():
            # Failures are handled when it is back; a run that has ended by itself has ended.
            own = self._replicas is None
            ends = {n: end for n, end in ends.items() if own and end.exit_code is not None}
        for number, end in ends.items():
            code = self._follow(number, end)
            if code is not None:
                return code
        if self._replicas is not None:
            self._replicas.welcome(self._groups)
        return None

    def _look_at_sidecars(self) -> None:
        for line in self._job.sidecars.look() if self._job.sidecars is not None else ():
            self._say(f"beside training: {line}")
            self._run.emit(EventKind.SIDECAR, self._step or 0, text=line)

    def _let_pass(self, seconds: Seconds) -> None:
        """Until a signal, a death or something to pass on has come, so long at most."""
        errors = [end for group in self._groups.values() for end in group.descriptors()]
        with suppress(InterruptedError):
            select.select([self._signals, *errors], [], [], max(0.0, seconds))
        for group in self._groups.values():
            group.pass_on()

    def _start_those_due(self) -> ExitCode | None:
        """Start groups; an exit code if there are no nodes for one, or somebody wants an end."""
        now = self._clock.monotonic()
        for number in sorted(number for number, due in self._due.items() if due <= now):
            if number == LEADER and self._renews:
                if not self._ownership.try_to_renew():
                    self._due[number] = now + RETRY_S
                    continue
                self._renews = False
            if not self._start(number):
                return self._stop or ExitCode.NEEDS_PERSON
            del self._due[number]
            self._ranks.blink(self._clock.monotonic())
        return None

    def _start(self, number: int) -> bool:
        job, replicas = self._job, self._replicas
        beside = job.sidecars.descriptors() if job.sidecars is not None else ()
        posts = self._posts() if replicas is None else replicas.posts(number)
        if posts is None:
            return False
        self._groups[number] = Group(
            job.folder, self._lease.attempt, posts, job.work, job.program, self._failures.began,
            memory=self._memory if replicas is None else None,
            first=number * (job.each or 0),
            beside=None if replicas is None else list(self._groups.values()),
            closes=(*beside, *(() if replicas is None else replicas.descriptors())),
        )  # fmt: skip
        return True

    def _posts(self) -> list[Post] | None:
        self._drain, self._leaving = None, False
        if self._fleet is None:
            return posts_here(self._job.processes)
        world = self._fleet.allocate(self._wait)
        if world is None:
            if self._stop is None:
                self._say(
                    f"  stopping: no nodes to go on with: {self._fleet.why_none}\n"
                    "  → repair nodes, release those that are cordoned (`longhaul nodes`), or name "
                    "others under [[supervise.node]] (docs/supervise.md)"
                )
            return None
        if self._fleet.changed:
            self._memory.keep_only(())  # it is that of ranks on other nodes
        signatures = of_device(self._job.signatures, self._job.device())
        self._failures.health_monitor = NodeHealthMonitor(self._fleet, signatures)
        return posts_on(world)

    def _ends(self, now: Seconds) -> dict[int, End]:
        asked = self._stop or (ExitCode.START_AGAIN if self._leaving else None)
        found = {n: group_end(self._codes(group), asked) for n, group in self._groups.items()}
        ends = {number: end for number, end in found.items() if end is not None}
        if ends or not self._groups or now - self._looked < _LOOK_EVERY_S:
            return ends
        self._looked = now
        broken = self._look_at_nodes(self._groups[LEADER]) if self._fleet is not None else None
        if broken is not None:
            return {LEADER: End(cause=broken)}
        ranks = {number: group.look() for number, group in self._groups.items()}
        everybody = [rank for group in ranks.values() for rank in group]
        verdict = self._ranks.look(now, everybody)
        if not verdict.hung:
            return {}
        missing = verdict.missing or [rank.rank for rank in everybody]
        hang = {n for n, group in ranks.items() if any(rank.rank in missing for rank in group)}
        # Rank 0 keeps the run log: if it has ended well, whoever does not follow is ended.
        return {
            n: group_end(self._codes(self._groups[n])[:1], self._stop) or End(hang=verdict)
            for n in sorted(hang)
        }

    def _follow(self, number: int, end: End) -> ExitCode | None:
        """What follows the end of a group; the run's exit code, if that is the run's end too."""
        group, leads, code = self._groups.pop(number), number == LEADER, end.exit_code
        try:
            if code == ExitCode.FINISHED and not leads:
                return None  # the leader follows
            drained = self._leaving and self._stop is None and code == ExitCode.START_AGAIN
            if drained and self._drain is not None:
                plan = self._failures.record_drain(group, self._drain)
            elif code is not None and leads:
                write_last_message(self._say, group, end.rank)
                return code
            else:
                others = list(self._groups.values())
                plan = self._failures.handle(number, group, end, lambda: self._stop, others)
        finally:
            group.close()
            self._failures.close()
        if leads and not plan.restart:
            return self._stop or plan.exit_code
        if not leads and (not plan.restart or self._stop is not None):
            return None
        self._due[number] = self._clock.monotonic() + plan.wait_s
        if leads:
            self._renews = True
            if self._stop is not None:  # the others still have what it was to save
                self._held_back = _passed_on(self._stop)
        return None

    def _obey(self) -> ExitCode | None:
        """Pass a request to stop on to the leader; an exit code if all is to end at once."""
        for number in heard(self._signals):
            if number == PAUSE:
                self._pause()
                continue
            if number == signal.SIGINT and self._stop == ExitCode.INTERRUPTED:
                saved = list(usable_checkpoints(self._job.folder))
                self._say(what_is_lost(self._step, saved))
                return self._stop
            self._stop, self._stop_requested_at = STOPS[number], self._clock.monotonic()
            leader = self._groups.get(LEADER)
            if (leader is None or not leader.steps_made) and self._is_ahead():
                self._held_back = _passed_on(self._stop)
                if leader is None:
                    self._due[LEADER] = 0.0
            elif leader is None:
                return self._stop
            else:
                leader.send(_passed_on(self._stop))
        return self._stop_in_time() if self._stop is not None else None

    def _pause(self) -> None:
        """Until the shell's `fg` or `bg`."""
        for group in self._groups.values():
            group.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for group in self._groups.values():
            group.send(signal.SIGCONT)

    def _is_ahead(self) -> bool:
        """Ending the leader now would lose steps that others, or snapshots in memory, have."""
        if any(group.steps_made for group in self._groups.values()):
            return True
        kept = max((label.get("step", 0) for label in self._memory.labels()), default=0)
        ahead = bool(kept > max(usable_checkpoints(self._job.folder), default=0))
        if ahead:
            self._say("the newest state lies in memory alone: it is restored and saved first")
        return ahead

    def _stop_in_time(self) -> ExitCode | None:
        """Let the leader save and end, once it trains; an exit code if there is nothing to save."""
        leader, grace_s = self._groups.get(LEADER), self._job.settings.grace_s
        asked_s = self._clock.monotonic() - self._stop_requested_at
        late = asked_s > _NOTICE_SHARE * grace_s
        ready = leader if leader is not None and leader.steps_made else None
        if self._held_back is not None:
            if ready is not None:
                ready.send(self._held_back)
                self._held_back = None
            elif late:
                self._say("WARNING: no step was made in time to save; the last steps are lost")
                return self._stop
        # Ranks that wait for each other before their first step are deaf.
        elif ready is None and asked_s > _TIDY_WITHIN_S:
            return self._stop
        if late and self._stop == ExitCode.START_AGAIN and not self._missed:
            self._missed = True
            message = (
                f"no checkpoint within the grace period of {grace_s:g} s (supervise.grace_s): if "
                "the scheduler kills the run now, the steps since the last one are lost"
            )
            self._say(f"WARNING: {message}")
            self._run.emit(EventKind.PREEMPTION_MISSED, self._step or 0, message=message)
        return None

    @property
    def _step(self) -> int | None:
        """Furthest step that a rank has reached."""
        steps = (group.step for group in self._groups.values())
        return max((step for step in steps if step is not None), default=None)

    def _codes(self, group: Group) -> list[int | None]:
        """Exit codes; "start me again" of a rank that has lost another, or memory, is a failure."""
        codes = group.exit_codes
        asked = self._stop is not None or self._leaving
        if not asked and ExitCode.START_AGAIN in codes:
            group.pass_on()
            for death in group.deaths(self._clock.monotonic()):
                if classify(death, of_device(self._job.signatures, "")).name in _NOT_ASKED_FOR:
                    codes[death.rank - group.first] = 1
        return codes

    def _look_at_nodes(self, group: Group) -> Cause | None:
        """A cause to end the attempt for; or let the workers leave, if a restart is due."""
        health_monitor = self._failures.health_monitor
        if health_monitor is None or self._stop is not None or self._leaving:
            return None
        found = health_monitor.look()
        if isinstance(found, Drain) and self._drain is None:
            self._drain = found
            self._newest = max(usable_checkpoints(self._job.folder), default=0)
            when = "now" if found.at_once else "at the next checkpoint"
            self._say(f"a restart {when}: {found.reason}")
        if self._drain is not None and group.steps_made:
            newest = max(usable_checkpoints(self._job.folder), default=0)
            if self._drain.at_once or newest > self._newest:
                self._leaving = True
                group.send(signal.SIGTERM)
        return found if isinstance(found, Cause) else None

    def _wait(self, seconds: Seconds) -> bool:
        """Let time pass while no worker runs; False if somebody wants the run to stop meanwhile."""
        deadline = self._clock.monotonic() + seconds
        while True:
            for number in heard(self._signals):
                if number == PAUSE:
                    self._pause()
                else:
                    self._stop, self._stop_requested_at = STOPS[number], self._clock.monotonic()
                    return False
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return True
            self._let_pass(left)

    def _close_groups(self) -> None:
        for group in self._groups.values():
            group.close()
        self._failures.close()


def _passed_on(stop: ExitCode) -> signal.Signals:
    """What workers are sent: a terminal's interrupt, or a scheduler's notice."""
    return signal.SIGINT if stop == ExitCode.INTERRUPTED else signal.SIGTERM
