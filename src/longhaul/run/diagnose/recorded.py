"""The steps that led to a step, as they are in the journal, and as they can be made again."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from longhaul.checkpoint.loader import read_facts, restore
from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.errors import UsageError
from longhaul.core.records import StepRecord
from longhaul.data.batches import BatchReader, BatchRequest
from longhaul.data.dataset import Dataset
from longhaul.data.verification import text_of
from longhaul.diagnose.signs import Figures, Series
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.segments import SegmentOpening, read_segments
from longhaul.run.diagnose.bundle import StepInput, given_to
from longhaul.run.diagnose.replays import Replayer
from longhaul.run.diagnose.saved_batch import line_to
from longhaul.store.catalogue import Checkpoint, usable
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.train.effective import EffectiveSettings


class Recorded:
    """A line of steps up to `step`, of an attempt or the last that made it. Close it when done.
    UsageError if no such step was made, or the run's text is gone.
    """

    def __init__(self, folder: RunFolder, step: int, attempt: int | None = None) -> None:
        self.folder = folder
        self.step = step
        self._made, self.findings = line_to(folder, step, attempt)
        self.records = {number: record for number, (record, _) in self._made.items()}
        self._segments = {str(item.number): item for item in read_segments(folder)}
        self.dataset: Dataset = text_of(folder, self.settings_at(step))
        before = self._made[step][1].mixture_before
        self._reader = BatchReader(self.dataset, self.settings_at(step), before)

    def close(self) -> None:
        """End the reader."""
        self._reader.close()

    @property
    def segment(self) -> SegmentOpening | None:
        """The segment that made the last step."""
        return self._segments.get(self.records[self.step].segment)

    def figures(self, begin: int = 0) -> Series:
        """What was recorded for the steps after `begin`, without a gap before the last one."""
        first = self.step
        while first > begin + 1 and first - 1 in self.records:
            first -= 1
        return tuple(figures_of(self.records[step]) for step in range(first, self.step + 1))

    def settings_at(self, step: int) -> Recipe:
        """Settings in force when a step was made: its segment's, with the ledger of then on top."""
        record, ledger = self._made[step]
        opening = self._segments.get(record.segment)
        if opening is None:
            raise UsageError(
                f"segment {record.segment} of run {self.folder.name} has no settings left",
                "its folder in segments/ is gone: put it back",
            )
        recipe = recipe_from_values(opening.settings, opening.file)
        return EffectiveSettings(recipe, ledger).at(step - 1)

    def inputs(self, begin: int, end: int, shift: int = 0) -> Iterator[StepInput]:
        """What the steps after `begin`, up to `end`, were given, with draws `shift` further on;
        after the last recorded step, what the next one would have been given.
        """
        known: tuple[object, Recipe] | None = None
        for step in range(begin + 1, end + 1):
            record, ledger = self._made[min(step, self.step)]
            key = record.segment, ledger.overrides_at(record.step - 1)
            if known is None or known[0] != key:
                known = key, self.settings_at(record.step)
            settings = known[1]
            draw = record.draw if step <= self.step else record.next_draw
            size = record.sequences, record.sequence_length
            request = BatchRequest(draw + shift, *size, ledger.skips)
            given = given_to(record, settings, self._reader.read(request), ledger.resets)
            yield given if step == record.step else replace(given, step=step, read_gauges=False)

    def replayer(self, latest: int, device: torch.device) -> tuple[Replayer, int]:
        """The newest sound state at or before step `latest`, in a replayer; and its step.
        UsageError if there is neither a checkpoint nor an unbroken record from step 1.
        """
        refusals = []
        for checkpoint in self._checkpoints(latest):
            settings = self.settings_at(checkpoint.step + 1)
            replayer = self._fresh(settings, device)
            try:
                facts = read_facts(checkpoint.path).facts
                if facts["progress"]["position"]["draw"] > self.records[checkpoint.step + 1].draw:
                    continue  # of another line: that one had gone further in the data by then
                restore(checkpoint.path, replayer.parts_for(facts, self.dataset))
            except RefusedCheckpoint as refusal:
                refusals.append(refusal.message)
            else:
                return replayer, checkpoint.step
        if not self._unbroken_from(0):
            why = f" ({'; '.join(refusals)})" if refusals else ""
            raise UsageError(
                f"run {self.folder.name}: no sound checkpoint at or before step {latest}{why}",
                "name a later step; `longhaul data at` still shows what this one was trained on",
            )
        return self._fresh(self.settings_at(1), device), 0

    def _fresh(self, settings: Recipe, device: torch.device) -> Replayer:
        end_of_text = self.dataset.tokenizer.end_of_text
        return Replayer.fresh(settings, self.dataset.vocab_size, end_of_text, device)

    def _checkpoints(self, latest: int) -> Iterator[Checkpoint]:
        ledger, _ = load_ledger(self.folder)
        for checkpoint in reversed(usable(self.folder.checkpoints, ledger.checkpoint_health)):
            # Written later than the step was made, it is of a line that came after a rollback.
            early = checkpoint.time <= self.records[self.step].time
            if early and checkpoint.step <= latest and self._unbroken_from(checkpoint.step):
                yield checkpoint

    def _unbroken_from(self, begin: int) -> bool:
        return all(step in self.records for step in range(begin + 1, self.step + 1))


def figures_of(record: StepRecord) -> Figures:
    """What was recorded for a step, as replays give it."""
    return Figures(record.step, record.loss, record.gradient_norm, record.masked, record.gauges)
