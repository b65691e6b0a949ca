"""What may be done about findings, and about ranks and nodes that fail.

Ladders of actions with their sizes and budgets; deadlines, restarts and the choice of nodes. What
an action does is in `recover/remedies.py`, its words in `recover/draft.py` and, for the report,
`logbook/description.py`. An action that only changes settings needs no more; a new kind of effect
`recover/plan.py`, `logbook/ledger.py`, `train/effective.py` and `train/rollback.py` too.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from longhaul.config.section import Section, changed_at_start, live

Resettable = Literal["optimizer", "loss-scale"]

SoundAction = Literal["report", "lower-lr", "fallback", "stop"]
"""What may be done about a run whose weights are sound: going back would mend nothing."""
Action = Literal[
    "mask", "report", "undo", "rollback", "skip-batch", "skip", "lower-lr", "raise-lr",
    "tighten-clip", "clamp", "reset-loss-scale", "reset-optimizer", "fallback", "accept", "stop",
]  # fmt: skip
"""`mask`: the gate has held the update back already, and that is enough.
`report`: written down, nothing else.
`undo`: what was changed just before the first sign is as it was before; comes before any ladder.
`rollback`: go on from the last good state before the first sign.
`skip-batch`, `skip`: after a rollback, pass over the batch of the first sign, or a range around it.
`lower-lr`, `tighten-clip`: `optim.lr`, `optim.clip` times a factor.
`clamp`: `model.residual_clamp`, at twice what the residual stream usually reaches.
`raise-lr`: a step back to the learning rate that was asked for; by health, never by a ladder.
`reset-loss-scale`: to its initial value. `reset-optimizer`: moments to zero, and a fresh warm-up.
`accept`: the data has changed for good, as replays told: losses are judged by their new level from
here on; never by a ladder.
`fallback`: the next `[[fallback]]`. `stop`: exit 17, a person must look."""

SOUND_KINDS = frozenset(
    {"plateau", "frozen-group", "too-good", "overfitting", "throughput-drop", "slow-progress"}
)
"""Findings about a run whose weights are sound: they may be learning little, but nothing wrong."""

Ladder = tuple[tuple[Action, ...], ...]
SoundLadder = tuple[tuple[SoundAction, ...], ...]

_REPORT: SoundLadder = (("report",),)


class LaddersSection(Section):
    """What each kind of finding leads to: a list of rungs, each a list of actions taken together.

    The first time the first rung; the same cause again within `recover.cooldown_steps` the next
    one; the last one repeats until the budget is spent. One with nothing left to do is passed over.
    """

    non_finite: Ladder = live((("rollback", "skip"), ("rollback", "lower-lr")))
    """NaN or infinity in loss or gradient, again and again. One batch of it is only masked."""
    loss_spike: Ladder = live((("rollback", "skip"), ("rollback", "lower-lr")))
    """PaLM: back about 100 steps, 200–500 batches passed over; OPT-175B: always a lower rate."""
    gradient_spike: Ladder = live((("tighten-clip",), ("lower-lr",), ("rollback", "lower-lr")))
    """OPT-175B before 11.5."""
    growth: Ladder = live((("rollback", "lower-lr"), ("rollback", "lower-lr", "tighten-clip")))
    """A gauge grows towards its danger line; YaLM-100B went back 1,000 steps."""
    divergence: Ladder = live(
        (
            ("rollback", "lower-lr"),
            ("rollback", "lower-lr"),
            ("rollback", "lower-lr", "reset-optimizer"),
        )
    )
    """OPT-175B before 11.1, 12.42–12.53; the optimizer's reset is its 12.16."""
    loss_scale_collapse: Ladder = live((("rollback", "reset-loss-scale", "lower-lr"),))
    """OPT-175B 12.17–12.34."""
    plateau: SoundLadder = live(_REPORT)
    """The loss stands still: going back would lose what was learned, and mend nothing."""
    frozen_group: SoundLadder = live(_REPORT)
    """A role of weights does not train."""
    too_good: SoundLadder = live(_REPORT)
    """A source's loss is too good to be true."""
    overfitting: SoundLadder = live(_REPORT)
    """Validation turns up while training goes down."""
    throughput_drop: SoundLadder = live(_REPORT)
    """Steps take longer."""
    slow_progress: SoundLadder = live(_REPORT)
    """Updates are too small to get anywhere."""


class RecoverSection(Section):
    """What is done about findings. Lengths that are absent follow from the length of the run."""

    mode: Literal["act", "report"] = live("act")
    """`report` writes down what would have been done, and does nothing."""
    ladder: LaddersSection = Field(default_factory=LaddersSection)
    """What each kind of finding leads to."""
    diagnose: bool = live(True)
    """Cause before cure: before a rollback or a lower rate the steps in question are computed
    again, with one thing changed at a time, and the verdict shapes what is done."""
    diagnose_steps: int = live(100, ge=0)
    """Steps that may be computed again before one action, at most; what does not fit is left out.
    The search for a learning rate that works may take as many again, as may reading data."""
    undo: bool = live(True)
    """Before any ladder: what was changed just before the first sign (a setting, a fork, a restart
    with other settings, a raised learning rate) is undone, from the newest good state before it.
    Where this is false, or it cannot be undone (software, machines), it is named."""
    suspect_steps: int | None = live(None, ge=0)
    """Steps from a change to a first sign that it may be blamed for. When absent, the longest of
    the probation, twice the memory of the optimizer's second moment (1 / (1 - beta2)), and what a
    changed weight decay needs to show (1 / (rate x decay)), but no more than the cooldown."""
    stop_for_surroundings: bool = live(False)
    """Stop for a person (exit 17) where the first suspect is software or machines, which a run
    cannot change back by itself, else the ladder goes on; and where the data has changed for good,
    else training does."""
    margin_steps: int | None = live(None, ge=0)
    """How far before the first sign to go back; PaLM's 100, or 1/50 of a shorter run."""
    skip_steps: int | None = live(None, gt=0)
    """Steps' worth of data to pass over; PaLM's 300, or 1/25 of a shorter run."""
    probation_steps: int | None = live(None, gt=0)
    """Steps without trouble after which a state is good; 100, or 1/50 of a shorter run."""
    cooldown_steps: int | None = live(None, gt=0)
    """Steps after which a cause begins its ladder anew; 5,000, or 1/4 of a shorter run."""
    settle_steps: int | None = live(None, ge=0)
    """Steps that a change made without going back is given to show its effect, in which warnings
    of the same kind are not acted on; 50, or 1/100 of a shorter run."""
    rewarm_steps: int | None = live(None, ge=0)
    """Warm-up after a reset of the optimizer; 200, or 1/50 of a shorter run."""
    lr_factor: float = live(0.5, gt=0, lt=1)
    """What is left of the learning rate when it is lowered; of one that fails from its start, the
    square and then the fourth power of it, where two steps down were not enough."""
    min_lr_share: float = live(0.05, gt=0, le=1)
    """Lowest learning rate, as a share of the one that was asked for, if that had held for
    `raise_after_steps`; of one that fails from its start nothing is known, and this is no floor."""
    raise_after_steps: int | None = live(None, gt=0)
    """Steps without trouble until a lowered rate rises a step; 2,000, or 1/20 of a shorter run."""
    raise_factor: float = live(1.4142, gt=1)
    """Factor of that step."""
    clip_factor: float = live(0.5, gt=0, lt=1)
    """What is left of the largest gradient norm when clipping is tightened."""
    max_recoveries: int = live(20, ge=0)
    """Recoveries in all, since the run began or a fallback was forked to."""
    max_recoveries_per_cooldown: int = live(6, ge=0)
    """Recoveries within `cooldown_steps`."""
    max_skipped_share: float = live(0.1, ge=0, lt=1)
    """Largest share of the run's data that may be passed over."""


class FallbackSection(Section):
    """A plan B for when the budget of recoveries is spent: these settings, forked to from the last
    good state. Entries are taken in their order.
    """

    name: str = live(pattern=r"^[\w.-]+$")
    """Name in the logbook."""
    set: dict[str, Any] = live(min_length=1)
    """Settings as tables, as in a recipe: `set.optim.lr = 6e-5`."""
    reset: tuple[Resettable, ...] = live(())
    """State to throw away as well."""


DERIVED_FROM_STEP = 20
"""Start-up (until the first record), compilation and saving get this many deadlines of a step: they
give no sign of life on their way, or a save only while its bytes move."""
EVALUATION_FROM_STEP = 4
"""An evaluation gives a sign before each of its batches, which may be larger than a step's."""
COLLECTIVE_BEYOND = 2
"""Times the longest deadline: the watchdog can say who did not arrive, the collective cannot."""


Part = Annotated[str, Field(pattern=r"^(gpu|board|machine):[^\s,]+$")]


class NodeSection(Section):
    """A node that workers may run on."""

    name: str = changed_at_start(pattern=r"^[\w.-]+$")
    """For people; what a node is known by is its hardware."""
    slots: int = changed_at_start(1, gt=0)
    """Worker processes, one for each GPU as a rule; the same for all nodes."""
    command: tuple[str, ...] = changed_at_start(())
    """What a process is started with there, such as `["ip", "netns", "exec", "a"]`; it must pass
    its standard input on, and end with what it has started. Empty: this machine."""
    address: str = changed_at_start("127.0.0.1", min_length=1)
    """Where the ranks of the other nodes reach it."""
    identity: tuple[Part, ...] = changed_at_start(())
    """Parts it is known by, such as `board:A17`, for imitated nodes; absent: of its hardware."""
    spare: bool = changed_at_start(False)
    """Used only in place of another one."""


class SuperviseSection(Section):
    """The watchdog's deadlines, all of which follow from `deadline_s`, and the budgets of restarts.

    A deadline is the time without a sign of life from any rank. Each grows with what was measured:
    ten times the longest silence lately in a step, an evaluation, …, if that is more.
    """

    deadline_s: float = changed_at_start(30.0, gt=0)
    """Of a micro-batch, unless its silence, or on a device that of a step, turns out to be long."""
    start_up_s: float | None = changed_at_start(None, gt=0)
    """Of a start up to the first record, text already prepared; 20 `deadline_s` when absent."""
    compile_s: float | None = changed_at_start(None, gt=0)
    """Of a step that compiles; 20 `deadline_s` when absent."""
    evaluation_s: float | None = changed_at_start(None, gt=0)
    """Of a batch of an evaluation, and of a token of the sample; 4 `deadline_s` when absent."""
    save_s: float | None = changed_at_start(None, gt=0)
    """Of waiting for a save while none of its bytes moves; 20 `deadline_s` when absent."""
    collective_s: float | None = changed_at_start(None, gt=0)
    """Timeout of what ranks do together; twice the longest deadline when absent."""
    grace_s: float = changed_at_start(30.0, gt=0)
    """What a scheduler grants between its signal and the end; Slurm's default is 30 s."""
    restarts_per_day: int = changed_at_start(100, ge=0)
    """Failures within 24 hours that are answered by a restart; one more, and a person must look."""
    node: tuple[NodeSection, ...] = changed_at_start(())
    """Nodes to train on; this machine with `machine.processes` workers when absent."""
    node_ledger: str | None = changed_at_start(None)
    """A folder that runs share, to keep what was seen of nodes; absent: inside the run."""
    replace_command: str | None = changed_at_start(None)
    """A shell command that orders another node and prints its entry as TOML or JSON."""
    replace_stragglers: bool = changed_at_start(False)
    """Save and restart at once where a spare can replace a slow node; else at the next restart."""
    signatures: str | None = changed_at_start(None)
    """A TOML file of more failure signatures (docs/supervise.md), tried before our own."""

    def deadlines(self) -> dict[str, float]:
        """Setting → seconds, the derived ones filled in."""
        derived = DERIVED_FROM_STEP * self.deadline_s
        of_phase = {
            "start_up_s": self.start_up_s or derived,
            "compile_s": self.compile_s or derived,
            "evaluation_s": self.evaluation_s or EVALUATION_FROM_STEP * self.deadline_s,
            "save_s": self.save_s or derived,
        }
        longest = max(of_phase.values())
        collective = self.collective_s or COLLECTIVE_BEYOND * longest
        return {"deadline_s": self.deadline_s, **of_phase, "collective_s": collective}
