"""A run's journal, read for the efficiency of its device."""

from pathlib import Path

from longhaul.config.load import with_overrides
from longhaul.config.size import known_vocabulary
from longhaul.core.devices import Device, device_of_driver
from longhaul.core.errors import UsageError
from longhaul.core.events import EventKind
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.folder import RunFolder, open_run
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.parallel.layout import layout_for
from longhaul.plan.calibration import Calibration, fitted, measured_step
from longhaul.plan.step_time import Rates, StepModel, element_of


def calibrate(run: str, runs: Path, device: Device, on_cpu: bool) -> Calibration:
    """Fit the efficiency of `device` to the newest steps of `run`.

    UsageError: there is no such run, it ran on another device, it has too few steps, or no
    efficiency explains the time that they took.
    """
    folder = open_run(run, runs)
    records = [one for one in read_journal(folder, steps=True, events=False)
               if isinstance(one, StepRecord)]  # fmt: skip
    step_s, steps = measured_step(records)
    name, count = _hardware(folder)
    _refuse_another_device(folder.name, name, device, on_cpu)
    ledger, _ = load_ledger(folder)
    recipe = with_overrides(read_run_spec(folder).settings(), ledger.overrides_at(records[-1].step))
    element, layout = element_of(recipe, device), layout_for(recipe.parallel, count)
    own = -(-recipe.batch_stages()[-1].sequences // layout.data_size)
    asked = recipe.batch.micro_sequences
    micro = min(own, asked) if isinstance(asked, int) else own
    each = 4 if element in ("fp32", "tf32") else 2
    vocab_size, _ = known_vocabulary(recipe)

    def predict(efficiency: float) -> float:
        rates = Rates.of(device, element, efficiency)
        model = StepModel(recipe, vocab_size, layout, rates, micro, element_bytes=each)
        return model.step_time().total

    efficiency = fitted(predict, step_s)
    if efficiency is None:
        raise UsageError(
            f"--calibrate: no efficiency explains the {step_s:.4g} s of a step of {folder.name} "
            f"on {count} × {device.key}: the roofline gives {predict(1.0):.4g} s at 1",
            "products do not set its time (see `longhaul profile`): calibrate by a larger run",
        )
    return Calibration(device.key, element, efficiency, step_s, steps, folder.name)


def _hardware(folder: RunFolder) -> tuple[str, int]:
    """Name and number of the devices of the last attempt."""
    found = None
    for record in read_journal(folder, steps=False, events=True):
        if isinstance(record, Event) and record.kind == EventKind.ATTEMPT_STARTED:
            found = record.data.get("hardware") or found
    if not found:
        raise UsageError(
            f"--calibrate: the journal of {folder.name} does not name its devices",
            "calibrate by a run of this version",
        )
    return str(found["name"]), int(found["count"])


def _refuse_another_device(run: str, name: str, device: Device, on_cpu: bool) -> None:
    if on_cpu:
        same = name == "cpu"
    else:
        row = device_of_driver(name)
        same = row is not None and row.key == device.key
    if not same:
        raise UsageError(
            f"--calibrate: run {run} trained on {name}, not on {device.key}",
            "calibrate by a run on that device, or plan for this one",
        )
