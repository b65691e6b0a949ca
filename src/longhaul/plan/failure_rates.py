"""How often large training runs were interrupted, by cause, as their teams published it.

Rates are counts over the GPU-days in which they were counted. Each record says where its figure
comes from; what no source gives is marked `ASSUMED`, with what it was taken after.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from longhaul.core.units import Seconds

DAY_S: Final[Seconds] = 86_400.0
ASSUMED: Final = "assumed"
"""First word of `source` where nobody published the figure."""

Shows = Literal["crash", "hang", "silent", "straggler"]
"""How a failure is seen: a rank ends at once; nothing goes on until a deadline passes; numbers are
wrong and nothing says so; every step is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """One cause of interruptions of one run."""

    cause: str
    """As the source names it."""
    count: float
    """Interruptions that were counted, or a published mean times its span."""
    gpu_days: float
    """GPUs of the run times the days in which they were counted."""
    shows: Shows
    """Assumed everywhere but where the cause's name says it: no source tells this."""
    signature: str
    """The cause as `supervise/signatures.toml` names it, or `hang`: from it the remedy follows."""
    lasting: bool
    """The node stays broken until somebody repairs it; else a restart on it works (assumed)."""
    source: str

    @property
    def per_gpu_day(self) -> float:
        """Interruptions that one GPU causes in a day."""
        return self.count / self.gpu_days

    @property
    def assumed(self) -> bool:
        """Nobody published it."""
        return self.source.startswith(ASSUMED)

    def per_node_day(self, gpus_per_node: int = 8) -> float:
        """Interruptions that one node causes in a day."""
        return self.per_gpu_day * gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """The interruptions of one published run."""

    name: str
    gpus: int
    gpus_per_node: int
    days: float
    rates: tuple[FailureRate, ...]
    source: str

    @property
    def per_gpu_day(self) -> float:
        """Interruptions of any cause that one GPU causes in a day."""
        return sum(rate.per_gpu_day for rate in self.rates)

    @property
    def per_node_day(self) -> float:
        """Interruptions of any cause that one node causes in a day."""
        return self.per_gpu_day * self.gpus_per_node

    def expected(self, gpus: int, days: float) -> float:
        """Interruptions expected of so many GPUs in so many days, each GPU failing as here."""
        return self.per_gpu_day * gpus * days

    def seconds_between(self, gpus: int) -> Seconds:
        """Mean time between two interruptions of a run on so many GPUs."""
        return DAY_S / self.expected(gpus, 1.0)


_LLAMA_TABLE: Final = "Llama 3 (arXiv 2407.21783), table 5: 54 days of the 405B run"
_LLAMA_GPUS, _LLAMA_DAYS = 16_384, 54.0
_LLAMA: Final[tuple[tuple[str, int, Shows, str, bool], ...]] = (
    ("faulty GPU", 148, "crash", "gpu-lost", True),
    ("GPU HBM3 memory", 72, "crash", "ecc-uncorrectable", True),
    ("software bug", 54, "crash", "crash", False),
    ("network switch or cable", 35, "crash", "nccl-system-error", False),
    ("host maintenance, unplanned", 32, "crash", "node-gone", True),
    ("GPU SRAM memory", 19, "crash", "ecc-uncorrectable", True),
    ("GPU system processor", 17, "hang", "gpu-error", False),
    ("network interface", 7, "crash", "nccl-system-error", True),
    ("NCCL watchdog timeout", 7, "hang", "hang", False),
    ("silent data corruption", 6, "silent", "silent-corruption", True),
    ("GPU thermal interface or sensor", 6, "straggler", "gpu-error", True),
    ("SSD", 3, "crash", "node-gone", True),
    ("power supply", 3, "crash", "node-gone", True),
    ("server chassis", 2, "crash", "node-gone", True),
    ("I/O expansion board", 2, "crash", "node-gone", True),
    ("dependency", 2, "crash", "crash", False),
    ("CPU", 2, "crash", "node-gone", True),
    ("system memory", 2, "crash", "node-gone", True),
)

LLAMA_3_405B: Final = PublishedRun(
    name="Llama 3 405B",
    gpus=_LLAMA_GPUS,
    gpus_per_node=8,
    days=_LLAMA_DAYS,
    rates=tuple(
        FailureRate(
            cause=cause, count=count, gpu_days=_LLAMA_GPUS * _LLAMA_DAYS, shows=shows,
            signature=signature, lasting=lasting, source=_LLAMA_TABLE,
        )
        for cause, count, shows, signature, lasting in _LLAMA
    ),
    source=f"{_LLAMA_TABLE}; 419 unexpected interruptions on 16,384 H100",
)  # fmt: skip

_OPT_TOTAL: Final = "OPT-175B, final update of its chronicle: about 2 machines go down every day"
_OPT_GPUS, _OPT_DAYS, _OPT_A_DAY = 992, 56.0, 2.0
_OPT_LOGGED: Final[tuple[tuple[str, int, Shows, str, bool], ...]] = (
    ("GPU lost", 2, "crash", "gpu-lost", True),
    ("ECC error", 4, "crash", "ecc-uncorrectable", True),
    ("CUDA error", 6, "crash", "cuda-error", False),
    ("hang", 2, "hang", "hang", False),
    ("NCCL or InfiniBand error", 1, "crash", "nccl-system-error", True),
    ("everything slow", 1, "straggler", "gpu-error", True),
)
_OPT_SPLIT: Final = (
    f"{ASSUMED} share of the published total ({_OPT_TOTAL}), after the kinds of failure that its "
    "logbook gives for the restarts 11.3 to 12.17"
)

OPT_175B: Final = PublishedRun(
    name="OPT-175B",
    gpus=_OPT_GPUS,
    gpus_per_node=8,
    days=_OPT_DAYS,
    rates=tuple(
        FailureRate(
            cause=cause,
            count=_OPT_A_DAY * _OPT_DAYS * logged / sum(row[1] for row in _OPT_LOGGED),
            gpu_days=_OPT_GPUS * _OPT_DAYS,
            shows=shows,
            signature=signature,
            lasting=lasting,
            source=_OPT_SPLIT,
        )
        for cause, logged, shows, signature, lasting in _OPT_LOGGED
    ),
    source=(
        f"{_OPT_TOTAL}; its paper (arXiv 2205.01068, section 2.5) counts at least 35 manual and "
        "estimates more than 70 automatic restarts in two months on 992 A100"
    ),
)

_BLOOM: Final = (
    "BigScience, The Technology Behind BLOOM Training: 1 to 2 GPU failures a week on average, on a "
    "new cluster of about 400 GPUs, 384 of them training"
)

BLOOM_176B: Final = PublishedRun(
    name="BLOOM-176B",
    gpus=384,
    gpus_per_node=8,
    days=7.0,
    rates=(
        FailureRate(
            cause="GPU failure", count=1.5, gpu_days=384 * 7.0, shows="crash",
            signature="gpu-lost", lasting=True, source=f"{_BLOOM}; the middle of the two",
        ),
    ),
    source=_BLOOM,
)  # fmt: skip

PUBLISHED: Final = (OPT_175B, LLAMA_3_405B, BLOOM_176B)


def all_rates() -> Iterator[tuple[PublishedRun, FailureRate]]:
    """Every rate with its run, in the order of `PUBLISHED`."""
    return ((run, rate) for run in PUBLISHED for rate in run.rates)
