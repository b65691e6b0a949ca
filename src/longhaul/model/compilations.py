"""What torch.compile has really compiled in this process; `Forms` says what it should."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from longhaul.core.units import Seconds, count, short_seconds

_BREAK = "graph break: "
_METRICS = 4096
_UNLIKE = (AttributeError, KeyError, TypeError)
"""Torch counts in another way than those it is known from: nothing is told of it, and training goes
on."""
_MOST_OF_A_REASON = 200
"""Characters: torch gives stack traces too."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What torch has compiled since the last look, forward and backward."""

    graphs: int
    took_s: Seconds
    pieces: int
    """Pieces of generated code, each of a forward or a backward pass."""
    cached: int
    """Of these, found in the cache on disk."""
    graph_breaks: int
    """Places where a pass fell back to Python between two graphs."""
    recompilations: int
    """In passes of a form that had been compiled."""
    reasons: tuple[str, ...]
    """Of breaks and recompilations, as torch gives them."""

    @property
    def data(self) -> dict[str, object]:
        """As an event carries it."""
        return asdict(self) | ({"message": self.message} if self.message else {"text": self.text})

    @property
    def text(self) -> str:
        """For people."""
        found = f", {self.cached} of {self.pieces} pieces of code from the cache"
        made = f"{count(self.graphs, 'graph')} in {short_seconds(self.took_s)}"
        return made + (found if self.cached else "")

    @property
    def message(self) -> str:
        """What is wrong and the way out; empty if nothing is."""
        breaks = f"{count(self.graph_breaks, 'graph break')}" if self.graph_breaks else ""
        again = f"{count(self.recompilations, 'recompilation')}" if self.recompilations else ""
        if not (breaks or again):
            return ""
        seen = " and ".join(filter(None, (breaks, again)))
        return (
            f"{seen} that should not be ({'; '.join(self.reasons) or 'torch gives no reason'}): "
            "steps are slower than they could be; TORCH_LOGS=graph_breaks,recompiles tells where, "
            "machine.compile=false does without"
        )


@dataclass(eq=False)
class Compilations:
    """Looks at torch's own counts around passes. They are private, but alike in torch 2.11 to 2.13,
    unlike its callbacks, which `torch.compiler.reset` forgets. To import them loads the compiler,
    which takes a second.
    """

    _recompilations: list[str] = field(default_factory=list, init=False)
    _metrics: list[Any] = field(default_factory=list, init=False)
    """Torch's own, of every compilation since the last `drain`."""
    _seen: Any = field(default=None, init=False)
    _has_news: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        from torch._dynamo import utils

        # Of 64 blocks that compile in one pass, and more.
        if (remember := getattr(utils, "set_compilation_metrics_limit", None)) is not None:
            remember(_METRICS)
        self._utils: Any = utils
        self._frames = utils.counters["frames"]
        self._before: int = self._frames["total"]
        self._last = self._totals()
        self._new_metrics()

    def begin(self) -> None:
        """A pass begins."""
        self._before = self._frames["total"]

    def end(self, is_new: bool) -> None:
        """Its forward pass is over; `is_new`: its form is, and had to be compiled."""
        if self._frames["total"] == self._before:
            return
        with suppress(*_UNLIKE):
            self._see(is_new)

    def _see(self, is_new: bool) -> None:
        self._has_news = True
        self._metrics += (new := self._new_metrics())
        if not is_new:
            # Those of a backward pass before this one are no frame's.
            reasons = [one.recompile_reason for one in new if one.frame_key is not None]
            self._recompilations += [_shortened(reason or "") for reason in reasons] or [""]

    def drain(self) -> Compiled | None:
        """What was compiled since the last call, in whole passes; None if nothing was."""
        if not self._has_news:
            return None
        try:
            return self._summary()
        except _UNLIKE:
            self._has_news = False
            return None

    def _summary(self) -> Compiled:
        before, self._last = self._last, self._totals()
        new = self._last - before
        broken = [key for key in new if key.startswith(_BREAK)]
        recompiled, self._recompilations = self._recompilations, []
        metrics, self._metrics = self._metrics + self._new_metrics(), []
        self._has_news = False
        reasons = [*(_shortened(key.removeprefix(_BREAK)) for key in broken), *recompiled]
        cached = new["cache hit"]
        return Compiled(
            graphs=new["graphs"],
            took_s=sum(one.duration_us or 0 for one in metrics) / 1e6,
            pieces=cached + new["cache miss"] + new["cache bypass"],
            cached=cached,
            graph_breaks=sum(new[key] for key in broken),
            recompilations=len(recompiled),
            reasons=tuple(dict.fromkeys(filter(None, reasons))),
        )

    def _totals(self) -> Counter[str]:
        counters = self._utils.counters
        found = Counter({_BREAK + why: times for why, times in counters["graph_break"].items()})
        found["graphs"] = counters["stats"]["unique_graphs"]
        for what in ("hit", "miss", "bypass"):
            found[f"cache {what}"] = counters["inductor"][f"fxgraph_cache_{what}"]
        return found

    def _new_metrics(self) -> list[Any]:
        newest_first: Iterator[Any] = reversed(self._utils.get_compilation_metrics())
        new = list(takewhile(lambda one: one is not self._seen, newest_first))[::-1]
        self._seen = new[-1] if new else self._seen
        return new


def _shortened(reason: str) -> str:
    """What torch says first; where it was comes after that."""
    lines = (line.split("  # ")[0] for line in reason.split("User stack trace")[0].splitlines())
    return " ".join(" ".join(lines).split())[:_MOST_OF_A_REASON]
