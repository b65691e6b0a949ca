"""A `clusters.toml` for tests."""

from collections.abc import Mapping
from pathlib import Path


def write_clusters(
    path: Path, clusters: Mapping[str, tuple[Path, str]], more: Mapping[str, str] | None = None
) -> Path:
    """Of clusters by name: folder of runs and address of the store; `more` lines of some."""
    tables = [
        f'[cluster.{name}]\nruns = "{runs}"\nremote = "{remote}"\n{(more or {}).get(name, "")}\n'
        for name, (runs, remote) in clusters.items()
    ]
    path.write_text("\n".join(tables))
    return path
