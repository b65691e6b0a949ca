"""Preflight: whether dealing the model out changes what is learned. Small twins under several
layouts are trained by processes, each of them `longhaul preflight-rank`, and compared with one
process.
"""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.errors import NeedsPerson, RecipeError, UsageError
from longhaul.core.files import write_json
from longhaul.core.records import finite_or_word
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds
from longhaul.parallel.control import Control
from longhaul.parallel.device import choose_device
from longhaul.parallel.layout import Layout, Place, find_place, layout_for
from longhaul.parallel.world import device_of, form_world, meet, part
from longhaul.run.preflight.context import ALONE, Check, PreflightContext, failed, judged, skipped
from longhaul.supervise.causes import last_message
from longhaul.supervise.nodes.placement import posts_here
from longhaul.train.equality import Trace, distance, trace
from longhaul.train.step import TrainingStep

VOCABULARY = 131
"""Odd, so that no layout divides it."""
_STEPS, _STEPS_IN_FULL, _STEPS_IN_OWN_NUMBERS = 8, 20, 4
_LOOK_EVERY_S: Seconds = 0.02
_SKEW_S: Seconds = 1.0
"""Clocks further apart than this make the order of events in journals a guess."""
_WAYS = ("replicate", "shard", "tensor", "pipeline")
_BARS = {"float32": (1e-5, 1e-5), "half": (1e-3, 5e-2)}
"""Bars of losses and of the first gradient (docs/parallel.md)."""
_PROOF = (
    "model.dropout=0.0", "model.attention_dropout=0.0", "model.embedding_dropout=0.0",
    # Zeros would hide whatever comes before them from the first gradient.
    "model.zero_projections=false", "model.zero_head=false",
    # Six sequences: four ranks do not divide them, and two leave a last micro-batch of one.
    "batch.sequences=6", "batch.micro_sequences=2", "batch.sequence_length=32",
    # At higher rates losses drift apart although every gradient is right.
    "optim.lr=1e-3", "machine.compile=false",
)  # fmt: skip
_EXACT = ('precision.compute="float32"', 'optim.muon.newton_schulz="float32"')


@dataclass(frozen=True)
class Case:
    """One comparison."""

    layout: Layout
    numbers: str
    """Which bars hold."""
    recipe: Recipe
    steps: int
    is_own: bool
    """The recipe's own layout, two wide."""

    @property
    def name(self) -> str:
        """For people."""
        own = "the recipe's own, " if self.is_own else ""
        numbers = "float32" if self.numbers == "float32" else "its own numbers"
        return f"{own}{self.layout}, {numbers}"


def check_layouts(context: PreflightContext) -> Iterator[Check]:
    """Processes that meet, and every layout that this recipe can have on so few.

    Steps of the small twin by one process and by several are compared (`train/equality.py`), on the
    CPU: a layout is arithmetic and order, whatever the device. OPT-175B's runs 3 to 6 trained
    around a tensor-parallel bug that this shows in a second.
    """
    cases, refused = cases_of(context)
    for size in sorted({case.layout.size for case in cases}):
        these = [case for case in cases if case.layout.size == size]
        folder = context.folder / f"ranks-{size}"
        folder.mkdir()
        began = time.monotonic()
        try:
            found = _compare(context, these, size, folder)
        except NeedsPerson as error:
            yield failed("layouts", error)
            continue
        spent_s = sum(float(row["seconds"]) for row in found["cases"])
        yield replace(_met(found["ranks"]), seconds=time.monotonic() - began - spent_s)
        for case, row in zip(these, found["cases"], strict=True):
            yield _judged(case, row)
    for layout, why in refused:
        yield skipped("layout", f"{layout}: {why}")


def cases_of(context: PreflightContext) -> tuple[list[Case], list[tuple[str, str]]]:
    """What to compare, and what this recipe cannot have, with the reason."""
    wanted: list[tuple[tuple[str, ...], str]] = [] if context.processes == 1 else [((), "")]
    wanted += [((*ALONE, f"parallel.{way}=2"), f"{way} 2") for way in _WAYS]
    even = tuple(_divisible(context))
    cases: list[Case] = []
    refused = []
    for options, named in wanted:
        is_own = not named
        try:
            # On top of the twin's own layout; judged together with it.
            exact = context.twin(*_PROOF, *options, *even, *_EXACT)
            layout = layout_for(exact.parallel, context.processes if is_own else 2)
        except RecipeError as error:
            # Below the line that counts the problems, each has its own.
            problems = error.message.splitlines()
            why = problems[min(1, len(problems) - 1)].strip()
            refused.append((named or "the recipe's own", why))
            continue
        if layout in (case.layout for case in cases):
            continue
        steps = _STEPS_IN_FULL if context.typed.full else _STEPS
        cases.append(Case(layout, "float32", exact, steps, is_own))
        # fp16 needs its loss scale to find its level first; its layouts are proven in float32.
        in_bf16 = context.recipe.precision.compute in ("bf16", "bf16_weights")
        if (is_own or context.typed.full) and in_bf16:
            own = context.twin(*_PROOF, *options, *even)
            cases.append(Case(layout, "half", own, _STEPS_IN_OWN_NUMBERS, is_own))
    return cases, refused


def _divisible(context: PreflightContext) -> Iterator[str]:
    """What two ranks can share in the recipe itself must not be odd in its twin alone."""
    model, twin = context.recipe.model, context.twin().model
    if model.kv_heads is not None and model.kv_heads % 2 == 0:
        yield "model.kv_heads=2"
    if twin.mlp_width is not None and model.inner_width % 2 == 0:
        yield f"model.mlp_width={twin.mlp_width + twin.mlp_width % 2}"


def _judged(case: Case, row: dict[str, Any]) -> Check:
    loss_bar, gradient_bar = _BARS[case.numbers]
    loss, gradient = float(row["loss"]), float(row["gradient"])
    figure = (
        f"{case.name}: losses of {case.steps} steps apart by {loss:.1e} (bar {loss_bar:g}), first "
        f"gradient by {gradient:.1e} (bar {gradient_bar:g})"
    )
    remedy = ""
    if not (loss <= loss_bar and gradient <= gradient_bar):
        figure += f", most in {row['weight']}"
        remedy = (
            f"do not train with {case.layout}: it does not learn what one process learns; another "
            "[parallel] may, and this is a defect to report"
        )
    data = {"layout": asdict(case.layout), "loss": loss, "gradient": gradient}
    return replace(judged("layout", figure, remedy, **data), seconds=float(row["seconds"]))


def _met(ranks: Sequence[dict[str, Any]]) -> Check:
    skew_s = max(rank["time"] for rank in ranks) - min(rank["time"] for rank in ranks)
    hosts = sorted({rank["host"] for rank in ranks})
    devices = sorted({rank["device"] for rank in ranks})
    wrong = [rank["rank"] for rank in ranks if not rank["summed"]]
    figure = (
        f"{len(ranks)} met on {', '.join(hosts)}, on {', '.join(devices)}; clocks within "
        f"{skew_s * 1000:.1f} ms"
    )
    remedy = ""
    if wrong:
        figure += f"; a sum over all came out wrong on ranks {wrong}"
        remedy = "look at the devices and the network between them: collectives compute wrong sums"
    elif skew_s > _SKEW_S:
        remedy = "set the hosts' clocks (chrony, ntpd)"
    return judged("ranks", figure, remedy, ranks=list(ranks), skew_s=skew_s)


def _compare(
    context: PreflightContext, cases: Sequence[Case], size: int, folder: Path
) -> dict[str, Any]:
    """Let ranks train the cases; what rank 0 has found. NeedsPerson if they come to no end."""
    cases_file, result = folder / "cases.json", folder / "result.json"
    bodies = [
        {
            "layout": asdict(case.layout),
            "recipe": case.recipe.model_dump(mode="json", exclude_unset=True),
            "steps": case.steps,
        }
        for case in cases
    ]
    write_json(cases_file, {"device": context.recipe.machine.device, "cases": bodies})
    ranks = _start(context, size, folder, [str(cases_file), str(result)])
    try:
        _wait(ranks, folder, context.timeout_s)
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
    return read_object(result)


def _start(
    context: PreflightContext, size: int, folder: Path, arguments: Sequence[str]
) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank, post in enumerate(posts_here(size)):
        place = {**post.environment, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        with (folder / f"{rank}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *context.ranks, *arguments], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | place,
            )  # fmt: skip
        started.append(process)
    return started


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path, most_s: Seconds) -> None:
    """Wait until all have ended well; NeedsPerson if one has not: the others may wait for it."""
    deadline = time.monotonic() + most_s
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return
        if any(codes) or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_EVERY_S)
    first = next((number for number, code in enumerate(codes) if code), 0)
    what = f"rank {first} of {len(ranks)} ended with {codes[first]}"
    if codes[first] is None:
        what = f"{len(ranks)} processes have not come to an end within {most_s:.0f} s"
    output = last_message((folder / f"{first}.log").read_text(errors="replace"))
    raise NeedsPerson(
        f"{what}: {output or 'without any output'}",
        "run it again with --keep DIR, and look at DIR/ranks-N/RANK.log",
    )


_TIMEOUT_S: Seconds = 120.0
"""Of everything that ranks of a small twin do together."""

Spoil = Callable[[TrainingStep], None]


def compare(cases: Path, result: Path, spoil: Spoil | None = None) -> None:
    """Train the cases of a file with the other ranks; on rank 0 alone as well, and write how far
    apart to `result`. `spoil` does something wrong to the steps made with others: it must show.
    UsageError if there are no others.
    """
    torch.set_num_threads(1)
    body = read_object(cases)
    place = find_place(os.environ)
    if place is None:
        raise UsageError("preflight-rank: RANK and WORLD_SIZE are not set", "`longhaul preflight`")
    control = meet(place, _TIMEOUT_S, body["device"], partial(_device, place))
    ranks = _facts(place, control, _device(place, body["device"]))
    cpu = torch.device("cpu")
    layouts = [Layout(**case["layout"]) for case in body["cases"]]
    worlds = {
        layout: form_world(place, control, layout, cpu, _TIMEOUT_S)
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
            alone[key] = trace(recipe, VOCABULARY, case["steps"])
        together = trace(recipe, VOCABULARY, case["steps"], worlds[layout], spoil)
        if place.rank == 0:
            found = asdict(distance(alone[key], together)) | {"seconds": time.monotonic() - began}
            rows.append(finite_or_word(found))
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
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ones = torch.ones(1 << 16, device=device)
    dist.all_reduce(ones)
    control.agree(True)
    own = {
        "rank": place.rank, "time": time.time(), "host": platform.node(), "pid": os.getpid(),
        "device": named, "summed": bool((ones == place.size).all()),
    }  # fmt: skip
    return control.gather(own)
