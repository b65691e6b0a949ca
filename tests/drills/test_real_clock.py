"""A clock that is set back under a run.

The machine's own clock is everybody's, and a time namespace shifts all clocks but this one; so the
C library's calls are wrapped for the run's processes alone, and the kernel's time stamps of files
stay as they were. What a process sees is what it would see after `date --set`.
"""

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longhaul.core.records import StepRecord
from longhaul.supervise.ownership import left_over
from small_runs import HALF_A_STEP

pytestmark = pytest.mark.slow  # `make drills-real`

STEPS = tuple(f"--set={option}" for option in ("train.steps=120", *HALF_A_STEP))
DAY_S = 86_400
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *shift_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *found = mmap(0, 8, PROT_READ, MAP_SHARED, descriptor, 0);
    if (found != MAP_FAILED) shift_s = found;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (!code && shift_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift_s;
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (into) *into = precise.tv_sec;
    return precise.tv_sec;
}
"""


class Clock:
    """The wall clock of every process started from here on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set_back(0)

    def set_back(self, seconds: int) -> None:
        """From now on all of them are so far behind the machine's."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT)  # the file that is mapped
        os.pwrite(descriptor, struct.pack("=q", -seconds), 0)
        os.close(descriptor)


@pytest.fixture
def clock(tmp_path, monkeypatch) -> Clock:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("shifting the clock of single processes needs Linux and a C compiler")
    source, library = tmp_path / "shift.c", tmp_path / "shift.so"
    source.write_text(SHIM)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    made = Clock(tmp_path / "shift")
    monkeypatch.setenv("SHIFTED_CLOCK", str(made.path))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    made.set_back(DAY_S)
    seen = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if abs(float(seen.stdout) - (time.time() - DAY_S)) > 3600:
        pytest.skip("this Python does not ask the C library for the time")
    made.set_back(0)
    return made


def is_step(at_least: int):
    return lambda record: isinstance(record, StepRecord) and record.step >= at_least


def test_a_run_whose_clock_is_set_back_obeys_and_ends_in_the_bytes_of_one_left_alone(
    room, clock, wait_until, undisturbed, ends_like
) -> None:
    process = room.start("train", "drill", *STEPS)
    room.wait_for("step 30", is_step(30))
    clock.set_back(DAY_S)
    seen = len(room.records())
    (worker,) = left_over(room.folder())
    os.kill(worker.pid, signal.SIGKILL)
    wait_until("another worker", lambda: left_over(room.folder()) not in ([], [worker]))
    room.wait_for(
        "its first step", lambda r: isinstance(r, StepRecord) and r.attempt == 2, after=seen
    )
    (worker,) = left_over(room.folder())
    os.kill(worker.pid, signal.SIGSTOP)  # it must not be done before it is asked to stop
    asking = room.start("stop", "drill")
    wait_until("the request", lambda: bool(list(room.folder().requests.glob("[0-9]*.json"))))
    os.kill(worker.pid, signal.SIGCONT)
    output, _ = asking.communicate(timeout=60)
    assert asking.returncode == 0, output
    assert "refused" not in output
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 16, said
    code, output = room.run("train", "drill", *STEPS)
    assert code == 0, output
    ends_like(room.folder(), undisturbed)
