"""The bare step: the best matrix product, MFU of four shapes, memory and hours on a small card."""

from typing import Any

from benchmarks.common import Bar, at_least, at_most, figure, missing
from benchmarks.gpu.setting import LIMIT_S, NotMeasured, Outcome, Setting
from benchmarks.step import bare_step, largest_product, run_case, seconds_each, sets, vocabulary_of

LLAMA_3B = (
    "model.layers=28", "model.heads=24", "model.width=3072", "batch.micro_sequences=1",
    'machine.activation_checkpointing="selective"',
)  # fmt: skip
"""Llama 3.2 3B's shape on top of `llama-1b`, which has the rest of it. Weights, gradients and
moments take 54 GB, and what layers keep 29 GB a sequence, 14 where elementwise results are computed
again: what fits a card of 80 GB. Nothing that is computed again counts in MFU."""
MFU_BAR = 55.0
_OWN, _LARGEST = 4, 2
"""Micro-batches of a step; the recipes have 12 to 40, so that an update has a smaller share yet."""
_TO_TELL_S = 10.0
_CARD, _CARD_GB, _CARD_HOURS = "RTX 3090", 24.0, 8.0


def product(setting: Setting) -> Outcome:
    """The best bf16 matrix product, and its share of the vendor's peak."""
    best = largest_product(setting.device, "bf16")
    bars = [figure("best bf16 matrix product", best / 1e12, "TFLOP/s")]
    if setting.peak is None:
        bars.append(missing("share of the peak", f"peak of {setting.device.type} is not known"))
    else:
        bars.append(figure("share of the peak", 100 * best / setting.peak, "%"))
    return Outcome(bars, {"flops": best})


def mfu(setting: Setting, recipe: str, shape: str, overrides: tuple[str, ...] = ()) -> Outcome:
    """MFU of a recipe's compiled step, with its own micro-batch and with the largest that fits."""
    best: dict[str, Any] = {}
    reasons: list[str] = []
    ways = {"its own": (), "the largest that fits": ('batch.micro_sequences="auto"',)}
    ways = setting.pick(ways, {"its own": ()})
    for way, micro in ways.items():
        # The second takes as long as the first, and may find larger shapes to compile.
        if best and setting.left_s < 0.6 * LIMIT_S:
            break
        given = setting.options(recipe, *micro, text=False, shape=overrides)
        many = setting.pick(_LARGEST if micro else _OWN, 2)
        case = setting.pick("bf16,compiled", "bf16,eager")
        options = ["--steps", setting.pick("10", "1"), "--micro-batches", str(many), *sets(given)]
        found = run_case(recipe, case, options, setting.left_s - _TO_TELL_S)
        if isinstance(found, str):
            reasons.append(f"micro-batch {way}: {found}")
        elif found["tokens_per_s"] > best.get("tokens_per_s", 0.0):
            best = {**found, "way": way}
    if not best:
        raise NotMeasured("; ".join(reasons))
    told = [f"micro-batch {best['way']}: {best['sequences_at_once']} sequences", *reasons]
    note = "; ".join(told)
    return Outcome(mfu_bars(shape, best, note), {"found": best, "reasons": reasons})


def mfu_bars(shape: str, found: dict[str, Any], note: str) -> list[Bar]:
    """Rows of one shape; the bar is for 1B."""
    bar = MFU_BAR if shape == "1B" else None
    if found["mfu"] is None:
        first = missing(f"{shape}: MFU", f"peak of {found['device']} is not known", bar)
    elif bar is not None:
        first = at_least(f"{shape}: MFU", 100 * found["mfu"], "%", bar, note)
    else:
        first = figure(f"{shape}: MFU", 100 * found["mfu"], "%", note)
    ceiling = f"best product {found['ceiling_tflops']:.3g} TFLOP/s"
    return [
        first,
        figure(f"{shape}: share of the best product", 100 * found["of_ceiling"], "%", ceiling),
        figure(f"{shape}: tokens/s", found["tokens_per_s"], "tokens/s",
               f"{found['step_ms']:.1f} ms a step, the first {found['first_s']:.1f} s"),
        figure(f"{shape}: peak memory", found["peak_mb"] / 1e3, "GB"),
    ]  # fmt: skip


def overnight(setting: Setting) -> Outcome:
    """`overnight-3090` held to 24 GB on this device, and its hours on that card."""
    import torch

    from longhaul.config.size import model_size
    from longhaul.monitor.throughput import peak_flops

    name, device = "overnight-3090", setting.device
    recipe = setting.recipe(name)
    on_gpu = device.type == "cuda"
    if on_gpu:
        # Whatever needs more ends here as it would there: out of memory.
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, _CARD_GB * 1e9 / total))
    step, batch = bare_step(recipe, recipe.machine.compiles, micro_batches=4)
    sequences, length = batch.tokens_BT.shape
    at_once = sequences // 4

    def once(read_gauges: bool = False) -> None:
        step(batch, at_once, recipe.optim.lr, read_gauges)

    once()
    once(read_gauges=True)
    step.rehearse_evaluation(recipe.evaluated_within(at_once * length), recipe.model.context)
    seconds = min(seconds_each(once, device, setting.pick(5, 1)) for _ in range(3))
    size = model_size(recipe.model, vocabulary_of(recipe))
    steps = recipe.total_steps()
    assert steps is not None
    stage = recipe.batch_at(0)
    flops = sum(
        size.flops_per_token(length, stage_window=recipe.model.window_at(number))
        for number in range(steps)
    ) * stage.sequences * stage.sequence_length  # fmt: skip
    card = peak_flops(_CARD, "bf16")
    assert card is not None
    # The step is made with the last stage's window, and so is its share counted.
    reached = size.flops_per_token(length) * sequences * length / seconds
    share = reached / (setting.peak or largest_product(device, "bf16"))
    hours = hours_on(card, flops, share)
    bars = [
        at_most(f"hours on an {_CARD}", hours, "h", _CARD_HOURS,
                f"{flops:.3g} FLOPs at {share:.0%} of its peak of {card / 1e12:g} TFLOP/s, the "
                f"share reached here; the recipe ends after {recipe.train.max_hours:g} h"
                if recipe.train.max_hours else f"{flops:.3g} FLOPs at {share:.0%} of its peak"),
        figure(f"hours on an {_CARD} at its full peak", hours_on(card, flops, 1.0), "h",
               "no program reaches it"),
    ]  # fmt: skip
    if on_gpu:
        held = torch.cuda.max_memory_reserved(device) / 1e9
        note = "by steps, a gauge step, an evaluation; the card has 25.8"
        bars.insert(0, at_most("memory held at most", held, "GB", _CARD_GB, note))
    else:
        bars.insert(0, missing("memory held at most", "there is no GPU", _CARD_GB))
    return Outcome(bars, {"flops": flops, "share": share})


def hours_on(peak: float, flops: float, share: float) -> float:
    """Hours that so many FLOPs take at a share of a peak in FLOP/s."""
    return flops / (peak * share) / 3600
