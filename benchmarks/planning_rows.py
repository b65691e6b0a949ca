"""Published runs and peaks, against which `benchmarks/planning.py` holds the plan's arithmetic.

GPU-hours are those of the sources. Where a source gives no layout, `assumed` says so; the layout is
then the usual one of its trainer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from longhaul.parallel.layout import Layout
from longhaul.plan.practice import LONGHAUL, MEGATRON, Practice

FSDP = replace(LONGHAUL, cast_shards=True)
ONCE = replace(FSDP, gathers="step", balanced_stages=True)
METASEQ = replace(MEGATRON, gathers="micro-batch")


@dataclass(frozen=True)
class Row:
    """A run that somebody published."""

    name: str
    device: str
    shape: tuple[int, int, int, int, int]
    """Layers, heads, width, MLP width, context."""
    vocab: int
    sequences: int
    tokens: float
    gpus: int
    """That the hours are of; fewer may train (`layout`)."""
    gpu_hours: float
    layout: Layout
    micro: int
    practice: Practice
    source: str
    settings: Mapping[str, object] = field(default_factory=dict)
    recompute: str = "none"
    assumed: str = ""
    """What the source does not say."""
    downtime: bool = False
    """The hours have failures and restarts in them."""
    effective: float | None = None
    """Share of its time that trained, where the source says; else it is computed."""
    anchor: bool = True
    """Of the list of anchors; the others have throughputs, which are made hours of 10¹² tokens."""
    stages_per_rank: int = 1
    outlier: str = ""
    """Why it may be beyond the bar."""


SWIGLU = {"model.activation": "swiglu"}
GELU = {"model.activation": "gelu", "model.kv_heads": None}
GEGLU = {"model.activation": "geglu"}
WINDOWS = {"model.window": 4096, "model.window_full_every": 4}
STAGED = {"machine.compile": False}

ANCHORS = (
    Row("LLaMA-13B", "a100-80", (40, 40, 5120, 13824, 2048), 32_000, 2048, 1e12, 1024, 135_168,
        Layout(shard=1024), 2, FSDP, "arXiv 2302.13971, table 15", SWIGLU, "selective",
        "number of GPUs, layout, micro-batch"),
    Row("LLaMA-65B", "a100-80", (80, 64, 8192, 22016, 2048), 32_000, 2048, 1.4e12, 2048, 1.022e6,
        Layout(shard=256, tensor=8), 8, FSDP, "arXiv 2302.13971, table 15", SWIGLU, "selective",
        "layout, micro-batch"),
    Row("Llama-2-70B", "a100-80", (80, 64, 8192, 28672, 4096), 32_000, 1024, 2e12, 2048, 1.72e6,
        Layout(shard=256, tensor=8), 4, FSDP, "arXiv 2307.09288, table 2",
        SWIGLU | {"model.kv_heads": 8}, "selective", "number of GPUs, layout, micro-batch"),
    Row("BLOOM-176B", "a100-80", (70, 112, 14336, 57344, 2048), 250_880, 2048, 366e9, 384,
        1_082_990, Layout(shard=8, tensor=4, pipeline=12), 2, MEGATRON,
        "arXiv 2211.05100, section 3.4; hours arXiv 2211.02001", GELU | STAGED, "full",
        downtime=True),
    Row("OPT-175B", "a100-80", (96, 96, 12288, 49152, 2048), 50_272, 992, 300e9, 1024,
        33 * 24 * 1024, Layout(shard=124, tensor=8), 8, METASEQ,
        "arXiv 2205.01068; 33 ideal days of its chronicle",
        {"model.activation": "relu", "model.dropout": 0.1}, "full", "micro-batch"),
    Row("YaLM-100B", "a100-80", (80, 128, 10240, 27308, 1024), 128_000, 2048, 300e9, 800,
        65 * 24 * 800, Layout(shard=200, tensor=4), 2, MEGATRON, "its article: 65 days", GEGLU,
        "full", "layout, batch, recomputation", downtime=True,
        outlier="65 days from first to last step, stops included; its article gives no throughput, "
        "and its list of gains (overlapped ZeRO alone +80 %) says how much its speed varied"),
    Row("GLM-130B", "a100-40", (70, 96, 12288, 32768, 2048), 150_528, 4224, 400e9, 768,
        60 * 24 * 768, Layout(shard=24, tensor=4, pipeline=8), 1, MEGATRON,
        "arXiv 2210.02414, section 2.3; 60 days", GEGLU | STAGED, "full", downtime=True,
        outlier="60 days from start to end, with failures and a batch that grows from 192; at its "
        "own 135 TFLOP/s (with recomputation) the tokens take 46 days"),
    Row("GPT-2 124M", "a100-80", (12, 12, 768, 3072, 1024), 50_304, 512, 10e9, 8, 12,
        Layout(replicate=8), 64, replace(ONCE, gathers="never"),
        "llm.c, discussion 481: 90 minutes", GELU | {"model.tied_head": True},
        outlier="llm.c's own kernels fuse more than the roofline assumes, and one node has no "
        "network to wait for"),
    Row("Llama-3.1-405B", "h100", (126, 128, 16384, 53248, 8192), 128_256, 2048, 15.6e12, 16_384,
        30.84e6, Layout(shard=128, tensor=8, pipeline=16), 1, ONCE,
        "arXiv 2407.21783, section 3.3; hours of its model card",
        SWIGLU | STAGED | {"model.kv_heads": 8}, assumed="8 stages of each rank", downtime=True,
        stages_per_rank=8, effective=0.9),
    Row("OLMo-3 7B", "h100", (32, 32, 4096, 11008, 8192), 100_352, 512, 5.93e12, 512, 234e3,
        Layout(replicate=64, shard=8), 1, FSDP, "the anchors' figure of its report",
        SWIGLU | WINDOWS, assumed="layout, batch, recomputation", downtime=True,
        outlier="its hours hold other stages and losses that the source does not break down; a "
        "sequence a GPU leaves FSDP little to hide behind"),
    Row("OLMo-3 32B", "h100", (64, 40, 5120, 27648, 8192), 100_352, 1024, 5.5e12, 1024, 1.05e6,
        Layout(replicate=16, shard=64), 1, FSDP, "the anchors' figure of its report",
        SWIGLU | WINDOWS | {"model.kv_heads": 8}, "full", "layout, batch, recomputation",
        downtime=True),
    Row("GPT-2 1.56B", "h100", (48, 25, 1600, 6400, 1024), 50_304, 1024, 33.5e9, 8, 192,
        Layout(replicate=8), 16, replace(ONCE, gathers="never"),
        "llm.c, discussion 677: 24 hours", GELU | {"model.tied_head": True},
        outlier="the same code on one node: see GPT-2 124M"),
)  # fmt: skip


def _mosaic(
    name: str, device: str, shape: tuple[int, int, int], gpus: int, micro: int, sequences: int,
    tokens_per_s: float, recompute: bool, *, reshard: bool = True,
) -> Row:  # fmt: skip
    layers, heads, width = shape
    settings = GELU | {"model.tied_head": True, "parallel.reshard_after_forward": reshard}
    return Row(
        f"MPT-{name} on {gpus}", device, (layers, heads, width, 4 * width, 2048), 50_368,
        sequences, 1e12, gpus, 1e12 / tokens_per_s / 3600, Layout(shard=gpus), micro, FSDP,
        "llm-foundry, scripts/train/benchmarking/README.md", settings,
        "full" if recompute else "none", anchor=False,
    )  # fmt: skip


_3B, _7B, _13B, _70B = (32, 20, 2560), (32, 32, 4096), (40, 40, 5120), (80, 64, 8192)
THROUGHPUTS = (
    _mosaic("3B", "a100-80", _3B, 8, 10, 160, 10_811, False),
    _mosaic("7B", "a100-80", _7B, 8, 6, 96, 4_641, False),
    _mosaic("13B", "a100-80", _13B, 8, 2, 48, 2_262, False),
    _mosaic("70B", "a100-80", _70B, 64, 8, 2048, 410, True),
    _mosaic("3B", "h100", _3B, 512, 8, 4096, 21_664, False, reshard=False),
    _mosaic("7B", "h100", _7B, 8, 6, 48, 10_643, False),
    _mosaic("7B", "h100", _7B, 512, 6, 3072, 9_670, False),
    _mosaic("13B", "h100", _13B, 128, 16, 2048, 5_080, True),
    _mosaic("70B", "h100", _70B, 64, 8, 2048, 1_039, True),
    _mosaic("70B", "h100", _70B, 512, 8, 4096, 1_007, True),
)


@dataclass(frozen=True)
class Peak:
    """A published peak of reserved memory, GiB."""

    name: str
    shape: tuple[int, int, int, int]
    """Layers, heads, width, MLP width; the context is 8,192, keys have 8 heads."""
    sequences: int
    micro: int
    layout: Layout
    recompute: str
    gib: float
    stages_per_rank: int = 1


_8B, _L70B, _405B = (32, 32, 4096, 14336), (80, 64, 8192, 28672), (126, 128, 16384, 53248)
_3D = Layout(shard=8, tensor=8, pipeline=8)
PEAKS = (
    Peak("8B, FSDP 8, compiled", _8B, 16, 2, Layout(shard=8), "selective", 77.0),
    Peak("8B, FSDP 128, compiled", _8B, 256, 2, Layout(shard=128), "selective", 62.0),
    Peak("70B, FSDP 32 × TP 8", _L70B, 512, 16, Layout(shard=32, tensor=8), "full", 71.9),
    Peak("405B, FSDP 8 × TP 8 × PP 8, 1F1B", _405B, 256, 4, _3D, "full", 82.5),
    Peak("405B, the same, interleaved", (128, *_405B[1:]), 256, 2, _3D, "full", 72.7, 2),
)
"""torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1, 3, 4 and 5. Micro-batches of a
pipeline: as many as it has stages (its default then); 128 layers stand for 126 where 16 stages
must have equally many."""
