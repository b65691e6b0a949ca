"""`longhaul launch`: choose a cluster, capture, render, submit."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from longhaul.cluster import kubernetes, sky, slurm, ssh
from longhaul.cluster.allocation import Given, node_entries
from longhaul.cluster.clusters import Cluster, Clusters, load_clusters
from longhaul.cluster.launch_spec import FILE_NAME, RECIPE_NAME, LaunchSpec
from longhaul.cluster.ranking import Candidate, Ranked, rank
from longhaul.config.load import Resolved, as_toml, load_on_top, load_recipe
from longhaul.core.clocks import Clock, RealClock
from longhaul.core.errors import UsageError
from longhaul.core.files import write_bytes
from longhaul.parallel.layout import layout_for
from longhaul.run.launch.capacity import idle_nodes, is_fit
from longhaul.run.launch.capture import captured
from longhaul.run.launch.places import Ask, ask
from longhaul.supervise.nodes.ledger import cordons, read

Target = Literal["slurm", "k8s", "sky", "ssh", "any"]
_BUILT_IN = ("synthetic", "python-stdlib", "python-packages")


@dataclass(frozen=True)
class Typed:
    """What was typed."""

    recipe: str
    on: Target
    options: tuple[str, ...] = ()
    data: str | None = None
    cluster: str | None = None
    nodes: int | None = None
    spares: int | None = None
    hours: float | None = None
    dataset: str = ""
    kind: kubernetes.Kind = "jobset"
    clusters: Path | None = None
    launches: Path = Path("launches")
    preflight: bool = True
    qualify: bool = True
    trust: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Submission:
    """A launch in the words of its scheduler."""

    file: str
    """Name of the file in the launch's folder."""
    text: str
    commands: tuple[tuple[str, ...], ...]
    """What submits it, in order."""


def launch(
    typed: Typed, say: Callable[[str], None], show: Callable[[str], None],
    ask: Ask = ask, clock: Clock | None = None,
) -> None:  # fmt: skip
    """Launch a recipe. `say` is for people, `show` gets what a dry run would submit. RecipeError
    and UsageError come before anything is written; NeedsPerson if the scheduler refuses.
    """
    clock = clock or RealClock()
    resolved = load_recipe(typed.recipe, typed.options, typed.data)
    clusters = load_clusters(typed.clusters)
    ranked = _ranked(typed, resolved, clusters, ask)
    best = ranked.best
    for candidate, reason in zip(ranked.order, ranked.reasons, strict=True):
        say(f"{'→' if candidate is best else ' '} {candidate.name}: {reason}")
    _refuse_absent_data(typed, resolved, best.name, best.cluster)
    _refuse_layout(resolved, best)
    name = f"{resolved.recipe.name}-{_stamp(clock.wall())}"
    folder = typed.launches.resolve() / name
    if not typed.dry_run:
        folder.mkdir(parents=True)
    workdir = Path.cwd()
    spec = LaunchSpec(
        name=name,
        run=resolved.recipe.name,
        recipe=recipe_text(resolved),
        cluster_name=best.name,
        cluster=_with_hours(best.cluster, typed.hours),
        nodes=best.nodes,
        spares=best.cluster.spares if typed.spares is None else typed.spares,
        excluded=excluded_now(best.cluster, ask),
        dataset=typed.dataset,
        preflight=typed.preflight,
        qualify=typed.qualify,
        trust=typed.trust,
        captured=captured(workdir, None if typed.dry_run else folder),
    )
    submission = submission_of(spec, str(folder), str(workdir), typed.kind)
    if typed.dry_run:
        show(submission.text)
        for command in submission.commands:
            say(f"would run: {shlex.join(command)}")
        return
    _submit(spec, folder, submission, say, ask)


def submission_of(
    spec: LaunchSpec, folder: str, workdir: str, kind: kubernetes.Kind = "jobset"
) -> Submission:
    """The launch in the words of its cluster's scheduler."""
    match spec.cluster.scheduler:
        case "slurm":
            text = slurm.batch_script(spec, folder)
            return Submission("job.sh", text, (("sbatch", "--parsable", f"{folder}/job.sh"),))
        case "k8s":
            made = kubernetes.jobset(spec) if kind == "jobset" else kubernetes.pytorchjob(spec)
            create = ("kubectl", "create", f"--filename={folder}/manifest.yaml")
            return Submission("manifest.yaml", as_yaml(made), (create,))
        case "sky":
            begin = ("sky", "jobs", "launch", "--yes", "--detach-run", "--name", spec.name)
            text = as_yaml(sky.task(spec))
            return Submission("task.yaml", text, ((*begin, f"{folder}/task.yaml"),))
        case "ssh":
            there = spec.cluster.workdir or workdir
            text = ssh.head_script(spec, folder, there)
            return Submission("job.sh", text, tuple(ssh.commands(spec, folder, there)))
        case _:
            raise UsageError(
                f"cluster {spec.cluster_name} has no scheduler",
                "set its scheduler in clusters.toml",
            )


def recipe_text(resolved: Resolved) -> str:
    """The merged recipe, overrides and all, as one TOML file."""
    values = {"name": resolved.recipe.name, **resolved.values}
    return "".join(f"{key} = {as_toml(value)}\n" for key, value in values.items())


def as_yaml(value: Any) -> str:
    """A YAML document with its keys in the order given, and no references."""
    import yaml

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump(value, Dumper=Plain, sort_keys=False, width=100, allow_unicode=True))


def excluded_now(cluster: Cluster, ask: Ask) -> tuple[str, ...]:
    """Nodes that the cluster's node ledger has cordoned; of Slurm those that it knows, as it
    refuses a job that excludes others.
    """
    if not cluster.node_ledger:
        return ()
    try:
        hosts = sorted({event.host for event in cordons(read(Path(cluster.node_ledger))).values()})
    except OSError as error:
        raise UsageError(
            f"node ledger {cluster.node_ledger}: {error.strerror}", "correct node_ledger"
        ) from error
    if cluster.scheduler != "slurm" or not hosts:
        return tuple(hosts)
    known = set(ask(["sinfo", "--noheader", "--Node", "--format=%N"]).split())
    return tuple(host for host in hosts if host in known)


def _ranked(typed: Typed, resolved: Resolved, clusters: Clusters, ask: Ask) -> Ranked:
    if typed.cluster is not None:
        asked = {typed.cluster: clusters.named(typed.cluster)}
    else:
        asked = {n: c for n, c in clusters.by_name.items() if c.scheduler is not None}
    if typed.on != "any":
        asked = {n: c for n, c in asked.items() if c.scheduler == typed.on}
    if not asked:
        what = f"cluster {typed.cluster} has" if typed.cluster else "no cluster has"
        raise UsageError(
            f"{what} the scheduler {typed.on} in {clusters.file}", "set scheduler, or change --on"
        )
    candidates = [
        Candidate(
            name, cluster, typed.nodes or cluster.nodes, fit=is_fit(cluster.qualified),
            local=_lies_there(typed, resolved, cluster),
        )
        for name, cluster in asked.items()
    ]  # fmt: skip
    # A dry run with nothing to choose asks no scheduler, so that it works anywhere.
    if typed.dry_run and len(candidates) == 1:
        why = "a dry run does not ask"
        candidates = [replace(candidates[0], why_unknown=why)]
    else:
        counted = [idle_nodes(candidate.cluster, ask) for candidate in candidates]
        candidates = [
            replace(candidate, idle=idle, why_unknown=why)
            for candidate, (idle, why) in zip(candidates, counted, strict=True)
        ]
    return rank(candidates)


def _sources(resolved: Resolved) -> list[str]:
    return [source.path for source in resolved.recipe.data.sources]


def _lies_there(typed: Typed, resolved: Resolved, cluster: Cluster) -> bool:
    if typed.dataset and typed.dataset in cluster.data:
        return True
    return all(_is_of(path, cluster) for path in _sources(resolved))


def _is_of(path: str, cluster: Cluster) -> bool:
    folders = [entry.rstrip("/") for entry in cluster.data]
    folders += [mount.rpartition(":")[2].rstrip("/") for mount in cluster.mounts]
    inside = any(path == folder or path.startswith(f"{folder}/") for folder in folders)
    return path in _BUILT_IN or inside


def _refuse_absent_data(typed: Typed, resolved: Resolved, name: str, cluster: Cluster) -> None:
    """UsageError if a source's file is on this machine at best, and not where the job runs."""
    if typed.dataset:
        if not cluster.remote:
            raise UsageError(
                f"--dataset {typed.dataset}: cluster {name} has no remote to pull it from",
                "set remote in clusters.toml",
            )
        return
    for path in _sources(resolved):
        if "://" in path or _is_of(path, cluster):
            continue
        workdir = Path(cluster.workdir) if cluster.workdir else Path.cwd()
        shared = cluster.scheduler in ("slurm", "ssh")
        if not shared or not (workdir / path).exists():
            why = "no such file here" if shared else "below none of its mounts"
            raise UsageError(
                f"data source {path}: {why}, and clusters.toml has it not among the data of {name}",
                "push the prepared text and give --dataset NAME, or add it to the cluster's data",
            )


def _refuse_layout(resolved: Resolved, candidate: Candidate) -> None:
    """RecipeError if so many workers cannot train the recipe; else the job would find that out."""
    workers = candidate.cluster.workers
    given = [Given(f"node-{n}", "127.0.0.1") for n in range(candidate.nodes)]
    entries = node_entries(given, candidate.nodes, workers)
    words = [f"supervise.node={as_toml(entries)}"]
    there = load_on_top(resolved.values, words, None, resolved.recipe.name).recipe
    layout_for(there.parallel, candidate.nodes * workers)


def _with_hours(cluster: Cluster, hours: float | None) -> Cluster:
    return cluster if hours is None else cluster.model_copy(update={"hours": hours})


def _stamp(moment: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y%m%d-%H%M%S")


def _submit(
    spec: LaunchSpec, folder: Path, submission: Submission, say: Callable[[str], None], ask: Ask
) -> None:
    write_bytes(folder / RECIPE_NAME, spec.recipe.encode())
    write_bytes(folder / FILE_NAME, spec.to_json().encode())
    write_bytes(folder / submission.file, submission.text.encode())
    printed: Sequence[str] = [ask(command) for command in submission.commands]
    said = printed[-1].strip()
    if spec.cluster.scheduler == "slurm":
        said = f"job {slurm.job_number(said)}"
        write_bytes(folder / "job", f"{slurm.job_number(printed[-1])}\n".encode())
    commit = spec.captured.commit[:12] or "no commit"
    changed = ", with changes" if spec.captured.diff_sha256 else ""
    say(f"captured: {commit}{changed}, {spec.captured.packages} packages")
    if spec.excluded:
        say(f"excluded: {', '.join(spec.excluded)}")
    say(f"launched: {spec.name} on {spec.cluster_name}, {said}")
    say(f"launch: {folder}")
