"""One of the processes that compare layouts for a preflight.

Enters: a file of cases; this process's place in the environment. Leaves, by rank 0: a file that
says who met and how far each layout is from one process.
Never knows: bars.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from longhaul.config.load import recipe_from_values
from longhaul.core.errors import UsageError
from longhaul.core.files import write_json
from longhaul.core.units import Seconds
from longhaul.parallel.control import Control
from longhaul.parallel.device import choose_device
from longhaul.parallel.layout import Layout, Place, find_place
from longhaul.parallel.world import device_of, form_world, meet, part
from longhaul.train.equality import Trace, distance, trace
from longhaul.train.step import TrainingStep

_TIMEOUT_S: Seconds = 120.0
"""Of everything that ranks of a small twin do together."""

Spoil = Callable[[TrainingStep], None]


def compare(asked: Path, result: Path, spoil: Spoil | None = None) -> None:
    """Train every case with the others; on rank 0 alone as well, and write how far apart.

    Args:
        asked: the cases.
        result: written by rank 0.
        spoil: does something wrong to the steps that are made with others, to see that it shows.

    Raises:
        UsageError: no others.
    """
    torch.set_num_threads(1)
    body = json.loads(asked.read_bytes())
    place = find_place(os.environ)
    if place is None:
        raise UsageError("preflight-rank: RANK and WORLD_SIZE are not set", "`longhaul preflight`")
    group = meet(place, _TIMEOUT_S, body["device"], partial(_device, place))
    ranks = _facts(place, Control(group), _device(place, body["device"]))
    cpu = torch.device("cpu")
    layouts = [Layout(**case["layout"]) for case in body["cases"]]
    worlds = {
        layout: form_world(place, group, layout, cpu, _TIMEOUT_S)
        for layout in dict.fromkeys(layouts)
    }
    alone: dict[str, Trace] = {}
    rows: list[dict[str, Any]] = []
    for case, layout in zip(body["cases"], layouts, strict=True):
        began = time.monotonic()
        recipe = recipe_from_values(case["recipe"])
        # One process learns the same whatever it might have shared with others.
        alike = {k: v for k, v in case["recipe"].items() if k not in ("parallel", "machine")}
        key = json.dumps(alike)
        if place.rank == 0 and key not in alone:
            alone[key] = trace(recipe, body["vocabulary"], case["steps"])
        together = trace(recipe, body["vocabulary"], case["steps"], worlds[layout], spoil)
        if place.rank == 0:
            found = asdict(distance(alone[key], together))
            # JSON has no word for an infinite distance.
            row = {name: str(value) for name, value in found.items()}
            rows.append(row | {"seconds": time.monotonic() - began})
    if place.rank == 0:
        write_json(result, {"ranks": ranks, "cases": rows})
    part()


def _device(place: Place, wanted: str) -> torch.device:
    """A GPU of its own for each rank of this host, or the CPU for all."""
    device = choose_device(wanted)
    if device.type != "cpu" and torch.cuda.device_count() >= place.local_size:
        return device_of(place, device)
    return torch.device("cpu")


def _facts(place: Place, control: Control, device: torch.device) -> list[dict[str, Any]]:
    """What each rank is, once all stand at the same point."""
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ones = torch.ones(1 << 16, device=device)
    dist.all_reduce(ones)
    control.agree(True)
    own = {
        "rank": place.rank,
        "time": time.time(),
        "host": platform.node(),
        "pid": os.getpid(),
        "device": named,
        "summed": bool((ones == place.size).all()),
    }
    return control.gather(own)
