"""A launch by plain SSH: what is typed on each host. The first host supervises, as on Slurm."""

import shlex

from longhaul.cluster.clusters import Cluster
from longhaul.cluster.launch_spec import LaunchSpec
from longhaul.cluster.slurm import in_image

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_LOOP = """\
#!/bin/bash
# There is no scheduler here: this loop starts the job again when it ends with 16.
{exports}cd {workdir} || exit 17
while :; do
  {command} &
  job=$!
  trap 'kill -TERM "$job" 2>/dev/null; ended=1' TERM USR1 HUP
  wait "$job"; code=$?
  while kill -0 "$job" 2>/dev/null; do wait "$job"; code=$?; done
  wait "$job" 2>/dev/null; last=$?
  [ "$last" = 127 ] || code=$last
  echo "longhaul: the job's part ended with $code"
  [ "$code" = 16 ] && [ -z "$ended" ] || exit "$code"
  sleep 30
done
"""


_STEP = 'trap "" TERM INT; "$@" <&0'
"""The client would end of a notice, and with it the rank. The first rank obeys it for all."""


def address(printed: str, host: str) -> str:
    """Where a host is reached, of what `ssh -G HOST` prints; names may be those of ssh's own."""
    for line in printed.splitlines():
        key, _, value = line.partition(" ")
        if key == "hostname":
            return value.strip()
    return host.rpartition("@")[2]


def step_command(cluster: Cluster, host: str, workdir: str) -> tuple[str, ...]:
    """What a process is started with on a host, whose shell reads these words once more. It has
    neither the folder nor the variables of who calls, so both are given.
    """
    variables = [shlex.quote(f"{name}={value}") for name, value in cluster.variables.items()]
    there = ("cd", shlex.quote(workdir), "&&", "exec", "env", *variables)
    return ("bash", "-c", _STEP, "bash", *_SSH, host, *there, *map(shlex.quote, in_image(cluster)))


def head_script(spec: LaunchSpec, folder: str, workdir: str) -> str:
    """The script that the first host runs: the job's part, again while it ends with 16."""
    exports = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in spec.cluster.variables.items()
    )
    python = spec.cluster.python
    command = shlex.join([*in_image(spec.cluster), python, "-m", "longhaul", "launched", folder])
    return _LOOP.format(exports=exports, workdir=shlex.quote(workdir), command=command)


def commands(spec: LaunchSpec, folder: str, workdir: str) -> list[tuple[str, ...]]:
    """What starts the launch, in order: every host is asked for longhaul in the same folder, then
    the first one starts the script, and goes on with it when the connection has ended.
    """
    hosts, python = spec.cluster.hosts[: spec.wanted], spec.cluster.python
    there = f"cd {shlex.quote(workdir)} && {shlex.quote(python)} -c 'import longhaul'"
    log = shlex.quote(f"{folder}/job.log")
    script = shlex.quote(f"{folder}/job.sh")
    begin = f"nohup setsid bash {script} >>{log} 2>&1 </dev/null & echo $!"
    return [*((*_SSH, host, there) for host in hosts), (*_SSH, hosts[0], begin)]
