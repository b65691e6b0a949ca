"""Replicas that may come and go between any two steps, through torchft.

Before every step those that are there agree on who makes it; it counts if the gradients of all of
them were summed, else those that are left make it again. Who comes back, behind the highest
generation, a count of agreed updates that only rises, is given the whole state of one that went on.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.request import urlopen

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.units import Seconds
from longhaul.parallel.data import sum_flat

_CONNECT_S: Seconds = 10.0
_SUM = dist.ReduceOp.SUM
_AHEAD = 1 << 20
"""What `lead` adds to the generation: more than the updates that others can have made since."""
_LOOPBACK = "127.0.0.1"
_AGAIN = "it starts again by itself; the first replica that ended says why"

State = Mapping[str, "Tensor | str"]
"""A training state under way between replicas: tensors and text, nothing that runs code."""


class Apart(LonghaulError):
    """Replicas could not agree: they did not answer, or the lighthouse is gone."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True, slots=True)
class Deal:
    """Who makes a step."""

    rank: int
    """Of this replica among those that make it."""
    size: int


@dataclass(frozen=True, slots=True)
class Within:
    """A process's place within a replica of several, which meets its own rank in other replicas."""

    rank: int
    size: int
    store: tuple[str, int]
    """Host and port at which they have met."""
    agree: Callable[[bool], bool]
    """Whether all of them are fine."""


class Replicas:
    """All replicas, seen from one of them; the leader's number is 0.

    `lighthouse`: address at which they meet. `generation`: 0 for a replica that wants to be healed,
    else more. `give`: this replica's state, for one that comes back, called while no step is under
    way. `take` puts another one's in the place of this one's. `most_s`: that one waits for others
    that are alive. `within`: its place, where several processes are one replica.
    """

    def __init__(
        self,
        number: int,
        lighthouse: str,
        generation: int,
        give: Callable[[], State],
        take: Callable[[State], None],
        most_s: Seconds,
        within: Within | None = None,
    ) -> None:
        for name in ("torchft.manager", "torchft.checkpointing.http_transport"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # each death would show a traceback
        import torchft  # an extra (`longhaul[ft]`)

        most = timedelta(seconds=most_s)
        self._number = number
        self._healed = False
        if within is None:
            self._store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
            within = Within(0, 1, (_LOOPBACK, self._store.port), bool)
        self._agree, self._is_part = within.agree, within.size > 1

        def heal(state: State) -> None:
            take(state)
            self._healed = True

        self._group = torchft.ProcessGroupGloo(timeout=most)
        self._manager = torchft.Manager(
            pg=self._group,
            load_state_dict=heal,
            state_dict=give,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=most,
            quorum_timeout=most,
            connect_timeout=timedelta(seconds=_CONNECT_S),
            rank=within.rank,
            world_size=within.size,
            store_addr=within.store[0],
            store_port=within.store[1],
            lighthouse_addr=lighthouse,
            replica_id=f"replica_{number}",
            hostname=_LOOPBACK,
            init_sync=False,
            checkpoint_transport=_transport(most),
        )
        self._stand_at(generation)

    @property
    def generation(self) -> int:
        """Rises with every update that was agreed on."""
        generation: int = self._manager.current_step()
        return generation

    def begin(self) -> tuple[Deal, bool]:
        """Agree on who makes the next step, and whether this replica was healed for it. Apart if
        the lighthouse does not answer, or one that is alive does not come.
        """
        self._healed = False
        while True:
            try:
                self._manager.start_quorum()
            except (RuntimeError, TimeoutError) as error:
                raise Apart(
                    f"replica {self._number} could not agree with the others on a step: "
                    f"{str(error).splitlines()[0]}",
                    _AGAIN,
                ) from error
            if self._agree(self._manager.errored() is None):
                size = self._manager.num_participants()
                return Deal(self._manager.participating_rank(), size), self._healed
            if self._healed and self._is_part:
                raise Apart(f"only a part of replica {self._number} was healed", _AGAIN)
            self.commit()  # somebody died while they met: once more

    @torch.no_grad()
    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum over those that make this step, in place, in float32; void unless `commit`."""
        sum_flat(tensors, lambda flat: self._manager.allreduce(flat, reduce_op=_SUM).wait())

    def commit(self) -> bool:
        """Whether what was summed is whole, and the update may be made."""
        if self._manager.errored() is not None:
            # Others may wait for this replica, not for the dead one: they must notice too.
            self._group.abort()
        agreed: bool = self._manager.should_commit()
        return agreed

    def lead(self) -> None:
        """From the next step on all others have this replica's state."""
        self._stand_at(self.generation + _AHEAD)

    def close(self) -> None:
        """Leave; the others notice at once."""
        self._manager.shutdown(wait=False)

    def _stand_at(self, generation: int) -> None:
        self._manager.load_state_dict({"step": generation, "batches_committed": 0})


def _transport(most: timedelta) -> Any:
    """What torchft has for HTTP, on loopback, and refusing whatever is no tensor or text."""
    from torchft.checkpointing import _serialization, http_transport

    class Transport(http_transport.HTTPTransport):  # type: ignore[misc]
        @classmethod
        def _load_from_address(cls, address: str, timeout: timedelta) -> object:
            with urlopen(address, timeout=timeout.total_seconds()) as answer:
                # Its tensors lie in memory that cannot be written; they are copied from there.
                warnings.filterwarnings("ignore", message="The given buffer is not writable")
                return _serialization._streaming_load(answer, weights_only=True)

        def address(self) -> str:
            return f"http://{_LOOPBACK}:{self._server.socket.getsockname()[1]}/checkpoint/"

    transport = Transport(timeout=most, num_chunks=0)
    # It would write a line to the terminal for each request.
    transport._server.RequestHandlerClass.log_message = lambda *_: None
    return transport
