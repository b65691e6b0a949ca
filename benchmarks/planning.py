"""How far the arithmetic of `longhaul plan` is from what others published.

    python -m benchmarks.planning          measure, write results/planning.json and the tables
    python -m benchmarks.planning --page   write the tables of docs/planning.md from the results

MFU is predicted: the one efficiency of a device is the median over the *other* rows of that device,
each fitted to its own GPU-hours (leave one out). Nothing else is fitted.
"""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from benchmarks.common import (
    RESULTS,
    ROOT,
    Bar,
    at_most,
    circumstances,
    figure,
    print_table,
    rewrite_block,
)
from benchmarks.planning_rows import ANCHORS, PEAKS, THROUGHPUTS, Peak, Row

from longhaul.config.load import load_recipe
from longhaul.config.size import shrunken
from longhaul.core.devices import Device, device_named
from longhaul.plan.bill import goodput
from longhaul.plan.calibration import fitted
from longhaul.plan.memory import estimate_memory
from longhaul.plan.practice import TORCHTITAN
from longhaul.plan.step_time import Rates, StepModel
from longhaul.store.save_interval import PRIOR_S, daly_interval

BAR = 0.15
MEMORY_BAR = 0.10
HUMAN_RECOVERY_S = 3600.0
"""Assumed, of runs whose hours have failures in them: an hour from failure to the next step."""
SAVE_S = 60.0
"""Assumed, of the same: a save keeps training waiting for a minute; Daly's interval follows."""
TWINS = ("gpt2-124m", "llama-1b", "llama-8b", "opt-175b", "quickstart")
PAGE = ROOT / "docs" / "planning.md"
ROWS = (*ANCHORS, *THROUGHPUTS)


@dataclass(frozen=True)
class Line:
    """One row, predicted and published."""

    name: str
    device: str
    gpus: int
    anchor: bool
    own_efficiency: float | None
    """That explains its own hours; None if none does."""
    efficiency: float
    """Median of the other rows of its device."""
    published_mfu: float
    """That its GPU-hours imply, with the predicted goodput taken out."""
    predicted_mfu: float
    published_hours: float
    predicted_hours: float
    error: float
    source: str
    assumed: str
    outlier: str


def family(row: Row) -> str:
    """Rows that share an efficiency."""
    return row.device.partition("-")[0]


def model_of(row: Row, efficiency: float) -> tuple[StepModel, Device]:
    """The roofline of a published run."""
    layers, heads, width, mlp, context = row.shape
    shape = {"layers": layers, "heads": heads, "kv_heads": heads, "width": width,
             "mlp_width": mlp, "context": context}  # fmt: skip
    values: dict[str, object] = {f"model.{name}": value for name, value in shape.items()}
    values |= {"batch.sequences": row.sequences, "machine.activation_checkpointing": row.recompute,
               "batch.micro_sequences": 1} | dict(row.settings)  # fmt: skip
    if values["model.kv_heads"] is None:
        values["model.kv_heads"] = heads
    recipe = load_recipe("llama-8b", [_override(*item) for item in values.items()]).recipe
    device = device_named(row.device)
    rates = Rates.of(device, "bf16", efficiency)
    made = StepModel(
        recipe, row.vocab, row.layout, rates, row.micro, row.practice,
        stages_per_rank=row.stages_per_rank,
    )  # fmt: skip
    return made, device


def _override(path: str, value: object) -> str:
    return f"{path}={str(value).lower() if isinstance(value, bool) else value}"


def goodput_of(row: Row) -> float:
    """Share of its hours that trained: 1 where the source counts training alone."""
    if not row.downtime:
        return 1.0
    if row.effective is not None:
        return row.effective
    mean_s = PRIOR_S / row.gpus
    return goodput(mean_s, daly_interval(SAVE_S, mean_s), HUMAN_RECOVERY_S)


def step_published(row: Row) -> float:
    """Seconds of a step that its GPU-hours imply."""
    tokens_per_step = row.sequences * row.shape[4]
    return row.gpu_hours * 3600 * goodput_of(row) / row.gpus / (row.tokens / tokens_per_step)


def own_fit(row: Row) -> float | None:
    """The efficiency that explains a row's own hours."""
    made, _ = model_of(row, 1.0)
    device = device_named(row.device)

    def predict(efficiency: float) -> float:
        rates = Rates.of(device, "bf16", efficiency)
        return StepModel(
            made.recipe, row.vocab, row.layout, rates, row.micro, row.practice,
            stages_per_rank=row.stages_per_rank,
        ).step_time().total  # fmt: skip

    return fitted(predict, step_published(row))


def lines() -> list[Line]:
    """Every row, predicted by the others."""
    own = {row.name + row.device: own_fit(row) for row in ROWS}
    made = []
    for row in ROWS:
        others = [own[one.name + one.device] for one in ROWS
                  if family(one) == family(row) and one is not row]  # fmt: skip
        efficiency = median(value for value in others if value is not None)
        model, device = model_of(row, efficiency)
        predicted_s, published_s = model.step_time().total, step_published(row)
        mfu = model.mfu(device.peak["bf16"])
        hours = row.gpu_hours * predicted_s / published_s
        made.append(Line(
            row.name, row.device, row.gpus, row.anchor, own[row.name + row.device], efficiency,
            mfu * predicted_s / published_s, mfu, row.gpu_hours, hours, hours / row.gpu_hours - 1,
            row.source, row.assumed, row.outlier,
        ))  # fmt: skip
    return made


SPANS: dict[str, tuple[str, tuple[object, ...]]] = {
    "LLaMA-65B": ("micro", (2, 4, 8)),
    "OPT-175B": ("micro", (2, 4, 8)),
    "Llama-3.1-405B": ("stages_per_rank", (1, 2, 4, 8)),
    "OLMo-3 7B": ("recompute", ("none", "selective", "full")),
    "OLMo-3 32B": ("recompute", ("none", "selective", "full")),
}
"""Inputs that no source gives, and what they might have been."""


def spans() -> list[dict[str, Any]]:
    """The error of a row for each value of what was assumed, at the same efficiency."""
    found = []
    efficiencies = {line.name: line.efficiency for line in lines()}
    for row in ANCHORS:
        if row.name not in SPANS:
            continue
        name, values = SPANS[row.name]
        errors = {}
        for value in values:
            changed = replace(row, **{name: value})  # type: ignore[arg-type]
            model, _ = model_of(changed, efficiencies[row.name])
            errors[str(value)] = model.step_time().total / step_published(row) - 1
        found.append({"name": row.name, "input": name, "taken": str(getattr(row, name)),
                      "errors": errors})  # fmt: skip
    return found


def peak_gib(peak: Peak) -> float:
    """The estimate of a published peak."""
    layers, heads, width, mlp = peak.shape
    values: dict[str, object] = {
        "model.layers": layers, "model.heads": heads, "model.width": width,
        "model.mlp_width": mlp, "model.vocab_multiple": 1, "batch.sequences": peak.sequences,
        "batch.micro_sequences": peak.micro, "parallel.tensor": peak.layout.tensor,
        "parallel.pipeline": peak.layout.pipeline, "machine.compile": False,
        "parallel.stages_per_rank": peak.stages_per_rank,
        "parallel.reshard_after_forward": peak.layout.pipeline == 1,
        "machine.activation_checkpointing": peak.recompute,
    }  # fmt: skip
    recipe = load_recipe("llama-8b", [_override(*item) for item in values.items()]).recipe
    estimate = estimate_memory(recipe, 128_256, peak.layout, practice=TORCHTITAN)
    return sum(estimate.step.values()) / 2**30


def twins() -> list[dict[str, Any]]:
    """Peaks of small twins of shipped recipes, measured here, and estimated."""
    import torch

    from longhaul.parallel.device import settle_torch
    from longhaul.parallel.layout import Layout
    from longhaul.run.preflight.context import ALONE
    from longhaul.run.preflight.memory import VOCABULARY, measured

    found = []
    for name in TWINS:
        options = [*shrunken(load_recipe(name).recipe), *ALONE]
        recipe = load_recipe(name, options).recipe
        settle_torch(recipe)
        real = measured(recipe, torch.device("cpu"))["step"]
        estimated = sum(estimate_memory(recipe, VOCABULARY, Layout(), on_cpu=True).step.values())
        found.append({"name": name, "measured_mb": real / 1e6, "estimated_mb": estimated / 1e6})
    return found


def measure() -> dict[str, Any]:
    """All figures, with their bars."""
    rows = lines()
    peaks: list[dict[str, Any]] = [
        {"name": one.name, "published_gib": one.gib, "estimated_gib": peak_gib(one)}
        for one in PEAKS
    ]
    here = twins()
    bars: list[Bar] = []
    for line in rows:
        said = line.outlier if abs(line.error) > BAR else ""
        bars.append(at_most(
            f"GPU-hours, {line.name} ({line.device}), error", abs(line.error), "", BAR, said
        ))  # fmt: skip
    for peak in peaks:
        error = abs(peak["estimated_gib"] / peak["published_gib"] - 1)
        bars.append(at_most(f"memory, {peak['name']}, error", error, "", MEMORY_BAR))
    for twin in here:
        error = abs(twin["estimated_mb"] / twin["measured_mb"] - 1)
        bars.append(at_most(f"memory, twin of {twin['name']} here, error", error, "", MEMORY_BAR))
    for device in sorted({family(row) for row in ROWS}):
        fits = [line.own_efficiency for line in rows
                if line.device.startswith(device) and line.own_efficiency is not None]  # fmt: skip
        bars.append(figure(f"efficiency of {device}, median of {len(fits)} rows", median(fits), ""))
    return {
        "benchmark": "planning", "command": "python -m benchmarks.planning", **circumstances(),
        "bars": [asdict(bar) for bar in bars], "rows": [asdict(line) for line in rows],
        "peaks": peaks, "twins": here, "spans": spans(),
    }  # fmt: skip


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Blocks of the document, by name."""
    head = "| run | device | GPUs | efficiency of the others | its own | MFU published | predicted "
    head += "| GPU-hours published | predicted | error | |\n|" + "---|" * 11
    made = {}
    for name, anchors in (("anchors", True), ("throughputs", False)):
        body = [_row(line) for line in results["rows"] if line["anchor"] is anchors]
        made[f"planning {name}"] = "\n".join([head, *body])
    made["planning spans"] = "\n".join(
        ["| run | assumed | taken | error of GPU-hours by value |", "|" + "---|" * 4]
        + [_span(one) for one in results["spans"]]
    )
    made["planning peaks"] = "\n".join(
        ["| Llama 3.1 on H100s | published, GiB | estimated | error | bar 10 % |", "|" + "---|" * 5]
        + [_peak(one["name"], one["published_gib"], one["estimated_gib"], "GiB")
           for one in results["peaks"]]
    )  # fmt: skip
    made["planning twins"] = "\n".join(
        ["| twin of | measured here, MB | estimated | error | bar 10 % |", "|" + "---|" * 5]
        + [_peak(one["name"], one["measured_mb"], one["estimated_mb"], "MB")
           for one in results["twins"]]
    )  # fmt: skip
    return made


def _row(line: dict[str, Any]) -> str:
    own = "none" if line["own_efficiency"] is None else f"{line['own_efficiency']:.2f}"
    verdict = "met" if abs(line["error"]) <= BAR else "missed"
    notes = [verdict, *([f"assumed: {line['assumed']}"] if line["assumed"] else [])]
    cells = [
        line["name"], line["device"], f"{line['gpus']:,}", f"{line['efficiency']:.2f}", own,
        f"{line['published_mfu']:.1%}", f"{line['predicted_mfu']:.1%}",
        f"{line['published_hours']:,.0f}", f"{line['predicted_hours']:,.0f}",
        f"{line['error']:+.0%}", "; ".join(notes),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _span(one: dict[str, Any]) -> str:
    errors = ", ".join(f"{value}: {error:+.0%}" for value, error in one["errors"].items())
    return f"| {one['name']} | {one['input']} | {one['taken']} | {errors} |"


def _peak(name: str, real: float, estimated: float, unit: str) -> str:
    error = estimated / real - 1
    verdict = "met" if abs(error) <= MEMORY_BAR else "missed"
    return f"| {name} | {real:.1f} | {estimated:.1f} | {error:+.1%} | {verdict} |"


def main() -> None:
    """Measure, or write the page again."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--page", action="store_true", help="measure nothing")
    path = RESULTS / "planning.json"
    if not parser.parse_args().page:
        results = measure()
        print_table("planning", [Bar(**bar) for bar in results["bars"]])
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    for name, text in tables(json.loads(path.read_text())).items():
        if PAGE.exists():
            rewrite_block(PAGE, name, text)


if __name__ == "__main__":
    main()
