"""Parts of the training state that begin anew: an optimizer that is swapped, state that is reset.

Enters: a live step, the position, what the ledger asks for. Leaves: fresh state where the live one
was, and what was done, in words of the journal. Never knows: who asked, or why.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longhaul.checkpoint.capture import Stateful
from longhaul.config.optim import OptimSection
from longhaul.logbook.ledger import Reset
from longhaul.optim.update_rules import OPTIMIZERS, build_optimizer
from longhaul.train.state import Progress, Rewarm, training_state
from longhaul.train.step import TrainingStep

Told = tuple[str, dict[str, object]]
"""Kind and data of an event."""


def fit_optimizer(step: TrainingStep, settings: OptimSection) -> Told | None:
    """Put the update rule that `settings` name in the place of another one, with fresh state."""
    old = step.optimizer.name
    if old == settings.name:
        return None
    step.before_change()
    del step.optimizer  # its memory is wanted for the new one
    sharding = None if step.parallel is None else step.parallel.sharding
    step.optimizer = build_optimizer(step.model, settings, sharding)
    return "optimizer-swapped", {"old": old, "new": settings.name, "state": "fresh"}


def parts_for(
    step: TrainingStep, progress: Progress, facts: Mapping[str, Any]
) -> dict[str, Stateful]:
    """The parts to restore a state with these facts into.

    The update rule must be the one whose state it is, even if the settings in force name another:
    the trainer swaps them when it begins, and says so.
    """
    step.before_change()
    of_optimizer = facts.get("optim")
    name = of_optimizer.get("name") if isinstance(of_optimizer, Mapping) else None
    if isinstance(name, str) and name in OPTIMIZERS:
        fit_optimizer(step, progress.settings.optim.model_copy(update={"name": name}))
    return training_state(step, progress)


def do_reset(step: TrainingStep, progress: Progress, reset: Reset) -> Told:
    """Throw away what `reset` names. A training state remembers it, so that one that is restored
    from before does it again, and one from after does not (DESIGN rule 1).
    """
    step.before_change()
    if "optimizer" in reset.what:
        step.optimizer.reset()
    if "loss-scale" in reset.what and step.loss_scale is not None:
        step.loss_scale.reset()
    if "data" in reset.what:
        progress.position = replace(progress.position, draw=0)
    if reset.rewarm_steps:
        progress.rewarm = Rewarm(progress.position.step, reset.rewarm_steps)
    progress.resets_done = reset.number
    return "state-reset", {
        "number": reset.number,
        "what": list(reset.what),
        "rewarm_steps": reset.rewarm_steps,
    }
