"""The device, the threads, and what torch alone can tell about both."""

import os
from typing import Any

import torch

from longhaul.config.recipe import Recipe
from longhaul.core.errors import RecipeError
from longhaul.core.heap import keep_freed_memory
from longhaul.core.machine import installed_packages, machine
from longhaul.logbook.segments import SegmentOpening
from longhaul.model.device import claim
from longhaul.parallel.layout import LAYOUT, Place, usable_cores
from longhaul.parallel.world import device_of


def choose_device(wanted: str) -> torch.device:
    """The device named, or the first of CUDA, MPS, CPU; RecipeError if it is not here."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return torch.device(next(name for name, answers in there.items() if answers))
    if not there[wanted]:
        found = ", ".join(name for name, answers in there.items() if answers)
        raise RecipeError(
            f"machine.device: {wanted} does not answer on this machine (found: {found})",
            "use --device auto, or install the torch build for that device",
        )
    return torch.device(wanted)


def own_device(wanted: str, place: Place | None = None) -> torch.device:
    """The device of this process, which all its threads' work is for from now on. RecipeError if it
    is not there, or there is none left for this process.
    """
    chosen = choose_device(wanted)
    return claim(chosen) if place is None else device_of(place, chosen)


def settle_torch(recipe: Recipe, processes: int = 1, before: int | None = None) -> None:
    """Put thread counts, precision flags and the heap's in force, once, before any tensor is made.

    Where the recipe names no threads, the cores are shared out among the `processes` of this host;
    threads that the run has computed with `before` are kept, as other counts give other bits.
    """
    keep_freed_memory()
    share = max(1, usable_cores() // processes)
    torch.set_num_threads(recipe.machine.threads or min(before or share, share))
    torch.backends.cuda.matmul.allow_tf32 = recipe.precision.tf32
    torch.backends.cudnn.allow_tf32 = recipe.precision.tf32
    # Flushing denormals changes bits and speeds up nothing measurable here; left off, and said
    # here because a host program may have turned it on.
    torch.set_flush_denormal(False)


def threads_before(recipe: Recipe, last: SegmentOpening | None, size: int) -> int | None:
    """Threads of torch that a run has had on a machine like this one, unless somebody set them.

    Other cores than before, or another number of processes that a person chose, are no reason to
    compute with as few as then. `last`: its last segment; None in a new run.
    """
    if last is None:
        return None
    here, there = machine(), last.fingerprint.get("machine") or {}
    if any(here[name] != there.get(name) for name in ("cpu", "cores")):
        return None
    settings = last.settings.get("machine") or {}
    if settings.get("threads") or settings.get("processes", 1) != recipe.machine.processes:
        return None
    ranks = last.fingerprint.get("ranks") or {}
    if ranks.get("size", 1) != size and LAYOUT not in os.environ:
        return None
    threads = (last.fingerprint.get("torch") or {}).get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def compiler_facts(device: torch.device) -> dict[str, str]:
    """What generated code is for."""
    known = torch_facts(device)
    names = ("version", "device", "cpu_capability", "cuda", "gpu")
    facts = {name: str(known.get(name)) for name in names}
    if device.type == "cuda":
        facts["driver"] = str(getattr(torch._C, "_cuda_getDriverVersion", str)())
    return facts | {"triton": installed_packages().get("triton", ""), "cpu": machine()["cpu"]}


def torch_facts(device: torch.device) -> dict[str, Any]:
    """Global flags that change numbers without changing the recipe."""
    facts: dict[str, Any] = {
        "version": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda_matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "jit_profiling_executor": torch._C._get_graph_executor_optimize(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "default_dtype": str(torch.get_default_dtype()),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "gpu": properties.name,
            "gpu_uuid": str(getattr(properties, "uuid", "")),
            "gpu_memory_bytes": properties.total_memory,
            "gpu_count": torch.cuda.device_count(),
        }
    return facts
