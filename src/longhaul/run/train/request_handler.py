"""Requests become decisions, or are refused; each is answered once, whatever dies in between."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from longhaul.config.load import value_at
from longhaul.config.recipe import Recipe
from longhaul.core.errors import NotOwner, RecipeError
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Decision, Event, Safe, StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.ledger import LedgerError
from longhaul.logbook.requests import (
    Arguments,
    Fork,
    Note,
    Refused,
    Request,
    RollBack,
    Set,
    Skip,
    Stop,
    arguments_of,
    changed_recipe,
    pending,
    refuse,
    refuse_resets,
    settle,
)
from longhaul.logbook.run_log import RunLog
from longhaul.train.rollback import Recovery
from longhaul.train.trainer import Trainer

_LOOK_EVERY_S: Seconds = 0.5
"""On a network file system each look is a round trip."""

Granting = Generator[StepRecord | Event, None, str]
"""The records that come to light while a request is granted; in the end, what was done."""


@dataclass(eq=False)
class RequestHandler:
    """Answers requests at step boundaries."""

    _run_log: RunLog
    _trainer: Trainer
    _recovery: Recovery
    _say: Say
    _seconds_per_step: Callable[[], Seconds]
    """Those of a typical step, as of late: the price of going back."""
    stop_reason: str | None = field(default=None, init=False)
    """Why somebody asked the run to stop; None if nobody did."""
    _looked: Seconds = field(default=-1e9, init=False)

    def __post_init__(self) -> None:
        self._done = set(self._run_log.history.done_requests)

    def answer(self) -> Iterator[StepRecord | Event]:
        """Answer what was asked since the last look, at a step boundary, as the records are taken
        that come to light before a rollback, and of saves after it.
        """
        now = self._run_log.clock.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        asked = pending(self._run_log.folder, self._done)
        if asked and not self._run_log.lease.is_ours():
            raise NotOwner("another attempt has taken this run over; this one ends")
        for request in asked:
            try:
                yield from self._answer(request)
            except LedgerError as error:
                # Nothing was changed, and the request stays: the disk may have space later.
                self._say(f"WARNING: {error}")

    def _answer(self, request: Request) -> Iterator[StepRecord | Event]:
        """Grant a request, or refuse it; either way it is journalled before its file goes."""
        run_log = self._run_log
        try:
            done = yield from self._grant(request, arguments_of(request))
        except (Refused, LedgerError, RecipeError) as refusal:
            if isinstance(refusal, LedgerError) and isinstance(refusal.__cause__, OSError):
                raise
            run_log.emit_durably(
                EventKind.REQUEST_REFUSED,
                self._trainer.position.step,
                request=request.id,
                asked=request.kind,
                who=request.who,
                reason=str(refusal),
            )
            refuse(run_log.folder, request, str(refusal))
            # Who asked a resting run has heard only that it was asked.
            self._say(f"refused: {request.kind}, asked by {request.who}: {refusal}")
        except (AttributeError, LookupError, TypeError, ValueError):
            # A defect of ours, which must surface, but not at every start from now on.
            refuse(run_log.folder, request, "it failed; what the run printed shows how")
            raise
        else:
            settle(run_log.folder, request)
            why = f": {request.reason}" if request.reason else ""
            step = self._trainer.position.step
            self._say(f"step {step:>6}  {done}, as {request.who} asked{why}")
        self._done.add(request.id)

    def _grant(self, request: Request, arguments: Arguments) -> Granting:
        step = self._trainer.position.step
        match arguments:
            case Note(text):
                if not text.strip():
                    raise Refused("a note without a word says nothing")
                data = {"request": request.id, "text": text, "who": request.who}
                self._run_log.emit_durably(EventKind.NOTE, step, **data)
                return f"note {text!r} written"
            case Set():
                return self._set(request, arguments)
            case Skip(begin, end):
                self._trainer.apply(self._decide(request, step, {"begin": begin, "end": end}))
                return f"data from draw {begin} to {end} will be skipped"
            case RollBack(to):
                return (yield from self._roll_back(request, to))
            case Fork():
                return (yield from self._fork(request, arguments))
            case Stop():
                if not self._is_asked_of_this_owner(request):
                    raise Refused("asked of an earlier attempt, which has ended")
                self._decide(request, step, {})
                self.stop_reason = request.reason or f"{request.who} asked"
                return "stopping"
            case _:
                assert_never(arguments)

    def _is_asked_of_this_owner(self, request: Request) -> bool:
        """Whether it was asked since the lease was taken, over however many attempts of it."""
        lease = self._run_log.lease
        if request.attempt is None:
            return request.time >= lease.since
        return lease.held_at(request.attempt)

    def _set(self, request: Request, asked: Set) -> str:
        path, value, step = asked.path, asked.value, self._trainer.position.step
        changed, begin = {path: value}, max(step, asked.from_step)
        settings = self._changed(request, changed, begin, asked.force)
        again = self._trainer.ledger.undone(path, value) is not None
        old = value_at(self._trainer.settings.model_dump(mode="json"), path)
        data = {"path": path, "value": value, "old": old}
        decision = self._decide(request, step, data, asked.from_step)
        if asked.from_step <= step:
            reason = request.reason or f"set {path}"
            self._trainer.enter(self._recovery.open_segment(settings, reason))
        self._trainer.apply(decision)
        self._run_log.emit(EventKind.SETTINGS_READ_BACK, step, live=self._trainer.live_settings())
        later = f" from step {asked.from_step} on" if asked.from_step > step else ""
        insisted = "; it was undone once and will not be again" if again else ""
        return f"{path} {old!r} → {value!r}{later}{insisted}"

    def _roll_back(self, request: Request, wanted: int) -> Granting:
        step = self._trainer.position.step
        if wanted >= step:
            raise Refused(f"step {wanted}: the run stands at step {step}; nothing to go back to")
        to = self._state_for(wanted)
        data = self._recover_data("rollback", step, to, request)
        reason = request.reason or f"rolled back to step {to.step} by {request.who}"
        yield from self._recovery.carry_out(data, to, who=request.who, reason=reason)
        return f"rolled back from step {step} to step {to.step}"

    def _fork(self, request: Request, asked: Fork) -> Granting:
        step, before = self._trainer.position.step, self._trainer.settings
        if asked.at > step:
            raise Refused(f"step {asked.at}: the run has come to step {step} only")
        # What stands at this boundary is a state too, and needs no restoring.
        to = self._state_for(asked.at) if asked.at < step else None
        at = to.step if to else step
        refuse_resets(asked.reset)
        changed = dict(asked.set)
        if "schedule" in asked.reset:
            changed.setdefault("optim.schedule.from_step", at)
        after = self._changed(request, changed, at, asked.force)
        values = before.model_dump(mode="json")
        # A fresh optimizer is warmed up as at the start, unless the whole schedule begins anew.
        is_fresh = "optimizer" in asked.reset and "schedule" not in asked.reset
        data = self._recover_data("fork", step, to, request) | {
            "set": changed,
            "old": {path: value_at(values, path) for path in changed},
            "reset": [what for what in asked.reset if what != "schedule"],
            "rewarm_steps": after.optim.schedule.warmup_steps if is_fresh else 0,
        }
        reason = request.reason or f"forked at step {at} by {request.who}"
        who = request.who
        yield from self._recovery.carry_out(data, to, who=who, reason=reason, fork=True)
        return f"forked at step {at}"

    def _changed(
        self, request: Request, changed: Mapping[str, Any], step: int, force: bool
    ) -> Recipe:
        origins = dict.fromkeys(changed, f"asked by {request.who}")
        return changed_recipe(
            self._trainer.settings, changed, origins, self._trainer.ledger, step, force=force
        )

    def _state_for(self, wanted: int) -> Safe:
        """The newest state that is not later than a step, and is here or can be had."""
        if all(state.step != wanted for state in self._recovery.states()):
            self._recovery.ask_elsewhere()
        while True:
            states = self._recovery.states()
            to = next((state for state in reversed(states) if state.step <= wanted), None)
            if to is None:
                there = ", ".join(str(state.step) for state in states) or "none at all"
                raise Refused(f"no state of step {wanted} or before is left; there are: {there}")
            if to.where != "remote" or self._recovery.fetch(to):
                return to

    def _recover_data(
        self, action: str, step: int, to: Safe | None, request: Request
    ) -> dict[str, Any]:
        rollback = {"from": step, "to": to.step, "draw": to.draw} if to else None
        lost = step - to.step if to else 0
        seconds = round(lost * self._seconds_per_step(), 3)
        return {
            "cause": "asked",
            "subject": request.who,
            "actions": [action],
            "rollback": rollback,
            "price": {"steps_lost": lost, "seconds_lost": seconds},
            "request": request.id,
        }

    def _decide(
        self, request: Request, step: int, data: Mapping[str, Any], from_step: int = 0
    ) -> Decision:
        return self._run_log.decide(
            request.kind,
            step,
            {**data, "request": request.id},
            who=request.who,
            reason=request.reason,
            from_step=from_step,
        )
