"""Preflight: real runs of the small twin: left alone, killed and resumed, and read back. They are
`longhaul train` with its supervisor and its workers, so what fails here would have failed there.
"""

import math
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import fmean, median

from longhaul.core.clocks import RealClock, tokens_per_second
from longhaul.core.errors import NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Finding, Record, StepRecord
from longhaul.core.units import short_bytes, short_count
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import resolve_spec, write_run_spec
from longhaul.run.preflight.context import Check, PreflightContext, judged, skipped
from longhaul.store.catalogue import catalogue
from longhaul.store.run_differences import differences, steps_of
from longhaul.supervise.causes import last_message
from longhaul.supervise.run_process import RunProcess

UNDISTURBED = "undisturbed"
_LEARNED = 0.1
"""Nats by which the loss must have fallen from the first tenth of the steps to the last."""
_MASKED_AT_FIRST = 8
"""Updates that a loss scale may hold back until it has found its level: 2^16 down to 2^8."""
_TRIPS = 3
"""Kills in full."""


def check_stretch(context: PreflightContext) -> Iterator[Check]:
    """A run left alone: it learns, nothing is masked, every gauge is a number."""
    with _training(context, UNDISTURBED) as training:
        _end_well(training, context)
    records = list(read_journal(training.folder))
    steps = [record for record in records if isinstance(record, StepRecord)]
    yield _learned(steps, context)
    yield _gauges(steps, context)
    alarms = [r for r in records if isinstance(r, Finding) and r.severity == "alarm"]
    if alarms:
        figure = f"{len(alarms)} alarms; the first at step {alarms[0].step}: {alarms[0].sentence}"
        remedy = "see what raises it before the run is long: `longhaul recipe show` lists settings"
        yield judged("judgement", figure, remedy)
    yield _evaluated(records)


def check_resume(context: PreflightContext) -> Iterator[Check]:
    """A run whose worker is killed and started again ends in the bytes of the one left alone."""
    for trip in range(_TRIPS if context.typed.full else 1):
        with _training(context, f"killed-{trip + 1}") as training:
            folder, at = training.folder, _kill(training, context, trip)
            _end_well(training, context)
        found = differences(RunFolder(context.folder / UNDISTURBED), folder)
        started = _events(read_journal(folder, steps=False), EventKind.ATTEMPT_STARTED)
        resumed = started[-1].data.get("resumed_from") if len(started) > 1 else None
        pairs = pairwise(steps_of(folder))
        lost_s = max((b.time - a.time for a, b in pairs if b.attempt > a.attempt), default=0.0)
        size = sum(checkpoint.size_bytes for checkpoint in catalogue(folder.checkpoints)[-1:])
        figure = (
            f"killed at step {at}, at work again from step {resumed} after {lost_s:.1f} s; "
            f"{found.compared_pieces} pieces of state ({short_bytes(size)}) and "
            f"{found.compared_steps} losses "
        )
        remedy = "" if resumed else "the kill did not strike behind a save; run it again"
        if found.none:
            figure += "byte-identical"
        else:
            some = f": {', '.join(found.pieces[:3])}" if found.pieces else ""
            first = f"; losses differ from step {found.steps[0]}" if found.steps else ""
            figure += f"compared, and {len(found.pieces)} pieces differ{some}{first}"
            remedy = "what differs is not in the checkpoint, or depends on the machine: report it"
        yield judged("resume", figure, remedy, killed_at=at, back_s=lost_s, resumed_from=resumed)


def check_read_back(context: PreflightContext) -> Iterator[Check]:
    """The last checkpoint, opened as `longhaul eval` and `longhaul sample` do."""
    from longhaul.run.trained import open_trained

    folder = RunFolder(context.folder / UNDISTURBED)
    (finished,) = _events(read_journal(folder, steps=False), EventKind.FINISHED)
    trained = open_trained(str(folder.path), context.folder, None)
    again = trained.evaluate()
    before = float(finished.data["loss"])
    apart = abs(again.loss - before) / before
    text = "".join(trained.write(tokens=16))
    figure = (
        f"step {trained.step} opened: validation loss {again.loss:.4f}, apart by {apart:.1e} from "
        f"the run's own; {len(text)} characters written"
    )
    bar = 1e-4 if trained.recipe.precision.compute == "float32" else 1e-2
    remedy = "" if apart <= bar else "what was saved is not what was trained: report it"
    yield judged("read back", figure, remedy, loss=again.loss, apart=apart)


def _training(context: PreflightContext, name: str) -> RunProcess:
    folder = create_run(context.folder / name, RealClock())
    spec = resolve_spec(
        context.typed.recipe, context.twin_options(), None, context.folder / "prepared"
    )
    write_run_spec(folder, spec)
    return RunProcess(folder, ["train", str(folder.path)], folder.path / "said.log")


def _end_well(training: RunProcess, context: PreflightContext) -> None:
    code = training.wait(context.timeout_s)
    if code != 0:
        own = (line for line in training.output.splitlines() if line.startswith("longhaul:"))
        why = next(own, "") or last_message(training.output) or "no output"
        raise NeedsPerson(
            f"the small twin ended with exit code {code}: {why}",
            f"run it again with --keep DIR, and look at DIR/{training.folder.name}/said.log",
        )


def _kill(training: RunProcess, context: PreflightContext, trip: int) -> int:
    """SIGKILL the last rank between two saves; the step that was reached."""
    between = context.steps // 3
    checkpoints = training.folder.checkpoints
    training.wait_until("a save", lambda: bool(catalogue(checkpoints)), context.timeout_s)
    # Between the first save and the second; with more trips, behind the second too.
    training.wait_for_step(between + between // 3 + (trip * between) // 2, context.timeout_s)
    reached, ranks = training.step(), training.ranks()
    if ranks:
        with suppress(ProcessLookupError):
            os.killpg(ranks[max(ranks)], signal.SIGKILL)
    return reached


def _learned(steps: Sequence[StepRecord], context: PreflightContext) -> Check:
    tenth = max(3, len(steps) // 10)
    losses = [step.loss for step in steps if math.isfinite(step.loss)]
    first, last = fmean(losses[:tenth]), fmean(losses[-tenth:])
    masked = [step.step for step in steps if step.masked]
    scaled = steps[0].loss_scale is not None
    allowed = _MASKED_AT_FIRST if scaled else 0
    rate = median([r for s in steps[len(steps) // 2 :] if (r := tokens_per_second(s)) == r] or [0])
    figure = (
        f"{len(steps)} steps, loss {first:.3f} → {last:.3f}, {len(masked)} masked, "
        f"{short_count(rate)} tokens/s on {context.processes} process"
        f"{'es' if context.processes > 1 else ''}"
    )
    if scaled:
        figure += f", loss scale {steps[-1].loss_scale:g} at the end"
    remedy = ""
    if len(masked) > allowed or any(step.loss_scale_at_floor for step in steps):
        remedy = (
            f"loss or gradient was not finite at steps {masked[:5]}: lower optim.lr, or take "
            'precision.compute = "bf16"'
        )
    elif last > first - _LEARNED:
        remedy = (
            "the loss does not fall: look at optim.lr, optim.schedule and the text; "
            "`longhaul data lint` shows it"
        )
    data = {"first": first, "last": last, "masked": len(masked), "tokens_per_s": rate}
    return judged("stretch", figure, remedy, **data)


def _gauges(steps: Sequence[StepRecord], context: PreflightContext) -> Check:
    if not context.recipe.monitor.gauge_interval_steps:
        why = "switched off by monitor.gauge_interval_steps = 0: causes will not be seen"
        return skipped("gauges", why)
    # A masked step's gradient is not finite, and so is what is read of it.
    read = [step for step in steps if step.gauges and not step.masked]
    wrong = {
        name
        for step in read
        for name, values in [*step.gauges.items(), *((n, (v,)) for n, v in step.totals.items())]
        if not all(map(math.isfinite, values))
    }
    names = len(read[-1].gauges) + len(read[-1].totals) if read else 0
    figure = f"{names} gauges read {len(read)} times, "
    figure += f"not finite: {', '.join(sorted(wrong)[:5])}" if wrong else "all finite"
    fine = bool(read) and not wrong
    remedy = "" if fine else "a recipe that is not finite when small will not be when large"
    return judged("gauges", figure, remedy, gauges=names, not_finite=sorted(wrong))


def _evaluated(records: Sequence[Record]) -> Check:
    losses = [float(event.data["loss"]) for event in _events(records, "evaluation")]
    sample = "".join(str(event.data.get("sample") or "") for event in _events(records, "finished"))
    fine = bool(losses) and all(math.isfinite(loss) for loss in losses)
    last = losses[-1] if losses else math.nan
    figure = f"{len(losses)} evaluations, loss {last:.3f} at the end; "
    figure += f"{len(sample)} characters written" if sample else "no sample requested"
    remedy = "" if fine else "validation loss is no number: look at data.held_out and the text"
    return judged("evaluation", figure, remedy, losses=losses)


def _events(records: Iterable[Record], kind: str) -> list[Event]:
    return [r for r in records if isinstance(r, Event) and r.kind == kind]
