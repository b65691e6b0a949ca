"""What single ways of computing are worth: float8 at 1B, gauges that are compiled, the loss that
never has all logits; CUDA graphs; and another kernel of attention, which the trainer may take once
it is known to pay.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.common import Bar, figure, missing
from benchmarks.gpu.setting import NotMeasured, Outcome, Setting
from benchmarks.step import bare_step, run_case, seconds_each, sets

if TYPE_CHECKING:
    from torch import Tensor

_LIGER = "liger_kernel.transformers"


def float8(setting: Setting) -> Outcome:
    """Tokens/s of `llama-1b` with its products in float8, over bf16's; each compiled."""
    case = setting.pick("bf16,compiled", "bf16,eager")
    found: dict[str, dict[str, Any]] = {}
    for form in ("false", "true"):
        given = setting.options("llama-1b", f"precision.float8={form}", text=False)
        options = ["--steps", setting.pick("10", "1"), "--micro-batches", setting.pick("4", "2")]
        made = run_case("llama-1b", case, [*options, *sets(given)], setting.left_s - 10)
        if isinstance(made, str):
            raise NotMeasured(f"precision.float8 = {form}: {made}")
        found[form] = made
    bf16, eight = (found[form]["tokens_per_s"] for form in ("false", "true"))
    memory = found["true"]["peak_mb"] / found["false"]["peak_mb"]
    return Outcome(
        [
            figure("1B: tokens/s in float8 over bf16's", eight / bf16, "×",
                   f"{eight:,.0f} against {bf16:,.0f}; attention and head are bf16 in both"),
            figure("1B: memory in float8 over bf16's", memory, "×"),
        ],
        found,
    )  # fmt: skip


def gauges(setting: Setting) -> Outcome:
    """A step of `gpt2-124m` that reads gauges, compiled as training has it and uncompiled."""
    recipe = setting.recipe("gpt2-124m")
    step, batch = bare_step(recipe, compiled=not setting.tiny, micro_batches=2)
    at_once = len(batch.tokens_BT) // 2

    def seconds(read_gauges: bool) -> float:
        def once() -> None:
            step(batch, at_once, recipe.optim.lr, read_gauges)

        once()
        return min(seconds_each(once, setting.device, setting.pick(5, 1)) for _ in range(3))

    plain, compiled = seconds(False), seconds(True)
    with step.passes.uncompiled():
        uncompiled = seconds(True)
    return Outcome(
        [
            figure("a step that reads gauges over a plain one", compiled / plain, "×"),
            figure("the same uncompiled", uncompiled / plain, "×"),
        ]
    )


def graphs(setting: Setting) -> Outcome:
    """Forward and backward passes of small and large micro-batches with CUDA graphs, their
    gradients copied out as in training, over those without; both compiled.
    """
    if setting.device.type != "cuda" and not setting.tiny:
        raise NotMeasured("CUDA graphs need CUDA")
    bars = []
    for sequences in setting.pick((1, 16), (1,)):
        plain, recorded = (_passes(setting, sequences, graphs) for graphs in (False, True))
        name = f"gpt2-124m, {sequences} sequences at once: with CUDA graphs over without"
        note = f"{1e3 * recorded:.2f} ms against {1e3 * plain:.2f}"
        bars.append(figure(name, recorded / plain, "×", note))
    return Outcome(bars)


def _passes(setting: Setting, sequences: int, graphs: bool) -> float:
    """Seconds of a micro-batch."""
    recipe = setting.recipe("gpt2-124m", f"batch.micro_sequences={sequences}")
    step, batch = bare_step(recipe, compiled=False)
    step.passes.switch(compiled=not setting.tiny, records_graphs=graphs)
    # Compiled and computed as they are, recorded, and then started as graphs.
    took_s = step.time_passes(*batch.tokens_BT.shape, 3 + setting.pick(30, 1))
    return min(took_s[3:])


def attention(setting: Setting) -> Outcome:
    """Causal attention of `llama-1b`'s shape, forward and backward, by each kernel of torch, over
    the one that torch takes by itself.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = setting.recipe("llama-1b").model
    length, heads, keys = model.context, model.heads, model.key_heads
    shapes = (2, heads, length), (2, keys, length), (2, keys, length)
    given = [
        torch.randn(*shape, model.key_width, device=setting.device, dtype=torch.bfloat16)
        .requires_grad_()
        for shape in shapes
    ]  # fmt: skip

    def once() -> None:
        made = torch.nn.functional.scaled_dot_product_attention(
            *given, is_causal=True, enable_gqa=heads != keys
        )
        torch.autograd.grad(made, given, torch.ones_like(made))

    def seconds() -> float:
        once()
        return min(seconds_each(once, setting.device, setting.pick(10, 1)) for _ in range(3))

    own, bars = seconds(), []
    kernels = (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
    )
    for kernel in kernels:
        name = f"attention by {kernel.name.lower()} over torch's own choice"
        try:
            with sdpa_kernel(kernel):
                taken = seconds()
        except RuntimeError as error:
            bars.append(missing(name, str(error).partition("\n")[0]))
            continue
        bars.append(figure(name, taken / own, "×", f"{1e3 * taken:.2f} ms against {1e3 * own:.2f}"))
    return Outcome(bars)


def head(setting: Setting) -> Outcome:
    """Output product and loss of `speedrun-124m`'s micro-batch, with their gradients: in chunks, as
    training has it, by its kernel and by PyTorch's operations; with all logits; and by Liger Kernel
    where it is installed.
    """
    import torch

    from longhaul.config.model import rows_at_once
    from longhaul.model.chunked_loss import Head, chunked_loss, kernel_for

    tokens, width, rows, cap = setting.pick((32_768, 768, 50_304, 15.0), (256, 32, 512, 15.0))
    device, dtype = setting.device, torch.bfloat16
    x_ND = torch.randn(tokens, width, device=device, dtype=dtype, requires_grad=True)
    weight_VD = torch.randn(rows, width, device=device, dtype=dtype).mul_(0.02).requires_grad_()
    targets_N = torch.randint(rows, (tokens,), device=device)
    chunk = setting.pick(rows_at_once(tokens, rows, on_cpu=False), 64)
    kernel = kernel_for(device)

    def in_chunks(kernel: Any) -> "Tensor":
        return chunked_loss(x_ND, targets_N, Head(weight_VD, None, cap, 0.0, kernel), chunk)[0]

    def whole() -> "Tensor":
        logits_NV = cap * torch.tanh((x_ND @ weight_VD.T).float() / cap)
        return torch.nn.functional.cross_entropy(logits_NV, targets_N, reduction="sum")

    compiled = torch.compile if not setting.tiny else lambda function: function
    own_s, own_gb, own_loss = _of(setting, compiled(partial(in_chunks, kernel)), x_ND, weight_VD)
    torch_s, _, _ = _of(setting, compiled(partial(in_chunks, None)), x_ND, weight_VD)
    whole_s, whole_gb, whole_loss = _of(setting, compiled(whole), x_ND, weight_VD)
    if abs(own_loss / whole_loss - 1) > 1e-2:
        raise NotMeasured(f"the losses differ: {own_loss} in chunks, {whole_loss} at once")
    bars = [
        figure("head and loss in chunks over all logits at once", own_s / whole_s, "×",
               f"{1e3 * own_s:.2f} ms against {1e3 * whole_s:.2f}; {tokens:,} tokens"),
        figure("head and loss in chunks by the kernel over PyTorch's operations", own_s / torch_s,
               "×", f"{1e3 * own_s:.2f} ms against {1e3 * torch_s:.2f}") if kernel
        else missing("head and loss in chunks by the kernel over PyTorch's operations",
                     "no kernel serves this device"),
        figure("their memory over that of all logits", own_gb / whole_gb, "×",
               f"{own_gb:.2f} GB against {whole_gb:.2f}") if whole_gb
        else missing("their memory over that of all logits", "there is no GPU"),
    ]  # fmt: skip
    return Outcome([*bars, _liger(setting, own_s, x_ND, weight_VD, targets_N, cap)])


def _liger(
    setting: Setting, own_s: float, x_ND: "Tensor", weight_VD: "Tensor", targets_N: "Tensor",
    cap: float,
) -> Bar:  # fmt: skip
    """The same by the peer's fused kernel."""
    name = "head and loss in chunks over Liger Kernel's"
    if importlib.util.find_spec("liger_kernel") is None:
        return missing(name, "liger_kernel is not installed (pip install liger-kernel)")
    loss = importlib.import_module(_LIGER).LigerFusedLinearCrossEntropyLoss(
        reduction="sum", softcap=cap
    )
    seconds, _, _ = _of(setting, lambda: loss(weight_VD, x_ND, targets_N), x_ND, weight_VD)
    return figure(name, own_s / seconds, "×", f"{1e3 * own_s:.2f} ms against {1e3 * seconds:.2f}")


def _of(
    setting: Setting, loss: "Callable[[], Tensor]", *inputs: "Tensor"
) -> tuple[float, float, float]:
    """Seconds of the loss with its gradients, GB that it takes beside its inputs, and its value."""
    import torch

    def once() -> "Tensor":
        for tensor in inputs:
            tensor.grad = None
        value = loss()
        value.backward()
        return value

    value = float(once().detach())
    before = 0
    if setting.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = min(seconds_each(once, setting.device, setting.pick(10, 1)) for _ in range(3))
    peak = torch.cuda.max_memory_allocated() - before if before else 0
    return seconds, peak / 1e9, value
