"""Limits of the judgement: from where on a signal of the run is worth a finding."""

from pydantic import Field

from longhaul.config.section import Section, live


class SpikeLimits(Section):
    """A value far above the level of the steps just before it."""

    deviations: float = live(7.0, gt=0)
    """Robust standard deviations above the level, from which a value is a spike, kept out of its
    own baseline. OLMo-core skips at 6 over 128 steps; OLMo 2's spike score counts 7."""
    window_steps: int = live(128, ge=32)
    """Steps whose deviations make the standard deviation (OLMo-core: 128)."""
    new_level_steps: int = live(64, ge=16)
    """Spikes in a row after which they are taken for a new level, and learned."""


class LossSpikeLimits(SpikeLimits):
    """The loss jumps."""

    floor: float = live(0.01, gt=0)
    """Nats: least standard deviation to reckon with, for calm stretches."""
    least: float = live(0.1, ge=0)
    """Nats: least excess over the level."""
    warning: int = live(3, ge=1)
    """High steps in a row, for a warning."""
    alarm: int = live(10, ge=1)
    """High steps in a row, for an alarm."""
    lasting_steps: int = live(6, ge=3)
    """Steps whose median may be high although few of them are by themselves: a warning, and an
    alarm if it is so for `alarm` steps. A spike of two steps leaves that median where it was."""
    lasting_deviations: float = live(5.0, gt=0)
    """Robust standard deviations of such medians above their level."""
    lasting_least: float = live(2.5, ge=0)
    """Least excess of such a median in deviations of one loss; two rows of hard text make 2."""


class GradientSpikeLimits(SpikeLimits):
    """The gradient norm jumps; it is judged by its natural logarithm. Where gradients are clipped,
    spikes are more than a notice only if the loss is worse than before the first of them.
    """

    deviations: float = live(8.0, gt=0)
    """As above; the tails of gradient norms are heavier than those of losses."""
    floor: float = live(0.05, gt=0)
    """Least standard deviation of the logarithm to reckon with: 5 %."""
    least: float = live(1.5, ge=0)
    """Least excess over the level, in the logarithm: 4.5 times the level."""
    repeat_steps: int = live(100, ge=2)
    """Steps within which separate spikes are counted together."""
    warning: int = live(4, ge=1)
    """Separate spikes within them, for a warning; small batches make three now and then."""
    alarm: int = live(6, ge=1)
    """Separate spikes within them, for an alarm."""


class DivergenceLimits(Section):
    """The loss has left its best level and stays away from it."""

    margin: float = live(0.25, gt=0)
    """Nats above the best level. Healthy curves wander by a few hundredths."""
    deviations: float = live(3.0, gt=0)
    """The margin in standard deviations of the level, if that is more: on top of what chance
    alone makes of the highest and the lowest of n levels, which is √(2 ln n) each."""
    level_steps: int = live(16, ge=4)
    """Steps whose median is the level."""
    warning_steps: int = live(8, ge=1)
    """Steps in a row that the level is beyond the margin."""
    alarm_steps: int = live(24, ge=1)
    """The same, for an alarm; beyond twice the margin, or the first steps' loss by `margin`, it is
    one after `warning_steps`."""
    lasting_deviations: float = live(2.0, gt=0)
    """A lower margin for a rise that lasts: on top of what chance makes of the lowest alone."""
    lasting_steps: int = live(48, ge=1)
    """Steps in a row beyond it, for an alarm: three levels that share no step."""


class NonFiniteLimits(Section):
    """NaN or infinity."""

    window_steps: int = live(100, ge=1)
    """Steps within which masked updates are counted together."""
    warning: int = live(2, ge=1)
    """Masked updates; a single one is a notice, as the gate has already dealt with it."""
    alarm: int = live(3, ge=1)
    """The same, for an alarm."""
    again: int = live(100, ge=1)
    """Steps of an alarm after which it is raised again, so that the next rung is tried."""


class GrowthLimits(Section):
    """A gauge grows toward its danger line."""

    readings: int = live(10, ge=5)
    """Readings a trend is fitted to."""
    concordance: float = live(0.7, gt=0, le=1)
    """Kendall's tau of those readings over time: share of pairs that rise less those that fall.
    Chance gives 0.7 for ten readings about once in 400 times."""
    least_rise: float = live(0.2, gt=0)
    """Least rise over those readings, as a share of the value."""
    deviations: float = live(6.0, gt=0)
    """Least rise over those readings in robust standard deviations about the trend; noise has 1."""
    horizon_share: float = live(0.2, gt=0)
    """How far ahead a forecast counts, in ages of the run (its steps so far). Healthy gauges grow
    as a small power of age or its logarithm; at that speed no line further off than the power
    times this, in natural logarithm, is reached within it."""
    reach: float = live(2.0, gt=0)
    """How far beyond the growth already seen a forecast may go, as a multiple of its logarithm."""
    exponent: float = live(8.0, gt=1)
    """Activations: power of the run's age that growth must exceed to count far from any line."""
    ratio: float = live(5.0, gt=1)
    """Activations: growth over the highest of all layers before, at which it is reported so."""
    weight_exponent: float = live(4.0, gt=1)
    """The same power for norms of weights, which are sums over many and move more evenly."""
    weight_ratio: float = live(2.0, gt=1)
    """The same growth for norms of weights."""
    shrink_exponent: float = live(2.0, gt=1)
    """Power of the run's age with which norms of weights must fall to be reported. Decay alone,
    at its fastest, is a power of one when the run is as old as its own time constant."""
    shrink_ratio: float = live(1.5, gt=1)
    """Fall of a norm of weights within the readings at which that is done."""
    attention_logit_warning: float = live(50.0, gt=0)
    """Logits that far apart make a softmax nearly one-hot: attention loses its entropy (arXiv
    2302.05442, arXiv 2309.14322). The number is ours: half the alarm."""
    attention_logit_alarm: float = live(100.0, gt=0)
    """Where Kimi K2's QK-clip holds them (arXiv 2507.20534)."""
    output_logit_warning: float = live(50.0, gt=0)
    """Output logits and their log-sum-exp: bfloat16 resolves 0.25 there (8 bits of mantissa)."""
    output_logit_alarm: float = live(100.0, gt=0)
    """bfloat16 resolves no better than 0.5: rounding is as large as what is learned."""
    second_moment_warning: float = live(3.0, gt=0)
    """Root mean square of g/√v̂, about 1 when healthy; spikes of it come a few steps before spikes
    of the loss (StableAdamW, arXiv 2304.13013)."""
    second_moment_alarm: float = live(6.0, gt=0)
    """The same, far beyond it."""
    second_moment_readings: int = live(3, ge=1)
    """Readings beyond it in a row: healthy ones come to 2 when batches are small."""
    update_ratio_warning: float = live(0.05, gt=0)
    """‖Δw‖/‖w‖ of matrices, the last and the median of `readings` readings: 1e-3 is usual; at
    0.05 the weights of twenty steps ago are gone."""
    fp16_warning: float = live(4094.0, gt=0)
    """Activations where fp16 is in use: a 16th of the largest number it holds (65,504)."""
    fp16_alarm: float = live(16376.0, gt=0)
    """A quarter of it: two doublings are left."""


class LossScaleLimits(Section):
    """The loss scale of fp16 falls faster than it grows (OPT-175B, runs 12.17 to 12.34)."""

    window_steps: int = live(200, ge=10)
    """Steps over which falls and rises are counted."""
    falls: int = live(4, ge=2)
    """Falls less rises within the window, for a warning; a healthy scale falls once or twice."""
    alarm_steps: int = live(200, ge=1)
    """Forecast steps to the floor, for an alarm."""
    settle_steps: int = live(16, ge=1)
    """Steps without overflow after which a fresh scale has found its place."""


class PlateauLimits(Section):
    """The loss stands still although its own earlier progress predicts more."""

    least_steps: int = live(128, ge=32)
    """Steps after warm-up before it is judged."""
    progress_share: float = live(0.1, ge=0, lt=1)
    """Fall of the loss in the later half of the run's age, over its fall in the quarter before.
    A power law of exponent a gives 2^-a, about 0.8 for language models; 0.1 is standing still."""
    least_fall: float = live(0.05, gt=0)
    """Nats: a fall before that must have been seen for a prediction, and the fall from the start
    below which the loss has never moved."""
    least_share: float = live(0.05, ge=0, lt=1)
    """The same fall as a share of the first loss, if that is more. To learn which tokens are
    frequent, the first thing any model does, is a third."""
    decayed_share: float = live(0.2, ge=0, le=1)
    """Share of the peak rate below which no progress is expected; nor is any in the last tenth of
    the run."""


class SlowProgressLimits(Section):
    """The learning rate is too low to get anywhere (OPT-175B, run 12.41)."""

    update_ratio: float = live(3e-5, gt=0)
    """‖Δw‖/‖w‖ of matrices; about 1e-3 is usual."""
    history_share: float = live(0.2, gt=0, lt=1)
    """Update ratio over its own level before the learning rate was lowered at once."""
    readings: int = live(4, ge=2)
    """Readings in a row."""
    least_fall: float = live(0.02, ge=0)
    """Nats by which a loss that makes progress falls in the last fifth of the run's age."""
    young_update_ratio: float = live(5e-4, gt=0)
    """The same ratio for a model that has learned nothing yet: half of what is usual."""
    young_fall: float = live(0.15, gt=0, lt=1)
    """Share of its first loss below whose fall a model has learned nothing yet."""
    young_steps: int = live(200, ge=32)
    """Steps after warm-up before that is judged."""


class FrozenGroupLimits(Section):
    """A role of weights does not train (OPT-175B, a frozen position embedding)."""

    update_ratio: float = live(1e-7, ge=0)
    """‖Δw‖/‖w‖ at or below which weights stand still; a float32 cannot move by less than 6e-8."""
    gradient_norm: float = live(1e-12, ge=0)
    """Gradient norm of the role at or below which nothing reaches it."""
    readings: int = live(3, ge=1)
    """Readings in a row."""


class TooGoodLimits(Section):
    """A loss too good for its source: leaked or degenerate text (OPT-175B, stray backslashes)."""

    floor: float = live(0.4, ge=0)
    """Nats a token no natural text goes below: 0.6 bits, the least that Shannon's experiments
    (1951) allow a letter of English, and a token is a letter or more."""
    share: float = live(0.2, ge=0, lt=1)
    """Level of a source over the median level of the others. Code is at about 0.4 of prose."""
    drop: float = live(0.5, gt=0, lt=1)
    """Share of its level by which a loss falls within a tenth of the run's age; healthy: 3 %."""
    readings: int = live(5, ge=3)
    """Readings of a source whose median is its level."""


class OverfittingLimits(Section):
    """Validation loss rises while training loss falls."""

    margin: float = live(0.02, gt=0)
    """Nats above the lowest validation loss."""
    deviations: float = live(3.0, gt=0)
    """The margin in robust standard deviations of validation loss, if that is more."""
    evaluations: int = live(2, ge=1)
    """Evaluations in a row beyond the margin, for a warning; twice as many are an alarm."""


class ThroughputLimits(Section):
    """Training takes longer a token than it did."""

    slowdown: float = live(1.5, gt=1)
    """Seconds of training a token over their level before."""
    deviations: float = live(5.0, gt=0)
    """Robust standard deviations above that level."""
    block_steps: int = live(10, ge=1)
    """Steps averaged: several may be seen complete at once."""
    blocks: int = live(4, ge=1)
    """Slow blocks in a row, for a warning."""
    cold_steps: int = live(5, ge=0)
    """First steps of an attempt, which do not count: compilation and cold caches."""


class DiagnoseSection(Section):
    """What is judged, and how strictly. Changed limits hold for remembered records too."""

    memory_steps: int = live(4096, ge=256)
    """Records from which the judgement is built anew after a restart or a rollback."""
    quiet: int = live(25, ge=1)
    """Judgements in a row without a sign, after which an incident is closed."""
    loss_spike: LossSpikeLimits = Field(default_factory=LossSpikeLimits)
    gradient_spike: GradientSpikeLimits = Field(default_factory=GradientSpikeLimits)
    divergence: DivergenceLimits = Field(default_factory=DivergenceLimits)
    non_finite: NonFiniteLimits = Field(default_factory=NonFiniteLimits)
    growth: GrowthLimits = Field(default_factory=GrowthLimits)
    loss_scale: LossScaleLimits = Field(default_factory=LossScaleLimits)
    plateau: PlateauLimits = Field(default_factory=PlateauLimits)
    slow_progress: SlowProgressLimits = Field(default_factory=SlowProgressLimits)
    frozen_group: FrozenGroupLimits = Field(default_factory=FrozenGroupLimits)
    too_good: TooGoodLimits = Field(default_factory=TooGoodLimits)
    overfitting: OverfittingLimits = Field(default_factory=OverfittingLimits)
    throughput: ThroughputLimits = Field(default_factory=ThroughputLimits)
