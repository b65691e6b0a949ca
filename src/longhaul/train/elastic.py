"""Training by replicas that come and go: a step that all who are there make together.

The sequences of every batch are dealt out anew among those who make the step, so the global batch,
its number of targets, and with them the loss and the gradient are the same however many there are;
a step in which somebody is lost is made again from the same batch by the rest. Numbers differ from
an undisturbed run's only as sums in another order do. Whoever comes back, or falls behind, is given
a peer's whole training state.

Shapes: B sequences of a batch, T tokens of a sequence.
"""

import json
import os
from collections import deque
from typing import Any

import torch

from longhaul.checkpoint.capture import capture, local_of, put_back
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.records import StepRecord, from_line, to_line
from longhaul.core.units import Seconds
from longhaul.data.batches import Batch, own_share
from longhaul.model.device import on, to_device
from longhaul.optim.sharding import own_part
from longhaul.parallel.replicas import Deal, Replicas, State, Within
from longhaul.parallel.world import World
from longhaul.train.effective import parts_for
from longhaul.train.state import Progress, training_state
from longhaul.train.step import TrainingStep

_REMEMBERED = 4096
"""Records of late steps that each replica keeps for a leader that was away while they were made."""
_TOLD = "told"
"""What a state carries beside its tensors, as JSON; theirs are `part.name`."""


class Outrun(LonghaulError):
    """The others went on from another state, which this replica now has."""

    exit_code = ExitCode.FAILED


class _Void(Exception):
    """Somebody was lost in this step: it was not made."""


class ElasticStep(TrainingStep):
    """A step made by all replicas that are there; alone until it is given a `place`."""

    place: "Place | None" = None
    _together = False
    """What is computed now is a share of what all make."""

    def __call__(self, batch: Batch, *given: Any, **named: Any) -> torch.Tensor:
        """As `TrainingStep`, of the whole batch; Outrun if the others' state is another."""
        if self.place is None:
            return super().__call__(batch, *given, **named)
        while True:
            deal = self.place.meet()
            if deal is None:
                return to_device(self.place.figures, self.device)
            own = self.place.own_deal(deal)
            self._own = (own.rank,)
            share = own_share(batch, own.rank, own.size, even=self.parallel is not None)
            self._together = True
            try:
                made = super().__call__(share, *given, **named)
            except _Void:
                self.optimizer.clear_gradients()
                self.model_gauges.discard()
            else:
                self.place.figures = made[: self.num_figures]
                return made
            finally:
                self._together = False

    def compute(
        self, batch: Batch, *given: Any, updates: bool = False, **named: Any
    ) -> torch.Tensor:
        """As `TrainingStep`, and the sums over all who make this step."""
        # What replicas sum later is not whole while the backward pass goes on.
        named["updates"] = updates and not self._together
        loss = super().compute(batch, *given, **named)
        if self._together and self.place is not None:
            weights = [p for p in self.model.parameters() if p.requires_grad]
            gradients = [own_part(p.grad) for p in weights if p.grad is not None]
            self.place.replicas.sum([*gradients, loss])
            if not self.place.replicas.commit():
                raise _Void
        return loss


class Place:
    """A live step's place among the replicas, of which the leader is number 0. They meet at the
    address `lighthouse`, and wait for others that are alive for `most_s` at most; `ranks` are those
    of this replica.
    """

    def __init__(
        self,
        number: int,
        lighthouse: str,
        step: ElasticStep,
        progress: Progress,
        most_s: Seconds,
        ranks: World | None = None,
    ) -> None:
        self.figures = torch.zeros(step.num_figures)
        """Of the last step: loss, gradient norm, masked, and those of a loss scale."""
        self.peer: int | None = None
        """Whose state this replica was last given."""
        self._number = number
        self._ranks = ranks
        self._step, self._progress = step, progress
        self._recent: deque[str] = deque(maxlen=_REMEMBERED)
        self._orders = 0
        self._met: Deal | None = None
        within = None
        if ranks is not None:
            store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            within = Within(ranks.rank, ranks.size, store, ranks.control.agree)
        # Whoever is new wants a leader's state, be it of step 0; only a leader has one of its own.
        generation = progress.position.step + 1 if number == 0 else 0
        self.replicas = Replicas(
            number, lighthouse, generation, self._give, self._take, most_s, within
        )
        step.place = self

    def own_deal(self, deal: Deal) -> Deal:
        """The place of this process among all that make a step, from its replica's."""
        ranks = self._ranks
        if ranks is None:
            return deal
        return Deal(deal.rank * ranks.size + ranks.rank, deal.size * ranks.size)

    def join(self) -> bool:
        """Meet the others for the first time; whether they were ahead, and gave their state."""
        self._met, healed = self.replicas.begin()
        return healed

    def meet(self) -> Deal | None:
        """Who makes the next step; None if the others have made it, and gave the result. Outrun if
        that is no result of this step; the next step goes on from it.
        """
        if self._met is not None:
            deal, self._met = self._met, None
            return deal
        before, orders = self._progress.position.step, self._orders
        deal, healed = self.replicas.begin()
        if not healed:
            return deal
        self._met = deal
        now = self._progress.position.step
        if now == before + 1 and self._orders == orders:
            return None
        raise Outrun(f"this replica stood at step {before}, the others at step {now}")

    def lead(self) -> None:
        """A decision has changed this replica's state: all others are to have it."""
        self._orders += 1
        self.replicas.lead()

    def remember(self, record: StepRecord) -> None:
        """Keep a record for a leader that is away."""
        self._recent.append(to_line(record))

    def missed(self, since: int) -> list[StepRecord]:
        """Records of steps after `since` that the others have made, as far as they keep them."""
        records = [from_line(line) for line in self._recent]
        return [r for r in records if isinstance(r, StepRecord) and r.step > since]

    def close(self) -> None:
        """Leave; the others go on."""
        self._step.place = None
        self.replicas.close()

    def _give(self) -> State:
        with on(self._step.device):  # torchft asks on a thread of its own
            state = capture(training_state(self._step, self._progress))
            told = {
                "giver": self._number,
                "facts": state.facts,
                "figures": self.figures.tolist(),
                "recent": list(self._recent),
                "orders": self._orders,
            }
        return {**state.tensors, _TOLD: json.dumps(told)}

    def _take(self, given: State) -> None:
        told = json.loads(str(given[_TOLD]))
        parts = parts_for(self._step, self._progress, told["facts"])
        tensors = {name: local_of(t) for name, t in given.items() if isinstance(t, torch.Tensor)}
        put_back(parts, tensors, told["facts"])
        self.figures = torch.tensor(told["figures"])
        self._recent.clear()
        self._recent.extend(told["recent"])
        self._orders = told["orders"]
        self.peer = told["giver"]
