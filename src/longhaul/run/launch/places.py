"""Which nodes a job was given: asked of Slurm, or read from the environment and clusters.toml."""

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.cluster import slurm, ssh
from longhaul.cluster.allocation import Given
from longhaul.cluster.launch_spec import LaunchSpec
from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Seconds

Ask = Callable[[Sequence[str]], str]
"""Runs a scheduler's command and returns what it printed; NeedsPerson if it failed."""
_WITHIN_S: Seconds = 60.0


def ask(words: Sequence[str]) -> str:
    """Run a scheduler's command. NeedsPerson if there is none, it fails, or does not answer."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_WITHIN_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise NeedsPerson(
            f"{words[0]}: {error.strerror}", "launch from a machine that has the scheduler's client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NeedsPerson(
            f"{words[0]} has not answered within {_WITHIN_S:.0f} s", "see whether it is up"
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
        raise NeedsPerson(f"{words[0]} ended with {done.returncode}: {said}", "mend it, try again")
    return done.stdout


@dataclass(frozen=True)
class Places:
    """The nodes of this job."""

    given: tuple[Given, ...]
    """The one on which this runs first."""
    in_force: tuple[str, ...] = ()
    """Names that the scheduler says it excludes for this job."""
    known: tuple[str, ...] | None = None
    """All names that the scheduler knows; None: it does not tell."""


def places_of(spec: LaunchSpec, environment: Mapping[str, str], ask: Ask = ask) -> Places:
    """The nodes of this job, by its scheduler. Of Kubernetes and SkyPilot each node runs its own
    part of the job, so that only this one is told of.
    """
    match spec.cluster.scheduler:
        case "slurm":
            return _of_slurm(spec, environment, ask)
        case "ssh":
            # All of them: where one was evicted, another takes its place.
            hosts, workdir = spec.cluster.hosts, spec.cluster.workdir or str(Path.cwd())
            return Places(
                tuple(
                    Given(
                        host,
                        ssh.address(ask(["ssh", "-G", host]), host),
                        ssh.step_command(spec.cluster, host, workdir) if number else (),
                    )
                    for number, host in enumerate(hosts)
                )
            )
        case _:
            name = environment.get("NODE_NAME", "") or platform.node()
            return Places((Given(name, "127.0.0.1"),))


def _of_slurm(spec: LaunchSpec, environment: Mapping[str, str], ask: Ask) -> Places:
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        raise NeedsPerson(
            "this is no job of Slurm: SLURM_JOB_ID or SLURM_JOB_NODELIST is not set",
            "submit the launch with `longhaul launch`",
        )
    shown = ask(["scontrol", "--oneliner", "show", "node"])
    names = slurm.expanded(environment["SLURM_JOB_NODELIST"])
    own = environment.get("SLURMD_NODENAME", names[0])
    names = tuple(sorted(names, key=lambda name: name != own))
    job = slurm.fields_of(
        ask(["scontrol", "--oneliner", "show", "job", environment["SLURM_JOB_ID"]])
    )
    given = [
        Given(host.name, host.address,
              () if host.name == own else slurm.step_command(spec.cluster, host.name))
        for host in slurm.hosts_of(shown, names)
    ]  # fmt: skip
    known = tuple(
        values["NodeName"]
        for line in shown.splitlines()
        if "NodeName" in (values := slurm.fields_of(line))
    )
    return Places(tuple(given), slurm.excluded_by_slurm(job), known)
