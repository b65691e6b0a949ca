"""The table of faults: what each injects and what must be seen afterwards; and how one is written.

```
NAME[:STRENGTH]@rankR:stepS         once, before that rank makes step S
          slow:1.2@rank0:step10-60  in all of these steps
       exception@rank0:step9:attempt*   in every attempt; attempt2: in that one alone
            ecc@nodeA:step5         on the node of that name: its first rank, or all its ranks
```
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from longhaul.config.recipe import Recipe
from longhaul.core.errors import UsageError
from longhaul.core.events import EventKind

Harm = Literal["process", "storage", "numbers"]
"""What a fault touches. After the first two a run must end in the bytes of its baseline; what
follows `oom`, a smaller micro-batch, adds gradients up in another order."""
Strength = Literal["none", "seconds", "factor", "whole", "word"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of all faults of one name."""

    meaning: str
    harm: Harm = "process"
    takes: Strength = "none"
    """What STRENGTH is."""
    usual: str = ""
    """STRENGTH where none is given."""
    words: tuple[str, ...] = ()
    """All that STRENGTH may be."""
    lasts: bool = False
    """It may act in a range of steps."""
    whole_node: bool = True
    """Named by a node, it acts on all of its ranks; else on the first of them alone."""
    waits: bool = False
    """Done at the next write or call it is about, which may come some steps later."""
    ends_attempt: bool = False
    reported_by: tuple[str, ...] = ()
    """Events that report it, of what neither ends an attempt nor is found by detectors."""
    over_with: tuple[str, ...] = ()
    """Events with which it is over; where there are none it is the next step."""
    compared: str = ""
    """What ranks compare to find it."""
    must_be_noticed: bool = False
    """It cannot pass unreported, even if it ends no attempt."""
    soaked: bool = True
    """A soak draws it by itself. The others need another node, or try nothing of their own."""

    @property
    def is_signal(self) -> bool:
        """STRENGTH is how long after its step it is sent."""
        return self.takes == "seconds" and self.usual == "0"


CUDA_ERRORS = {
    "illegal-access": "an illegal memory access was encountered",
    "launch-failure": "unspecified launch failure",
    "assert": "device-side assert triggered",
    "ecc": "uncorrectable ECC error encountered",
    "nvlink": "uncorrectable NVLink error detected during the execution",
    "hardware-stack": "hardware stack error",
    "lost": "GPU is lost",
}
"""STRENGTH of `cuda-error` → what the driver says."""
_STORE_OVER = (EventKind.STORE_BACK, EventKind.UPLOADED)

KINDS: dict[str, Kind] = {
    "kill": Kind("SIGKILL to the rank", takes="seconds", usual="0", ends_attempt=True),
    "stop": Kind("SIGSTOP to the rank, which then does nothing", takes="seconds", usual="0",
                 ends_attempt=True),
    "hang-collective": Kind("the rank sleeps for ever where the others wait for it",
                            ends_attempt=True, soaked=False),
    "exception": Kind("an exception that nobody knows", ends_attempt=True),
    "cuda-error": Kind("the text of a CUDA error", takes="word", usual="illegal-access",
                       words=tuple(CUDA_ERRORS), ends_attempt=True),
    "oom": Kind("out of memory; with a number, while micro-batches have more sequences than that",
                harm="numbers", takes="whole", ends_attempt=True, soaked=False),
    "slow": Kind("what the rank computes takes so many times as long", takes="factor",
                 usual="1.2", lasts=True, soaked=False),
    "nan": Kind("the rank's loss is not a number", harm="numbers", lasts=True,
                must_be_noticed=True),
    "bitflip-weight": Kind("one bit of the rank's own weights is wrong; the bit's number",
                           harm="numbers", takes="whole", usual="24", lasts=True,
                           compared="weights"),
    "bitflip-grad": Kind("one bit of the rank's gradient is wrong before it is reduced",
                         harm="numbers", takes="whole", usual="24", lasts=True, compared="slot"),
    "bitflip-file": Kind("one bit of the newest checkpoint is wrong", harm="storage",
                         whole_node=False),
    "torn-write": Kind("the rank dies in the middle of writing its next checkpoint",
                       harm="storage", whole_node=False, waits=True, ends_attempt=True),
    "enospc": Kind("for so many seconds the disk of checkpoints is full", harm="storage",
                   takes="seconds", usual="5", waits=True, must_be_noticed=True,
                   reported_by=(EventKind.CHECKPOINT_FAILED, EventKind.ROOM_MADE,
                                EventKind.PAUSED),
                   over_with=(EventKind.CHECKPOINT,)),
    "slow-save": Kind("each file of a checkpoint takes so many seconds longer to write",
                      harm="storage", takes="seconds", usual="1", lasts=True, soaked=False),
    # A store may hang for less than it is given.
    "store-hang": Kind("for so many seconds the remote tier does not answer", harm="storage",
                       takes="seconds", usual="10", waits=True,
                       reported_by=(EventKind.STORE_AWAY,), over_with=_STORE_OVER),
    "store-gone": Kind("for so many seconds the remote tier refuses everything", harm="storage",
                       takes="seconds", usual="10", waits=True, must_be_noticed=True,
                       reported_by=(EventKind.STORE_AWAY,), over_with=_STORE_OVER),
    "loader-crash": Kind("reading the next batch fails", ends_attempt=True),
    "preempt": Kind("SIGTERM to the supervisor", takes="seconds", usual="0", whole_node=False,
                    ends_attempt=True),
    "supervisor-kill": Kind("SIGKILL to the supervisor", takes="seconds", usual="0",
                            whole_node=False, ends_attempt=True),
    "node-gone": Kind("all ranks of the node die, and for so many seconds it starts none",
                      takes="seconds", usual="5", whole_node=False, ends_attempt=True,
                      soaked=False),
    "ecc": Kind("the kernel reports a GPU's memory, by the number of its Xid; from an "
                "uncorrectable error the rank dies", takes="whole", usual="48", whole_node=False,
                ends_attempt=True, soaked=False),
}  # fmt: skip
STORE_FAULTS = ("store-hang", "store-gone")
XIDS = {
    48: "DBE (double bit error) ECC error",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapping recording failure",
    74: "NVLINK error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
}
"""Number → what the driver writes behind it."""
CORRECTED_XIDS = (63, 92)
"""Those that take nothing from a process."""

_SHAPE = re.compile(r"(?P<name>[^:@]+)(:(?P<strength>[^:@]+))?@(?P<place>.+)")
_PLACE = re.compile(
    r"step(?P<first>[0-9]+)(-(?P<last>[0-9]+))?|rank(?P<rank>[0-9]+)|node(?P<node>.+)"
    r"|attempt(?P<attempt>[0-9]+)|(?P<in_every_attempt>attempt\*)"
)
_EXAMPLE = "write it like kill@rank1:step20 or slow:1.2@rank0:step10-60"
_WORST_BIT = 31


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject. It acts where all of its conditions hold."""

    kind: str
    first: int = 1
    """Done when the rank is about to make this step, or the first one after it that it makes."""
    last: int | None = None
    """Acts in all steps up to this one; None: once."""
    rank: int | None = None
    """None: see `node`."""
    node: str = ""
    """Name of the node it acts on; empty where `rank` is given."""
    attempt: int | None = None
    """In this attempt alone; None: in the first that comes to it."""
    in_every_attempt: bool = False
    strength: str = ""
    """As written; empty: the usual one."""

    def __str__(self) -> str:
        strength = f":{self.strength}" if self.strength else ""
        attempt = "" if self.attempt is None else f"attempt{self.attempt}"
        parts = (
            "" if self.rank is None else f"rank{self.rank}",
            f"node{self.node}" if self.node else "",
            f"step{self.first}" + ("" if self.last is None else f"-{self.last}"),
            "attempt*" if self.in_every_attempt else attempt,
        )
        return f"{self.kind}{strength}@{':'.join(filter(None, parts))}"

    @property
    def known(self) -> Kind:
        """Its row of the table."""
        return KINDS[self.kind]

    @property
    def word(self) -> str:
        """STRENGTH, the usual one where none was given."""
        return self.strength or self.known.usual

    @property
    def value(self) -> float:
        """STRENGTH as a number; 0 where there is none."""
        return float(self.word or 0)

    @property
    def once(self) -> bool:
        """It is over when it was done."""
        stays = self.kind == "oom" and bool(self.strength)
        return self.last is None and not self.in_every_attempt and not stays


def parse_fault(text: str) -> Fault:
    """The fault that is written so; `str` of it is the same text, `rank0` filled in. UsageError,
    which names the part and the way out, if it cannot be understood.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"fault {text!r}: not NAME[:STRENGTH]@rankR:stepS", _EXAMPLE)
    name, strength = match["name"], match["strength"] or ""
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=2, cutoff=0.4)
        raise UsageError(
            f"fault {text!r}: there is no fault {name!r}",
            f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(KINDS)}",
        )
    found: dict[str, str] = {}
    for part in match["place"].split(":"):
        place = _PLACE.fullmatch(part)
        if place is None:
            what = "is no rank, node, step or attempt"
            raise UsageError(f"fault {text!r}: {part!r} {what}", _EXAMPLE)
        named = {key: value for key, value in place.groupdict().items() if value is not None}
        for key in named.keys() & found.keys():
            raise UsageError(f"fault {text!r}: {part} is one {key} too many", _EXAMPLE)
        found |= named
    if "first" not in found:
        raise UsageError(f"fault {text!r}: it names no step", _EXAMPLE)
    numbers = {key: int(found[key]) for key in ("first", "last", "rank", "attempt") if key in found}
    if "rank" not in found and "node" not in found:
        numbers["rank"] = 0
    fault = Fault(
        name, strength=strength, node=found.get("node", ""),
        in_every_attempt="in_every_attempt" in found, **numbers,
    )  # fmt: skip
    _check_strength(fault, text)
    return fault


def _check_strength(fault: Fault, text: str) -> None:
    known, given = fault.known, fault.strength
    if fault.last is not None and not known.lasts:
        raise UsageError(f"fault {text!r}: {fault.kind} acts in one step", "give one: step20")
    if fault.last is not None and fault.last < fault.first:
        raise UsageError(f"fault {text!r}: its steps end before they begin", _EXAMPLE)
    if not given:
        return
    wrong = ""
    if known.takes == "none":
        wrong = f"{fault.kind} has no strength"
    elif known.takes == "word" and given not in known.words:
        wrong = f"{given!r} is not one of {', '.join(known.words)}"
    elif known.takes == "whole" and not re.fullmatch(r"[0-9]+", given):
        wrong = f"{given!r} is no whole number"
    elif known.takes in ("seconds", "factor") and not re.fullmatch(r"[0-9]+(\.[0-9]+)?", given):
        wrong = f"{given!r} is no number"
    elif known.takes == "factor" and float(given) <= 1:
        wrong = f"{given} is not above 1"
    elif fault.kind.startswith("bitflip") and int(given) > _WORST_BIT:
        wrong = f"a number has no bit {given}; the last is {_WORST_BIT}"
    elif fault.kind == "ecc" and int(given) not in XIDS:
        wrong = f"Xid {given} is not one of {', '.join(map(str, XIDS))}"
    if wrong:
        raise UsageError(f"fault {text!r}: {wrong}", f"{fault.kind}: {known.meaning}")


def check_faults(faults: Iterable[Fault], recipe: Recipe) -> None:
    """UsageError about the first fault that a run of this recipe cannot have, and what there is."""
    steps, has_remote = recipe.total_steps(), bool(recipe.checkpoint.remote)
    nodes = {node.name for node in recipe.supervise.node}
    slots = sum(node.slots for node in recipe.supervise.node if not node.spare)
    processes = slots or recipe.machine.processes
    for fault in faults:
        if fault.rank is not None and fault.rank >= processes:
            ranks = "rank 0 alone" if processes == 1 else f"ranks 0 to {processes - 1}"
            raise UsageError(
                f"fault {fault}: there is no rank {fault.rank}",
                f"the run has {ranks}; --nproc gives it more",
            )
        if fault.node and fault.node not in nodes:
            there = f"there are: {', '.join(sorted(nodes))}" if nodes else "the run names no nodes"
            raise UsageError(f"fault {fault}: there is no node {fault.node}", there)
        if steps is not None and max(fault.first, fault.last or 0) > steps:
            raise UsageError(
                f"fault {fault}: the run ends after step {steps}",
                "name an earlier step, or let it run longer with --steps",
            )
        if fault.kind in STORE_FAULTS and not has_remote:
            raise UsageError(
                f"fault {fault}: the run's checkpoints have no remote tier",
                "give it one: --set checkpoint.remote=/some/folder",
            )
