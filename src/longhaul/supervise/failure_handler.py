"""What a supervisor makes of a failure: its cause, what follows, and what is written down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from longhaul.config.recover import SuperviseSection
from longhaul.core.errors import ExitCode
from longhaul.core.events import EventKind
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.causes import LATELY_S, Cause, Signature, kernel_lines, of_device
from longhaul.supervise.ends import (
    End,
    cause_of_death,
    cause_of_hang,
    ended,
    tell_failure,
    tell_replica_lost,
)
from longhaul.supervise.history import SupervisedRun, failures, unaccounted, usable_checkpoints
from longhaul.supervise.nodes.answer import (
    SILENT_CORRUPTION,
    accused,
    counted_remedy,
    distrusted,
    on_one_machine,
)
from longhaul.supervise.nodes.fleet import Fleet
from longhaul.supervise.nodes.health_monitor import Drain, NodeHealthMonitor
from longhaul.supervise.nodes.history import newest_corrupt
from longhaul.supervise.nodes.placement import NodePlan
from longhaul.supervise.nodes.qualify import Wait, probe_here
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.replicas import LEADER, Replicas
from longhaul.supervise.restart import Failure, Plan, next_plan, without_progress
from longhaul.supervise.sidecars import Sidecars


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
    each: int | None = None
    """Processes of one replica, where replicas come and go; None: all are one group."""
    sidecars: Sidecars | None = None
    """What runs beside, if anything."""


class FailureHandler:
    """Handles the failures of one run; the first attempt counts from the Unix time `began`."""

    def __init__(
        self,
        job: Job,
        run: SupervisedRun,
        began: Seconds,
        fleet: Fleet | None,
        wait: Wait,
    ) -> None:
        self._job, self._run, self._fleet, self._wait = job, run, fleet, wait
        self.began = began
        """Unix time from which the next attempt counts."""
        self.replicas: Replicas | None = None
        self.health_monitor: NodeHealthMonitor | None = None
        self._lost: list[Failure] = []
        """Deaths of other replicas than the leader."""

    def handle(
        self,
        number: int,
        group: Group,
        end: End,
        stop: Callable[[], ExitCode | None],
        others: Sequence[Group],
    ) -> Plan:
        """Find the cause of a failure, decide what follows, and write both down.

        `number`: of the replica, the leader's where there is but one group. `group`: closed here.
        `others`: those that train on.
        """
        run, step, leads = self._run, group.step, number == LEADER
        folder, attempt, now = run.folder, run.lease.attempt, run.clock.wall()
        cause = self._cause(group, end)
        codes = group.exit_codes
        group.close()
        before, usable = (
            (failures(folder), usable_checkpoints(folder)) if leads else (self._lost, {})
        )
        corrupt = leads and cause.name == SILENT_CORRUPTION
        verdict = newest_corrupt(folder, attempt) if corrupt else None
        cause = accused(cause, verdict)
        code = codes[cause.rank - group.first] if cause.rank is not None else None
        if self._fleet is None:
            cause = on_one_machine(cause, verdict, before, now)
        unfit = self._unfit(cause)
        if verdict is not None:
            for checkpoint in distrusted(list(usable), verdict):
                run.poison(checkpoint, usable.pop(checkpoint), step or 0, verdict.reason)
        judged = self._fleet.judge(cause, step, verdict) if self._fleet is not None else None
        cordoned = next(iter(judged[1]["cordoned"]), "") if judged is not None else ""
        remedy = counted_remedy(cause, others=self._fleet is not None)
        failure = Failure(cause.name, remedy, step, now, cordoned=cordoned)
        counted: Sequence[Failure] = [*before, failure]
        if self.replicas is not None:
            cause = replace(cause, rank=number)
            self.replicas.lost(number, run.clock.monotonic())
            # Deaths that training went on after cost seconds each, and may come for ever.
            counted = without_progress(counted)
        plan = next_plan(counted, list(usable), code or 0, self._job.settings)
        if unfit and plan.restart:
            plan = Plan(False, f"{plan.reason}, and this machine has not passed a probe: {unfit}")
        wanted = stop()
        if wanted is not None and not any(other.steps_made for other in others):
            plan = Plan(False, f"{cause.name}, while stopping", exit_code=wanted)
        if plan.poison is not None:
            run.poison(plan.poison, usable[plan.poison], step or 0, plan.reason)
        data = ended(cause, plan, cause.rank, codes, step)
        data |= judged[1] if judged else {}
        if leads:
            seconds = unaccounted(folder, attempt, self.began, run.clock.wall())
            self.began = run.emit(EventKind.ATTEMPT_ENDED, step or 0, seconds, **data).time
        else:
            run.emit(EventKind.REPLICA_LOST, step or 0, **data)
            self._lost.append(failure)
        if self.replicas is not None:
            tell_replica_lost(run.say, cause, plan, sum(bool(o.running) for o in others))
        else:
            times = sum(earlier.cause == cause.name for earlier in counted)
            tell_failure(run.say, group, cause, plan, times)
        if self._fleet is not None and judged is not None:
            self._fleet.carry_out(judged[0], cause)
        return plan

    def _cause(self, group: Group, end: End) -> Cause:
        if end.cause is not None:
            return end.cause
        if end.hang is not None:
            cause = cause_of_hang(group, end.hang)
        else:
            known = of_device(self._job.signatures, self._job.device())
            cause = cause_of_death(group, known, lambda: self._kernel(group))
        return (self._fleet.gone_of(self._wait) if self._fleet is not None else None) or cause

    def _kernel(self, group: Group) -> list[str]:
        """By rank, its kernel's messages of this attempt, lately."""
        if self._fleet is None or self._fleet.world is None or self.health_monitor is None:
            since = max(group.began, self._run.clock.monotonic() - LATELY_S)
            lines = point(Point.KERNEL_LOG, kernel_lines(since), since=since, node="")
            return ["\n".join(lines)] * len(group.workers)
        world = self._fleet.world
        said = {m.name: "\n".join(self.health_monitor.messages(m)) for m in world.machines}
        return [said[world.machine_of(rank).name] for rank in range(world.layout.size)]

    def _unfit(self, cause: Cause) -> str:
        """Why this machine, where there is no other, fails the probe that the cause asks for."""
        if self._fleet is not None or self.replicas is not None or cause.remedy != "probe":
            return ""
        probe = probe_here(self._job.folder.workers, self._job.processes, self._wait)
        return "" if probe is None or probe.passed else probe.reason

    def record_drain(self, group: Group, drain: Drain) -> Plan:
        """Write down why all are started again although nothing had failed."""
        assert self._fleet is not None
        run = self._run
        seconds = unaccounted(run.folder, run.lease.attempt, self.began, run.clock.wall())
        data = self._fleet.drain(drain.node) | {"reason": drain.reason}
        self.began = run.emit(EventKind.NODE_DRAINED, group.step or 0, seconds, **data).time
        return Plan(True, drain.reason)

    def close(self) -> None:
        """Nobody looks after the nodes any more."""
        if self.health_monitor is not None:
            self.health_monitor.close()
            self.health_monitor = None
