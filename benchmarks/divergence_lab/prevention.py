"""Would the switches of `yalm-stable` have kept a run from harm, and what do they cost.

    python -m benchmarks.divergence_lab.prevention [--processes 2] [--most 6] [--markdown]

Every recipe of the lab that came to harm by its numbers is trained again: with none of the
switches, with all of them, and with one of them off at a time; each beside its own undisturbed
twin, and judged as in `truth.py`. Float32 islands mean something only in half weights: with all
other switches on they are tried in bfloat16 weights, on and off. Two cures that `yalm-stable`
leaves out (QK-norm and z-loss, arXiv 2309.14322) are added to all switches, one at a time. What a
switch costs is the time of a step of recipe `yalm-stable` (in bfloat16 weights for the islands)
with it over without it, in one process, interleaved.

Enters: the lab's made runs. Leaves: a table and `results/divergence_prevention.json`. Never knows:
findings.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Bar, Ratio, figure, interleaved, paired_ratio, write_results
from benchmarks.divergence_lab import tables
from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.generate import Made, make_all
from benchmarks.divergence_lab.lab import HOME, fresh
from benchmarks.divergence_lab.runs import Run, Settings, catalogue
from benchmarks.divergence_lab.score import Interval, wilson

COMMAND = "python -m benchmarks.divergence_lab.prevention"
NOT_BY_NUMBERS = ("frozen-group", "escape-leak", "lr-too-low")
"""No stabiliser is meant against these."""
ISLANDS_BAR = 0.02
_BAR_SLACK = 0.02
"""On a CPU pairs of identical programs differ by as much (DESIGN, benchmarks)."""
_ROUNDS = 11


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
EXTRAS = (
    Switch("QK-norm", {"model.qk_norm": True}, {"model.qk_norm": False}),
    Switch("z-loss", {"model.z_loss": 1e-4}, {"model.z_loss": 0.0}),
)


def forms() -> dict[str, Settings]:
    """Name of a form → what it changes in a recipe."""
    every = _merged(switch.on for switch in SWITCHES)
    found: dict[str, Settings] = {
        "as it was": {},
        "none": _merged(switch.off for switch in SWITCHES),
        "all": every,
    }
    found |= {f"all but {switch.name}": every | dict(switch.off) for switch in SWITCHES}
    found |= {f"all and {switch.name}": every | dict(switch.on) for switch in EXTRAS}
    found["all, bf16 weights, islands"] = every | dict(ISLANDS.on)
    found["all, bf16 weights, no islands"] = every | dict(ISLANDS.off)
    return found


def _merged(parts: Any) -> dict[str, Any]:
    return {path: value for part in parts for path, value in part.items()}


def in_form(run: Run, name: str, changes: Settings) -> Run:
    """The run with other switches, and its twin with the same."""
    if not changes:
        return run
    return replace(
        run,
        name=f"{run.name} {name}",
        settings=_changed(run.settings, changes),
        twin=None if run.twin is None else _changed(run.twin, changes),
    )


def _changed(settings: Settings, changes: Settings) -> dict[str, Any]:
    fitted = dict(changes)
    if fitted.get("model.embedding_width") == "half":
        fitted["model.embedding_width"] = settings["model.width"] // 2
    kept = settings
    if "model.tied_head" in fitted:
        # A head that starts at zero cannot be tied.
        kept = {k: v for k, v in settings.items() if k != "model.zero_head"}
    return {**kept, **fitted}


def chosen(runs: Sequence[Run], made: Mapping[str, Made], most: int | None) -> list[Run]:
    """Runs that came to harm by their numbers, at most so many of each way."""
    found: list[Run] = []
    for mechanism in CAUSES:
        if mechanism in NOT_BY_NUMBERS:
            continue
        harmed = [r for r in runs if r.mechanism == mechanism and made[r.name].truth.harmed]
        found += harmed[:most]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, help="recipes of each way to go wrong; all if absent")
    parser.add_argument(
        "--markdown", action="store_true", help="print tables for docs/judgement.md"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="prepared text and made runs")
    given = parser.parse_args()
    made = {m.name: m for m in fresh(given.home, given.processes)}
    runs = chosen(list(catalogue()), made, given.most)
    outcomes: dict[str, list[Made]] = {}
    for name, changes in forms().items():
        print(f"{name}: {len(runs)} runs", flush=True)
        varied = [in_form(run, name, changes) for run in runs]
        outcomes[name] = list(make_all(varied, given.home, given.processes))
    print(tables.as_text(_table(outcomes), given.markdown))
    write_results("divergence_prevention", _bars(outcomes, costs()), COMMAND)


def _table(outcomes: Mapping[str, Sequence[Made]]) -> tables.Rows:
    ways = [m for m in CAUSES if m not in NOT_BY_NUMBERS]
    rows: tables.Rows = [("switches", *(CAUSES[way].says for way in ways), "in all")]
    for name, made in outcomes.items():
        cells = []
        for way in ways:
            mine = [m for m in made if m.mechanism == way]
            cells.append(f"{sum(m.truth.harmed for m in mine)}/{len(mine)}")
        rows.append((name, *cells, format(_share(made), ".2f")))
    return rows


def _share(made: Sequence[Made]) -> Interval:
    return wilson(sum(m.truth.harmed for m in made), len(made))


def _bars(outcomes: Mapping[str, Sequence[Made]], ratios: Mapping[str, Ratio]) -> list[Bar]:
    bars = [
        figure(f"share that comes to harm: {name}", _share(made).value, "",
               f"{_share(made):.2f}, of {_share(made).of}")
        for name, made in outcomes.items()
    ]  # fmt: skip
    for name, ratio in ratios.items():
        met = None
        if name == ISLANDS.name:
            met = ratio.high <= 1 + ISLANDS_BAR + _BAR_SLACK
        bars.append(Bar(f"time of a step with {name} over without", ratio.mean, "×",
                        1 + ISLANDS_BAR if met is not None else None, met,
                        format(ratio, ".3f")))  # fmt: skip
    return bars


def costs() -> dict[str, Ratio]:
    """Name of a switch → time of a step of `yalm-stable` with it over the time without."""
    from longhaul.config.load import load_recipe, with_overrides

    base = load_recipe("yalm-stable").recipe
    every = _merged(switch.on for switch in SWITCHES)
    every["model.embedding_width"] = base.model.embedding_width
    ratios = {}
    for switch in (*SWITCHES, ISLANDS, *EXTRAS):
        on = {k: every.get(k, v) if v == "half" else v for k, v in switch.on.items()}
        steps = {
            "with": _stepper(with_overrides(base, every | on)),
            "without": _stepper(with_overrides(base, every | dict(switch.off))),
        }
        print(f"cost of {switch.name}", flush=True)
        times = interleaved(_ROUNDS, steps)
        ratios[switch.name] = paired_ratio(times["with"], times["without"])
    return ratios


def _stepper(recipe: Any) -> Any:
    """A function that times one step of a recipe on random tokens."""
    import torch

    from longhaul.data.batches import Batch
    from longhaul.model.initialise import build
    from longhaul.model.precision import to_half
    from longhaul.optim.build import build_optimizer
    from longhaul.train.step import TrainingStep

    torch.set_num_threads(1)
    sequences, length = 4, recipe.model.context
    model = build(recipe.model, 4096, recipe.seed)
    if recipe.precision.half_weights is not None:
        to_half(model, torch.bfloat16, recipe.precision.islands)
    step = TrainingStep(
        model, build_optimizer(model, recipe.optim), torch.device("cpu"), recipe.precision,
        recipe.seed,
    )  # fmt: skip
    window_BT = torch.randint(
        4096, (sequences, length + 1), generator=torch.Generator().manual_seed(0)
    )
    batch = Batch(window_BT[:, :-1], window_BT[:, 1:], sequences * length, 0, sequences)

    def timed() -> float:
        began = time.perf_counter()
        step(batch, sequences, recipe.optim.lr, False)
        return time.perf_counter() - began

    for _ in range(3):
        timed()
    return timed


if __name__ == "__main__":
    main()
