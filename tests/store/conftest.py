from collections.abc import Callable
from pathlib import Path

import pytest

from longhaul.store.manifest import Manifest, write_listed_file, write_manifest


@pytest.fixture
def fill() -> Callable[..., Path]:
    """Write a small checkpoint with a manifest into a folder."""

    def fill(folder: Path, step: int, content: bytes = b"state") -> Path:
        folder.mkdir(parents=True)
        file = write_listed_file(folder / "state.json", [content])
        write_manifest(folder, Manifest(step=step, time=float(step), files=(file,)))
        return folder

    return fill
