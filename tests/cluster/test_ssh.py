"""The loop of the first host, and what is typed on each."""

import subprocess

import pytest

from launches import cluster_of, spec_of
from longhaul.cluster.ssh import address, commands, head_script, step_command


def test_every_host_is_asked_for_longhaul_and_the_first_one_begins() -> None:
    spec = spec_of(cluster_of("ssh", hosts=("me@a", "b", "c", "d")), spares=1)
    typed = commands(spec, "/l", "/code")
    assert [words[-2] for words in typed] == ["me@a", "b", "c", "me@a"], "three of four are needed"
    assert typed[0][-1] == "cd /code && python3 -c 'import longhaul'"
    assert typed[-1][-1].startswith("nohup setsid bash /l/job.sh")


def test_a_step_takes_its_folder_and_variables_with_it() -> None:
    cluster = cluster_of("ssh", hosts=("a",), environment={"NCCL_NOTE": "it is"})
    command = step_command(cluster, "b", "/my code")
    assert command[command.index("b") + 1 :] == ("cd", "'/my code'", "&&", "exec", "env",
                                                 "'NCCL_NOTE=it is'")  # fmt: skip
    assert address("user root\nhostname 10.0.0.7\nport 22\n", "me@a") == "10.0.0.7"
    assert address("", "me@a") == "a"


@pytest.mark.parametrize("codes", [(0,), (16, 0), (16, 17), (2,)])
def test_the_loop_starts_again_after_16_alone(tmp_path, codes) -> None:
    python = tmp_path / "python"
    answers = "\n".join(map(str, codes))
    (tmp_path / "codes").write_text(answers + "\n")
    python.write_text(
        f"#!/bin/bash\ncd {tmp_path}\ncode=$(head -1 codes)\nsed -i 1d codes\n"
        'echo "$code" >> asked\nexit "$code"\n'
    )
    python.chmod(0o755)
    spec = spec_of(cluster_of("ssh", hosts=("a", "b"), python=str(python), environment={"A": "b"}))
    text = head_script(spec, "/l", str(tmp_path)).replace("sleep 30", ":")
    assert "export A=b\n" in text
    done = subprocess.run(["bash", "-c", text], check=False, capture_output=True, timeout=30)
    assert done.returncode == codes[-1]
    assert (tmp_path / "asked").read_text().split() == [str(code) for code in codes]
