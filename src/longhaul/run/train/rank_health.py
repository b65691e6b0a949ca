"""What rank 0 makes of how all ranks compute: stragglers, and wrong numbers (M5, M13)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longhaul.core.events import EventKind
from longhaul.core.records import Event, Finding
from longhaul.logbook.reading import read_journal
from longhaul.run.train.attempt import Attempt
from longhaul.supervise.ranks.corruption import (
    Comparison,
    Verdict,
    judge_hashes,
    judge_slots,
    judge_together,
    next_pair,
)
from longhaul.supervise.ranks.stragglers import Straggler, StragglerWatch, in_words, looks
from longhaul.train.rank_comparison import Compared, RankComparison, SilentCorruption
from longhaul.train.trainer import Trainer

VERDICT = EventKind.MACHINE_VERDICT
WATCH = EventKind.MACHINE_WATCH


class RankHealth:
    """Judges the ranks of one attempt.

    Args:
        attempt: verdicts are written into its run log and said in its view.
        trainer: of rank 0.
        comparison: its own, of all ranks.
    """

    def __init__(self, attempt: Attempt, trainer: Trainer, comparison: RankComparison) -> None:
        self._run_log, self._say, self._clock = attempt.run_log, attempt.view.say, attempt.clock
        self._trainer, self._comparison = trainer, comparison
        world, begin = comparison.world, trainer.position.step
        # Stages of a pipeline have unequal work.
        self._stragglers = StragglerWatch([world.layout.stage(rank) for rank in range(world.size)])
        # What was restored is the same on all ranks; what earlier attempts compared still holds.
        self._sound = {"weights": [begin], "slot": sound_steps(attempt, begin)}
        self._unsound: Verdict | None = None
        self._say_what_is_watched(attempt)

    def judged(self, record: Event) -> Event:
        """The event of a comparison, with what it has shown."""
        for compared in self._comparison.comparisons():
            # After a rollback what was seen later is no longer part of this run.
            sound = [step for step in self._sound[compared.what] if step < compared.step]
            verdict = judge(compared, max(sound, default=None))
            if verdict.kind == "sound":
                self._sound[compared.what] = [*sound, compared.step]
            elif self._unsound is None:
                self._unsound = verdict
            record = replace(record, data={**record.data, "sound": verdict.kind == "sound"})
        return record

    def act(self) -> None:
        """Name stragglers, and end a run that is corrupt; at a boundary.

        Raises:
            SilentCorruption: a rank is wrong, or of two that differ one is.
            LedgerError: the verdict could not be written.
        """
        for step, seconds in self._comparison.paces():
            for straggler in self._stragglers.observe(step, seconds):
                self._name(straggler, step)
        if self._unsound is not None:
            self._leave(self._looked_at_again(self._unsound))

    def _say_what_is_watched(self, attempt: Attempt) -> None:
        """At the first start, and whenever another layout or setting has changed it."""
        trainer, comparison = self._trainer, self._comparison
        monitor, world = trainer.settings.monitor, comparison.world
        found = looks(world.layout, comparison.nodes, monitor.hash_every, monitor.witness_every,
                      world.device.type, comparison.held_alike)  # fmt: skip
        text = in_words(found)
        before = [event for event in _events(attempt) if event.kind == WATCH]
        if before and before[-1].data.get("text") == text:
            return
        watched = {look.what: look.watched for look in found}
        replicas = world.layout.replicate
        self._run_log.emit(WATCH, trainer.position.step, text=text, replicas=replicas, **watched)
        self._say(text)

    def _name(self, straggler: Straggler, step: int) -> None:
        node = self._comparison.nodes[straggler.rank]
        sentence = f"{straggler.sentence} (node {node})"
        evidence = {
            "rank": float(straggler.rank),
            "slower": round(straggler.slower, 4),
            "lost_s": round(straggler.lost_s, 6),
            "lost_share": round(straggler.lost_share, 4),
        }
        self._run_log.append(
            Finding(
                kind="straggler",
                severity="warning",
                attempt=self._run_log.lease.attempt,
                segment=self._run_log.segment_name,
                step=step,
                first_step=max(0, straggler.since_step),
                first_draw=self._trainer.position.draw,
                time=self._clock.wall(),
                subject=f"rank {straggler.rank}",
                evidence=evidence,
                sentence=sentence,
            )
        )
        self._run_log.emit(
            VERDICT,
            step,
            kind="straggler",
            ranks=[straggler.rank],
            nodes=[node],
            reason=sentence,
            sound_step=None,
            **evidence,
        )
        self._say(f"step {step:>6}  warning: {sentence}")

    def _looked_at_again(self, verdict: Verdict) -> Verdict:
        """Of ranks that differ and that nobody can tell apart, what a second look says."""
        if verdict.kind == "odd":
            return verdict
        before = verdict.reason
        for record in self._trainer.compare("slot"):
            if isinstance(record, Event):
                self._run_log.append(record)
        again = [judge(compared, None) for compared in self._comparison.comparisons()]
        if not again:
            return verdict
        how = "they compute the same now" if again[0].kind == "sound" else "they differ again"
        return replace(verdict, reason=f"{before}; given the same data once more, {how}")

    def _leave(self, verdict: Verdict) -> None:
        step = self._trainer.position.step
        odd = verdict.kind == "odd"
        nodes = sorted({self._comparison.nodes[rank] for rank in verdict.ranks})
        back = (
            "nothing is known to be sound"
            if verdict.sound_step is None
            else f"step {verdict.sound_step} was sound"
        )
        sentence = f"{_who(verdict)}: {verdict.reason}; {back}"
        self._run_log.emit_durably(
            VERDICT,
            step,
            kind="corrupt",
            # Who may be wrong is not to be cordoned.
            ranks=list(verdict.ranks) if odd else [],
            among=list(verdict.ranks),
            nodes=nodes,
            reason=verdict.reason,
            sound_step=verdict.sound_step,
        )
        self._say(f"step {step:>6}  alarm: silent corruption, {sentence}")
        raise SilentCorruption(sentence)


def judge(compared: Compared, sound_step: int | None) -> Verdict:
    """What a comparison of all ranks says.

    Args:
        compared: by rank and group.
        sound_step: of the comparison before it.
    """
    groups: dict[str, list[int]] = {}
    for rank, own in enumerate(compared.given):
        for group in own:
            groups.setdefault(group, []).append(rank)
    several = ((group, ranks) for group, ranks in groups.items() if len(ranks) > 1)
    verdicts = [_of_group(compared, group, ranks) for group, ranks in several]
    together = judge_together(verdicts, compared.step)
    return together if together.kind == "sound" else replace(together, sound_step=sound_step)


def _of_group(compared: Compared, group: str, ranks: Sequence[int]) -> Verdict:
    if compared.what == "weights":
        return judge_hashes(compared.step, {r: str(compared.given[r][group]) for r in ranks})
    values = {r: tuple(map(float, compared.given[r][group])) for r in ranks}
    pairs = {frozenset(next_pair(turn, ranks)) for turn in range(len(ranks))}
    return judge_slots(
        [
            Comparison(compared.step, first, second, values[first], values[second])
            for first, second in (sorted(pair) for pair in sorted(pairs, key=sorted))
        ],
        compared.tolerance,
    )


def sound_steps(attempt: Attempt, begin: int) -> list[int]:
    """Steps up to `begin` at which earlier attempts found that all ranks compute the same."""
    return [
        event.step
        for event in _events(attempt)
        if event.kind == EventKind.COMPARED
        and event.data.get("what") == "slot"
        and event.data.get("sound")
        and event.step <= begin
    ]


def _events(attempt: Attempt) -> Iterator[Event]:
    return (r for r in read_journal(attempt.folder, steps=False) if isinstance(r, Event))


def _who(verdict: Verdict) -> str:
    between = " and " if verdict.kind == "odd" else " or "
    return "rank " + between.join(map(str, verdict.ranks))
