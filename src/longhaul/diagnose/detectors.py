"""All detectors, each made with its own limits.

Enters: the section of limits. Leaves: new detectors. Never knows: records.
"""

from longhaul.config.diagnose import DiagnoseSection
from longhaul.diagnose.divergence import Divergence
from longhaul.diagnose.frozen_group import FrozenGroup
from longhaul.diagnose.gradient_spike import GradientSpike
from longhaul.diagnose.growth import Growth
from longhaul.diagnose.loss_scale import LossScaleCollapse
from longhaul.diagnose.loss_spike import LossSpike
from longhaul.diagnose.non_finite import NonFinite
from longhaul.diagnose.overfitting import Overfitting
from longhaul.diagnose.plateau import Plateau
from longhaul.diagnose.sign import Detector
from longhaul.diagnose.slow_progress import SlowProgress
from longhaul.diagnose.throughput import ThroughputDrop
from longhaul.diagnose.too_good import TooGood


def detectors(
    limits: DiagnoseSection, total_steps: int | None, least_scale: float
) -> tuple[Detector, ...]:
    """New ones, in the order in which they are asked."""
    return (
        NonFinite(limits.non_finite),
        LossSpike(limits.loss_spike),
        GradientSpike(limits.gradient_spike),
        Divergence(limits.divergence),
        LossScaleCollapse(limits.loss_scale, least_scale),
        Growth(limits.growth, total_steps),
        Plateau(limits.plateau, total_steps),
        SlowProgress(limits.slow_progress),
        FrozenGroup(limits.frozen_group),
        TooGood(limits.too_good),
        Overfitting(limits.overfitting),
        ThroughputDrop(limits.throughput),
    )
