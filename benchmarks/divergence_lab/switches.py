"""The switches of `yalm-stable`, and the forms in which a recipe of the lab is tried again.

Enters: a run. Leaves: the same run with other switches. Never knows: what becomes of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.divergence_lab.runs import Run, Settings


@dataclass(frozen=True, slots=True)
class Switch:
    """One stabiliser."""

    name: str
    on: Settings
    off: Settings


SWITCHES = (
    Switch("norm after the embedding", {"model.embedding_norm": True},
           {"model.embedding_norm": False}),
    Switch("GEGLU", {"model.activation": "geglu"}, {"model.activation": "gelu"}),
    Switch("narrow embedding", {"model.embedding_width": "half"}, {"model.embedding_width": None}),
    Switch("rotary positions", {"model.positions": "rotary"}, {"model.positions": "learned"}),
    Switch("LayerNorm with biases", {"model.norm": "layernorm", "model.bias": True},
           {"model.norm": "rmsnorm", "model.bias": False}),
    Switch("tied head", {"model.tied_head": True}, {"model.tied_head": False}),
)  # fmt: skip
_HALF_WEIGHTS = {"precision.compute": "bf16_weights"}
ISLANDS = Switch("float32 islands", {**_HALF_WEIGHTS, "precision.islands": True},
                 {**_HALF_WEIGHTS, "precision.islands": False})  # fmt: skip
"""They mean something only in half weights."""
EXTRAS = (
    Switch("QK-norm", {"model.qk_norm": True}, {"model.qk_norm": False}),
    Switch("z-loss", {"model.z_loss": 1e-4}, {"model.z_loss": 0.0}),
)
"""Two cures that `yalm-stable` leaves out (arXiv 2309.14322)."""

AS_IT_WAS, NONE, ALL = "as it was", "none", "all"
WHOLE_FORMS = (AS_IT_WAS, NONE, ALL)
HALF_WITH, HALF_WITHOUT = "all, bf16 weights, islands", "all, bf16 weights, no islands"


def merged(parts: Iterable[Settings]) -> dict[str, Any]:
    """The settings of all parts."""
    return {path: value for part in parts for path, value in part.items()}


def forms() -> dict[str, Settings]:
    """Name of a form → what it changes in a recipe."""
    every = merged(switch.on for switch in SWITCHES)
    found: dict[str, Settings] = {
        AS_IT_WAS: {},
        NONE: merged(switch.off for switch in SWITCHES),
        ALL: every,
    }
    found |= {f"all but {switch.name}": every | dict(switch.off) for switch in SWITCHES}
    found |= {f"all and {switch.name}": every | dict(switch.on) for switch in EXTRAS}
    found[HALF_WITH] = every | dict(ISLANDS.on)
    found[HALF_WITHOUT] = every | dict(ISLANDS.off)
    return found


def in_form(run: Run, name: str, changes: Settings) -> Run:
    """The run with other switches, and its twin with the same; only losses of it are read."""
    return replace(
        run,
        name=f"{run.name} {name}",
        settings={**_changed(run.settings, changes), "monitor.gauge_interval_steps": 0},
        twin=None if run.twin is None else _changed(run.twin, changes),
    )


def _changed(settings: Settings, changes: Settings) -> dict[str, Any]:
    fitted = dict(changes)
    if fitted.get("model.embedding_width") == "half":
        fitted["model.embedding_width"] = settings["model.width"] // 2
    kept = settings
    if fitted.get("model.tied_head"):
        # A head that starts at zero cannot be tied.
        kept = {k: v for k, v in settings.items() if k != "model.zero_head"}
    return {**kept, **fitted}
