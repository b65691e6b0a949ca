"""`longhaul plan`: layouts, time and bill of a recipe on devices that may be elsewhere."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.config.size import known_vocabulary, model_size
from longhaul.core.devices import Basis, Device, Format, device_named
from longhaul.core.errors import UsageError
from longhaul.core.files import write_json
from longhaul.core.strict import read_object
from longhaul.plan.bill import Figure, bill, failures_of
from longhaul.plan.calibration import Calibration, calibration_of, with_calibration
from longhaul.plan.layouts import Candidate, Search
from longhaul.plan.memory import checkpoint_bytes
from longhaul.plan.step_time import efficiency_of, element_of
from longhaul.run.plan.calibrate import calibrate
from longhaul.run.plan.this_device import this_device


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What was typed."""

    recipe: str
    options: tuple[str, ...] = ()
    gpus: int | None = None
    gpu: str | None = None
    """None: this machine's device."""
    price: float | None = None
    """Of a GPU for an hour."""
    calibrate: str | None = None
    """A run whose journal is read."""
    calibration_file: Path
    runs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `longhaul plan` prints."""

    recipe: str
    device: Device
    device_basis: Basis
    gpus: int
    element: Format
    model: list[Figure]
    efficiency: Figure
    candidates: list[Candidate]
    """Those that fit, the fastest first."""
    bill: list[Figure]
    step_basis: Basis

    def as_data(self, most: int) -> dict[str, Any]:
        """For programs, with so many layouts."""
        listed = [
            {
                "settings": one.settings, "memory_bytes": dict(one.memory),
                "memory_total_bytes": one.memory_bytes, "memory_basis": "published",
                "step_s": one.time.total, "parts_s": dict(one.time.parts), "mfu": one.mfu,
                "basis": self.step_basis,
            }
            for one in self.candidates[:most]
        ]  # fmt: skip
        return {
            "recipe": self.recipe, "gpus": self.gpus, "element": self.element,
            "device": {
                "key": self.device.key, "basis": self.device_basis,
                "memory_bytes": self.device.memory_bytes,
                "node_devices": self.device.node_devices, "source": self.device.source,
                "assumed": list(self.device.assumed),
            },
            "model": [asdict(one) for one in self.model],
            "efficiency": asdict(self.efficiency),
            "layouts_that_fit": len(self.candidates), "layouts": listed,
            "bill": [asdict(one) for one in self.bill],
        }  # fmt: skip


def make_plan(request: PlanRequest) -> Plan:
    """Plan a recipe; a `UsageError` or `RecipeError` says what cannot be and what would."""
    recipe = load_recipe(request.recipe, request.options).recipe
    if request.gpu is None:
        device, device_basis, memory = this_device(recipe.machine.device)
    else:
        device, memory = device_named(request.gpu), None
        device_basis = "assumed" if device.assumed else "published"
    on_cpu = device.key.startswith("cpu")
    gpus = request.gpus or recipe.machine.processes
    refuse_part_of_a_node(gpus, device)
    if request.calibrate is not None:
        keep(request.calibration_file, calibrate(request.calibrate, request.runs, device, on_cpu))
    element = _element(recipe, device, request.calibration_file)
    efficiency = _efficiency(request.calibration_file, device, element)
    vocab_size, known = known_vocabulary(recipe)
    assert efficiency.value is not None
    each_memory = None if memory is None else memory // (gpus if on_cpu else 1)
    search = Search(
        recipe, vocab_size, device, gpus, element, efficiency.value, on_cpu, each_memory
    )
    candidates = search.ranked()
    best = candidates[0]
    # Overlap and attention are assumed; a fit on one device has them in it, links it has not.
    fitted_here = efficiency.basis == "measured" and gpus == 1
    step_basis: Basis = "measured" if fitted_here else "assumed"
    failures, failures_basis = failures_of(device)
    return Plan(
        recipe=recipe.name, device=device, device_basis=device_basis, gpus=gpus, element=element,
        model=_model(recipe, vocab_size, known), efficiency=efficiency, candidates=candidates,
        bill=bill(
            step_s=best.time.total, steps=recipe.total_steps(), gpus=gpus,
            node_devices=device.node_devices, power_w=device.power_w or None,
            price=request.price, checkpoint_bytes=checkpoint_bytes(recipe, vocab_size),
            step_basis=step_basis, failures=failures, failures_basis=failures_basis,
        ),
        step_basis=step_basis,
    )  # fmt: skip


def refuse_part_of_a_node(gpus: int, device: Device) -> None:
    """A `UsageError` for a number beyond a node that is no multiple of it."""
    node = device.node_devices
    if gpus > node and gpus % node:
        below = gpus // node * node
        raise UsageError(
            f"--gpus: {gpus} is no multiple of the {node} devices of a {device.key} node",
            f"give {below} or {below + node}",
        )


def keep(path: Path, found: Calibration) -> None:
    """Write a calibration down for the next plan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, with_calibration(_read(path), found))


def _read(path: Path) -> dict[str, Any]:
    return dict(read_object(path)) if path.exists() else {}


def _element(recipe: Recipe, device: Device, path: Path) -> Format:
    """The format of products: where the recipe leaves it open, one that a run has calibrated."""
    fastest = element_of(recipe, device)
    if recipe.precision.compute != "auto" or recipe.precision.float8:
        return fastest
    either: tuple[Format, ...] = (fastest, "fp32", "bf16")
    values = _read(path)
    return next((one for one in either if calibration_of(values, device.key, one)), fastest)


def _efficiency(path: Path, device: Device, element: Format) -> Figure:
    name = "efficiency of products"
    found = calibration_of(_read(path), device.key, element)
    if found is not None:
        source = f"run {found.run}, {found.steps} steps of {found.step_s:.4g} s ({path})"
        return Figure(name, found.efficiency, "of the best product", "measured", source)
    value, basis, source = efficiency_of(device)
    return Figure(name, value, "of the best product", basis, source)


def _model(recipe: Recipe, vocab_size: int, known: bool) -> list[Figure]:
    size, batch = model_size(recipe.model, vocab_size), recipe.batch_stages()[-1]
    flops = size.flops_per_token(batch.sequence_length)
    tokens, steps = batch.sequences * batch.sequence_length, recipe.total_steps()
    basis: Basis = "published" if known else "assumed"
    source = "the recipe" if known else f"a vocabulary of {vocab_size:,} tokens is assumed"
    lines = [
        Figure("parameters", size.total, "", basis, source),
        Figure("FLOPs of a token", flops, "FLOP", basis, "PaLM, appendix B"),
        Figure("tokens of a step", tokens, "", "published", "the recipe"),
    ]
    if steps is not None:
        whole = float(flops) * tokens * steps
        lines.append(Figure("FLOPs of the run", whole, "FLOP", basis, "PaLM, appendix B"))
    return lines
