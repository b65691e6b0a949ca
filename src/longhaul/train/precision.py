"""Number formats of matrix products: the one in force, and the fastest on the device at hand.

For `precision.compute = "auto"` and `optim.muon.newton_schulz = "auto"` it is measured once, at a
run's first start, and kept in the ledger.

Shape suffixes: T tokens of a micro-batch, D width of the model, F width inside an MLP.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.train import PrecisionSection
from longhaul.core.errors import LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.units import Seconds
from longhaul.logbook.ledger import LedgerState, Override
from longhaul.logbook.run_log import RunLog
from longhaul.model.device import wait_for
from longhaul.parallel.device import torch_facts

BUDGET_S: Seconds = 0.25
"""For all formats together, once their kernels are warm."""
_CLEARLY_FASTER = 1.25
"""Below it float32 stays: a step gains less than its products, and loses digits."""
_HOPELESS = 3.0
"""So many times slower than float32 at first sight: emulated, and not measured any further."""
_MOST_T, _MOST_D, _MOST_F = 1024, 512, 2048
"""Beyond these sizes the ratio between formats does not change, and the time would."""
_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 50


Format = Literal["float32", "TF32", "bf16"]
"""How matrix products are computed; with TF32 float32 numbers are multiplied as TensorFloat-32."""
FLOAT32: Format = "float32"
Measure = Callable[[Format], Seconds]
"""Format → seconds of one forward and backward pass; infinity if the device does not have it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A format and why."""

    format: Format
    reason: str

    @property
    def compute(self) -> Literal["float32", "bf16"]:
        """The value of `precision.compute`."""
        return "bf16" if self.format == "bf16" else "float32"


def fastest_format(device: torch.device, recipe: Recipe) -> Choice:
    """The fastest of float32, TF32 and bf16 on a device, at the recipe's shape of products.

    float32 stays unless another format is at least a quarter faster.
    """
    return choose_format(_candidates(device), _products(device, recipe), time.monotonic)


def autocast(device: torch.device, precision: PrecisionSection) -> AbstractContextManager[object]:
    """The precision of a forward pass; LonghaulError if `precision.compute` is `auto` still."""
    if precision.compute == "auto":
        raise LonghaulError(
            "precision.compute: auto has not been measured for a device yet",
            "`longhaul train` does so at a run's first start",
        )
    return torch.autocast(device.type, torch.bfloat16, enabled=precision.compute == "bf16")


def choose_format(
    candidates: tuple[Format, ...], measure: Measure, clock: Callable[[], Seconds]
) -> Choice:
    """Measure all formats in turn, so that other work slows them alike; each one's best counts."""
    best = {FLOAT32: _warm(measure, FLOAT32)}
    for candidate in candidates:
        seconds = _warm(measure, candidate)
        if seconds < _HOPELESS * best[FLOAT32]:
            best[candidate] = seconds
    if len(best) == 1:
        return Choice(FLOAT32, "this device has nothing faster than float32")
    until = clock() + BUDGET_S
    for number in range(_MOST_ROUNDS):
        faster = [best[FLOAT32] / best[other] for other in best if other != FLOAT32]
        # So far from the line that more rounds cannot move it across.
        clear = all(not _CLEARLY_FASTER / 1.5 < ratio < _CLEARLY_FASTER * 1.5 for ratio in faster)
        if number >= _FEWEST_ROUNDS and (clear or clock() >= until):
            break
        for candidate in best:
            best[candidate] = min(best[candidate], measure(candidate))
    winner = min(best, key=lambda candidate: best[candidate])
    ratios = " and ".join(
        f"{candidate} {best[FLOAT32] / best[candidate]:.2g} times"
        for candidate in best
        if candidate != FLOAT32
    )
    reason = f"matrix products in {ratios} the speed of float32 on this device"
    if best[FLOAT32] < _CLEARLY_FASTER * best[winner]:
        winner = FLOAT32
    return Choice(winner, reason)


def _warm(measure: Measure, candidate: Format) -> Seconds:
    """The better of two passes: the first one makes kernels."""
    return min(measure(candidate), measure(candidate))


def _candidates(device: torch.device) -> tuple[Format, ...]:
    """Formats a device may have; the measurement tells whether it computes them fast."""
    if device.type == "cpu" and not _cpu_multiplies_bf16():
        return ()
    if device.type != "cuda":
        return ("bf16",)
    found: list[Format] = []
    if torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0):
        found.append("TF32")
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            found.append("bf16")
    return tuple(found)


def _cpu_multiplies_bf16() -> bool:
    """Whether torch has kernels for this processor; without, one pass in bf16 takes a second."""
    return bool(
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _products(device: torch.device, recipe: Recipe) -> Measure:
    """An MLP with its norm, forward and backward, in the recipe's shape up to a size."""
    stage = recipe.batch_stages()[-1]
    micro = recipe.batch.micro_sequences
    sequences = micro if isinstance(micro, int) else stage.sequences
    num_tokens = min(sequences * stage.sequence_length, _MOST_T)
    width, inner = min(recipe.model.width, _MOST_D), min(recipe.model.inner_width, _MOST_F)
    generator = torch.Generator(device).manual_seed(0)  # the run's own numbers stay as they are

    def filled(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator).requires_grad_()

    x_TD, up_FD, down_DF = filled(num_tokens, width), filled(inner, width), filled(width, inner)

    def measure(candidate: Format) -> Seconds:
        wait_for(device)
        began = time.perf_counter()
        try:
            with (
                _tf32(candidate == "TF32"),
                torch.autocast(device.type, torch.bfloat16, enabled=candidate == "bf16"),
            ):
                hidden_TF = torch.relu(linear(layer_norm(x_TD, (width,)), up_FD))
                y_TD = x_TD + linear(hidden_TF, down_DF)
                torch.autograd.grad(y_TD.float().sum(), (x_TD, up_FD, down_DF))
        except RuntimeError:  # a device without this format says so when it is asked for it
            return float("inf")
        wait_for(device)
        return time.perf_counter() - began

    return measure


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


COMPUTE, TF32, NEWTON_SCHULZ = "precision.compute", "precision.tf32", "optim.muon.newton_schulz"
_PATHS = (COMPUTE, TF32, NEWTON_SCHULZ)
_WHO = "longhaul"
"""Signs what was measured; a decision of anybody else is left alone."""
_SAME_MACHINE = ("device", "gpu", "cpu_capability")
"""Facts of torch that tell two kinds of device apart."""


def settle_precision(recipe: Recipe, run_log: RunLog, device: torch.device, say: Say) -> Recipe:
    """See to it that formats are named before anything is built from them.

    What was found at the first start stays on every other machine, which says so if it would
    choose otherwise: another format gives other bits. A run begun by an earlier longhaul keeps the
    format it trained in. A format in the recipe is newer and ends the choice; `auto` after that
    takes it up again. Returned is the recipe with the formats in force.

    Raises:
        LedgerError: the decision could not be written.
    """
    _withdraw(recipe, run_log)
    measured: Choice | None = None
    if recipe.precision.compute == "auto" and _in_force(run_log, COMPUTE) is None:
        measured = _begin(recipe, run_log, device, say)
    elif recipe.precision.compute == "auto":
        _compare(recipe, run_log, device, say)
    muon = recipe.optim.name == "muon" and recipe.optim.muon.newton_schulz == "auto"
    if muon and not run_log.history.begun and _in_force(run_log, NEWTON_SCHULZ) is None:
        measured = measured or fastest_format(device, recipe)
        _decide(run_log, NEWTON_SCHULZ, measured.compute, measured.reason, "auto")
    return with_formats(recipe, run_log.ledger)


def with_formats(recipe: Recipe, ledger: LedgerState) -> Recipe:
    """A recipe with the formats that were found for it in place of `auto`."""
    found = {path: ledger.override_at(path, 0) for path in _PATHS}
    return with_overrides(recipe, {path: item.value for path, item in found.items() if item})


def measured_recipe(recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Settings that `auto` would be on this device, without a run."""
    if recipe.precision.compute != "auto":
        return {}
    choice = fastest_format(device, recipe)
    return {COMPUTE: choice.compute} | ({TF32: True} if choice.format == "TF32" else {})


def _begin(recipe: Recipe, run_log: RunLog, device: torch.device, say: Say) -> Choice | None:
    """Decide what computes from now on; None if nothing had to be measured."""
    last = run_log.history.last_segment
    if earlier := run_log.ledger.withdrawn.get(COMPUTE):
        _decide(run_log, COMPUTE, earlier.value, earlier.reason, "auto")
        return None
    before = (last.settings.get("precision") or {}).get("compute") if last else None
    if before in ("float32", "bf16"):
        _decide(run_log, COMPUTE, before, f"the run has trained in {before} so far", "auto")
        say(f"precision: {before}, in which this run has trained so far")
        return None
    choice = fastest_format(device, recipe)
    _decide(run_log, COMPUTE, choice.compute, choice.reason, "auto")
    if choice.format == "TF32":
        _decide(run_log, TF32, True, choice.reason, recipe.precision.tf32)
    say(f"precision: {choice.format}; {choice.reason}")
    return choice


def _compare(recipe: Recipe, run_log: RunLog, device: torch.device, say: Say) -> None:
    """Say so if another machine than the last one would have chosen otherwise."""
    in_force, last = _in_force(run_log, COMPUTE), run_log.history.last_segment
    if in_force is None or last is None:
        return
    before, now = last.fingerprint.get("torch") or {}, torch_facts(device)
    if all(before.get(name) == now.get(name) for name in _SAME_MACHINE):
        return
    choice = fastest_format(device, recipe)
    if choice.compute == in_force.value:
        return
    text = (
        f"this machine would compute in {choice.format} ({choice.reason}); the run keeps "
        f"{in_force.value}, in which it began"
    )
    say(f"precision: {text}")
    step = run_log.history.steps_made
    run_log.emit(EventKind.PRECISION_KEPT, step, kept=in_force.value, here=choice.format, text=text)


def _withdraw(recipe: Recipe, run_log: RunLog) -> None:
    """Formats that the recipe names itself now are no longer ours to choose."""
    compute, newton_schulz = recipe.precision.compute, recipe.optim.muon.newton_schulz
    for path, asked in ((COMPUTE, compute), (TF32, compute), (NEWTON_SCHULZ, newton_schulz)):
        in_force = _in_force(run_log, path)
        if asked != "auto" and in_force is not None and in_force.who == _WHO:
            run_log.decide(
                "unset", run_log.history.steps_made, {"path": path, "old": in_force.value},
                who=_WHO, reason=f"the recipe asks for {asked} now",
            )  # fmt: skip


def _in_force(run_log: RunLog, path: str) -> Override | None:
    return run_log.ledger.override_at(path, 0)


def _decide(run_log: RunLog, path: str, value: object, reason: str, old: object) -> None:
    data = {"path": path, "value": value, "old": old}
    run_log.decide("set", run_log.history.steps_made, data, who=_WHO, reason=reason)
