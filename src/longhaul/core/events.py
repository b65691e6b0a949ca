"""The kinds of events that a journal may hold, and what the data of each carries. On disk a kind is
its word, and a word that another version wrote is read as it stands.
"""

from enum import StrEnum


class EventKind(StrEnum):
    """What happened to a run other than a step, a finding or a decision."""

    # An attempt and its segments.
    ATTEMPT_STARTED = "attempt-started"
    """Rank 0 is about to train: `resumed_from` (step or None) `resumed_in`, `pid`, `host`, `live`
    (the optimizer's settings), `steps_made`, `total_steps`, `hardware` (`name` and `count` of
    devices, `peak` FLOP/s of all in this format of numbers or None, `flops_per_token`)."""
    ATTEMPT_ENDED = "attempt-ended"
    """An attempt is over: `reason`; of one that failed also the supervisor's `cause`, `remedy`,
    `rank`, `exit_codes`, `reached` (step), `poisoned` (checkpoint) and what `follows`."""
    SEGMENT_OPENED = "segment-opened"
    """A stretch under other settings, software or nodes begins: `reason`, `parent`."""
    FINISHED = "finished"
    """The run has made all its steps: the last `loss` and `bits_per_byte`, `tokens`, a `sample`."""

    # Evaluations and checkpoints.
    EVALUATION_STARTED = "evaluation-started"
    """Written before the first forward pass of an evaluation; no data."""
    EVALUATION = "evaluation"
    """The held-out `loss` and `bits_per_byte`, in all and by source, and of how much."""
    SAMPLE = "sample"
    """A `text` was written after an evaluation; a `message` if that could not be."""
    SCORED = "scored"
    """`longhaul eval --watch` has judged a checkpoint, of this `manifest` (hash): what was `asked`,
    the `loss` and `bits_per_byte` of the validation split, `texts`, `tasks`, `host`, `took_s`."""
    SAVE_STARTED = "save-started"
    """Written before the training state is copied for a checkpoint; no data."""
    CHECKPOINT = "checkpoint"
    """A checkpoint of this step has another `health`: its `manifest` (hash), `size_bytes`,
    `seconds_since_save`, `stall_s`; a `message` if it is damaged."""
    CHECKPOINT_FAILED = "checkpoint-failed"
    """A checkpoint could not be written: `message`, and what `checkpoint` carries."""
    SAVE_INTERVAL = "save-interval"
    """An interval that is `auto` has changed: `steps`, `reason`."""
    ROOM_MADE = "room-made"
    """A checkpoint was removed before its time, because the disk is full: `size_bytes`."""
    CHECKPOINTS_SET_ASIDE = "checkpoints-set-aside"
    """Checkpoints lay in the folder that the journal does not know: `steps`, `text`."""
    PAUSED = "paused"
    """Training waits, because nothing can be saved or the network is away: `reason`."""
    RESUMED = "resumed"
    """Training goes on after `paused`: `reason`."""

    # Settings and state.
    SETTINGS_DIFFER = "settings-differ"
    """The settings in force are not the checkpoint's: `difference` {path: [before, now]}."""
    MACHINE_DIFFERS = "machine-differs"
    """Machine or software are not those before: `difference`, `segment_before`."""
    SETTINGS_READ_BACK = "settings-read-back"
    """Settings have changed, and these are the live optimizer's now: `live` {name: value}."""
    OVERRIDE_BEGINS = "override-begins"
    """A setting that was decided for a later step holds from this one on; no data."""
    PRECISION_KEPT = "precision-kept"
    """This machine would have chosen another format of numbers: `kept`, `here`, `text`."""
    COMPILED = "compiled"
    """Passes were compiled in this step: `graphs`, `took_s`, `pieces` of code and how many of them
    were `cached`, `graph_breaks` and `recompilations`, which should be 0, and their `reasons`;
    `text`, or a `message` if they are not."""
    OPTIMIZER_SWAPPED = "optimizer-swapped"
    """Another update rule trains on: `old`, `new`, `state` (fresh)."""
    STATE_RESET = "state-reset"
    """State was thrown away by decision: `what`, `rewarm_steps`."""
    ROLLED_BACK = "rolled-back"
    """Training goes on from before: `left` and `to` (steps), `where` (memory or disk), `took_s`."""
    RESTORED = "restored"
    """A snapshot in memory outlived its process: `where`, `steps_lost`."""

    # Numbers, ranks and machines.
    BATCH_SAVED = "batch-saved"
    """The batch of a skipped update was kept: `path`, `text`."""
    CAUSE = "cause"
    """What replays before an action brought to light: `cause`, `rung`, `reason`, `evidence`."""
    OUT_OF_MEMORY = "out-of-memory"
    """A rank ran out of memory: on which `path` through the step, and what had grown."""
    MACHINE_WATCH = "machine-watch"
    """What can be watched of ranks in this layout: `replicas`, `text`."""
    DATA_CHANGED = "data-changed"
    """The text has changed for good, and other losses are due from here on; no data."""
    COMPARED = "compared"
    """Ranks compared `what` they should have alike, and whether they do: `took_s`, `sound`."""
    MACHINE_VERDICT = "machine-verdict"
    """`kind` straggler (slow rank) or corrupt (wrong): `ranks`, `nodes`, `sound_step`, `reason`."""

    # People.
    NOTE = "note"
    """What a person wrote down: `text`, `who`, `request`."""
    REQUEST_REFUSED = "request-refused"
    """What a person asked for was not done: `request`, `reason`."""
    WARNING = "warning"
    """Records were dropped, as the journal could not be written for too long: `dropped`."""
    PREEMPTION_MISSED = "preemption-missed"
    """A notice of preemption came, and no checkpoint was committed in time: `message`."""

    SIDECAR = "sidecar"
    """A mirror of the run, or its hook for incidents, has something to tell: `text`."""

    # Stores elsewhere; each carries `tier`.
    UPLOADED = "uploaded"
    """A checkpoint is whole in a store: `size_bytes`, `seconds`."""
    UPLOAD_DROPPED = "upload-dropped"
    """A checkpoint will not be sent: `message`."""
    REMOTE_REMOVED = "remote-removed"
    """A checkpoint was removed from a store, as retention has it."""
    STORE_AWAY = "store-away"
    """A store does not answer, told once: `message`."""
    STORE_BACK = "store-back"
    """A store answers again."""
    STORE_TAKEN = "store-taken"
    """The place in a store is another run's or a later attempt's: `message`."""
    FETCHED = "fetched"
    """The checkpoint to go on from came from a store: `took_s`."""
    BROUGHT_BACK = "brought-back"
    """The whole run came from a store: `of_attempt`, `lacking` (pages)."""

    MOVED = "moved"
    """The run goes on in another cluster: `source`, `destination`, `checkpoint` (step), `manifest`
    (hash), `move` (its identity), `who`, `reason`."""

    # Of a run that names its nodes, by the supervisor.
    ATTEMPT_BEGAN = "attempt-began"
    """Which `nodes` train, and which are `absent` and why."""
    NODE_PROBED = "node-probed"
    """A node was tried before it was used: `node`, `passed`, `reason`."""
    NODE_REFUSED = "node-refused"
    """A node is not used: `node`, `parts`, `reason`."""
    NODE_ORDERED = "node-ordered"
    """Another node was asked for: `node` (None if none came), `entry`, `reason`."""
    NODE_AWAITED = "node-awaited"
    """There are too few nodes to train on: `reason`."""
    NODE_SLOW = "node-slow"
    """A node keeps the others waiting: `node`, `reason`."""
    NODE_DRAINED = "node-drained"
    """All were started again at a checkpoint, without a node: `node`, `reason`."""

    # Of a run with replicas.
    REPLICA_LOST = "replica-lost"
    """The others train on without a replica: what `attempt-ended` carries of a failure."""
    REPLICA_BACK = "replica-back"
    """A replica is there again, with a peer's state: `rank`, `peer`, `away_s`."""
    HEALED = "healed"
    """Rank 0 is there again, with a peer's state: `restored` (step), `peer`, `text`."""


NODE_EVENTS = frozenset(
    kind for kind in EventKind if kind.startswith("node-") or kind == EventKind.ATTEMPT_BEGAN
)
"""What a supervisor writes of nodes."""
WRITTEN_BESIDE = NODE_EVENTS | {EventKind.SIDECAR, EventKind.SCORED}
"""What others than the trainer write while it trains, or is gone: no sign of it, no second booked.
"""
