"""The rows of the incident book about numbers: N1 to N15 and H1 to H7, each a tiny run.

Where a cause can be brought about by settings or text alone, it is. Else a fault stands for it,
and it responds to the cure as the real one did: what lies in the data comes again with the data,
what a high learning rate brings about goes away with it.
"""

import itertools
import random
from dataclasses import dataclass, replace

from drills.runs import FOREVER, NumberFault
from drills.story import Expected
from longhaul.data.sources import synthetic_documents

BASE = (
    "batch.stages=[]", "batch.sequences=8", "batch.micro_sequences=8", "model.context=32",
    "data.held_out={by='tail', fraction=0.02}",
    "model.width=32", "model.dropout=0.0", "optim.lr=3e-3", "optim.schedule.shape='constant'",
    "train.steps=300", "evaluation.interval_steps=50", "evaluation.tokens=2048",
    "checkpoint.interval_steps=50", "checkpoint.keep_last=8",
    "checkpoint.snapshot_interval_steps=5", "monitor.gauge_interval_steps=5",
    # Made-up text is easier to foretell than natural text.
    "diagnose.too_good.floor=0.2",
    # Steps last milliseconds here, and whatever else this machine does makes them longer.
    "diagnose.throughput.slowdown=10",
)  # fmt: skip
BLOCKS_PER_STEP = 8
FINE: float = 1.6
"""Validation loss below which a run of 300 steps has learned: it begins at 5.5, and 3.1 is what
the frequencies of letters give."""


@dataclass(frozen=True)
class Drill:
    """One row of the incident book as a run."""

    name: str
    injected: str
    """In a table."""
    expected: Expected
    options: tuple[str, ...] = ()
    """On top of `BASE`."""
    faults: tuple[NumberFault, ...] = ()
    play: str = "once"
    """How many processes it takes, and what they do: see `numbers.py`."""


def blocks_of(begin: int, steps: int) -> tuple[int, int]:
    """Blocks that steps begin ≤ step < begin + steps of an undisturbed run read."""
    return (begin - 1) * BLOCKS_PER_STEP, (begin - 1 + steps) * BLOCKS_PER_STEP


def _back(*more: str) -> frozenset[str]:
    return frozenset({"rollback", *more})


_HARM = ("divergence", "loss-spike", "gradient-spike", "growth", "non-finite")
_PLAIN = ("model.qk_norm=false",)


def numbers() -> tuple[Drill, ...]:
    """N1 to N15."""
    return *_too_much(), *_poorly_taught(), *_unseen()


def _too_much() -> tuple[Drill, ...]:
    """N1 to N5: numbers that outgrow what the run or the format bears."""
    return (
        Drill(
            "N1", "learning rate 10 times too high, no clipping",
            Expected(kinds=_HARM, first_sign=(1, 290), actions=(_back("lower-lr"),),
                     loss_below=3.0),
            ("optim.name='sgdw'", "optim.lr=1.3", "optim.clip=0.0", "train.steps=400",
             "recover.raise_after_steps=200"),
        ),
        Drill(
            "N2", "gradient spikes again and again above a learning rate",
            Expected(kinds=("gradient-spike",), first_sign=(100, 130),
                     actions=(frozenset({"tighten-clip"}), frozenset({"lower-lr"})),
                     loss_below=FINE),
            ("train.steps=400", "recover.settle_steps=4"),
            (NumberFault("gradient-spike", strength="40", made=(100, FOREVER), every=9,
                         above_lr=2.2e-3),
             # Clipping bounds an update; where it goes is another matter.
             NumberFault("jolt", strength="0.5", made=(101, FOREVER), every=9, above_lr=2.2e-3)),
        ),
        Drill(
            "N3", "one batch gives NaN",
            Expected(kinds=("non-finite",), severity="notice", first_sign=(150, 150),
                     found_by=150, batch_saved=True, loss_below=FINE),
            (), (NumberFault("nan-loss", draws=blocks_of(150, 1)),),
        ),
        Drill(
            "N4", "fp16: gradients outgrow the format above a learning rate",
            Expected(kinds=("loss-scale-collapse",), first_sign=(120, 220),
                     actions=(_back("reset-loss-scale", "lower-lr"),), in_time=True,
                     loss_below=FINE),
            ("precision.compute='fp16_weights'", "optim.loss_scale.growth_interval=1000"),
            (NumberFault("overflow", strength="8", made=(110, FOREVER), above_lr=2.2e-3),),
        ),
        Drill(
            "N5", "attention logits grow above a learning rate",
            Expected(kinds=("growth",), first_sign=(200, 280), subject="attention_logit_max",
                     actions=(_back("lower-lr"),), in_time=True, loss_below=FINE),
            (*_PLAIN, "train.steps=500", "recover.raise_after_steps=80"),
            (NumberFault("attention-logits", strength="0.025", made=(220, FOREVER),
                         above_lr=2.2e-3),),
        ),
    )  # fmt: skip


def _poorly_taught() -> tuple[Drill, ...]:
    """N6 to N10: what the text and the steps leave to be learned."""
    return (
        Drill(
            "N6", "a text of random digits, of which there is soon nothing left to learn",
            Expected(kinds=("plateau",), actions=(frozenset({"report"}),), alone=True),
            ("data.sources=[{name='first', path='{room}/hard.txt'}]", "train.steps=700",
             "optim.lr=1e-3"),
        ),
        Drill(
            "N7", "the position table is frozen",
            Expected(kinds=("frozen-group",), found_by=100, subject="position",
                     actions=(frozenset({"report"}),), alone=True, loss_below=FINE),
            ("model.positions='learned'", "monitor.gauge_interval_steps=25"),
            (NumberFault("frozen-position", made=(1, FOREVER)),),
        ),
        Drill(
            "N8", "one source is full of escape characters",
            Expected(kinds=("too-good",), subject="escaped",
                     actions=(frozenset({"report"}),), alone=True),
            ("data.sources=[{name='first', path='synthetic'}, "
             "{name='escaped', path='{room}/escaped.txt', weight=0.5}]",),
        ),
        Drill(
            "N9", "a bad stretch of data, read again after a rollback",
            Expected(kinds=("loss-spike", "divergence"), first_sign=(148, 152),
                     actions=(_back("lower-lr"), _back("skip")), loss_below=FINE),
            ("recover.ladder.loss_spike=[['rollback', 'lower-lr']]",
             "recover.ladder.divergence=[['rollback', 'lower-lr']]", "recover.skip_steps=28",
             "recover.diagnose=false"),
            (NumberFault("noise-tokens", draws=blocks_of(150, 16)),),
        ),
        Drill(
            "N10", "spikes whatever the data, above a learning rate",
            Expected(kinds=("loss-spike", "divergence"), first_sign=(150, 155),
                     actions=(_back("lower-lr"), frozenset({"raise-lr"}), _back("lower-lr"),
                              frozenset({"raise-lr"})), loss_below=FINE),
            ("train.steps=600", "recover.cooldown_steps=600",
             "recover.max_recoveries_per_cooldown=12"),
            (NumberFault("jolt", strength="0.4", made=(150, FOREVER), every=60, lasting=12,
                         above_lr=1.2e-3),),
        ),
    )  # fmt: skip


def _unseen() -> tuple[Drill, ...]:
    """N11 to N15: mistakes that no single loss gives away."""
    return (
        Drill(
            "N11", "old betas come back when the optimizer's settings are changed",
            Expected(code=17), faults=(NumberFault("old-betas"),), play="set-betas",
        ),
        Drill(
            "N12", "a variable that numbers depend on changes between restarts",
            Expected(loss_below=FINE), play="restart-elsewhere",
        ),
        Drill(
            "N13", "gradients are counted twice where two shards are summed",
            Expected(), ("precision.compute='bf16'", "train.steps=40"),
            (NumberFault("double-gradient", made=(1, FOREVER)),), play="diagnose",
        ),
        Drill(
            "N14", "a text so short that it is read 30 times",
            Expected(kinds=("overfitting",), actions=(frozenset({"report"}),), evidence="epoch"),
            ("data.sources=[{name='first', path='{room}/short.txt'}]",
             "data.held_out={by='tail', fraction=0.3}",
             "evaluation.interval_steps=20", "train.steps=450", "model.width=64"),
        ),
        Drill(
            "N15", "learning rate 10,000 times too low",
            Expected(kinds=("slow-progress",), actions=(frozenset({"report"}),)),
            ("optim.lr=3e-7", "optim.schedule.warmup_steps=0"),
        ),
    )  # fmt: skip


def crash() -> Drill:
    """N9, whose worker is killed once its first decision is made."""
    (same_data,) = (drill for drill in numbers() if drill.name == "N9")
    injected = f"{same_data.injected}; SIGKILL after the first decision"
    return replace(same_data, name="crash", injected=injected, play="killed")


def harmless() -> tuple[Drill, ...]:
    """H1 to H7."""
    nothing = Expected(loss_below=FINE)
    return (
        Drill(
            "H1", "the mixture changes to a harder source", Expected(),
            ("data.sources=[{name='first', path='synthetic'}, "
             "{name='hard', path='{room}/hard.txt', weight=0.05}]",
             "data.stages=[{from_draw=1200, weights={first=0.1, hard=0.9}}]"),
        ),
        Drill(
            "H2", "batch and sequence length grow", nothing,
            ("batch.sequence_length=16",
             "batch.stages=[{from_step=100, sequences=8, sequence_length=32}, "
             "{from_step=200, sequences=16, sequence_length=32}]"),
        ),
        Drill(
            "H3", "one gradient spike, which clipping absorbs", nothing, (),
            (NumberFault("gradient-spike", strength="60", draws=blocks_of(150, 1)),),
        ),
        Drill(
            "H4", "fast decay of the learning rate", nothing,
            ("optim.schedule.shape='wsd'", "optim.schedule.cooldown_fraction=0.2",
             "optim.schedule.final_fraction=0.0"),
        ),
        Drill("H5", "a small batch", Expected(),
              ("batch.sequences=2", "batch.micro_sequences=2")),
        Drill(
            "H6", "the first steps are slow", nothing, (),
            (NumberFault("slow-step", strength="0.15", made=(1, 5)),),
        ),
        Drill(
            "H7", "evaluations and saves take long", nothing,
            ("evaluation.interval_steps=20", "checkpoint.interval_steps=20"),
            (NumberFault("slow-evaluation", strength="0.03"),),
        ),
    )  # fmt: skip


def texts() -> dict[str, str]:
    """What the files hold that drills' sources read, the same everywhere."""
    uniform = random.Random(1).random
    documents = [document.text for document in itertools.islice(synthetic_documents(1), 40)]
    digits = "".join(f"{int(uniform() * 1e6):06d}" for _ in range(40_000))
    return {
        "escaped.txt": "".join("\\" * 24 + letter for letter in "".join(documents)),
        "hard.txt": digits,
        "short.txt": "".join(documents[:4]),
    }
