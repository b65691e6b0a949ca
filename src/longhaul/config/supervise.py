"""How long to wait for a rank, how often to start again, and on which nodes."""

from typing import Annotated

from pydantic import Field

from longhaul.config.section import Section, changed_at_start

DERIVED_FROM_STEP = 20
"""Start-up, compilation and saving get this many deadlines of a step: the first two give no sign of
life before their end, and a save gives one only while its bytes move. A start-up lasts until the
first record: nobody knows before how long a step takes.
"""
EVALUATION_FROM_STEP = 4
"""An evaluation gives a sign before each of its batches, which may be larger than a step's."""
COLLECTIVE_BEYOND = 2
"""Collectives time out so many times later than the longest deadline: the watchdog can say who did
not arrive, the collective only that somebody did not."""


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
    """Parts that it is known by, such as `board:A17`, for imitated nodes; read from its hardware
    when absent."""
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
    """A folder that runs share, in which is kept what was seen of nodes; inside the run when
    absent."""
    replace_command: str | None = changed_at_start(None)
    """A shell command that orders another node and prints its entry as TOML or JSON."""
    replace_stragglers: bool = changed_at_start(False)
    """Save and restart at once where a spare can take the place of a slow node; else at the next
    restart."""
    signatures: str | None = changed_at_start(None)
    """A TOML file of more failure signatures (docs/supervise.md), asked before the built-in ones:
    each generation of devices has its own."""

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
