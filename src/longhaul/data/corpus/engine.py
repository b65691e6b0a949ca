"""Runs jobs on all cores through Daft: in processes of this machine, or on a Ray cluster.

A job is a picklable function of picklable arguments that writes files and returns something small.
The plan is the same in both places, and who does which job leaves no trace in what is written.
"""

import atexit
import contextlib
import importlib.util
import os
import pickle
import queue
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from longhaul.core.errors import LonghaulError, RecipeError, UsageError
from longhaul.core.units import Bytes, short_bytes

Job = TypeVar("Job")
Result = TypeVar("Result")

_WORKER_BYTES = 700_000_000
"""Most that a worker holds: its libraries (200 MB) and what it makes of a part of 32 MB."""
_DRIVER_BYTES = 600_000_000
"""Most that the program itself holds beside its workers."""
_MOST_LIGHT = 64
_ANSWER_S = 10.0
_WATCHED_S = 1.0


@dataclass(frozen=True, slots=True)
class Resources:
    """What a preparation may use."""

    workers: int
    """Jobs at once on this machine; a cluster has as many as it has cores."""
    memory: Bytes
    """Of all processes on this machine together."""
    ray: str = ""
    """Address of a Ray cluster whose machines see the same files; empty is this machine alone."""

    @classmethod
    def of_machine(
        cls, workers: int | None = None, memory: Bytes | None = None, ray: str = ""
    ) -> "Resources":
        """All cores and half of the memory where nothing else is asked for, and no more workers
        than fit; one where Daft is not installed. RecipeError if not even one fits.
        """
        memory = psutil.virtual_memory().total // 2 if memory is None else memory
        if memory < _DRIVER_BYTES + _WORKER_BYTES:
            raise RecipeError(
                f"--memory {memory / 1e9:g} GB: one worker and the program that leads it take up "
                f"to {short_bytes(_DRIVER_BYTES + _WORKER_BYTES)}",
                "give it more",
            )
        fitting = (memory - _DRIVER_BYTES) // _WORKER_BYTES
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        if workers is None and not ray and not has_daft():
            workers = 1
        return cls(min(workers or cores or os.cpu_count() or 1, fitting), memory, ray)


def has_daft() -> bool:
    """Whether more than one core can be used."""
    return importlib.util.find_spec("daft") is not None


def run_jobs(
    work: Callable[[Job], Result], jobs: Sequence[Job], resources: Resources, *, light: bool = False
) -> Iterator[tuple[int, Result]]:
    """Position and result of each job, in the order in which they end. `light` ones take
    milliseconds, and are done here unless they are many: starting workers takes a second.

    Closing the iterator ends the workers, and so does the end of this process, however it comes.

    Raises:
        LonghaulError: a job raised it; or a worker died, for want of memory as a rule.
        UsageError: no Ray cluster answers.
    """
    alone = not resources.ray and min(resources.workers, len(jobs)) <= 1
    if alone or (light and len(jobs) <= _MOST_LIGHT):
        for position, job in enumerate(jobs):
            yield position, work(job)
        return
    for position, (result, error, trace) in _results(work, jobs, resources):
        if isinstance(error, LonghaulError | OSError):
            raise error
        if error is not None:
            raise RuntimeError(f"a worker failed:\n{trace}") from error
        yield position, result


def _results(
    work: Callable[[Job], Any], jobs: Sequence[Job], resources: Resources
) -> Iterator[tuple[int, tuple[Any, BaseException | None, str]]]:
    frame = _plan(work, jobs, resources)
    # Daft waits in Rust, where no signal reaches Python; a thread waits in place of this one.
    arrived: queue.SimpleQueue[tuple[int, bytes] | BaseException | None] = queue.SimpleQueue()

    def take() -> None:
        try:
            for row in frame.iter_rows():
                arrived.put((row["position"], row["result"]))
            arrived.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised again by who waits
            arrived.put(error)

    before = set() if resources.ray else _udf_workers()
    taking = threading.Thread(target=take, name="daft", daemon=True)
    taking.start()
    # Workers take almost half a second to end, beside which those of the next stage start.
    atexit.register(taking.join, _ANSWER_S)
    ended = False
    try:
        for _ in jobs:
            item = arrived.get()
            if item is None:  # Daft has heard the interrupt, and keeps it to itself
                raise KeyboardInterrupt
            if isinstance(item, BaseException):
                ended = True
                raise LonghaulError(
                    f"a worker died while preparing ({_last_line(item)})",
                    "where memory ran out, give --workers a smaller number; what is done is kept: "
                    "start the same command again",
                ) from item
            yield item[0], pickle.loads(item[1])  # noqa: S301 - written by our own workers
        ended = True
    finally:
        if not ended and not resources.ray:
            for process in _udf_workers() - before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            taking.join(_ANSWER_S)


def _plan(work: Callable[[Job], Any], jobs: Sequence[Job], resources: Resources) -> Any:
    # Both would report to their makers how they are used.
    os.environ.update(DO_NOT_TRACK="true", DAFT_ANALYTICS_ENABLED="0", DAFT_PROGRESS_BAR="0")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import daft
    except ImportError:
        way = "pip install 'longhaul[corpus]', or --workers 1"
        raise UsageError("preparing on several cores needs Daft", way) from None
    workers = _join_cluster(resources.ray) if resources.ray else resources.workers

    @daft.cls(max_concurrency=max(1, min(workers, len(jobs))), use_process=not resources.ray)
    class Worker:
        def __init__(self, driver: int) -> None:
            if driver:
                _end_with(driver)

        @daft.method(return_dtype=daft.DataType.binary())  # type: ignore[untyped-decorator]
        def run(self, work: bytes, job: bytes) -> bytes:
            return _answer(work, job)

    table = {
        "position": list(range(len(jobs))),
        "job": [pickle.dumps(job) for job in jobs],
        "work": [pickle.dumps(work)] * len(jobs),
    }
    worker = Worker(0 if resources.ray else os.getpid())
    result = worker.run(daft.col("work"), daft.col("job")).alias("result")
    frame = daft.from_pydict(table)
    # One job a partition, or a batch of them would wait for its slowest and keep a core idle.
    frame = frame.into_partitions(len(jobs)) if resources.ray else frame.into_batches(1)
    return frame.select(daft.col("position"), result)


def _answer(work: bytes, job: bytes) -> bytes:
    """In a worker: the job's result or its error, with where it came from."""
    answer: tuple[Any, BaseException | None, str]
    try:
        answer = pickle.loads(work)(pickle.loads(job)), None, ""  # noqa: S301 - of our own making
    except Exception as error:  # noqa: BLE001 - it goes to the driver
        answer = None, error, traceback.format_exc()
    try:
        return pickle.dumps(answer)
    except Exception:  # noqa: BLE001 - an error of a library that cannot be sent
        return pickle.dumps((None, RuntimeError(str(answer[1])), answer[2]))


def _end_with(driver: int) -> None:
    """In a worker: end once the driver has; Daft's own would wait for it for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the driver decides

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(_WATCHED_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _udf_workers() -> set[psutil.Process]:
    found = set()
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "daft.execution.udf_worker" in process.cmdline():
                found.add(process)
    return found


def _join_cluster(address: str) -> int:
    """Its cores; UsageError if none answers there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    problem = "" if host and port.isdecimal() else "not HOST:PORT"
    if not problem:
        try:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), _ANSWER_S).close()
        except OSError as error:
            problem = error.strerror or str(error)
    if problem:
        raise UsageError(
            f"--ray {address}: no Ray cluster answers there ({problem})",
            "start one with `ray start --head`, and give the address it prints",
        )
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs Ray", "pip install 'longhaul[corpus,ray]'") from None
    import daft

    notices = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="error")
    daft.set_runner_ray(address, noop_if_initialized=True)
    for number, handler in notices.items():
        signal.signal(number, handler)
    return int(ray.cluster_resources().get("CPU", 1))


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
