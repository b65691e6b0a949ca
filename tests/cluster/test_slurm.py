"""The batch script, and what is read of Slurm's own words."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launches import cluster_of, spec_of
from longhaul.cluster.slurm import (
    batch_script,
    excluded_by_slurm,
    expanded,
    fields_of,
    hosts_of,
    idle_nodes,
    job_number,
    options,
    step_command,
)
from longhaul.core.errors import UsageError


def test_options_say_what_clusters_toml_says() -> None:
    cluster = cluster_of(
        partition="h100", account="team", gpu="h100", gpus_per_node=8, hours=1.5, notice_s=90,
        workdir="/code",
    )  # fmt: skip
    found = options(spec_of(cluster, spares=1, excluded=("a3", "a7")), "/l")
    for option in ("--nodes=2-3", "--requeue", "--no-kill", "--open-mode=append",
                   "--signal=B:USR1@90", "--partition=h100", "--account=team", "--time=90",
                   "--gres=gpu:h100:8", "--chdir=/code", "--exclude=a3,a7",
                   "--output=/l/job.log"):  # fmt: skip
        assert option in found
    bare = options(spec_of(cluster_of()), "/l")
    assert "--nodes=2" in bare
    assert not [o for o in bare if o.startswith(("--exclude", "--gres", "--time", "--partition"))]


def test_variables_and_the_image_are_quoted_for_the_shell() -> None:
    cluster = cluster_of(
        image="/i.sif", mounts=("/a:/b",), gpus_per_node=1, environment={"NCCL_NOTE": "it's one"}
    )
    text = batch_script(spec_of(cluster), "/my launches/x")
    assert "export NCCL_NOTE='it'\"'\"'s one'" in text
    assert "apptainer exec --nv --bind /a:/b /i.sif python3 -m longhaul launched" in text
    assert "launched '/my launches/x' &" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_step_runs_on_one_node_beside_others() -> None:
    command = step_command(cluster_of(gpus_per_node=4), "a2")
    assert command[3:5] == ("srun", "--overlap")
    assert {"--nodelist=a2", "--nodes=1", "--ntasks=1", "--gres=gpu:4"} <= set(command)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 16, 17])
def test_only_16_is_requeued_and_the_exclusion_follows(tmp_path, code) -> None:
    done = _run(tmp_path, f"exit {code}", excluded="a3,a7")
    assert done.wait(20) == code
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    wanted = "requeue 7\nupdate JobId=7 ExcNodeList=a3,a7\n"
    assert asked == (wanted if code == 16 else "")


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_what_slurm_itself_ends_is_not_requeued(tmp_path, state) -> None:
    assert _run(tmp_path, "exit 16", state=state).wait(20) == 16
    assert not (tmp_path / "asked").exists()


def test_a_notice_reaches_the_jobs_part_and_its_code_counts(tmp_path) -> None:
    done = _run(tmp_path, "trap 'exit 16' TERM USR1; touch ready; while :; do sleep 0.05; done")
    deadline = time.monotonic() + 20
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline, "the job's part did not begin"
        time.sleep(0.02)
    os.kill(done.pid, signal.SIGUSR1)
    assert done.wait(20) == 16
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def _run(
    folder: Path, part: str, excluded: str = "", state: str = "RUNNING"
) -> subprocess.Popen[bytes]:
    """The batch script with a stand-in for the job's part, and for scontrol."""
    python, scontrol, srun = (folder / name for name in ("python", "scontrol", "srun"))
    python.write_text(f"#!/bin/bash\ncd {folder}\n{part}\n")
    scontrol.write_text(
        '#!/bin/bash\n[ "$1 $2" = "show hostnames" ] && printf "a\\nb\\nc\\nd\\n" && exit\n'
        f'[ "$2 $3" = "show job" ] && echo "JobId=7 JobState={state} Reason=None" && exit\n'
        f'echo "$@" >> {folder}/asked\n'
    )
    srun.write_text(f'#!/bin/bash\necho "$@" | head -n 1 >> {folder}/steps\n')
    for file in (python, scontrol, srun):
        file.chmod(0o755)
    if excluded:
        (folder / "excluded").write_text(excluded)
    script = batch_script(spec_of(cluster_of(python=str(python))), str(folder))
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
                   "SLURM_JOB_NODELIST": "[a-d]", "SLURMD_NODENAME": "a"}  # fmt: skip
    return subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.DEVNULL)


def test_two_other_nodes_look_after_the_first(tmp_path) -> None:
    assert _run(tmp_path, "until [ -f steps ] && [ $(wc -l < steps) = 2 ]; do sleep 0.05; done"
                ).wait(20) == 0  # fmt: skip
    asked = sorted((tmp_path / "steps").read_text().splitlines())
    assert [line.split()[3] for line in asked] == ["--nodelist=b", "--nodelist=c"]


def test_a_notice_reaches_a_step_as_a_signal_that_srun_passes_on(tmp_path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/bash\ntrap 'exit 16' USR1; trap 'exit 143' TERM\n"
        f'read line; echo "$line ${{@: -1}}" > {tmp_path}/heard\nwhile :; do sleep 0.05; done\n'
    )
    srun.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    step = subprocess.Popen([*step_command(cluster_of(), "a2"), "true"], env=environment,
                            stdin=subprocess.PIPE, text=True)  # fmt: skip
    assert step.stdin is not None
    step.stdin.write("hello\n")
    step.stdin.flush()
    deadline = time.monotonic() + 20
    while not (tmp_path / "heard").exists() or not (tmp_path / "heard").read_text():
        assert time.monotonic() < deadline, "srun was not started"
        time.sleep(0.02)
    assert (tmp_path / "heard").read_text() == "hello true\n", "input and words are passed on"
    step.send_signal(signal.SIGTERM)
    assert step.wait(20) == 16
    step.stdin.close()


def test_lists_of_nodes_are_read_as_slurm_writes_them() -> None:
    assert expanded("a1") == ("a1",)
    assert expanded("a[1-3,07],b,c[09-11]x") == ("a1", "a2", "a3", "a07", "b", "c09x", "c10x",
                                                 "c11x")  # fmt: skip
    assert expanded("r[1-2]n[1-2]") == ("r1n1", "r1n2", "r2n1", "r2n2")
    assert expanded("") == ()
    with pytest.raises(UsageError, match="no list of nodes"):
        expanded("a[x-y]")


def test_nodes_are_found_in_what_scontrol_shows() -> None:
    shown = ("NodeName=a1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=a1 State=IDLE OS=Linux 6 #1\n"
             "NodeName=a2 NodeAddr=10.0.0.2 State=DOWN*+DRAIN Reason=gone [x]\n")  # fmt: skip
    second, first = hosts_of(shown, ("a2", "a1"))
    assert (first.name, first.address, first.state) == ("a1", "10.0.0.1", "IDLE")
    assert second.state == "DOWN*+DRAIN"
    with pytest.raises(UsageError, match="node a3"):
        hosts_of(shown, ("a3",))


def test_counts_and_numbers_are_read() -> None:
    assert idle_nodes("idle 3\nalloc 2\nidle~ 1\n\ndrain 4\n") == 3
    assert job_number("42;cluster\n") == "42"
    assert job_number("42\n") == "42"
    job = fields_of("JobId=1 ExcNodeList=a[1-2] NodeList=a3 BatchHost=a3 Reqs=cpu=1,node=2")
    assert excluded_by_slurm(job) == ("a1", "a2")
    assert excluded_by_slurm({"ExcNodeList": "(null)"}) == ()
