"""How long to train, how precisely, by how many processes, and what to measure and keep."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from longhaul.config.section import (
    Section,
    changed_at_start,
    fixed,
    live,
    switch_or_named,
    whole_or_auto,
)
from longhaul.core.units import Seconds

_StepsOrAuto = Annotated[int, Field(ge=0)] | Literal["auto"]
_CountOrAuto = Annotated[int, Field(gt=0)] | Literal["auto"]


def _addresses(value: Any) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        raise PydanticCustomError("addresses", "neither an address nor a list of addresses")
    return tuple(one for one in several if one)


class TrainSection(Section):
    """Limits of the run; the first one reached ends it."""

    steps: int | None = live(None, gt=0)
    """Updates to make."""
    tokens: int | None = live(None, gt=0)
    """Target tokens to train on, rounded up to whole steps; instead of `steps`."""
    max_hours: float | None = live(None, gt=0)
    """Wall-clock hours over all attempts, after which the run ends as finished."""


class InitSection(Section):
    """What a run begins with."""

    from_: str | None = fixed(None, alias="from", min_length=1)
    """A folder of weights in Hugging Face's format, instead of random ones: `config.json` and
    safetensors of a family that `longhaul import` knows, with `model` and `tokenizer` as it writes
    them. The first segment records their hash."""


class PrecisionSection(Section):
    """Number formats."""

    compute: Literal["auto", "float32", "bf16", "bf16_weights", "fp16_weights"] = changed_at_start(
        "auto"
    )
    """`bf16` runs matrix products in bfloat16 by autocast; weights stay float32. `bf16_weights` and
    `fp16_weights` keep the weights in half precision too, with the optimizer's state in float32
    and, for fp16, a dynamic loss scale (`optim.loss_scale`), as OPT-175B ran. The weights of a
    begun run keep their format.

    `auto` takes the fastest of float32, TF32 and bf16 on the device that the run first starts on:
    a quarter of a second of matrix products in the recipe's shape decides. The choice is kept in
    the ledger, because another format gives other bits: later starts use it on any machine, until
    the recipe names a format itself."""
    islands: bool = changed_at_start(True)
    """With half weights: keep the residual stream, norms and mixtures in float32 (YaLM-100B)."""
    tf32: bool = changed_at_start(False)
    """Allow TF32 matrix products on NVIDIA GPUs."""
    float8: bool = changed_at_start(False)
    """Multiply by the matrices of the layers in float8 in training (torchao; needs the extra
    `float8`, and pays on GPUs from Ada and Hopper on, compiled)."""

    @property
    def half_weights(self) -> Literal["bf16", "fp16"] | None:
        """Format of the weights; None for float32."""
        if self.compute == "bf16_weights":
            return "bf16"
        return "fp16" if self.compute == "fp16_weights" else None


class EvaluationSection(Section):
    """Validation loss, on its own interval."""

    interval_steps: int = live(250, ge=0)
    """Steps between evaluations; 0 evaluates only at the end."""
    tokens: int | None = live(None, gt=0)
    """Most tokens per source, spread evenly over the split; the last evaluation reads all of it."""
    sequences: int = live(32, gt=0)
    """Most sequences computed at once: fewer where a micro-batch has fewer tokens, and half as many
    from where memory runs out."""


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise PydanticCustomError("moment", "no moment such as 2027-01-31 18:00") from None
    return value


class TargetSection(Section):
    """What the run is for: the board projects when it will be there; nothing stops for it."""

    loss: float | None = live(None, gt=0)
    """Training loss to reach, in nats."""
    deadline: Annotated[str | None, BeforeValidator(_moment, json_schema_input_type=str | None)] = (
        live(None)
    )
    """When it is to be reached, or the run to be done: ISO 8601, UTC where it says nothing else."""

    @property
    def deadline_time(self) -> Seconds | None:
        """The deadline in seconds since 1970."""
        if self.deadline is None:
            return None
        moment = datetime.fromisoformat(self.deadline)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class CheckpointSection(Section):
    """When training state is saved and what is kept."""

    interval_steps: Annotated[
        int | Literal["auto"],
        PlainValidator(partial(whole_or_auto, least=0), json_schema_input_type=_StepsOrAuto),
    ] = live(250)
    """Steps between checkpoints; 0 saves only at the end and on stopping. `auto` follows Young's
    and Daly's formula, from what saves cost the training thread, what steps take, and how often
    attempts have failed; until a save has been timed it is 250."""
    keep_last: int = live(2, gt=0)
    """Newest checkpoints to keep, besides the newest good one and one as old as the snapshots."""
    keep_every: int = live(0, ge=0)
    """Also keep checkpoints at multiples of this many steps; 0 keeps none."""
    retry_minutes: float = live(30.0, ge=0)
    """Minutes that training waits and retries once two saves in a row have failed; then it stops
    with exit code 17. A full disk is waited for without end."""
    remote: Annotated[
        tuple[str, ...], BeforeValidator(_addresses, json_schema_input_type=str | tuple[str, ...])
    ] = changed_at_start(())
    """Where copies of verified checkpoints go beside training: a folder, or any fsspec address such
    as `s3://bucket/runs`; the run's name is added. Several are sent to one by one, and each can
    stand in for the others. None when empty."""
    remote_keep_last: int = changed_at_start(2, gt=0)
    """Newest checkpoints to keep in each remote place."""
    remote_keep_every: int = changed_at_start(0, ge=0)
    """There also keep checkpoints at multiples of this many steps; 0 keeps none."""
    remote_mb_per_s: float | None = changed_at_start(None, gt=0)
    """Most megabytes a second to and from remote places. Transfers yield when they slow a step."""
    snapshot_interval_steps: int = live(25, ge=0)
    """Steps between snapshots in the host's memory, to roll back to without a disk; 0: none."""
    snapshot_mb: float | None = changed_at_start(None, ge=0)
    """Most megabytes that snapshots may take; a tenth of the available memory when absent. If
    fewer than two fit, none is taken, and a rollback goes to a checkpoint."""


class MonitorSection(Section):
    """Gauges, and what ranks compare to find one that computes wrong numbers."""

    gauge_interval_steps: int = live(25, ge=0)
    """Steps between gauge readings; 0 reads none."""
    hash_every: int = live(100, ge=0)
    """Steps between two comparisons, by exact hashes, of weights that ranks hold alike; 0: none."""
    witness_every: int = live(100, ge=0)
    """Steps between two passes in which all data ranks compute the same micro-batch and compare
    loss and gradients; costs one micro-batch without an update. 0 makes none."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = changed_at_start(())
    """What the supervisor has the run mirrored to, beside training (extras of the same names);
    `longhaul mirror` does the same by hand."""
    metrics_port: int = changed_at_start(0, ge=0, lt=1 << 16)
    """Port on which Prometheus finds the run's `/metrics` (extra `prometheus`); 0: none."""
    metrics_host: str = changed_at_start("127.0.0.1", min_length=1)
    """Address to listen on; `0.0.0.0` shows the run's figures to whoever reaches the machine."""


class AlertSection(Section):
    """What the supervisor calls for incidents, such as rollbacks, failures and ends of training."""

    command: tuple[str, ...] = changed_at_start(())
    """A program and its arguments; it reads one incident as JSON. None when empty."""
    webhook: str | None = changed_at_start(None, pattern="^https?://")
    """Where the same JSON is posted. Write secrets in it as `${NAME}`, of the environment."""
    per_hour: int = changed_at_start(12, gt=0)
    """Most calls an hour; what is beyond is counted in the next one."""


UNWATCHED: dict[str, Any] = {"monitor.trackers": [], "monitor.metrics_port": 0, "alert": {}}
"""What a rehearsal sets: nobody is called for it, and no tracker shows it."""


CUDA_GRAPHS: Final = "cuda-graphs"
_Compile = bool | Literal["auto", "cuda-graphs"]


class MachineSection(Section):
    """The device, and what changes bits without changing meaning."""

    device: Literal["auto", "cuda", "mps", "cpu"] = changed_at_start("auto")
    """`auto` takes CUDA, then MPS, then the CPU."""
    processes: int = changed_at_start(1, gt=0)
    """Worker processes on this machine: one for each GPU, as a rule."""
    threads: int | None = changed_at_start(None, gt=0, le=4096)
    """CPU threads of torch; an equal share of the usable cores when absent, which a run keeps on
    machines of the same kind. Other counts give other bits."""
    compile: Annotated[
        _Compile,
        PlainValidator(
            partial(switch_or_named, names=("auto", CUDA_GRAPHS)), json_schema_input_type=_Compile
        ),
    ] = changed_at_start(False)
    """Compile the model with torch.compile; with `cuda-graphs` a pass is started as one. `auto`
    measures at the run's first start whether it is long enough to win the seconds of compiling
    back, and whether graphs are faster still, and the ledger keeps the answer."""
    activation_checkpointing: Literal["none", "selective", "full"] = changed_at_start("none")
    """What a layer keeps for its backward pass: everything; products and attention, the rest being
    computed again (arXiv 2205.05198, section 5); or its input alone (arXiv 1604.06174)."""

    @property
    def compiles(self) -> bool:
        """Whether it is asked for, and not left to be measured."""
        return self.compile in (True, CUDA_GRAPHS)

    @property
    def records_graphs(self) -> bool:
        """Whether CUDA graphs are asked for too."""
        return self.compile == CUDA_GRAPHS


class SampleSection(Section):
    """The text that a run writes at its end."""

    prompt: str = live("\n")
    """What the sample goes on from."""
    tokens: int = live(200, ge=0)
    """Tokens to write; 0 writes none."""
    temperature: float = live(0.8, ge=0)
    """0 always takes the likeliest token."""
    top_k: int = live(50, ge=0)
    """Draw from this many likeliest tokens; 0 draws from all."""
    at_evaluations: bool = live(False)
    """Write one after each evaluation in training too; the board shows how they came along."""


class OrderSection(Section):
    """What makes the order of draws this run's own."""

    cycle: Annotated[
        int | Literal["auto"],
        PlainValidator(partial(whole_or_auto, least=1), json_schema_input_type=_CountOrAuto),
    ] = fixed("auto")
    """Draws after which every source has had exactly its share, in whole draws. `auto` is 4,096,
    and more where a source has less than one of them, for shares down to one in four million."""
    shuffle_tokens: int | None = fixed(None, gt=0)
    """Tokens of a source within which its sequences are shuffled. Such windows are read one after
    the other, in an order of their own in each epoch, so that a text may come from a store while it
    is read (`longhaul data pull --stream`). Absent, it is shuffled as a whole."""


class ParallelSection(Section):
    """How model and data are dealt out over the processes of a run.

    The four numbers are ways of a dimension of the device mesh; their product is the number of
    processes. Of `shard` and `replicate` the one that is absent takes what the others leave;
    where both are, all data parallelism is sharded.
    """

    replicate: int | None = changed_at_start(None, gt=0)
    """Ways in which weights, or with `shard` their shards, are held side by side."""
    shard: int | None = changed_at_start(None, gt=0)
    """Ways in which weights, gradients and optimizer state are cut, gathered layer by layer where
    they are needed (FSDP, arXiv 2304.11277; ZeRO, arXiv 1910.02054)."""
    tensor: int = changed_at_start(1, gt=0)
    """Ways in which each layer is computed together: heads, MLPs and the vocabulary are cut
    (Megatron, arXiv 1909.08053), the rest of the stream by position (arXiv 2205.05198)."""
    pipeline: int = changed_at_start(1, gt=0)
    """Stretches of layers, computed one after another by micro-batch (1F1B, arXiv 2006.09503)."""
    stages_per_rank: int = changed_at_start(1, gt=0)
    """With more than 1 each rank of the pipeline has so many shorter stretches, dealt out round and
    round (interleaved 1F1B, arXiv 2104.04473): less idle time, more to send."""
    reshard_after_forward: bool = changed_at_start(True)
    """Let go of a layer's gathered weights after its forward pass and gather them again for its
    backward pass (ZeRO-3): less memory, half as much again to send."""
    prefetch: int = changed_at_start(1, ge=0)
    """Layers whose weights are gathered while the one before computes; 0: when they are needed."""
    elastic: bool = changed_at_start(False)
    """Each process, or each `shard` of them, is a replica that may die and come back while the
    others train on (torchft; needs the extra `ft`), dealt the same batch among them."""
    reduce: Literal["float32", "weights"] = changed_at_start("float32")
    """Number format in which gradients are summed over ranks: float32, or that of the weights."""
