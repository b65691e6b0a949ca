"""What rank 0 makes of how all ranks compute: stragglers, and wrong numbers."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from longhaul.core.events import EventKind
from longhaul.core.records import Event, Finding
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_log import RunLog
from longhaul.supervise.ranks.corruption import Verdict, judge
from longhaul.supervise.ranks.stragglers import Straggler, StragglerWatch, in_words, looks
from longhaul.train.rank_comparison import Compared, RankComparison, SilentCorruption
from longhaul.train.trainer import Trainer

VERDICT = EventKind.MACHINE_VERDICT
WATCH = EventKind.MACHINE_WATCH


class RankHealth:
    """Judges the ranks of one attempt, in rank 0."""

    def __init__(
        self,
        run_log: RunLog,
        say: Callable[[str], None],
        trainer: Trainer,
        comparison: RankComparison,
    ) -> None:
        self._run_log, self._say = run_log, say
        self._trainer, self._comparison = trainer, comparison
        world, begin = comparison.world, trainer.position.step
        # Stages of a pipeline have unequal work.
        self._stragglers = StragglerWatch([world.layout.stage(rank) for rank in range(world.size)])
        journal = read_journal(run_log.folder, steps=False)
        before = [record for record in journal if isinstance(record, Event)]
        # What was restored is the same on all ranks; what earlier attempts compared still holds.
        compared = (e for e in before if e.kind == EventKind.COMPARED and e.step <= begin)
        alike = [e.step for e in compared if e.data.get("what") == "slot" and e.data.get("sound")]
        self._sound = {"weights": [begin], "slot": alike}
        self._unsound: Verdict | None = None
        self._say_what_is_watched(before)

    def judged(self, record: Event) -> Event:
        """The event of a comparison, with what it has shown."""
        for compared in self._comparison.comparisons():
            # After a rollback what was seen later is no longer part of this run.
            sound = [step for step in self._sound[compared.what] if step < compared.step]
            verdict = verdict_of(compared, max(sound, default=None))
            if verdict.kind == "sound":
                self._sound[compared.what] = [*sound, compared.step]
            elif self._unsound is None:
                self._unsound = verdict
            record = replace(record, data={**record.data, "sound": verdict.kind == "sound"})
        return record

    def act(self) -> None:
        """Name stragglers, at a boundary. SilentCorruption if a rank is wrong, or of two that
        differ one is; LedgerError if the verdict could not be written.
        """
        for step, seconds in self._comparison.paces():
            for straggler in self._stragglers.observe(step, seconds):
                self._name(straggler, step)
        if self._unsound is not None:
            self._leave(self._looked_at_again(self._unsound))

    def _say_what_is_watched(self, before: Sequence[Event]) -> None:
        """At the first start, and whenever another layout or setting has changed it."""
        trainer, comparison = self._trainer, self._comparison
        monitor, world = trainer.settings.monitor, comparison.world
        found = looks(world.layout, comparison.nodes, monitor.hash_every, monitor.witness_every,
                      world.device.type, comparison.held_alike)  # fmt: skip
        text = in_words(found)
        said = [event.data.get("text") for event in before if event.kind == WATCH]
        if said[-1:] == [text]:
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
                time=self._run_log.clock.wall(),
                subject=f"rank {straggler.rank}",
                evidence=evidence,
                sentence=sentence,
            )
        )
        who = {"kind": "straggler", "ranks": [straggler.rank], "nodes": [node]}
        self._run_log.emit(VERDICT, step, **who, reason=sentence, sound_step=None, **evidence)
        self._say(f"step {step:>6}  warning: {sentence}")

    def _looked_at_again(self, verdict: Verdict) -> Verdict:
        """Of ranks that differ and that nobody can tell apart, what a second look says."""
        if verdict.kind == "odd":
            return verdict
        before = verdict.reason
        for record in self._trainer.compare("slot"):
            if isinstance(record, Event):
                self._run_log.append(record)
        again = [verdict_of(compared, None) for compared in self._comparison.comparisons()]
        if not again:
            return verdict
        how = "they compute the same now" if again[0].kind == "sound" else "they differ again"
        return replace(verdict, reason=f"{before}; given the same data once more, {how}")

    def _leave(self, verdict: Verdict) -> None:
        step = self._trainer.position.step
        odd, sound_step = verdict.kind == "odd", verdict.sound_step
        nodes = sorted({self._comparison.nodes[rank] for rank in verdict.ranks})
        nothing = "nothing is known to be sound"
        back = nothing if sound_step is None else f"step {sound_step} was sound"
        ranks = (" and " if odd else " or ").join(map(str, verdict.ranks))
        sentence = f"rank {ranks}: {verdict.reason}; {back}"
        self._run_log.emit_durably(
            VERDICT,
            step,
            kind="corrupt",
            # Who may be wrong is not to be cordoned.
            ranks=list(verdict.ranks) if odd else [],
            among=list(verdict.ranks),
            nodes=nodes,
            reason=verdict.reason,
            sound_step=sound_step,
        )
        self._say(f"step {step:>6}  alarm: silent corruption, {sentence}")
        raise SilentCorruption(sentence)


def verdict_of(compared: Compared, sound_step: int | None) -> Verdict:
    """What a comparison says; `sound_step` is that of the newest one in which all agreed."""
    given, tolerance = compared.given, compared.tolerance
    return judge(compared.step, compared.what, given, tolerance, sound_step)
