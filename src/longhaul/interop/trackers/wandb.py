"""A run in Weights & Biases, online or offline, as its own environment variables say."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longhaul.core.errors import NeedsPerson, UsageError
from longhaul.interop.trackers.series import Tracker, Values

if TYPE_CHECKING:
    import wandb

_AXIS = "step"


class WandbRun(Tracker):
    """One run there, called as here and found again by `identity`.

    W&B throws away what comes under a lower step than before, and a rollback lowers ours. So its
    step is a count of lines, and ours is the axis that all figures are drawn over. What was rolled
    back stays, told apart by `rollbacks`, a count.
    """

    def __init__(self, folder: Path, name: str, identity: str) -> None:
        self._folder, self._name, self._identity = folder, name, identity
        self._run: wandb.Run | None = None
        self._lines = self._rollbacks = 0
        self._settings: Mapping[str, Any] = {}

    def values(self, step: int, time: float, values: Values) -> None:
        """See `Tracker`."""
        own = {_AXIS: step, "time": time, "rollbacks": self._rollbacks}
        self._log(values | own)

    def text(self, step: int, time: float, line: str) -> None:
        """See `Tracker`."""
        self._log({_AXIS: step, "time": time, "story": line})

    def settings(self, time: float, settings: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        self._settings = settings
        if self._run is not None:
            self._run.config.update(settings, allow_val_change=True)

    def undo(self, step: int) -> None:
        """See `Tracker`."""
        self._rollbacks += 1

    def close(self) -> None:
        """See `Tracker`."""
        if self._run is not None:
            import wandb

            self._run.finish(exit_code=0)
            wandb.teardown()  # its own process ends as well
            self._run = None

    def state(self) -> Mapping[str, Any]:
        """See `Tracker`."""
        return {"lines": self._lines, "rollbacks": self._rollbacks, "settings": self._settings}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        self._lines, self._rollbacks = int(state.get("lines", 0)), int(state.get("rollbacks", 0))
        self._settings = state.get("settings") or {}

    def _log(self, row: Mapping[str, Any]) -> None:
        if self._run is None:
            self._run = self._begun()
        # A row that was sent before a kill, and not yet noted here, is not sent again.
        if self._lines >= self._run.step:
            self._run.log(dict(row), step=self._lines)
        self._lines += 1

    def _begun(self) -> "wandb.Run":
        import wandb
        import wandb.errors

        self._folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            # What this process prints and what it costs is nobody's experiment.
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True,
            x_disable_meta=True,
        )  # fmt: skip
        try:
            run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "longhaul"), name=self._name,
                id=self._identity, resume="allow", dir=str(self._folder), settings=settings,
            )  # fmt: skip
        except wandb.Error as error:
            # Without a key nothing changes by itself; a network may come back.
            kind = UsageError if isinstance(error, wandb.errors.UsageError) else NeedsPerson
            raise kind(
                f"Weights & Biases: {str(error).partition(chr(10))[0]}",
                "set WANDB_API_KEY where the run is started, or WANDB_MODE=offline and "
                "`wandb sync` later",
            ) from error
        run.config.update(self._settings, allow_val_change=True)
        run.define_metric(_AXIS)
        run.define_metric("*", step_metric=_AXIS)
        return run
