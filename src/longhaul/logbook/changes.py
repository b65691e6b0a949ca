"""What has changed about a run lately, by hand or by the policy: the first suspects for a sign.

A change holds at a step of the course that the run stands on. Who goes back behind it without
undoing it brings it along: from there on it holds, so that its step moves back with the run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from longhaul.core.records import Decision
from longhaul.core.units import Seconds

How = Literal["set", "fork", "restart", "raise"]
"""`set`, `fork`: asked of a live run. `restart`: found when an attempt began. `raise`: a step back
up of a learning rate that the policy had lowered."""
SWAP = "optim.name"
"""The setting that another optimizer comes with."""
Pairs = Mapping[str, tuple[Any, Any]]
"""Dotted path → (before, since)."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something about a run that is not as it was before."""

    how: How
    step: int
    """Updates made when it came into force."""
    who: str
    time: Seconds
    """0 for what the policy changed: judged again it decides the same, at another hour."""
    settings: Pairs = field(default_factory=dict)
    surroundings: Pairs = field(default_factory=dict)
    """Software, machine, threads and ranks: what no decision can take back."""
    resets: tuple[int, ...] = ()
    """Numbers of the resets it came with."""
    renews: bool = False
    """It threw optimizer state away: a state that was kept at its very step may lack it already."""
    scheduled: bool = False
    """It was asked for before its step, and holds from there on whatever is gone back behind."""

    def as_data(self) -> dict[str, Any]:
        """For `Decision.data`."""
        return {
            "how": self.how,
            "step": self.step,
            "who": self.who,
            "time": self.time,
            "settings": {path: list(pair) for path, pair in self.settings.items()},
            "surroundings": {path: list(pair) for path, pair in self.surroundings.items()},
            "resets": list(self.resets),
        }


def after_decision(
    changes: tuple[Change, ...], decision: Decision, resets: int
) -> tuple[Change, ...]:
    """The changes that the run stands on after one more decision, the last of `resets` its own."""
    data, step = decision.data, decision.step

    def made(how: How, at: int, settings: Pairs, **more: Any) -> Change:
        who, when = decision.who, 0.0 if how == "raise" else decision.time
        return Change(how=how, step=at, who=who, time=when, settings=settings, **more)

    if decision.kind == "set" and data.get("old") is not None:
        begins = max(step, decision.from_step)
        pair = {str(data["path"]): (data["old"], data["value"])}
        more = {"scheduled": begins > step, "renews": SWAP in pair}
        return (*changes, made("set", begins, pair, **more))
    if decision.kind == "restart":
        settings, surroundings = _pairs(data.get("settings")), _pairs(data.get("surroundings"))
        changes = gone_back(changes, step)
        if not settings and not surroundings:
            return changes
        return (*changes, made("restart", step, settings, surroundings=surroundings))
    if decision.kind != "recover":
        return changes
    undone = data.get("undo", ())
    changes = without(changes, undone)
    if any(change["how"] == "raise" for change in undone):
        # The rates before held for a while: if the sign returns, it is no matter of one raise more.
        changes = tuple(change for change in changes if change.how != "raise")
    if back := data.get("rollback"):
        step = int(back["to"])
        changes = gone_back(changes, step)
    old = data.get("old", {})
    pairs = {path: (old.get(path), value) for path, value in data.get("set", {}).items()}
    if "raise-lr" in data["actions"]:
        return (*changes, made("raise", step, pairs))
    if "fork" in data["actions"] and (pairs or data.get("reset")):
        numbers = (resets,) if data.get("reset") else ()
        renews = not back and (SWAP in pairs or bool(numbers))
        return (*changes, made("fork", step, pairs, resets=numbers, renews=renews))
    return changes


def gone_back(changes: Iterable[Change], step: int) -> tuple[Change, ...]:
    """The same after going back to the state after `step` updates."""
    return tuple(
        change
        if change.scheduled or change.step <= step
        else replace(change, step=step, renews=False)
        for change in changes
    )


def without(changes: Iterable[Change], undone: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Those that are not among these, which `Change.as_data` gave."""

    def identity(data: Mapping[str, Any]) -> list[Any]:
        return [data[key] for key in ("how", "who", "time", "settings")]

    gone = [identity(data) for data in undone]
    return tuple(change for change in changes if identity(change.as_data()) not in gone)


def as_far(before: Any, once: Any, new: Any) -> bool:
    """Whether a value lies at least as far from `before` as `once` did, on the same side."""
    if new == once:
        return True
    numbers = (before, once, new)
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        return False
    return bool(new >= once > before or new <= once < before)


def _pairs(data: Any) -> dict[str, tuple[Any, Any]]:
    return {str(path): (old, new) for path, (old, new) in (data or {}).items()}
