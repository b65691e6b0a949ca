"""A checkpoint back into training state: everything is checked before the first bit is taken.
Loading runs no code from the checkpoint: tensors and JSON only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor

from longhaul.checkpoint.capture import (
    Stateful,
    TrainingState,
    capture,
    check_same,
    describe,
    descriptions,
    hand_back,
)
from longhaul.checkpoint.layout import METADATA_NAME, StoredTensor, from_json, plan_load
from longhaul.checkpoint.write import FACTS_VERSION, read_back
from longhaul.parallel.control import Control, all_do
from longhaul.store.manifest import (
    FACTS_NAME,
    Manifest,
    RefusedCheckpoint,
    Whole,
    read_json,
    shaped,
    versioned,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a checkpoint said besides tensors."""

    step: Whole
    attempt: Whole
    facts: Mapping[str, Any]


_LOADED = TypeAdapter(Loaded)


def restore(path: Path, parts: Mapping[str, Stateful], control: Control | None = None) -> Loaded:
    """Load the checkpoint at `path` into `parts`, which must be all the parts it holds; errors as
    `load`. Ranks call it together, each with its own shards, however those are cut now.
    """
    state = capture(parts)
    loaded = load(path, state, control=control)
    hand_back(parts, TrainingState(state.tensors, loaded.facts))
    return loaded


def load_part(path: Path, part: str, owner: Stateful, fetched: Manifest | None = None) -> Loaded:
    """Load one part of the checkpoint at `path`, such as the model; errors as `load`."""
    state = capture({part: owner})
    loaded = load(path, state, prefix=f"{part}.", fetched=fetched)
    facts = {part: loaded.facts[part]} if part in loaded.facts else {}
    hand_back({part: owner}, TrainingState(state.tensors, facts))
    return loaded


def load(
    path: Path,
    state: TrainingState,
    prefix: str = "",
    control: Control | None = None,
    fetched: Manifest | None = None,
) -> Loaded:
    """Fill the tensors of `state` from the checkpoint at `path`, bit by bit.

    `state` has all those tensors of the checkpoint whose names begin with `prefix`, such as
    `model.`. With the `control` of several ranks that do it together, none takes a bit before all
    of them know that they can. `fetched` is the manifest of a checkpoint of which only these
    tensors have been fetched: hashes of whole files are not compared then.

    Raises:
        RefusedCheckpoint: a file differs from the manifest, or says what no checkpoint of ours
            says; record it as poisoned and try the one before.
        StateMismatch: the checkpoint is sound but holds other tensors than `state`.
    """
    # Of a pipeline each rank has some layers only; together they must be all.
    by_rank = all_do(control, lambda: descriptions(state.tensors, state.pieces))
    live = {name: kind for own in by_rank for name, kind in own.items()}
    manifest = read_back(path, control) if fetched is None else fetched
    planned: list[tuple[Loaded, Callable[[], None]]] = []

    def plan() -> None:
        loaded, stored = _checked(path, manifest, prefix, live)
        planned.append((loaded, plan_load(path, stored, state.tensors, state.pieces)))

    all_do(control, plan)
    loaded, fill = planned[0]
    fill()
    return loaded


def tensors_reader(
    path: Path, part: str, live: Mapping[str, Tensor], fetched: Manifest | None = None
) -> Callable[[Mapping[str, Tensor]], None]:
    """What fills some tensors of a part, by their names in it, as often as it is called: for a part
    that is too large to be loaded at once, and whose tensors `live` may be on `meta`. Everything is
    checked here; errors as `load`, and `RefusedCheckpoint` if files change meanwhile.
    """
    manifest = read_back(path, None) if fetched is None else fetched
    named = {f"{part}.{name}": tensor for name, tensor in live.items()}
    _, stored = _checked(path, manifest, f"{part}.", descriptions(named))

    def fill(some: Mapping[str, Tensor]) -> None:
        plan_load(path, stored, {f"{part}.{name}": tensor for name, tensor in some.items()})()

    return fill


def _checked(
    path: Path, manifest: Manifest, prefix: str, live: Mapping[str, str]
) -> tuple[Loaded, dict[str, StoredTensor]]:
    loaded = read_facts(path)
    if loaded.step != manifest.step:
        raise RefusedCheckpoint(
            f"{path}: the manifest is that of step {manifest.step}, the state of {loaded.step}"
        )
    sizes = {file.name: file.size_bytes for file in manifest.files}
    stored = from_json(read_json(path / METADATA_NAME), sizes)
    saved = {
        name: describe(tensor.dtype, tensor.size)
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
    check_same(saved, live)
    return loaded, stored


def read_facts(path: Path) -> Loaded:
    """A checkpoint's facts, its hashes not compared; RefusedCheckpoint if `state.json` is unfit."""
    what = str(path / FACTS_NAME)
    keys = {"step", "attempt", "facts"}
    body = versioned(read_json(path / FACTS_NAME), FACTS_VERSION, keys, what)
    return shaped(_LOADED, body, what)
