import pytest

from longhaul.core.errors import UsageError
from longhaul.parallel.layout import Place, find_place, first_host, torchrun_of_srun

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}


def test_the_place_is_the_one_of_torchruns_environment():
    assert find_place(TORCHRUN) == Place(rank=5, size=8, local_rank=1, local_size=4)


def test_without_an_environment_or_in_a_world_of_one_there_is_one_process():
    assert find_place({}) is None
    assert find_place(TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}) is None


def test_half_a_place_is_refused_by_name():
    with pytest.raises(UsageError, match="MASTER_ADDR and MASTER_PORT is not set"):
        find_place({"RANK": "1", "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="'two'"):
        find_place(TORCHRUN | {"WORLD_SIZE": "two"})
    with pytest.raises(UsageError, match="rank 9 of 8"):
        find_place(TORCHRUN | {"RANK": "9"})


SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gnode[07-08]",
    "SLURM_JOB_NODELIST": "gnode[01-64]",
    "SLURM_JOB_ID": "200505",
    "SLURM_STEP_ID": "0",
}


def test_a_task_of_srun_has_the_place_that_torchrun_would_give_it():
    told = torchrun_of_srun(SRUN)
    assert find_place(told) == Place(rank=5, size=7, local_rank=1, local_size=3)
    assert told["MASTER_ADDR"] == "gnode07", "the first node of the step, not of the job"


def test_all_tasks_of_a_step_meet_at_one_port_and_other_steps_and_jobs_at_others():
    ports = {
        torchrun_of_srun(SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})[
            "MASTER_PORT"
        ]
        for job in (7, 8, 10**9)
        for step in range(5)
    }
    assert len(ports) == 15
    assert all(1024 < int(port) < 32_768 for port in ports)
    other = SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    assert torchrun_of_srun(other)["MASTER_PORT"] == torchrun_of_srun(SRUN)["MASTER_PORT"]


def test_what_a_batch_script_starts_without_srun_is_one_process():
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gnode[10,20]"}
    assert torchrun_of_srun(batch) == {}
    assert torchrun_of_srun(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert torchrun_of_srun({}) == {}


def test_what_was_set_by_hand_stays():
    assert torchrun_of_srun(SRUN | {"RANK": "3"}) == {}
    assert torchrun_of_srun(SRUN | {"MASTER_ADDR": "ib0"})["MASTER_ADDR"] == "ib0"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a1", "a1"), ("a1,b2", "a1"), ("a[03-05,7],b2", "a03"), ("r[1-2]n[03,5],x", "r1n03")],
)
def test_the_first_host_of_a_list_is_found(hosts, first):
    assert first_host(hosts) == first


def test_srun_that_makes_no_sense_is_told_with_the_way_out():
    with pytest.raises(UsageError, match="RANK, WORLD_SIZE"):
        torchrun_of_srun(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "many"})
    with pytest.raises(UsageError, match="7 tasks"):
        torchrun_of_srun({k: v for k, v in SRUN.items() if k != "SLURM_LOCALID"})
