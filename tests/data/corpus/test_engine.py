import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import corpus_jobs as jobs
from longhaul.core.errors import DataError, LonghaulError, RecipeError, UsageError
from longhaul.data.corpus.engine import Resources, run_jobs

GB = 10**9
TWO = Resources(2, 4 * GB)
HERE = str(Path(jobs.__file__).parent)

# Daft never closes the pipe of a worker that has ended.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(autouse=True)
def workers_find_the_jobs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HERE)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once(workers):
    results = dict(run_jobs(jobs.square, range(7), Resources(workers, 4 * GB)))
    assert results == {n: n * n for n in range(7)}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_job_refuses_is_said_as_it_was(workers):
    with pytest.raises(DataError, match="two: it is not wanted") as caught:
        list(run_jobs(jobs.refuse_two, range(4), Resources(workers, 4 * GB)))
    assert caught.value.remedy == "leave it out"


def test_a_defect_in_a_worker_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="in break_two"):
        list(run_jobs(jobs.break_two, range(4), TWO))


def test_a_worker_that_dies_is_said_with_the_way_out():
    with pytest.raises(LonghaulError, match="a worker died") as caught:
        list(run_jobs(jobs.die_at_two, range(4), TWO))
    assert "--workers" in caught.value.remedy


def test_memory_decides_how_many_workers_there_are():
    assert Resources.of_machine(64, 2 * GB).workers == 2
    assert Resources.of_machine(64, 4 * GB).workers == 4
    assert Resources.of_machine(1, 64 * GB).workers == 1
    with pytest.raises(RecipeError, match=r"--memory 0\.5 GB"):
        Resources.of_machine(1, GB // 2)


def test_without_daft_one_process_does_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "daft", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert Resources.of_machine().workers == 1
    with pytest.raises(UsageError, match="Daft"):
        list(run_jobs(jobs.square, range(3), TWO))


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_named(address):
    with pytest.raises(UsageError, match=f"--ray {address}: no Ray cluster answers"):
        list(run_jobs(jobs.square, range(3), Resources(2, 4 * GB, address)))


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import corpus_jobs as jobs
from longhaul.data.corpus.engine import Resources, run_jobs
list(run_jobs(jobs.name_yourself_and_wait, [sys.argv[2]] * 2, Resources(2, 4 << 30)))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_no_worker_outlives_its_driver(tmp_path, how):
    command = [sys.executable, "-c", DRIVER, HERE, str(tmp_path)]
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "two workers at work")
        workers = [psutil.Process(int(path.name)) for path in tmp_path.iterdir()]
        driver.send_signal(how)
        driver.wait(60)
        wait_for(lambda: not any(worker.is_running() for worker in workers), "their end")
    finally:
        driver.kill()
        driver.wait()


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"no sign of {what} after a minute"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_cluster_does_the_same_jobs():
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "env_vars": {"PYTHONPATH": HERE}}
    )
    try:
        cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": HERE})
        program = DRIVER.replace(
            "list(run_jobs(jobs.name_yourself_and_wait, [sys.argv[2]] * 2, Resources(2, 4 << 30)))",
            "print(sorted(run_jobs(jobs.square, range(5), Resources(2, 4 << 30, sys.argv[2]))))",
        )
        command = [sys.executable, "-c", program, HERE, cluster.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.stdout.strip() == str([(n, n * n) for n in range(5)]), done.stderr
    finally:
        cluster.shutdown()
