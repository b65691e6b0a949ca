"""The lighthouse: the process at which replicas meet before every step (torchft's, in Rust).

It holds no state of the run. It outlives its supervisor by the workers' grace period, as they still
need it to make their last step, and then ends by itself.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from longhaul.core.errors import NeedsPerson, RecipeError
from longhaul.core.units import Seconds

_QUIET = {"RUST_LOG": "error"}
"""torchft writes four lines a step otherwise."""
_PROGRAM = """
import sys, time
from torchft.coordination import LighthouseServer
join_ms, silence_ms, grace_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=join_ms, quorum_tick_ms=20,
    heartbeat_timeout_ms=silence_ms,
)
print(server.address().rpartition(":")[2], flush=True)
if sys.stdin.read() == "":
    time.sleep(grace_s)
server.shutdown()
"""


def has_torchft() -> bool:
    """Whether torchft is installed (extra `ft`)."""
    return importlib.util.find_spec("torchft") is not None


def refuse_without_torchft() -> None:
    """Told before anything is started.

    Raises:
        RecipeError: torchft is not installed.
    """
    if not has_torchft():
        raise RecipeError(
            "parallel.elastic: torchft is not installed, by which replicas find each other",
            "install longhaul[ft], or set parallel.elastic=false",
        )


class Lighthouse:
    """A running lighthouse.

    Args:
        join_s: a replica that is alive and does not come is waited for so long.
        silence_s: one without a heartbeat counts as dead after this.
        grace_s: how long it outlives a supervisor that has died.
        log: takes what it says.

    Raises:
        NeedsPerson: it does not start.
    """

    def __init__(self, join_s: Seconds, silence_s: Seconds, grace_s: Seconds, log: Path) -> None:
        times = (str(round(join_s * 1000)), str(round(silence_s * 1000)), str(grace_s))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *times],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True, env=os.environ | _QUIET,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        if not port:
            self.close()
            raise NeedsPerson("the lighthouse of the replicas did not start", f"its log is {log}")
        self.address = f"http://127.0.0.1:{port}"

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def environment(self) -> dict[str, str]:
        """What a replica must know, beside the address."""
        return dict(_QUIET)

    def descriptors(self) -> tuple[int, ...]:
        """Of this process; workers must not keep them open, or the lighthouse would not see that
        its supervisor has died.
        """
        ends = (self._process.stdin, self._process.stdout)
        return tuple(end.fileno() for end in ends if end is not None and not end.closed)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            if end is not None:
                end.close()

    def __enter__(self) -> "Lighthouse":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
