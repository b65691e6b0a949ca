"""What all tests share."""

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fork_server import SERVER, Forking
from guard import start_guard
from longhaul.core.signals import NOTICES

# By hand every run looks at new examples; in CI the same ones each time, so that whether a change
# lands is not a matter of luck.
# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("by hand", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "by hand")


def pytest_configure(config: pytest.Config) -> None:
    """Whatever ends the tests ends what they have started, which hears what it is sent."""
    # A shell has SIGINT ignored by what it starts in the background, and so would our commands.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.add_cleanup(start_guard())
    config.add_cleanup(SERVER.close)
    gc.disable()  # until all are collected: a fifth of the time that takes


_LONG = ("system", "drills", "device", "model", "cli")
"""Folders with the files that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: a worker that began one last would keep the others waiting for it."""
    tests = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(tests).parts[0] not in _LONG)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no collection of garbage need walk over them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let them be freed like anything else."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Models as small as here lose by handing work to threads, ten times over where the cores are
    shared; and a test that sets their number sets it for itself."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests trust is nobody's business after them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def drilled_runs_are_forked() -> Iterator[None]:
    """As the commands are that tests start themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longhaul.supervise.run_process.subprocess", Forking)
        patch.setattr("longhaul.run.started.subprocess", Forking)
        yield


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the data of recipes is prepared, once for all tests that do not change it."""
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture
def shared_memory_to_itself(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For tests that look at all of the machine's shared memory: one at a time, of all workers."""
    base = tmp_path_factory.getbasetemp()
    everyones = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (everyones / "shared-memory.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def _notices_as_before() -> Iterator[None]:
    """Commands end within this process, and ignore notices then: what a later test starts would
    ignore them as well, and a shell cannot trap what it was born to ignore.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *NOTICES)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
