"""The optimizer and its learning-rate schedule."""

from typing import Annotated, Literal

from pydantic import Field

from longhaul.config.section import Section, changed_at_start, fixed, live

Beta = Annotated[float, Field(ge=0, lt=1)]


class ScheduleSection(Section):
    """The learning rate over steps (formulas in `core/schedules.py`)."""

    shape: Literal["constant", "cosine", "linear", "wsd"] = live("cosine")
    """How the rate goes from its peak to its end."""
    from_step: int = live(0, ge=0)
    """Step at which the schedule begins; a fork that resets the schedule begins it anew."""
    warmup_steps: int = live(0, ge=0)
    """Steps of linear warm-up."""
    decay_steps: int | None = live(None, gt=0)
    """Step at which the final rate is reached; the run's last step when absent."""
    final_fraction: float = live(0.1, ge=0, le=1)
    """Final rate as a share of the peak."""
    cooldown_fraction: float = live(0.2, gt=0, le=1)
    """For `wsd`: share of `decay_steps` spent on the final linear decay."""


class LearningRateFactors(Section):
    """Learning rate of each role of weights, as a factor on `optim.lr` (modded-nanogpt trains its
    tables and its head far faster than its matrices). Decay goes with it: a step shrinks a
    decayed weight by its own rate times `weight_decay`.
    """

    matrix: float = live(1.0, ge=0)
    """Matrices between activations."""
    embedding: float = live(1.0, ge=0)
    """The token table, and other tables looked up by token."""
    position: float = live(1.0, ge=0)
    """The position table."""
    head: float = live(1.0, ge=0)
    """The output matrix, when it is not the token table."""
    vector: float = live(1.0, ge=0)
    """Biases, scales of norms, learned shares of mixtures."""


class MuonSection(Section):
    """Muon (Keller Jordan et al., 2024, kellerjordan.github.io/posts/muon; arXiv 2502.16982):
    momentum made orthogonal, for matrices. All other weights are AdamW's.
    """

    momentum: Beta = live(0.95)
    """Decay of the momentum."""
    nesterov: bool = live(True)
    """Look one step ahead along the momentum."""
    momentum_warmup_steps: int = live(0, ge=0)
    """Steps over which the momentum rises from 0.85 to `momentum` (modded-nanogpt: 300)."""
    newton_schulz: Literal["auto", "bf16", "float32"] = live("auto")
    """Number format of the iteration that makes a matrix orthogonal; `auto`: bf16 where faster."""
    newton_schulz_steps: int = live(5, ge=1, le=20)
    """Rounds of that iteration."""
    coefficients: Literal["quintic", "polar-express"] = live("quintic")
    """Of each round: Keller Jordan's quintic, or Polar Express (arXiv 2505.16932), which comes
    nearer to an orthogonal matrix in fewer rounds."""
    scale: Literal["shape", "rms"] = live("shape")
    """Factor on the orthogonal matrix: √max(1, rows/columns) (Keller Jordan), or
    0.2·√max(rows, columns), whose root mean square is AdamW's, so that AdamW's learning rates
    serve (arXiv 2502.16982, section 2.2)."""
    separate_parts: bool = live(True)
    """Make each map in one fused matrix (queries, keys, values; gate, input) orthogonal alone."""


class SgdwSection(Section):
    """Stochastic gradient descent with decoupled decay (arXiv 1711.05101, algorithm 1)."""

    momentum: Beta = fixed(0.9)
    """Decay of the sum of past gradients; at 0 there is none, nor memory for it. What a
    checkpoint holds follows from it, so it stays as the run began."""
    nesterov: bool = live(False)
    """Look one step ahead along the momentum."""


class LossScaleSection(Section):
    """Dynamic loss scaling, for weights in fp16 (arXiv 1710.03740, section 3.2; OPT-175B)."""

    initial: float = fixed(65536.0, gt=0)
    """Scale of the first step."""
    growth_interval: int = live(2000, gt=0)
    """Steps in a row without overflow after which the scale grows."""
    growth_factor: float = live(2.0, ge=1)
    """How much it grows."""
    backoff_factor: float = live(0.5, gt=0, lt=1)
    """How much is left of it after an overflow."""
    floor: float = live(1.0, gt=0)
    """Smallest scale. A gradient that overflows here has diverged, and the record says so."""
    ceiling: float = live(16777216.0, gt=0)
    """Largest scale."""


class OptimSection(Section):
    """How gradients become new weights."""

    name: Literal["adamw", "muon", "lamb", "sgdw"] = live("adamw")
    """Which update rule: AdamW (arXiv 1711.05101), Muon for matrices with AdamW for the rest,
    LAMB (arXiv 1904.00962), or SGD with decoupled decay. A run that changes it goes on with fresh
    state of the new rule (OPT-175B, runs 12.35 to 12.42)."""
    lr: float = live(gt=0)
    """Peak learning rate."""
    lr_factors: LearningRateFactors = Field(default_factory=LearningRateFactors)
    """Learning rate of each role, as a factor."""
    beta1: Beta = live(0.9)
    """Decay of the first moment (AdamW, LAMB)."""
    beta2: Beta = live(0.95)
    """Decay of the second moment (AdamW, LAMB)."""
    eps: float = live(1e-8, gt=0)
    """Added to the root of the second moment (AdamW, LAMB)."""
    weight_decay: float = live(0.1, ge=0)
    """Decoupled decay of matrices; norms and biases are never decayed."""
    decay_embeddings: bool = live(True)
    """Decay token and position tables too, as GPT-2 did."""
    cautious_decay: bool = live(False)
    """Decay only where the update shrinks the weight too (arXiv 2510.12402; AdamW, Muon)."""
    rounding: Literal["nearest", "stochastic", "compensated"] = fixed("nearest")
    """How half weights take the update, which is made in float32: to the nearest, which loses what
    is below half a unit in the last place; up or down by chance, right on the average (bf16, one
    process; arXiv 2010.06192); or with what is lost kept in half precision beside each weight and
    added at the next step (Kahan summation, the same paper). A checkpoint holds what is kept."""
    clip: float = live(1.0, ge=0)
    """Largest total gradient norm; 0 does not clip."""
    offload: bool = changed_at_start(False)
    """Keep the optimizer's state in the host's memory and copy it to the device at each update,
    portion by portion: two thirds of what float32 weights and AdamW's moments take."""
    muon: MuonSection = Field(default_factory=MuonSection)
    """Of Muon alone."""
    sgdw: SgdwSection = Field(default_factory=SgdwSection)
    """Of SGDW alone."""
    loss_scale: LossScaleSection = Field(default_factory=LossScaleSection)
    """Dynamic loss scaling."""
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    """The learning rate over steps."""
