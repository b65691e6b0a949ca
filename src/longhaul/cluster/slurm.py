"""A launch in Slurm's words: the batch script, the nodes of an allocation, steps on one node.

The batch script runs on the first node. There the supervisor starts each rank by `srun` on one node
of the allocation, so that a rank that dies, or a node, does not end the job (`--no-kill`).
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longhaul.cluster.clusters import Cluster
from longhaul.cluster.launch_spec import EXCLUDED_NAME, LaunchSpec, joined
from longhaul.core.errors import UsageError

_TAIL = """\
# With --no-kill nobody requeues a job whose first node dies: what is left of it would keep the
# other nodes until its limit (seen in a drill). So two of them look whether the first is there.
guard='while sleep {every}; do
  nodes=$(scontrol --oneliner show job "$SLURM_JOB_ID" | grep -o " NodeList=[^ ]*" | cut -d= -f2)
  [ -n "$nodes" ] || continue
  scontrol show hostnames "$nodes" | grep -qx "$1" || scontrol requeue "$SLURM_JOB_ID"
done'
others=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -vx "$SLURMD_NODENAME")
for node in $(echo "$others" | head -n 2); do
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --mem=0 --quiet \\
    bash -c "$guard" guard "$SLURMD_NODENAME" </dev/null &
done
# Slurm signals this shell alone (B:); a shell's trap runs only while it waits.
trap 'kill -USR1 "$job" 2>/dev/null' USR1
trap 'kill -TERM "$job" 2>/dev/null' TERM
{command} &
job=$!
wait "$job"; code=$?
while kill -0 "$job" 2>/dev/null; do wait "$job"; code=$?; done
wait "$job" 2>/dev/null; last=$?
[ "$last" = 127 ] || code=$last
echo "longhaul: the job's part ended with $code"
# 16: start me again. 17 (a person must look), 2 and 3 (recipe, data) end the job.
if [ "$code" = 16 ]; then
  trap '' TERM USR1  # the requeue ends this script too, and the exclusion comes after it
  # A job that a person cancels ends with 16 too, and stays cancelled: it runs no more.
  shown=$(scontrol --oneliner show job "$SLURM_JOB_ID")
  case "$shown" in
    *" JobState=RUNNING "*) scontrol requeue "$SLURM_JOB_ID" ;;
    *) echo "longhaul: not requeued by this script, as Slurm ends the job" ;;
  esac
  excluded=$(cat {excluded} 2>/dev/null)
  # Slurm takes an exclusion only while the job waits, so only now.
  [ -z "$excluded" ] || scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$excluded"
fi
exit "$code"
"""


_GUARD_EVERY_S = 20
"""A question to the controller every so many seconds, of two nodes of each job."""


def batch_script(spec: LaunchSpec, folder: str) -> str:
    """The script that `sbatch` takes. `folder` is the launch's own, as the nodes see it."""
    cluster = spec.cluster
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options(spec, folder))]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in cluster.variables.items()]
    command = [*in_image(cluster), cluster.python, "-m", "longhaul", "launched", folder]
    tail = _TAIL.format(
        every=_GUARD_EVERY_S,
        command=shlex.join(command),
        excluded=shlex.quote(f"{folder}/{EXCLUDED_NAME}"),
    )
    return "\n".join(lines) + "\n" + tail


def options(spec: LaunchSpec, folder: str) -> list[str]:
    """The options of `sbatch`."""
    cluster = spec.cluster
    nodes = f"{spec.nodes}-{spec.wanted}" if spec.spares else f"{spec.nodes}"
    found = [
        f"--job-name={spec.name}",
        f"--nodes={nodes}",
        "--exclusive",
        "--no-kill",
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{cluster.notice_s}",
        f"--output={folder}/job.log",
    ]
    found += [f"--partition={cluster.partition}"] if cluster.partition else []
    found += [f"--account={cluster.account}"] if cluster.account else []
    if cluster.gpus_per_node:
        gpu = f"{cluster.gpu}:" if cluster.gpu else ""
        found.append(f"--gres=gpu:{gpu}{cluster.gpus_per_node}")
    if cluster.hours is not None:
        found.append(f"--time={max(1, round(cluster.hours * 60))}")
    if cluster.workdir:
        found.append(f"--chdir={cluster.workdir}")
    if spec.excluded:
        found.append(f"--exclude={joined(list(spec.excluded))}")
    return found


_STEP = """\
srun "$@" <&0 &
job=$!
trap 'kill -USR1 "$job" 2>/dev/null' TERM
trap '' INT
wait "$job"; code=$?
while kill -0 "$job" 2>/dev/null; do wait "$job"; code=$?; done
wait "$job" 2>/dev/null; last=$?
[ "$last" = 127 ] || code=$last
exit "$code"
"""
"""srun answers SIGTERM by killing its step (seen in a drill: the rank could not save). It passes
SIGUSR1 on, which is a notice too. An interrupt is the first rank's to obey."""


def step_command(cluster: Cluster, host: str) -> tuple[str, ...]:
    """What a process is started with on one node of the allocation; it passes its input on."""
    gpus = (f"--gres=gpu:{cluster.gpus_per_node}",) if cluster.gpus_per_node else ()
    return (
        "bash", "-c", _STEP, "srun", "--overlap", "--nodes=1", "--ntasks=1",
        f"--nodelist={host}", "--quiet",
        "--unbuffered", "--kill-on-bad-exit=1", "--mem=0", "--cpu-bind=none", *gpus,
        *in_image(cluster),
    )  # fmt: skip


def in_image(cluster: Cluster) -> tuple[str, ...]:
    """What runs a command in the cluster's container, where it has one."""
    if not cluster.image:
        return ()
    binds = [word for mount in cluster.mounts for word in ("--bind", mount)]
    return ("apptainer", "exec", *(["--nv"] if cluster.gpus_per_node else []), *binds,
            cluster.image)  # fmt: skip


@dataclass(frozen=True)
class Host:
    """A node of an allocation."""

    name: str
    address: str
    """Where the other nodes reach it."""
    state: str = ""


def hosts_of(shown: str, names: Sequence[str]) -> list[Host]:
    """The nodes of these names, in this order, from what `scontrol --oneliner show node` prints;
    UsageError if one is missing.
    """
    found: dict[str, Host] = {}
    for line in shown.splitlines():
        values = fields_of(line)
        if "NodeName" in values:
            name = values["NodeName"]
            found[name] = Host(name, values.get("NodeAddr", name), values.get("State", ""))
    if missing := [name for name in names if name not in found]:
        raise UsageError(
            f"node {missing[0]}: scontrol shows none of that name", "ask the cluster's operators"
        )
    return [found[name] for name in names]


def fields_of(line: str) -> dict[str, str]:
    """`NAME=VALUE` of a line that scontrol prints; a value ends at its first space."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line))


def expanded(text: str) -> tuple[str, ...]:
    """The names of Slurm's list, such as `a[1-3,07],b`; UsageError if it is none."""
    found: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text):
        found += _expanded_part(part)
    return tuple(found)


def _expanded_part(part: str) -> Iterable[str]:
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if match is None:
        return [part]
    before, ranges, after = match.groups()
    numbers: list[str] = []
    for piece in ranges.split(","):
        first, dash, last = piece.partition("-")
        try:
            span = range(int(first), int(last if dash else first) + 1)
        except ValueError as error:
            raise UsageError(f"{part}: no list of nodes as Slurm writes it") from error
        numbers += [f"{number:0{len(first)}d}" for number in span]
    return [f"{before}{number}{rest}" for number in numbers for rest in _expanded_part(after)]


def idle_nodes(printed: str) -> int:
    """Nodes that could begin a job now, of what `sinfo --noheader --format="%t %D"` prints."""
    counts = (line.split() for line in printed.splitlines() if len(line.split()) == 2)
    return sum(int(count) for state, count in counts if state == "idle")


def job_number(printed: str) -> str:
    """The job's number of what `sbatch --parsable` prints."""
    return printed.strip().partition(";")[0]


def excluded_by_slurm(job: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that Slurm itself says it excludes, of a job's fields (`scontrol show job`)."""
    text = job.get("ExcNodeList", "")
    return () if text in ("", "(null)") else expanded(text)
