"""Preflight: whether checkpoints of the true size will fit, and what a save will cost."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longhaul.cluster.qualify.storage import SENT, send_and_remove, write_speed
from longhaul.config.train import CheckpointSection
from longhaul.core.errors import LonghaulError
from longhaul.core.units import Bytes, Seconds, short_bytes, short_seconds
from longhaul.plan.memory import checkpoint_bytes
from longhaul.run.preflight.context import Check, PreflightContext, failed, judged, skipped
from longhaul.run.preflight.data import vocabulary
from longhaul.store.save_interval import between_failures, daly_interval

_BESIDE = 3
"""Beside `keep_last`: the newest good one, one as old as the snapshots, one being written."""


def check_disk(context: PreflightContext) -> Iterator[Check]:
    """Space for the checkpoints that retention keeps, and the speed at which they are written."""
    vocab_size, _ = vocabulary(context)
    each = checkpoint_bytes(context.recipe, vocab_size)
    runs = context.typed.runs
    folder = next(path for path in (runs, *runs.absolute().parents) if path.is_dir())
    yield _space(context, each, folder)
    try:
        speed = write_speed(folder)
    except OSError as error:
        why = f"{folder}: cannot be written to ({error.strerror})"
        yield judged("write speed", why, "give --runs-dir a folder that can be")
        return
    save_s = each / speed
    between_s = between_failures(0, 0.0, context.world)
    every_s = daly_interval(save_s, between_s)
    figure = (
        f"{short_bytes(speed)}/s in {folder}: a save of {short_bytes(each)} takes "
        f"{short_seconds(save_s)}; with one failure in {between_s / 86_400:.0f} days, save about "
        f"every {short_seconds(max(every_s, save_s))} if training had to wait for it"
    )
    data: dict[str, Any] = {"bytes_per_s": speed, "checkpoint_bytes": each, "save_s": save_s}
    yield judged("write speed", figure, **data, interval_s=every_s)


def check_remote(context: PreflightContext) -> Iterator[Check]:
    """Every remote place of checkpoints takes a file, gives it back and lets it go."""
    addresses = context.recipe.checkpoint.remote
    if not addresses:
        yield skipped("remote", "none in the recipe: a disk that dies takes every checkpoint along")
    for address in addresses:
        try:
            name, took_s = _try_store(address, context.folder)
        except LonghaulError as error:
            yield failed("remote", error)
            continue
        figure = f"{name}: {short_bytes(SENT)} sent, read back and removed in {took_s:.2f} s"
        yield judged("remote", figure, address=name, seconds=took_s)


def checkpoints_kept(settings: CheckpointSection, steps: int | None) -> int:
    """How many lie in the run's folder at once, at most; `steps` None if only hours limit it."""
    by_step = (steps or 0) // settings.keep_every if settings.keep_every else 0
    return settings.keep_last + _BESIDE + by_step


def _space(context: PreflightContext, each: Bytes, folder: Path) -> Check:
    settings = context.recipe.checkpoint
    kept = checkpoints_kept(settings, context.recipe.total_steps())
    needed, free = kept * each, shutil.disk_usage(folder).free
    figure = (
        f"{kept} checkpoints of {short_bytes(each)} need {short_bytes(needed)}, "
        f"{short_bytes(free)} are free in {folder}"
    )
    data: dict[str, Any] = {"needed_bytes": needed, "free_bytes": free, "checkpoints": kept}
    if needed <= free:
        return judged("disk", figure, **data)
    fewer = checkpoints_kept(settings, None) * each
    remedy = "give --runs-dir a larger disk"
    if settings.keep_every and fewer <= free:
        remedy += (
            f", or a larger checkpoint.keep_every than {settings.keep_every}; "
            "checkpoint.remote_keep_every keeps them elsewhere"
        )
    return judged("disk", figure, remedy, **data)


def _try_store(address: str, folder: Path) -> tuple[str, Seconds]:
    """The store's name and the seconds it took to send a file, read it back and remove it."""
    began = time.monotonic()
    return send_and_remove(address, folder), time.monotonic() - began
