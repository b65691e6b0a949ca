"""The optimizer and its learning-rate schedule."""

from typing import Annotated, Literal

from pydantic import Field

from longhaul.config.section import Section, live

Beta = Annotated[float, Field(ge=0, lt=1)]


class ScheduleSection(Section):
    """The learning rate over steps (formulas in `core/schedules.py`)."""

    shape: Literal["constant", "cosine", "linear", "wsd"] = live("cosine")
    """How the rate goes from its peak to its end."""
    warmup_steps: int = live(0, ge=0)
    """Steps of linear warm-up."""
    decay_steps: int | None = live(None, gt=0)
    """Step at which the final rate is reached; the run's last step when absent."""
    final_fraction: float = live(0.1, ge=0, le=1)
    """Final rate as a share of the peak."""
    cooldown_fraction: float = live(0.2, gt=0, le=1)
    """For `wsd`: share of `decay_steps` spent on the final linear decay."""


class OptimSection(Section):
    """AdamW (arXiv 1711.05101), with clipping."""

    name: Literal["adamw"] = live("adamw")
    """Which optimizer."""
    lr: float = live(gt=0)
    """Peak learning rate."""
    beta1: Beta = live(0.9)
    """Decay of the first moment."""
    beta2: Beta = live(0.95)
    """Decay of the second moment."""
    eps: float = live(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = live(0.1, ge=0)
    """Decoupled decay of matrices; norms and biases are never decayed."""
    decay_embeddings: bool = live(True)
    """Decay token and position tables too, as GPT-2 did."""
    clip: float = live(1.0, ge=0)
    """Largest total gradient norm; 0 does not clip."""
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    """The learning rate over steps."""
