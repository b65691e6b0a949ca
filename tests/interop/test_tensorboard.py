"""Event files, as TensorBoard itself reads them back."""

import errno
import math

import pytest

from longhaul.core.errors import UsageError
from longhaul.interop.trackers import tensorboard
from longhaul.interop.trackers.mirror import Mirror
from longhaul.interop.trackers.series import Lineage
from longhaul.interop.trackers.tensorboard import EventFiles

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def mirrored(run, said=None):
    """A mirror as a new process makes it."""
    place = run.folder.trackers
    target = Lineage(EventFiles(place / "tensorboard"), lambda segment: {"segment": segment})
    say = print if said is None else said.append
    return Mirror(run.folder, target, place / "tensorboard.json", say), target


def seen(run):
    """Name → step → value, and how many values of steps there are in all."""
    reader = event_accumulator.EventAccumulator(
        str(run.folder.trackers / "tensorboard"), {event_accumulator.TENSORS: 0, "scalars": 0}
    )
    reader.Reload()
    events = {tag: reader.Scalars(tag) for tag in reader.Tags()["scalars"]}
    return {tag: {e.step: e.value for e in found} for tag, found in events.items()}, sum(
        len(found) for tag, found in events.items() if not tag.startswith("validation/")
    )


def assert_surviving(run):
    shown, count = seen(run)
    for name, values in run.lasting.items():
        assert shown[name] == pytest.approx(values), name
    ours = {tag: values for tag, values in shown.items() if not tag.startswith("validation/")}
    assert count == sum(len(values) for values in ours.values()), "a step is shown twice"
    assert max(max(values) for values in shown.values()) <= run.step


def test_each_step_shows_what_the_present_weights_came_through(run):
    run.troubled()
    mirror, target = mirrored(run)
    assert mirror.look()
    target.close()
    assert_surviving(run)
    assert seen(run)[0]["validation/loss"] == {4: 4.0}, "that of step 8 was rolled back"


def test_an_evaluation_that_counts_comes_again_for_the_fast_loader(run):
    """Which drops a figure from a step on only where that figure is written again."""
    run.troubled()
    mirror, target = mirrored(run)
    mirror.look()
    target.close()
    reader = event_accumulator.EventAccumulator(str(run.folder.trackers / "tensorboard"))
    reader.Reload()
    found = [(event.step, event.value) for event in reader.Scalars("validation/loss")]
    assert found == [(4, 4.0), (4, 4.0)]


def test_a_second_start_writes_nothing_twice(run):
    run.troubled()
    for _ in range(3):
        mirror, target = mirrored(run)
        mirror.look()
        target.close()
    assert_surviving(run)
    run.steps(2)
    mirror, target = mirrored(run)
    assert mirror.look()
    assert not mirror.look()
    target.close()
    assert_surviving(run)


def test_it_follows_a_run_and_survives_a_kill_between_writing_and_noting_it(run, monkeypatch):
    run.begin(0)
    run.steps(3)
    mirror, target = mirrored(run)
    mirror.look()
    run.steps(3)
    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "_keep", lambda self: None)  # it is killed before it has noted them
        mirror.look()
    target.tracker.close()  # as the kernel does
    run.begin(4)
    run.steps(1)
    mirror, target = mirrored(run)
    mirror.look()
    target.close()
    assert_surviving(run)


def test_a_rollback_is_shown_before_training_has_gone_on(run):
    run.begin(0)
    run.steps(6)
    mirror, target = mirrored(run)
    mirror.look()
    run.begin(2)
    mirror.look()
    target.close()
    assert max(seen(run)[0]["train/loss"]) == 2


def test_a_full_disk_is_told_once_and_leaves_whole_files(run, monkeypatch):
    said = []
    run.begin(0)
    run.steps(3)
    mirror, target = mirrored(run, said)
    mirror.look()
    run.steps(3)

    def full(self, last, event):
        self._file.write(b"torn")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensorboard._EventFile, "write", full)
        assert not mirror.look()
        patch.undo()
    run.steps(1)
    assert mirror.look()
    target.close()
    assert len(said) == 2
    assert "No space left" in said[0]
    assert_surviving(run)


def test_where_files_can_be_written_and_notes_cannot_no_files_gather(run, monkeypatch):
    run.begin(0)
    run.steps(3)
    mirror, target = mirrored(run, [])
    mirror.look()
    target.close()
    mirror, target = mirrored(run, [])
    run.steps(3)

    def full(self, what):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "_write", full)
        for _ in range(20):
            assert not mirror.look()
    assert mirror.look()
    target.close()
    names = [path.name for path in (run.folder.trackers / "tensorboard").glob("events.*")]
    assert len(names) == 2
    assert_surviving(run)


def test_what_a_rollback_takes_back_is_not_its_story(run):
    run.troubled()
    mirror, target = mirrored(run)
    mirror.look()
    target.close()
    reader = event_accumulator.EventAccumulator(str(run.folder.trackers / "tensorboard" / "story"))
    reader.Reload()
    lines = [e.tensor_proto.string_val[0].decode() for e in reader.Tensors("story")]
    assert any("the loss rises" in line for line in lines)
    assert any("rollback" in line for line in lines)


def test_steps_of_an_attempt_that_was_taken_for_dead_are_not_shown(run):
    run.troubled()
    mirror, target = mirrored(run)
    mirror.look()
    late = run.attempt
    run.attempt, step = late - 1, run.step
    run.steps(2, loss=100.0)
    run.attempt, run.step = late, step
    for name in run.lasting:
        for undone in (step + 1, step + 2):
            run.lasting[name].pop(undone, None)
    mirror.look()
    target.close()
    assert_surviving(run)


def test_what_is_not_finite_is_shown_as_such(run):
    run.begin(0)
    run.steps(1, loss=float("nan"), gradient_norm=float("inf"))
    mirror, target = mirrored(run)
    mirror.look()
    target.close()
    shown, _ = seen(run)
    assert math.isnan(shown["train/loss"][1])
    assert shown["train/gradient_norm"] == {1: float("inf")}


def test_another_run_in_the_same_place_and_a_damaged_state_are_refused(run):
    run.troubled()
    mirror, target = mirrored(run)
    mirror.look()
    target.close()
    identity = run.folder.identity
    kept = identity.read_text()
    identity.write_text(kept.replace("1000000.0", "2000000.0"))
    with pytest.raises(UsageError, match="another run"):
        mirrored(run)
    identity.write_text(kept)
    state = run.folder.trackers / "tensorboard.json"
    for content in (
        "[]",
        "{",
        "{}",
        state.read_text().replace('"attempt": ', '"attempt": "x", "x": ', 1),
    ):
        state.write_text(content)
        with pytest.raises(UsageError):
            mirrored(run)
