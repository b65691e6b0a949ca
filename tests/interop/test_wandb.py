"""Weights & Biases offline, for real: what its own file holds afterwards."""

import json
import struct

import pytest

from longhaul.interop.trackers.mirror import Mirror
from longhaul.interop.trackers.series import Lineage
from longhaul.interop.trackers.wandb import WandbRun

pytest.importorskip("wandb", reason="wandb is not installed (pip install '.[wandb]')")
pytestmark = pytest.mark.slow
pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

_BLOCK, _HEADER = 32768, 7
"""Its file is a LevelDB log behind a header of seven bytes, in blocks."""


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def written(path):
    """The records in an offline run's file."""
    content, at, whole = path.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (1, 4):  # whole, or the last part
            record = pb.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def rows(run):
    found = []
    for path in sorted(run.folder.trackers.glob("wandb/offline-run-*/*.wandb")):
        for record in written(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                })  # fmt: skip
    return found


def test_rows_come_once_in_order_with_our_step_as_the_axis(run):
    def look():
        target = Lineage(
            WandbRun(run.folder.trackers, "alpha", "abc"), lambda segment: {"optim": {"lr": 1.0}}
        )
        mirror = Mirror(run.folder, target, run.folder.trackers / "wandb.json", print)
        mirror.look()
        target.close()

    run.troubled()
    look()
    run.steps(2)
    look()
    shown = rows(run)
    assert [row["_step"] for row in shown] == list(range(len(shown))), "none is thrown away"
    trained = [(row["step"], row["train/loss"]) for row in shown if "train/loss" in row]
    assert [step for step, _ in trained] == [*range(1, 9), *range(6, 10), *range(8, 13)]
    assert dict(trained) == run.lasting["train/loss"], "the last value of a step is the one of now"
    assert {row["rollbacks"] for row in shown if "train/loss" in row} == {0, 1, 2}
    records = [r for p in run.folder.trackers.glob("wandb/offline-*/*.wandb") for r in written(p)]
    metrics = [r.metric for r in records if r.WhichOneof("record_type") == "metric"]
    assert any(m.glob_name == "*" and m.step_metric == "step" for m in metrics)
    assert "abc" in {r.run.run_id for r in records if r.WhichOneof("record_type") == "run"}
