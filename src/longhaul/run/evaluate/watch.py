"""`longhaul eval --watch`: judges each checkpoint of a run once, as it appears, here or in a store.

Results are events in journal files of their own author, which no trainer writes; nothing else of a
run is touched, and no lease is taken. Those of a run in a store are sent there as well.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longhaul.checkpoint.capture import StateMismatch
from longhaul.checkpoint.loader import read_facts
from longhaul.core.clocks import Clock
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Event
from longhaul.core.units import Seconds, loss_in_words, short_bytes
from longhaul.data.dataset import Dataset
from longhaul.data.verification import text_of
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.summary import run_state
from longhaul.run.elsewhere import Fetched, fetched_model, text_here
from longhaul.run.evaluate.text import text_losses
from longhaul.run.trained import Trained, load_trained
from longhaul.store.catalogue import Checkpoint, catalogue, usable_of
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.remote_run import RemoteRun
from longhaul.store.scores import AUTHOR, AUTHOR_OF_COPY, read_scores, write_score
from longhaul.store.transfers import StoreError


@dataclass(frozen=True, slots=True)
class Asked:
    """What each checkpoint is judged on; without texts and tasks, on the validation split."""

    texts: tuple[str, ...] = ()
    text_field: str = "text"
    tasks: tuple[str, ...] = ()
    tasks_dir: Path | None = None
    limit: int | None = None
    shots: int | None = None
    prepared: Path = Path("prepared")
    device: str | None = None
    by_layer: bool | None = None

    @property
    def words(self) -> list[str]:
        """By which a result is recognised: a checkpoint is judged anew on other things."""
        limits = [f"limit {self.limit}"] if self.limit is not None else []
        limits += [f"{self.shots} shots"] if self.shots is not None else []
        texts = [f"text {text}" for text in self.texts]
        tasks = [" ".join([f"task {task}", *limits]) for task in self.tasks]
        return [*texts, *tasks] or ["validation split"]


@dataclass
class Watch:
    """The checkpoints of one run, of which each is judged once."""

    folder: RunFolder
    asked: Asked
    clock: Clock
    say: Say
    remote: RemoteRun | None = None
    _given_up: set[str] = field(default_factory=set)
    """Manifests of those that could not be loaded."""
    _dataset: Dataset | None = None

    def run(self, pause: Callable[[], None]) -> None:
        """Judge what there is and what comes, until the run is finished and all of it is judged.

        `pause` is called while there is nothing to do. UsageError if the run can never be judged,
        such as without its text.
        """
        while True:
            try:
                if self.remote is not None:
                    self.remote.refresh()
                # Asked before what is there: after the end no other checkpoint comes.
                finished = self._finished()
                waiting = self._waiting()
                for checkpoint in waiting:
                    self._judge(checkpoint)
                if finished and not waiting:
                    return
            except StoreError as error:
                self.say(f"WARNING: {error.message}; trying again")
                waiting = []
            if not waiting:
                pause()

    def _finished(self) -> bool:
        return run_state(list(read_journal(self.folder, steps=False)), live=False) == "finished"

    def _waiting(self) -> list[Checkpoint]:
        recorded = load_ledger(self.folder)[0].checkpoint_health
        remote = self.remote
        there = catalogue(self.folder.checkpoints) if remote is None else remote.checkpoints()
        words = self.asked.words
        judged = [e for e in read_scores(self.folder) if e.data.get("asked") == words]
        done = self._given_up | {str(event.data.get("manifest")) for event in judged}
        return [c for c in usable_of(there, recorded) if c.manifest_sha256 not in done]

    def _judge(self, checkpoint: Checkpoint) -> None:
        began = self.clock.monotonic()
        try:
            with self._loaded(checkpoint) as found:
                data = self._measured(found.trained)
        except (RefusedCheckpoint, StateMismatch, FileNotFoundError) as error:
            # Retention may have removed it while it was read.
            self._given_up.add(checkpoint.manifest_sha256)
            self.say(f"step {checkpoint.step}: not judged: {error}")
            return
        what = {"manifest": checkpoint.manifest_sha256, "asked": self.asked.words, **data}
        self._record(checkpoint.step, found.attempt, what, self.clock.monotonic() - began)
        size = f" ({short_bytes(found.size_bytes)} fetched)" if found.size_bytes else ""
        self.say(f"step {checkpoint.step}{size}: {data['text']}")

    @contextmanager
    def _loaded(self, checkpoint: Checkpoint) -> Iterator[Fetched]:
        device, by_layer = self.asked.device, self.asked.by_layer
        if self.remote is None:
            path = checkpoint.path
            dataset = self._dataset = self._dataset or text_of(self.folder)
            trained = load_trained(self.folder, checkpoint, path, dataset, None, device, by_layer)
            yield Fetched(trained, read_facts(path).attempt, 0)
            return
        if self._dataset is None:
            self._dataset = text_here(self.remote, self.asked.prepared, self.say)
        with fetched_model(
            self.remote, checkpoint, self._dataset, self.say, device, by_layer
        ) as found:
            yield found

    def _measured(self, trained: Trained) -> dict[str, Any]:
        asked = self.asked
        if not asked.texts and not asked.tasks:
            found = trained.evaluate()
            said = loss_in_words(found.loss, found.bits_per_byte)
            return {
                "loss": found.loss, "bits_per_byte": found.bits_per_byte, "tokens": found.tokens,
                "text": f"validation loss {said}",
            }  # fmt: skip
        texts: dict[str, dict[str, float]] = {}
        tasks: dict[str, dict[str, float]] = {}
        said_of = []
        downloads = asked.prepared / "downloads"
        for loss in text_losses(trained, asked.texts, downloads, self.say, asked.text_field):
            texts[loss.name] = {
                "loss": loss.loss, "perplexity": loss.perplexity, "tokens": loss.tokens,
                "bits_per_byte": loss.bits_per_byte,
            }  # fmt: skip
            said_of.append(str(loss))
        if asked.tasks:
            from longhaul.run.evaluate.harness import task_scores

            for score in task_scores(
                trained, asked.tasks, asked.tasks_dir, asked.limit, asked.shots
            ):
                tasks.setdefault(score.task, {})[score.metric] = score.value
                said_of.append(str(score))
        return {"texts": texts, "tasks": tasks, "text": "; ".join(said_of)}

    def _record(self, step: int, attempt: int, data: Mapping[str, Any], took_s: Seconds) -> None:
        more = {"host": platform.node(), "took_s": round(took_s, 3)}
        event = Event(
            kind=EventKind.SCORED, attempt=attempt, step=step, time=self.clock.wall(),
            data={**data, **more},
        )  # fmt: skip
        write_score(self.folder, event, AUTHOR if self.remote is None else AUTHOR_OF_COPY)
        if self.remote is not None:
            try:
                self.remote.send_score(event)
            except StoreError as error:
                self.say(f"WARNING: {error.message}; the result is in {self.folder.journal} alone")


def texts_as_given(texts: Sequence[str]) -> tuple[str, ...]:
    """Paths of texts as they are recognised again, whatever folder the command is given in."""
    return tuple(text if "://" in text else str(Path(text).resolve()) for text in texts)
