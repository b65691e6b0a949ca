"""The code and environment of a launch, captured before it is submitted."""

import hashlib
import subprocess
import sys
from pathlib import Path

from longhaul import __version__
from longhaul.cluster.launch_spec import Captured
from longhaul.core.files import write_bytes
from longhaul.core.units import Seconds

_WITHIN_S: Seconds = 120.0


def captured(workdir: Path, folder: Path | None) -> Captured:
    """What is in `workdir` and in this interpreter. With a `folder`, it gets `changes.diff` (all
    that no commit has, files that git does not track included) and `packages.txt` (pip freeze).
    """
    commit = _git(workdir, "rev-parse", "HEAD").decode().strip()
    diff = b""
    if commit:
        diff = _git(workdir, "diff", "--binary", "HEAD", "--", ".")
        for name in _git(workdir, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0"):
            if name and (workdir / name.decode()).is_file():
                # It ends with 1, as the two differ.
                diff += _git(workdir, "diff", "--binary", "--no-index", "/dev/null", name.decode())
    packages = b""
    if folder is not None:
        packages = _output([sys.executable, "-m", "pip", "freeze", "--disable-pip-version-check"])
        write_bytes(folder / "packages.txt", packages)
        write_bytes(folder / "changes.diff", diff)
    return Captured(
        version=__version__,
        commit=commit,
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else "",
        packages=len(packages.splitlines()),
    )


def _git(workdir: Path, *words: str) -> bytes:
    return _output(["git", "-C", str(workdir), "-c", "core.quotePath=off", *words])


def _output(words: list[str]) -> bytes:
    """What a command printed; nothing where there is no such command."""
    try:
        return subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_WITHIN_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
