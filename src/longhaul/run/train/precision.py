"""Number formats where longhaul chooses them: measured once, at a run's first start, for
`precision.compute = "auto"` and for `optim.muon.newton_schulz = "auto"`; kept in the ledger.

Enters: an attempt that is about to build. Leaves: its recipe with formats by name, and a decision
in the ledger where one was due. Never knows: how a device is timed.
"""

from typing import Any

import torch

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.events import EventKind
from longhaul.logbook.ledger import LedgerState, Override
from longhaul.parallel.device import torch_facts
from longhaul.run.train.attempt import Attempt
from longhaul.train.precision import Choice, fastest_format

COMPUTE, TF32, NEWTON_SCHULZ = "precision.compute", "precision.tf32", "optim.muon.newton_schulz"
_PATHS = (COMPUTE, TF32, NEWTON_SCHULZ)
_WHO = "longhaul"
"""Signs what was measured; a decision of anybody else is left alone."""
_SAME_MACHINE = ("device", "gpu", "cpu_capability")
"""Facts of torch that tell two kinds of device apart."""


def settle_precision(attempt: Attempt, device: torch.device) -> Recipe:
    """See to it that formats are named before anything is built from them.

    What was found at the first start stays on every other machine, which says so if it would
    choose otherwise: another format gives other bits. A run begun without such a choice, by an
    earlier longhaul, keeps the format it trained in. A format in the recipe is a person's newer
    word and ends the choice; `auto` after that takes it up again.

    Returns:
        The attempt's recipe with the formats in force.

    Raises:
        LedgerError: the decision could not be written.
    """
    recipe = attempt.recipe
    _withdraw(attempt)
    measured: Choice | None = None
    if recipe.precision.compute == "auto" and _in_force(attempt, COMPUTE) is None:
        measured = _begin(attempt, device)
    elif recipe.precision.compute == "auto":
        _compare(attempt, device)
    muon = recipe.optim.name == "muon" and recipe.optim.muon.newton_schulz == "auto"
    if muon and not attempt.history.begun and _in_force(attempt, NEWTON_SCHULZ) is None:
        measured = measured or fastest_format(device, recipe)
        products = "bf16" if measured.format.compute == "bf16" else "float32"
        _decide(attempt, NEWTON_SCHULZ, products, measured.reason, "auto")
    return with_formats(recipe, attempt.run_log.ledger.state)


def with_formats(recipe: Recipe, ledger: LedgerState) -> Recipe:
    """A recipe with the formats that were found for it in place of `auto`."""
    found = {path: ledger.override_at(path, 0) for path in _PATHS}
    return with_overrides(recipe, {path: item.value for path, item in found.items() if item})


def measured_recipe(recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Settings that `auto` would be on this device, without a run."""
    if recipe.precision.compute != "auto":
        return {}
    chosen = fastest_format(device, recipe).format
    return {COMPUTE: chosen.compute} | ({TF32: True} if chosen.tf32 else {})


def _begin(attempt: Attempt, device: torch.device) -> Choice | None:
    """Decide what computes from now on; None if nothing had to be measured."""
    state, last = attempt.run_log.ledger.state, attempt.history.last_segment
    if earlier := state.withdrawn.get(COMPUTE):
        _decide(attempt, COMPUTE, earlier.value, earlier.reason, "auto")
        return None
    before = (last.settings.get("precision") or {}).get("compute") if last else None
    if before in ("float32", "bf16"):
        _decide(attempt, COMPUTE, before, f"the run has trained in {before} so far", "auto")
        attempt.view.say(f"precision: {before}, in which this run has trained so far")
        return None
    choice = fastest_format(device, attempt.recipe)
    _decide(attempt, COMPUTE, choice.format.compute, choice.reason, "auto")
    if choice.format.tf32:
        _decide(attempt, TF32, True, choice.reason, attempt.recipe.precision.tf32)
    attempt.view.say(f"precision: {choice.format}; {choice.reason}")
    return choice


def _compare(attempt: Attempt, device: torch.device) -> None:
    """Say so if another machine than the last one would have chosen otherwise."""
    in_force, last = _in_force(attempt, COMPUTE), attempt.history.last_segment
    if in_force is None or last is None:
        return
    before, now = last.fingerprint.get("torch") or {}, torch_facts(device)
    if all(before.get(name) == now.get(name) for name in _SAME_MACHINE):
        return
    choice = fastest_format(device, attempt.recipe)
    if choice.format.compute == in_force.value:
        return
    text = (
        f"this machine would compute in {choice.format} ({choice.reason}); the run keeps "
        f"{in_force.value}, in which it began"
    )
    attempt.view.say(f"precision: {text}")
    step = attempt.history.steps_made
    attempt.run_log.emit(
        EventKind.PRECISION_KEPT, step, kept=in_force.value, here=str(choice.format), text=text
    )


def _withdraw(attempt: Attempt) -> None:
    """Formats that the recipe names itself now are no longer ours to choose."""
    recipe = attempt.recipe
    compute, newton_schulz = recipe.precision.compute, recipe.optim.muon.newton_schulz
    for path, asked in ((COMPUTE, compute), (TF32, compute), (NEWTON_SCHULZ, newton_schulz)):
        in_force = _in_force(attempt, path)
        if asked != "auto" and in_force is not None and in_force.who == _WHO:
            attempt.run_log.decide(
                "unset", attempt.history.steps_made, {"path": path, "old": in_force.value},
                who=_WHO, reason=f"the recipe asks for {asked} now",
            )  # fmt: skip


def _in_force(attempt: Attempt, path: str) -> Override | None:
    return attempt.run_log.ledger.state.override_at(path, 0)


def _decide(attempt: Attempt, path: str, value: object, reason: str, old: object) -> None:
    data = {"path": path, "value": value, "old": old}
    attempt.run_log.decide("set", attempt.history.steps_made, data, who=_WHO, reason=reason)
