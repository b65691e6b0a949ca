"""`longhaul mirror`: shows a run elsewhere, by hand or as a sidecar of its supervisor."""

import hashlib
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from longhaul.core.clocks import Clock, RealClock
from longhaul.core.errors import ExitCode, LonghaulError, UsageError
from longhaul.core.output import print_error
from longhaul.core.units import Seconds, moment
from longhaul.interop.trackers.mirror import InUse, Mirror, TakenOver, Target
from longhaul.logbook.folder import RunFolder, created_of
from longhaul.logbook.lease import live_holder, newest_holder
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import find_segment
from longhaul.supervise.sidecars import Kind
from longhaul.supervise.trust import refuse_untrusted

_EVERY_S: Seconds = 2.0
"""Between two looks at the journal."""
_ITS_PREDECESSOR_S: Seconds = 60.0
"""What the sidecar of an earlier supervisor gets to end: its last call may take half a minute."""
_PACKAGES = {
    "tensorboard": "tensorboard", "wandb": "wandb", "prometheus": "prometheus_client",
}  # fmt: skip


@dataclass(frozen=True)
class MirrorRequest:
    """What was typed."""

    kind: Kind
    out: Path | None = None
    """Where it writes; the run's own folder when absent."""
    port: int | None = None
    host: str | None = None
    supervised: bool = False
    """Started by a supervisor, who ends it by closing its standard input."""


def mirror(folder: RunFolder, typed: MirrorRequest, say: Callable[[str], None]) -> ExitCode:
    """Show a run until it has ended, or for good where it serves; a run that is over, once.

    UsageError if a package is missing, or somebody else does the same.
    """
    clock = RealClock()
    if typed.supervised:  # a scheduler's notice ends training, and what is to be told of it remains
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1,
                       signal.SIGUSR2):  # fmt: skip
            signal.signal(number, signal.SIG_IGN)
        say = partial(_say_and_log, say)
    place = typed.out or folder.trackers
    target = Target()
    try:
        target = _target(folder, typed, place, say, clock)
        mirrored = _opened(folder, target, place / f"{typed.kind}.json", say, typed, clock)
        return _follow(folder, typed, mirrored, clock)
    except LonghaulError as error:
        if not typed.supervised:
            raise
        say(error.message)  # the supervisor tells it
        return error.exit_code
    except TakenOver as error:
        say(f"{error}: leaving it to that one")
        return ExitCode.FINISHED
    except Exception as error:
        if not typed.supervised:
            raise
        say(f"{type(error).__name__}: {error}".partition("\n")[0])
        traceback.print_exc()
        return ExitCode.FAILED  # whatever a tracker's package has raised: it is tried again
    finally:
        target.close()


def _say_and_log(say: Callable[[str], None], text: str) -> None:
    """The supervisor may have gone, who hears the one; the other is this sidecar's own file."""
    say(text)
    print_error(f"{moment(time.time())} {text}")


def _follow(folder: RunFolder, typed: MirrorRequest, mirrored: Mirror, clock: Clock) -> ExitCode:
    while True:
        if typed.supervised:
            mirrored.look()
            if (ended := _ended_within(_EVERY_S)) is not None:
                mirrored.end(ended.exit_code)
                return ExitCode.FINISHED
            continue
        live = live_holder(folder, clock) is not None  # before the look: it may end meanwhile
        mirrored.look()
        if not live and typed.kind != "prometheus":
            return ExitCode.FINISHED
        select.select([], [], [], _EVERY_S)


@dataclass(frozen=True)
class _Ended:
    exit_code: int | None


def _ended_within(seconds: Seconds) -> _Ended | None:
    """How the supervisor has ended, if it does so within that time."""
    if not select.select([0], [], [], seconds)[0]:
        return None
    said = b""
    while piece := os.read(0, 64):
        said += piece
    with suppress(ValueError):
        return _Ended(int(said))
    return _Ended(None)


def _opened(
    folder: RunFolder,
    target: Target,
    path: Path,
    say: Callable[[str], None],
    typed: MirrorRequest,
    clock: Clock,
) -> Mirror:
    deadline = clock.monotonic() + (_ITS_PREDECESSOR_S if typed.supervised else 0.0)
    while True:
        try:
            return Mirror(folder, target, path, say)
        except InUse:
            if clock.monotonic() >= deadline:
                raise
        except OSError as error:
            raise UsageError(
                f"{error.filename or path}: cannot be written ({error.strerror})",
                "mend that, or give another folder with --out",
            ) from error
        select.select([], [], [], _EVERY_S)


def _target(
    folder: RunFolder,
    typed: MirrorRequest,
    place: Path,
    say: Callable[[str], None],
    clock: Clock,
) -> Target:
    _refuse_without_package(typed.kind)
    if typed.kind == "tensorboard":
        from longhaul.interop.trackers.series import Lineage
        from longhaul.interop.trackers.tensorboard import EventFiles

        return Lineage(EventFiles(place / "tensorboard"), _settings_of(folder))
    if typed.kind == "wandb":
        from longhaul.interop.trackers.series import Lineage
        from longhaul.interop.trackers.wandb import WandbRun

        # The same on every machine that sees the run, and another one's where a name comes again.
        identity = hashlib.sha256(f"{folder.name} {created_of(folder)}".encode()).hexdigest()[:16]
        return Lineage(WandbRun(place, folder.name, identity), _settings_of(folder))
    spec = read_run_spec(folder)
    settings = spec.settings()
    if typed.kind == "prometheus":
        from longhaul.interop.trackers.prometheus import MetricsEndpoint

        port = typed.port or settings.monitor.metrics_port
        if not port:
            raise UsageError("mirror: no port for Prometheus", "give one, as --port 9400")
        host = typed.host or settings.monitor.metrics_host
        return MetricsEndpoint(folder.name, host, port, say)
    from longhaul.interop.trackers.alerts import Alerts

    if not (settings.alert.command or settings.alert.webhook):
        raise UsageError(
            f"run {folder.name}: names nobody to call",
            "set alert.command or alert.webhook when it is next started",
        )
    refuse_untrusted(folder, spec, str(folder.path), (), False, say)
    holder = newest_holder(folder)
    return Alerts(settings.alert, folder.name, holder.since if holder else 0.0, clock, say)


def _settings_of(folder: RunFolder) -> Callable[[str], dict[str, object] | None]:
    def of(segment: str) -> dict[str, object] | None:
        with suppress(LonghaulError, OSError):
            settings = find_segment(folder, segment).settings
            return {name: value for name, value in settings.items() if name != "alert"}
        return None

    return of


def _refuse_without_package(kind: Kind) -> None:
    package = _PACKAGES.get(kind)
    if package is not None and find_spec(package) is None:
        raise UsageError(
            f"mirror: {package} is not installed", f"install longhaul[{kind}], or leave it out"
        )
