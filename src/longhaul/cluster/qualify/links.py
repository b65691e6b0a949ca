"""Links: between host and device, between devices, between nodes. Each wait has a deadline, and a
rank says that it has come before it joins a collective, so that the one that did not is known.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from longhaul.cluster.qualify.products import Unit, upper
from longhaul.cluster.qualify.records import Measurement
from longhaul.cluster.qualify.rendezvous import Rendezvous
from longhaul.core.faults import Point, point
from longhaul.core.units import Bytes, Seconds

_COPIED: Bytes = 256 << 20
_SIZES_GPU: tuple[Bytes, ...] = tuple(1 << power for power in range(12, 31, 3))
_SIZES_CPU: tuple[Bytes, ...] = (1 << 12, 1 << 17, 1 << 22)
_PAIR_GPU, _PAIR_CPU = 64 << 20, 256 << 10
_PINGS, _PASSES = 8, 3
_ROUNDS = 3
_LOOK_EVERY_S: Seconds = 0.0002


# Torch 2.13 has new names for both, and warns of the old ones.
_ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


class Unreached(Exception):
    """A deadline passed in an exchange with other ranks."""


def of_host(chosen: Sequence[Unit]) -> list[Measurement]:
    """Copies between host and each GPU, and between the GPUs of this process."""
    gpus = [unit for unit in chosen if unit.device.type == "cuda"]
    if not gpus:
        why = "there is no GPU: host and device are one"
        names = ("host to device", "device to host", "device to device")
        return [Measurement(group="links", name=name, skipped=why) for name in names]
    found = []
    pinned = torch.empty(_COPIED, dtype=torch.uint8, pin_memory=True)
    for unit in gpus:
        there = torch.empty(_COPIED, dtype=torch.uint8, device=unit.device)
        for name, target, source in (
            ("host to device", there, pinned),
            ("device to host", pinned, there),
        ):
            found.append(_copy_rate(name, unit.name, target, source, unit.device))
        for other in gpus:
            if other is not unit:
                target = torch.empty(_COPIED, dtype=torch.uint8, device=other.device)
                label = f"{unit.name} to {other.name}"
                found.append(_copy_rate("device to device", label, target, there, other.device))
    if len(gpus) < 2:
        why = "this process has one device; pairs of ranks show its links"
        found.append(Measurement(group="links", name="device to device", skipped=why))
    return found


def _copy_rate(
    name: str, label: str, target: torch.Tensor, source: torch.Tensor, device: torch.device
) -> Measurement:
    rates = []
    for _ in range(10):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        rates.append(source.numel() / (time.perf_counter() - began))
    return Measurement(group="links", name=name, device=label, value=upper(rates), unit="B/s")


class Links:
    """The process group of a battery, and what is measured through it."""

    def __init__(self, rendezvous: Rendezvous, device: torch.device, within_s: Seconds) -> None:
        """Form the group; `Unreached` if it is not there within the time."""
        self._rendezvous, self._device, self._within_s = rendezvous, device, within_s
        self._place = rendezvous.place
        backend = "nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        store = dist.PrefixStore("links", rendezvous.store)  # type: ignore[attr-defined]
        try:
            dist.init_process_group(
                backend, store=store, rank=self._place.rank,
                world_size=self._place.size, timeout=timedelta(seconds=within_s),
            )  # fmt: skip
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            raise Unreached(f"the process group did not form: {line}") from error

    def first_collective(self) -> None:
        """The hang test: say that this rank has come, join, and say that it has left."""
        self._rendezvous.hand_in("arrived")
        point(Point.BEFORE_COLLECTIVE, self._place.rank)
        self._rendezvous.hand_in("joining")
        total = torch.ones(1, device=self._device)
        self._wait(dist.all_reduce(total, async_op=True), "all-reduce")
        if int(total) != self._place.size:
            raise Unreached(f"an all-reduce of ones over {self._place.size} gave {int(total)}")
        self._rendezvous.hand_in("left")

    def collectives(self, quick: bool) -> Iterator[Measurement]:
        """Bus bandwidth by size, and latency; algorithm and bus as in nccl-tests/PERFORMANCE.md."""
        size = self._place.size
        sizes = _SIZES_GPU if self._device.type == "cuda" else _SIZES_CPU
        for name, factor, start in (
            ("all-reduce", 2 * (size - 1) / size, self._all_reduce),
            ("all-gather", (size - 1) / size, self._all_gather),
            ("reduce-scatter", (size - 1) / size, self._reduce_scatter),
        ):
            by_size: dict[str, float] = {}
            latency = float("inf")
            try:
                for volume in sizes[:: 2 if quick and len(sizes) > 4 else 1]:
                    took = min(self._timed(start(volume), name) for _ in range(_PASSES))
                    by_size[str(volume)] = volume * factor / took
                    latency = min(latency, took)
            except RuntimeError as error:  # gloo has no reduce-scatter in every version
                why = f"{dist.get_backend()} refuses it: {str(error).splitlines()[0][:120]}"
                yield Measurement(group="links", name=name, skipped=why)
                continue
            yield Measurement(group="links", name=name, value=max(by_size.values()), unit="B/s",
                              facts={"by_size": by_size, "latency_s": latency})  # fmt: skip

    def _all_reduce(self, volume: Bytes) -> Callable[[], Any]:
        tensor = self._floats(volume)
        return lambda: dist.all_reduce(tensor, async_op=True)

    def _all_gather(self, volume: Bytes) -> Callable[[], Any]:
        share, whole = self._shares(volume)
        return lambda: _ALL_GATHER(whole, share, async_op=True)

    def _reduce_scatter(self, volume: Bytes) -> Callable[[], Any]:
        share, whole = self._shares(volume)
        return lambda: _REDUCE_SCATTER(share, whole, async_op=True)

    def _floats(self, volume: Bytes) -> torch.Tensor:
        return torch.zeros(max(1, volume // 4), device=self._device)

    def _shares(self, volume: Bytes) -> tuple[torch.Tensor, torch.Tensor]:
        share = self._floats(volume // self._place.size)
        return share, torch.zeros(share.numel() * self._place.size, device=self._device)

    def pairs(self, leaders: Sequence[int], names: Sequence[str]) -> Iterator[Measurement]:
        """Rate and latency from this rank to each other leader: `device` is `a → b`.

        Every pair is measured in each of some rounds, spread over the time, and its best counts:
        what disturbs one moment is not a bad cable.
        """
        own = leaders.index(self._place.rank) if self._place.rank in leaders else None
        rates: dict[int, float] = {}
        pings: dict[int, float] = {}
        for _ in range(_ROUNDS):
            for partner in tournament(len(leaders), own):
                # A slow pair must not look like the hang of those who wait for one of the two.
                self._timed(self._all_reduce(4), "the border of two rounds of pairs")
                if own is not None and partner is not None:
                    ping, rate = self._exchange(leaders[partner], first=own < partner)
                    pings[partner] = min(ping, pings.get(partner, ping))
                    rates[partner] = max(rate, rates.get(partner, rate))
        for partner, rate in rates.items() if own is not None else ():
            label = f"{names[own or 0]} → {names[partner]}"
            yield Measurement(group="links", name="pair rate", device=label, value=rate, unit="B/s")
            yield Measurement(group="links", name="pair latency", device=label,
                              value=pings[partner], unit="s")  # fmt: skip

    def _exchange(self, other: int, *, first: bool) -> tuple[Seconds, float]:
        """Half a round trip of 8 bytes; bytes a second from here to `other`, with its answer."""
        small = torch.zeros(1, dtype=torch.int64, device=self._device)
        volume = _PAIR_GPU if self._device.type == "cuda" else _PAIR_CPU
        large = torch.zeros(volume, dtype=torch.uint8, device=self._device)
        ping, rate = float("inf"), 0.0
        for turn in (first, not first):  # each sends its own large ones while the other answers
            for number in range(_PINGS + _PASSES):
                tensor = small if number < _PINGS else large
                began = time.perf_counter()
                if turn:
                    self._wait(dist.isend(tensor, other), f"sending to rank {other}")
                    self._wait(dist.irecv(small, other), f"an answer of rank {other}")
                    self._settle()
                    took = time.perf_counter() - began
                    if number < _PINGS:
                        ping = min(ping, took / 2)
                    else:
                        rate = max(rate, volume / took)
                else:
                    self._wait(dist.irecv(tensor, other), f"rank {other}")
                    self._wait(dist.isend(small, other), f"answering rank {other}")
        return ping, rate

    def _timed(self, start: Callable[[], Any], name: str) -> Seconds:
        self._settle()
        began = time.perf_counter()
        self._wait(start(), name)
        self._settle()
        return time.perf_counter() - began

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _wait(self, work: Any, what: str) -> None:
        """Wait for an exchange, but never beyond the deadline."""
        try:
            if self._device.type != "cuda":
                # Gloo's sends are complete only for who waits; it keeps to the time by itself.
                work.wait(timedelta(seconds=self._within_s))
                return
            until = time.monotonic() + self._within_s
            while not work.is_completed():  # NCCL's `wait` lets the stream wait, not this thread
                if time.monotonic() > until:
                    raise Unreached(f"{what} did not end within {self._within_s:.0f} s")
                time.sleep(_LOOK_EVERY_S)
            work.wait()
        except RuntimeError as error:
            raise Unreached(f"{what}: {str(error).splitlines()[0][:200]}") from error


def tournament(players: int, own: int | None) -> Iterator[int | None]:
    """Whom player `own` meets in each round, so that all meet all and no two share a partner (the
    circle method). None: nobody in that round, as always for `own` None, who only watches.
    """
    even = players + players % 2
    for turn in range(even - 1):
        if own is None:
            yield None
            continue
        if own == even - 1:
            partner = turn * (even // 2) % (even - 1)
        else:
            partner = (turn - own) % (even - 1)
            partner = even - 1 if partner == own else partner
        yield partner if partner < players else None
