"""The text of newer held-out runs: other than anything before.

Enters: a run as it is declared. Leaves: the same on Python's enhancement proposals and Rust's
requests for comments, which lie in `../shared/corpora`. Never knows: what it is for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.divergence_lab.runs import Run, Settings

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
_NAMES = {"made-up": "peps", "stdlib": "rfcs"}
_PATHS = {"peps": "peps.jsonl.zst", "rfcs": "rust-rfcs.jsonl.zst"}


def missing_text() -> str:
    """Why there is no such text here; empty if there is."""
    gone = [path for path in _PATHS.values() if not (CORPORA / path).exists()]
    return f"{', '.join(gone)} not in {CORPORA}" if gone else ""


def sources() -> list[dict[str, Any]]:
    """Both texts, half and half; paths from `CORPORA`."""
    return [{"name": name, "path": path, "weight": 0.5} for name, path in _PATHS.items()]


def of_other_text(run: Run) -> Run:
    """The same run on the other text: every name of a source is changed."""
    twin = None if run.twin is None else _renamed(run.twin)
    return replace(run, settings=_renamed(run.settings), twin=twin)


def located(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sources whose text is found from anywhere."""
    return [{**s, "path": str(CORPORA / s["path"]) if s["name"] in _PATHS else s["path"]}
            for s in sources]  # fmt: skip


def is_of_other_text(run: Run) -> bool:
    """Whether a run reads the other text."""
    return any(s["name"] in _PATHS for s in run.settings.get("data.sources", ()))


def _renamed(settings: Settings) -> dict[str, Any]:
    found = dict(settings)
    found["data.sources"] = [
        {**source, "name": (name := _NAMES[source["name"]]), "path": _PATHS[name]}
        for source in settings["data.sources"]
    ]
    if "data.stages" in found:
        found["data.stages"] = [_stage(stage) for stage in settings["data.stages"]]
    return found


def _stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {**stage, "weights": {_NAMES[name]: w for name, w in stage["weights"].items()}}
