"""The whole recipe: its sections, its settings by dotted path, and what follows from several."""

import math
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from longhaul.config.data import BatchSection, BatchStage, DataSection, TokenizerSection
from longhaul.config.diagnose import DiagnoseSection
from longhaul.config.model import ModelSection
from longhaul.config.optim import OptimSection
from longhaul.config.recover import FallbackSection, RecoverSection, SuperviseSection
from longhaul.config.section import Change, Section, fixed, live
from longhaul.config.train import (
    AlertSection,
    CheckpointSection,
    EvaluationSection,
    InitSection,
    MachineSection,
    MonitorSection,
    OrderSection,
    ParallelSection,
    PrecisionSection,
    SampleSection,
    TargetSection,
    TrainSection,
)
from longhaul.core.addresses import without_secrets
from longhaul.core.errors import RecipeError
from longhaul.core.schedules import learning_rate_factor

MOST_TOKENS_EVALUATED = 1 << 16
"""Computed at once in an evaluation, however large a micro-batch is: more is no faster."""


class Recipe(Section):
    """Everything a run is asked to do."""

    name: str = fixed(pattern=r"^[\w.-]+$")
    """The run's folder is `runs/NAME`."""
    summary: str = ""
    """One line for `longhaul recipes`."""
    seed: int = fixed(1337, ge=0)
    """Everything random follows from this."""
    data: DataSection
    tokenizer: TokenizerSection = Field(default_factory=TokenizerSection)
    order: OrderSection = Field(default_factory=OrderSection)
    model: ModelSection
    init: InitSection = Field(default_factory=InitSection)
    batch: BatchSection
    optim: OptimSection
    train: TrainSection
    precision: PrecisionSection = Field(default_factory=PrecisionSection)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    target: TargetSection = Field(default_factory=TargetSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    monitor: MonitorSection = Field(default_factory=MonitorSection)
    alert: AlertSection = Field(default_factory=AlertSection)
    diagnose: DiagnoseSection = Field(default_factory=DiagnoseSection)
    recover: RecoverSection = Field(default_factory=RecoverSection)
    fallback: tuple[FallbackSection, ...] = live(())
    """Plans B, in their order."""
    machine: MachineSection = Field(default_factory=MachineSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    supervise: SuperviseSection = Field(default_factory=SuperviseSection)
    sample: SampleSection = Field(default_factory=SampleSection)

    def batch_stages(self) -> tuple[BatchStage, ...]:
        """Batch shapes in order of their first step; the first holds from step 0."""
        base = BatchStage(
            from_step=0,
            sequences=self.batch.sequences,
            sequence_length=self.batch.sequence_length or self.model.context,
        )
        later = sorted(self.batch.stages, key=lambda stage: stage.from_step)
        return (base, *later)

    def batch_at(self, step: int) -> BatchStage:
        """Batch shape of the update that turns `step` into `step + 1`."""
        return [stage for stage in self.batch_stages() if stage.from_step <= step][-1]

    def block_length(self) -> int:
        """Longest sequence length of the run: the unit of the order of draws, in tokens."""
        return max(stage.sequence_length for stage in self.batch_stages())

    def micro_sequences(self, step: int) -> int:
        """Sequences at once in the step after `step`; RecipeError if that is `auto` still."""
        if self.batch.micro_sequences == "auto":
            raise RecipeError(
                "batch.micro_sequences: auto has not been found for a device yet",
                "train the recipe, which finds it at the first start, or give a number",
            )
        return self.batch.micro_sequences or self.batch_at(step).sequences

    def evaluated_at_once(self, step: int, data_ranks: int = 1) -> int:
        """Sequences of `model.context` tokens that a rank evaluates at once at `step`: no more
        tokens than its micro-batch has, which fits although more is kept for its backward pass.
        """
        stage = self.batch_at(step)
        share = math.ceil(stage.sequences / data_ranks)
        return self.evaluated_within(min(self.micro_sequences(step), share) * stage.sequence_length)

    def evaluated_within(self, tokens: int) -> int:
        """Sequences that are evaluated at once beside micro-batches of so many tokens."""
        most = min(tokens, MOST_TOKENS_EVALUATED)
        return max(1, min(self.evaluation.sequences, most // self.model.context))

    def learning_rate_factor(self, step: int) -> float:
        """Factor of the schedule on `optim.lr` for the update that turns `step` into `step + 1`."""
        schedule = self.optim.schedule
        decay_steps = (schedule.decay_steps or self.total_steps() or 0) - schedule.from_step
        return learning_rate_factor(
            max(0, step - schedule.from_step),
            shape=schedule.shape,
            warmup_steps=schedule.warmup_steps,
            decay_steps=decay_steps,
            final_fraction=schedule.final_fraction,
            cooldown_steps=round(schedule.cooldown_fraction * decay_steps),
        )

    def total_steps(self) -> int | None:
        """Updates after which the run is finished; None when only hours limit it."""
        if self.train.steps is not None:
            return self.train.steps
        if self.train.tokens is None:
            return None
        left, stages = self.train.tokens, self.batch_stages()
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            per_step = stage.sequences * stage.sequence_length
            end = stage.from_step + math.ceil(left / per_step)
            if following is None or end <= following.from_step:
                break
            left -= per_step * (following.from_step - stage.from_step)
        return end


def source_name(name: str, path: str) -> str:
    """The name of a source: its own, or the last part of its path."""
    plain = without_secrets(path)
    return name or plain.rstrip("/").rsplit("/", 1)[-1] or plain


def _settings(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Change]]:
    for name, info in section.model_fields.items():
        kind: Any = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _settings(kind, f"{prefix}{name}.")
        else:
            extra: Any = info.json_schema_extra or {}
            yield f"{prefix}{info.alias or name}", extra.get("change", "restart")


SETTINGS = dict(_settings(Recipe))
"""Dotted path of every setting, sections themselves left out → when it may change."""


def change_of(path: str) -> Change | None:
    """When the setting at a dotted path may change in a started run; None if there is none."""
    return SETTINGS.get(path)
