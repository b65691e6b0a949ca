"""Where the compiler keeps the code it generates: with the run, so that all ranks find it, and a
restart does after its container is gone.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longhaul.core.units import Bytes, Seconds

VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""What torch and Triton read, each time they compile, and the folders within ours."""
_KEPT = 2
"""Folders that stay: this one, and that of the software or machine before, which may come back."""
_UNUSED_S: Seconds = 7 * 24 * 3600.0
"""Others stay so long: ranks on other kinds of machines may be using them."""
_LEAST_FREE: Bytes = 1 << 30
"""Code takes up to a few hundred MB, and checkpoints are worth more than it."""
_set: dict[str, str] = {}
"""By this process; what somebody else has set holds."""


def keep_code(compiled: Path, of_run: Path, facts: Mapping[str, Any]) -> str:
    """Let all that this process compiles be kept in a folder of `compiled`, for a machine and
    software of these `facts`; a sentence for people. Where it cannot be, the compiler's own place
    serves.

    `of_run`: a file of the run. A copy of it has other code: what is found there is run, and in a
    folder from elsewhere it may be anybody's.
    """
    if own := [name for name in VARIABLES if os.environ.get(name) not in _nobodys(name)]:
        return f"compiled code: kept where {' and '.join(own)} {'say' if own[1:] else 'says'}"
    try:
        known = of_run.stat()
        about = repr((sorted(facts.items()), known.st_ino, known.st_ctime_ns))
        folder = compiled / hashlib.sha256(about.encode()).hexdigest()[:12]
        compiled.mkdir(exist_ok=True)  # a run's folder is not made anew
        folder.mkdir(exist_ok=True)
        problem = _problem(folder)
    except OSError as error:
        problem = f"{compiled} does not take it ({error.strerror or error})"
    if problem:
        return f"compiled code: not kept for restarts, as {problem}"
    is_warm = (folder / "inductor" / "fxgraph").is_dir()
    for name, part in VARIABLES.items():
        _set[name] = os.environ[name] = str((folder / part).resolve())
    return f"compiled code: kept in {folder}{', with what is there from before' * is_warm}"


def _nobodys(name: str) -> tuple[str | None, ...]:
    """Values that no user has set: none, ours, and what the compiler writes there at its import."""
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    except ImportError:  # it is private
        return None, _set.get(name)
    return None, _set.get(name), str(Path(default_cache_dir()).absolute())


def leave_full_cache() -> None:
    """Before something is compiled: on a disk that takes no more, to the compiler's own place."""
    there = [Path(path) for name, path in _set.items() if os.environ.get(name) == path]
    if there and _problem(there[0].parent):
        keep_no_more()


def keep_no_more() -> None:
    """Undo `keep_code`."""
    for name in list(_set):
        if os.environ.get(name) == _set.pop(name):
            del os.environ[name]


def forget_old_code(compiled: Path) -> None:
    """Remove the folders that have not been in use for the longest, and for a week."""

    def used(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:
            return 0.0

    with suppress(OSError):
        for folder in sorted(compiled.iterdir(), key=used)[:-_KEPT]:
            if used(folder) < time.time() - _UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _problem(folder: Path) -> str:
    """Why code cannot be kept there, or cannot be run from there; empty if it can."""
    try:
        os.utime(folder)  # it is in use
        with tempfile.TemporaryFile(dir=folder) as file:
            # As the compiler does; some network file systems cannot.
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        disk = os.statvfs(folder)
    except OSError as error:
        return f"{folder} does not take it ({error.strerror or error})"
    if disk.f_bavail * disk.f_frsize < _LEAST_FREE:
        return f"the disk of {folder} is full"
    return f"nothing runs from {folder} (noexec)" if disk.f_flag & os.ST_NOEXEC else ""
