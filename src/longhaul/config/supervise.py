"""How long to wait for a rank, and how often to start again."""

from longhaul.config.section import Section, changed_at_start

DERIVED_FROM_STEP = 20
"""Start-up, compilation, evaluation and saving get this many deadlines of a step: none of them
gives a sign of life before its end, and the last evaluation and save are longer than all before.
"""
COLLECTIVE_BEYOND = 2
"""Collectives time out so many times later than the longest deadline: the watchdog can say who did
not arrive, the collective only that somebody did not."""


class SuperviseSection(Section):
    """The watchdog's deadlines, all of which follow from `deadline_s`, and the budgets of restarts.

    A deadline is the time without a sign of life from any rank. Each grows with what was measured:
    ten times the longest step, evaluation, … seen lately, if that is more.
    """

    deadline_s: float = changed_at_start(30.0, gt=0)
    """Of a step, before and unless steps turn out to take long."""
    start_up_s: float | None = changed_at_start(None, gt=0)
    """Of a start up to the first step, text already prepared; 20 `deadline_s` when absent."""
    compile_s: float | None = changed_at_start(None, gt=0)
    """Of a step that compiles; 20 `deadline_s` when absent."""
    evaluation_s: float | None = changed_at_start(None, gt=0)
    """Of an evaluation; 20 `deadline_s` when absent."""
    save_s: float | None = changed_at_start(None, gt=0)
    """Of waiting for a save; 20 `deadline_s` when absent."""
    collective_s: float | None = changed_at_start(None, gt=0)
    """Timeout of what ranks do together; twice the longest deadline when absent."""
    grace_s: float = changed_at_start(30.0, gt=0)
    """What a scheduler grants between its signal and the end; Slurm's default is 30 s."""
    restarts_per_day: int = changed_at_start(100, ge=0)
    """Failures within 24 hours that are answered by a restart; one more, and a person must look."""
    signatures: str | None = changed_at_start(None)
    """A TOML file of more failure signatures (docs/supervise.md), asked before the built-in ones:
    each generation of devices has its own."""

    def deadlines(self) -> dict[str, float]:
        """Setting → seconds, the derived ones filled in."""
        derived = DERIVED_FROM_STEP * self.deadline_s
        of_phase = {
            "start_up_s": self.start_up_s or derived,
            "compile_s": self.compile_s or derived,
            "evaluation_s": self.evaluation_s or derived,
            "save_s": self.save_s or derived,
        }
        longest = max(of_phase.values())
        collective = self.collective_s or COLLECTIVE_BEYOND * longest
        return {"deadline_s": self.deadline_s, **of_phase, "collective_s": collective}
