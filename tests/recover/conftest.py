from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from longhaul.config.load import recipe_from_values, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.recover import RecoverSection
from longhaul.core.records import Decision, Finding, Safe, StepRecord
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.recover.plan import WHO, Plan, Situation

BLOCKS = 8
"""Blocks a step; the block of a step's begin is 8 times the steps before."""


def recipe_of(steps: int = 1000, lr: float = 1e-3, **tables: Any) -> Recipe:
    values = {
        "name": "small",
        "data": {"sources": [{"path": "synthetic"}]},
        "model": {"layers": 2, "heads": 2, "width": 16, "context": 32},
        "batch": {"sequences": BLOCKS},
        "optim": {"lr": lr},
        "train": {"steps": steps},
    }
    return recipe_from_values(values | tables)


def finding_of(kind: str, step: int, first_step: int | None = None, **values: Any) -> Finding:
    first = step if first_step is None else first_step
    defaults: dict[str, Any] = {
        "kind": kind, "severity": "alarm", "attempt": 1, "segment": "1.00", "step": step,
        "first_step": first, "first_draw": (first - 1) * BLOCKS, "time": 0.0,
        "sentence": f"{kind} it is.",
    }  # fmt: skip
    return Finding(**defaults | values)


def safe_at(*steps: int) -> tuple[Safe, ...]:
    return tuple(Safe(step, step * BLOCKS, "memory") for step in steps)


def after(ledger: LedgerState, plan: Plan, step: int, who: str = WHO) -> LedgerState:
    """The ledger once the plan was carried out at a step."""
    data = plan.decision_data(step)
    return fold(
        ledger,
        Decision(
            kind="recover", attempt=1, step=step, time=float(step), who=who, reason="", data=data
        ),
    )


def person_sets(
    ledger: LedgerState, path: str, value: Any, old: Any = None, step: int = 1
) -> LedgerState:
    data = {"path": path, "value": value, "old": old}
    return fold(
        ledger,
        Decision(kind="set", attempt=1, step=step, time=0.0, who="anna", reason="", data=data),
    )


def situation_of(
    step: int, ledger: LedgerState | None = None, recipe: Recipe | None = None, **values: Any
) -> Situation:
    """A situation as it would be in a run; good states every 10 steps unless given."""
    ledger, recipe = ledger or LedgerState(), recipe or recipe_of()
    defaults: dict[str, Any] = {
        "step": step, "draw": step * BLOCKS, "blocks_per_step": BLOCKS, "seconds_per_step": 0.5,
        "settings": with_overrides(recipe, ledger.overrides_at(step)), "ledger": ledger,
        "good": safe_at(*range(0, step, 10)), "gradient_norm": 0.5,
    }  # fmt: skip
    return Situation(**defaults | values)


def under(situation: Situation, limits: RecoverSection, fallback: Any = ()) -> Situation:
    """The same where other limits are in force, and there are plans B."""
    settings = situation.settings.model_copy(update={"recover": limits, "fallback": fallback})
    return replace(situation, settings=settings)


def step_of(step: int, **values: Any) -> StepRecord:
    defaults: dict[str, Any] = {
        "attempt": 1, "segment": "1.00", "step": step, "draw": (step - 1) * BLOCKS,
        "next_draw": step * BLOCKS, "time": 1000.0 + step, "loss": 5.0, "gradient_norm": 0.5,
        "learning_rate": 1e-3, "sequences": BLOCKS, "sequence_length": 32,
        "seconds": {"training": 0.5},
    }  # fmt: skip
    return StepRecord(**defaults | values)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """What tests of the policy are made from."""
    return SimpleNamespace(
        recipe=recipe_of, finding=finding_of, safe=safe_at, after=after, set=person_sets,
        situation=situation_of, step=step_of, under=under, blocks=BLOCKS,
    )  # fmt: skip
