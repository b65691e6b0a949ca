"""`longhaul drill RECIPE`: what a recipe's run would survive, tried out.

Real processes train the recipe for a while in a folder of its own, once as a baseline and once with
faults. Faults in numbers get a third run, so that the second can be compared byte by byte.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.config.load import as_toml, load_recipe
from longhaul.config.recipe import Recipe
from longhaul.config.size import shrunken
from longhaul.config.train import UNWATCHED
from longhaul.core.clocks import RealClock
from longhaul.core.errors import NeedsPerson, UsageError
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.drilled_run import DrilledRun, Verdict, drilled_run, judge_run, set_up_run
from longhaul.run.drill.fault import KINDS, Fault, check_faults, parse_fault
from longhaul.run.drill.soak import Soak, injections, kinds_for

Report = Callable[[str], None]
_STEPS = 200
"""Steps of a drill, unless the recipe asks for fewer or a person for another number."""
_SAVES = 6
"""At least so many saves and comparisons a run: between them lies what a fault costs."""
_LEAST_STEPS = 20
_PACE_STEPS = 30
"""Of a short run, from which the length of a soak's is worked out."""
_AFTER_A_FAULT_S: Seconds = 3.0
"""Beside a start: until a fault is noticed, and steps made again."""
_SPARE = 1.15
"""A soak's run is made so much longer than is expected to pass, or it might end before its time."""
_PROCESSES = 2
"""Unless the recipe has more: with one there are no others that must notice."""
_RUNS = ("undisturbed", "disturbed", "numbers", "pace", "soaked")


@dataclass(frozen=True)
class Typed:
    """What was typed."""

    recipe: str
    faults: tuple[str, ...] = ()
    nproc: int | None = None
    sets: tuple[str, ...] = ()
    data: str | None = None
    small: bool = False
    steps: int | None = None
    soak_s: Seconds | None = None
    mtbf_s: Seconds = 20.0
    seed: int = 0
    trust: bool = False
    """Run the commands that the recipe names, as for `longhaul train`."""


@dataclass(frozen=True)
class _Plan:
    typed: Typed
    nproc: int
    sets: tuple[str, ...]
    settings: Recipe
    folder: Path

    def set_up(self, name: str) -> RunFolder:
        typed = self.typed
        return set_up_run(
            typed.recipe, self.folder, name, nproc=self.nproc, sets=self.sets, data=typed.data,
            trust=typed.trust,
        )  # fmt: skip

    def undisturbed(self, name: str) -> DrilledRun:
        """A run without faults; NeedsPerson if it did not finish."""
        run = drilled_run(self.set_up(name), ())
        if run.exit_code != 0:
            raise NeedsPerson(
                f"without faults the run ended with exit code {run.exit_code}",
                f"mend that first, there is nothing to drill before; its output is in {run.output}",
            )
        return run


def drill_recipe(typed: Typed, folder: Path, report: Report) -> list[Verdict]:
    """Run a drill in `folder`; a verdict on each run with faults. RecipeError or UsageError if
    something typed is wrong: nothing was started; NeedsPerson if a run did not end.
    """
    if there := [name for name in _RUNS if RunFolder(folder / name).exists]:
        raise UsageError(
            f"{folder / there[0]}: a run of another drill",
            "give a folder that holds none: --keep DIR",
        )
    if typed.soak_s is not None:
        return [_soak(typed, typed.soak_s, folder, report)]
    plan = _plan(typed, typed.steps, folder)
    faults = [parse_fault(text) for text in typed.faults] or standard_faults(plan.settings)
    check_faults(faults, plan.settings)
    baseline = _baseline(plan, report)
    families = {
        "disturbed": [fault for fault in faults if fault.known.harm != "numbers"],
        "numbers": [fault for fault in faults if fault.known.harm == "numbers"],
    }
    verdicts = []
    for name, family in families.items():
        if family:
            report(f"{name}: {' '.join(map(str, family))}")
            run = drilled_run(plan.set_up(name), family)
            verdicts.append(_judged(run, baseline, family, report))
    return verdicts


def standard_faults(settings: Recipe) -> list[Fault]:
    """The faults of a drill unless some are given: those that long runs meet most often."""
    steps, last = settings.total_steps() or _STEPS, settings.machine.processes - 1
    shares = [
        (f"kill@rank{last}", 0.15),
        ("preempt@rank0", 0.3),
        (f"stop@rank{last}", 0.4),
        ("torn-write@rank0", 0.5),
        # Found out when it is read: at the restart that follows.
        ("bitflip-file@rank0", 0.75),
        ("kill@rank0", 0.75),
        ("supervisor-kill@rank0", 0.85),
        ("nan@rank0", 0.5),
    ]
    if settings.checkpoint.remote:
        shares.append(("store-gone@rank0", 0.55))
    return [parse_fault(f"{what}:step{max(2, round(share * steps))}") for what, share in shares]


def _plan(typed: Typed, steps: int | None, folder: Path) -> _Plan:
    """The recipe with what a drill changes about it: it is short and saves often."""
    twin: tuple[str, ...] = ()
    if typed.small:
        whole = load_recipe(typed.recipe, typed.sets, typed.data).recipe
        twin = shrunken(whole, own_data=typed.data is not None)
    given = load_recipe(typed.recipe, (*twin, *typed.sets), typed.data).recipe
    own = tuple(option for option in typed.sets if not option.startswith("train."))
    total = given.total_steps() or _STEPS
    length = steps or (total if own != typed.sets else min(total, _STEPS))
    if length < _LEAST_STEPS:
        raise UsageError(
            f"a run of {length} steps is over before a fault can act",
            f"give it {_LEAST_STEPS} or more with --steps",
        )
    # As one table: a limit in hours or tokens must not stay behind.
    sizes = [f"train={{steps={length}}}"]
    if given.optim.schedule.warmup_steps > length // 2:
        sizes.append(f"optim.schedule.warmup_steps={length // 10}")
    interval = given.checkpoint.interval_steps
    if interval == "auto" or not 0 < interval <= length // _SAVES:
        sizes.append(f"checkpoint.interval_steps={max(1, length // _SAVES)}")
    looks = {"hash_every": given.monitor.hash_every, "witness_every": given.monitor.witness_every}
    sizes += [f"monitor.{name}={length // _SAVES}" for name, every in looks.items()
              if every > length // _SAVES]  # fmt: skip
    sizes += [f"{path}={as_toml(value)}" for path, value in UNWATCHED.items()]
    processes = typed.nproc or max(given.machine.processes, _PROCESSES)
    if given.supervise.node:
        processes = sum(node.slots for node in given.supervise.node if not node.spare)
    sets = (*twin, *sizes, *own)
    options = (f"machine.processes={processes}", *sets)
    settings = load_recipe(typed.recipe, options, typed.data).recipe
    return _Plan(typed, processes, sets, settings, folder)


def _baseline(plan: _Plan, report: Report) -> DrilledRun:
    run = plan.undisturbed("undisturbed")
    report(
        f"undisturbed: {plan.settings.total_steps()} steps by {plan.nproc} processes in "
        f"{short_seconds(run.seconds)}, validation loss {run.loss:.4f}"
    )
    return run


def _judged(
    run: DrilledRun, baseline: DrilledRun, faults: Sequence[Fault], report: Report
) -> Verdict:
    verdict = judge_run(run, baseline, faults)
    for line in verdict.lines():
        report(line)
    return verdict


def _soak(typed: Typed, soak_s: Seconds, folder: Path, report: Report) -> Verdict:
    plan = _plan(typed, typed.steps or _PACE_STEPS, folder)
    kinds = _kinds(typed.faults, plan.settings)
    if typed.steps is None:
        plan = _plan(typed, _steps_in(soak_s, plan, report), folder)
    baseline = _baseline(plan, report)
    soaked = plan.set_up("soaked")
    ahead = injections(typed.seed, typed.mtbf_s, kinds, plan.nproc)
    steps = plan.settings.total_steps()
    assert steps is not None
    soak = Soak(soaked, ahead, RealClock(), soak_s, steps)
    report(
        f"soak of {short_seconds(soak_s)}, seed {typed.seed}, a fault every "
        f"{short_seconds(typed.mtbf_s)} of training on average: {', '.join(kinds)}"
    )
    run = drilled_run(soaked, (), meanwhile=soak, most_s=4 * soak_s + 600)
    return _judged(run, baseline, soak.laid, report)


def _kinds(names: Sequence[str], settings: Recipe) -> tuple[str, ...]:
    """Kinds to draw from; UsageError where one is no kind, or none that the run can have."""
    for name in names:
        if name not in KINDS:
            where = " (a soak chooses places itself)" if name.partition("@")[0] in KINDS else ""
            there = f"there are: {', '.join(KINDS)}"
            raise UsageError(f"--fault {name}: no fault's name{where}", there)
    check_faults((Fault(name, rank=0) for name in names), settings)
    return tuple(names) or kinds_for(bool(settings.checkpoint.remote))


def _steps_in(soak_s: Seconds, plan: _Plan, report: Report) -> int:
    """Steps that a run with faults makes in so much time, estimated from a short one."""
    short = plan.undisturbed("pace")
    steps = [record for record in short.records if isinstance(record, StepRecord)]
    step_s = (steps[-1].time - steps[0].time) / (len(steps) - 1)
    start_s = sum(short.spent.get(bucket, 0.0) for bucket in ("prepare", "start-up"))
    mtbf_s = plan.typed.mtbf_s
    training = mtbf_s / (mtbf_s + start_s + _AFTER_A_FAULT_S)
    wanted = max(_PACE_STEPS, round(_SPARE * soak_s * training / step_s))
    report(f"pace: {step_s:.3f} s a step, {short_seconds(start_s)} a start: {wanted:,} steps")
    return wanted
