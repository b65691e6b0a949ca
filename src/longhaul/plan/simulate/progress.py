"""How far a simulated run has come, and what every second of it went into."""

from longhaul.core.clocks import Clock
from longhaul.core.units import Seconds
from longhaul.plan.failure_rates import DAY_S
from longhaul.plan.simulate.outcome import PARTS, Part


class Progress:
    """Steps made and kept, and seconds by part, of a run whose full step takes `step_s`."""

    def __init__(self, clock: Clock, step_s: Seconds) -> None:
        self._clock, self._step_s = clock, step_s
        self._step = 0.0
        self._lost_steps = 0.0
        self._part: Part = "restart"
        self._since = clock.monotonic()
        self._seconds: dict[Part, Seconds] = dict.fromkeys(PARTS, 0.0)
        self.pace_s = step_s
        """Of a step, as it is now."""
        self.course: list[tuple[float, float]] = []
        """(day, days of training that are kept so far, at full speed)."""

    @property
    def step(self) -> float:
        """Steps made in the present course, those of an open stretch of training included."""
        if self._part != "training":
            return self._step
        return self._step + (self._clock.monotonic() - self._since) / self.pace_s

    def book(self, part: Part) -> None:
        """What follows now goes into a part."""
        now = self._clock.monotonic()
        if self._part == "training":
            self._step = self.step
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now

    def train(self, pace_s: Seconds) -> None:
        """Training goes on from here, a step in so many seconds."""
        self.book("training")
        self.pace_s = pace_s

    def stop(self) -> None:
        """Training is interrupted."""
        self.book("detection")

    def stop_at(self, step: float) -> None:
        """Training has come to a step, free of rounding."""
        self.stop()
        self._step = step

    def go_back(self, step: float) -> None:
        """Steps after this one are lost."""
        self._lost_steps += self._step - step
        self._step = step

    def sample(self) -> None:
        """One more point of the course."""
        days = self._clock.monotonic() / DAY_S
        self.course.append((round(days, 4), round(self.step * self._step_s / DAY_S, 4)))

    def close(self) -> dict[Part, Seconds]:
        """Seconds by part; what steps took beyond `step_s` is slow, what was lost is lost work."""
        self.book(self._part)
        spent = dict(self._seconds)
        trained = spent["training"]
        spent["training"] = self._step * self._step_s
        spent["lost work"] = self._lost_steps * self._step_s
        spent["slow"] = max(trained - spent["training"] - spent["lost work"], 0.0)
        return spent
