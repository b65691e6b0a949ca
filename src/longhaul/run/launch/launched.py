"""`longhaul launched`: the job's part of a launch, from the nodes it was given to its exit code."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from longhaul.cluster.allocation import (
    Allocation,
    after_qualification,
    evicted_hosts,
    judge,
    node_entries,
)
from longhaul.cluster.launch_spec import (
    EXCLUDED_NAME,
    FILE_NAME,
    IN_ENVIRONMENT,
    RECIPE_NAME,
    LaunchSpec,
    joined,
    spec_of_json,
    split,
)
from longhaul.config.load import as_toml
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode, UsageError
from longhaul.core.files import write_bytes
from longhaul.core.signals import NOTICES
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.holder import STALE_S
from longhaul.logbook.lease import live_holder
from longhaul.run.launch import checks
from longhaul.run.launch.local_ranks import node_place, run_ranks
from longhaul.run.launch.places import Ask, ask, places_of
from longhaul.supervise.nodes.history import left_out, node_events
from longhaul.supervise.nodes.ledger import cordons, read
from longhaul.supervise.nodes.roster import LEFT_OUT_S

_LOOK_EVERY_S: Seconds = 0.5


def launched(folder: Path | None, say: Callable[[str], None], ask: Ask = ask) -> ExitCode:
    """Do the job's part of the launch in `folder`, or of the one in the environment."""
    folder, spec = _read(folder)
    say(f"launch {spec.name} on cluster {spec.cluster_name}")
    job = _Job(spec, folder, say)
    with job.hearing():
        if spec.cluster.scheduler in ("k8s", "sky"):
            return job.part_of_node()
        return job.whole(ask)


def _read(folder: Path | None) -> tuple[Path, LaunchSpec]:
    if folder is not None:
        file = folder / FILE_NAME
        try:
            return folder, spec_of_json(file.read_text(), str(file))
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}", "launch the recipe again") from error
    if IN_ENVIRONMENT not in os.environ:
        raise UsageError(f"{IN_ENVIRONMENT} is not set", "name the launch's folder")
    spec = spec_of_json(os.environ[IN_ENVIRONMENT], IN_ENVIRONMENT)
    folder = Path(spec.cluster.runs) / ".launches" / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / RECIPE_NAME, spec.recipe.encode())
    return folder, spec


class _Job:
    """One start of the job."""

    def __init__(self, spec: LaunchSpec, folder: Path, say: Callable[[str], None]) -> None:
        self.spec, self.folder, self.say = spec, folder, say
        self.passed = checks.Passed.read(folder)
        self._child: subprocess.Popen[bytes] | None = None
        self._noticed = threading.Event()

    def whole(self, ask: Ask) -> ExitCode:
        """All nodes of the job, supervised from here."""
        places = places_of(self.spec, os.environ, ask)
        evicted = self._evicted(places.known)
        given = places.given
        if self.spec.cluster.scheduler == "ssh":  # nobody else would give it other hosts
            left = [node for node in given if node.name not in evicted]
            given = tuple(left[: self.spec.wanted])
        allocation = judge(given, self.spec.nodes, evicted, places.in_force)
        if allocation.code != ExitCode.FINISHED:
            return self._refuse(allocation)
        if code := self._checks():
            return _as_code(code)
        unfit = checks.unfit(self.spec, self.folder, allocation.used, self.passed)
        allocation = after_qualification(allocation, unfit, self.spec.nodes)
        if allocation.code != ExitCode.FINISHED:
            return self._refuse(allocation)
        words = self._training(allocation)
        self._wait_for_predecessor()
        code = self._run(words)
        # What is excluded from the next start on: the run may have left out more nodes meanwhile.
        self._keep([*allocation.excluded, *self._evicted(places.known)])
        return _as_code(code)

    def part_of_node(self) -> ExitCode:
        """The ranks of this node; the other nodes do the same."""
        place = node_place(os.environ)
        here = places_of(self.spec, os.environ).given
        # A cloud gives another node to the next start; Kubernetes would give this one again.
        sky = self.spec.cluster.scheduler == "sky"
        other_node = ExitCode.START_AGAIN if sky else ExitCode.NEEDS_PERSON
        allocation = judge(here, 1, self._evicted(None), self.spec.excluded)
        if allocation.code != ExitCode.FINISHED:
            self.say(f"refused: {allocation.reason}")
            return other_node
        if code := self._checks(first=place.rank == 0):
            return _as_code(code)
        unfit = checks.unfit(self.spec, self.folder, here, self.passed)
        if unfit:
            self.say(f"this node is not fit: {', '.join(unfit.values())}")
            return other_node
        if place.rank == 0:
            self._wait_for_predecessor()
        return run_ranks(self._train_words(), place, self.spec.cluster.workers)

    def _wait_for_predecessor(self) -> None:
        """Wait until nobody seems to train the run. A start whose node has died cannot give its
        lease back, and `longhaul train` would refuse for as long as a heartbeat counts, with 2:
        the job would end. Somebody who goes on beating is left to it.
        """
        run, clock = RunFolder(Path(self.spec.cluster.runs) / self.spec.run), RealClock()
        first = live_holder(run, clock) if run.exists else None
        if first is not None:
            self.say(
                f"run {run.name} was trained by process {first.pid} on {first.place.host}: waiting "
                f"up to {short_seconds(STALE_S)} for its heartbeat"
            )
        while first is not None and not self._noticed.wait(_LOOK_EVERY_S):
            now = live_holder(run, clock)
            if now is None or now.heartbeat != first.heartbeat:
                return

    def _evicted(self, known: tuple[str, ...] | None) -> tuple[str, ...]:
        """Evicted nodes by name: at the launch, in the ledger now, and by the run itself."""
        spec, now = self.spec, time.time()
        run = RunFolder(Path(spec.cluster.runs) / spec.run)
        ledger = Path(spec.cluster.node_ledger) if spec.cluster.node_ledger else run.path
        hosts: dict[str, str] = {}
        out: list[str] = []
        with suppress(OSError):
            hosts = {part: event.host for part, event in cordons(read(ledger)).items()}
        if run.exists:
            recent = [o for o in left_out(node_events(run)) if now - o.time <= LEFT_OUT_S]
            out = [o.node.host for o in recent]
        kept = split(_text(self.folder / EXCLUDED_NAME))
        every = evicted_hosts(hosts, [*out, *spec.excluded, *kept])
        return every if known is None else tuple(name for name in every if name in known)

    def _refuse(self, allocation: Allocation) -> ExitCode:
        self._keep(allocation.excluded)
        self.say(f"refused: {allocation.reason}")
        return allocation.code

    def _keep(self, excluded: Sequence[str]) -> None:
        if excluded:
            write_bytes(self.folder / EXCLUDED_NAME, joined(list(excluded)).encode())

    def _checks(self, first: bool = True) -> int:
        checks.verify_workarounds(self.spec.cluster_name, self.spec.cluster, self.say)
        if changed := checks.drift(self.spec, Path.cwd()):
            self.say(f"WARNING: {changed}; {self.folder} has what was launched")
        if not first:
            return 0
        code = checks.bring_data(self.spec, self.passed, self._run)
        return code or checks.preflight(self.spec, self.folder, self.passed, self._run)

    def _training(self, allocation: Allocation) -> list[str]:
        self.say(allocation.reason)
        cluster = self.spec.cluster
        entries = node_entries(allocation.used, self.spec.nodes, cluster.workers)
        words = [f"supervise.node={as_toml(entries)}", f"supervise.grace_s={cluster.notice_s:.1f}"]
        if cluster.node_ledger:
            words.append(f"supervise.node_ledger={as_toml(cluster.node_ledger)}")
        return [*self._train_words(), *(word for text in words for word in ("--set", text))]

    def _train_words(self) -> list[str]:
        cluster, recipe = self.spec.cluster, str(self.folder / RECIPE_NAME)
        dirs = ("--runs-dir", cluster.runs, "--prepared-dir", cluster.prepared)
        trust = ("--trust",) if self.spec.trust else ()
        return [*checks.LONGHAUL, "train", recipe, *dirs, *trust]

    def _run(self, words: Sequence[str]) -> int:
        """Run a command to its end; a scheduler's notice is passed on to it."""
        if self._noticed.is_set():
            return ExitCode.START_AGAIN
        self._child = subprocess.Popen(words)
        try:
            if self._noticed.is_set():  # it came while the command was begun
                self._child.send_signal(signal.SIGTERM)
            return self._child.wait()
        finally:
            self._child = None

    def hearing(self) -> "_Hearing":
        """Within it, the scheduler's notices go to the command that runs."""
        return _Hearing(self._notice)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)


class _Hearing:
    """Handlers of notices, for a while."""

    def __init__(self, handler: Callable[[int, FrameType | None], None]) -> None:
        self._handler = handler

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handler) for number in NOTICES}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _as_code(code: int) -> ExitCode:
    """A child's code; one that a signal ended has failed."""
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED
