"""Real runs with one thing wrong in each, and what the ladder of replays says of them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from longhaul.core.errors import UsageError
from longhaul.logbook.folder import RunFolder
from longhaul.model.attention import Attention
from longhaul.run.diagnose.bundle import Bundle, load_bundle, save_bundle
from longhaul.run.diagnose.cause import RemedyOptions, diagnose
from longhaul.run.diagnose.replays import replay_each
from longhaul.run.diagnose.rerun import Elsewhere, Twice, figures_text, from_file, under_python
from longhaul.store.manifest import RefusedCheckpoint

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
GATHER = Attention._gather
AT = 28
OPTIONS = (
    "train.steps=36", "batch.sequences=8", "batch.sequence_length=32", "batch.stages=[]",
    "batch.micro_sequences=8", "model.context=32", "model.width=32", "model.dropout=0.0",
    "evaluation.interval_steps=0", "checkpoint.interval_steps=16", "optim.lr=3e-3",
    'data.sources=[{ path = "synthetic" }]',
)  # fmt: skip


@pytest.fixture(scope="module")
def worlds() -> Iterator[ModuleType]:
    """The faults that `benchmarks/cause_matrix.py` injects."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import cause_worlds

        yield cause_worlds
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(autouse=True)
def all_read_one_text(tmp_path: Path, prepared: Path) -> None:
    (tmp_path / "prepared").symlink_to(prepared)


def elsewhere(place: Callable[[], AbstractContextManager[object]]) -> Elsewhere:
    def compute(bundles: tuple[Bundle, ...]) -> Twice:
        with place():
            device = torch.device("cpu")
            return replay_each(bundles, device), replay_each(bundles, device)

    return compute


@contextmanager
def right_attention() -> Iterator[None]:
    with patch.object(Attention, "_gather", GATHER):
        yield


SOUND = elsewhere(_disable_current_modes)
SAME = elsewhere(nullcontext)


def files_of(folder: RunFolder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_a_faulty_machine_is_accused_before_a_witness_only(worlds, tmp_path) -> None:
    faulty = worlds.World(machine="scale")
    folder = worlds.train(tmp_path, "run", OPTIONS, worlds.Happening(faulty))
    with worlds.living_in(faulty):
        assert diagnose(folder.path, 30, options=RemedyOptions(SOUND)).verdict.cause == "machine"
        assert diagnose(folder.path, 30).verdict.cause != "machine"


def test_a_fault_that_struck_once_is_seen_in_the_record(worlds, tmp_path) -> None:
    once = worlds.Happening(worlds.World(), AT, worlds.World(machine="scale"), only_once=True)
    folder = worlds.train(tmp_path, "run", OPTIONS, once)
    found = diagnose(folder.path, AT + 1, options=RemedyOptions(SAME))
    assert found.verdict.cause == "machine"
    assert f"step {AT + 1}" in found.verdict.sentence
    assert diagnose(folder.path, AT + 1).verdict.cause == "undetermined"


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        pytest.param("precision.compute=bf16", "future", marks=pytest.mark.slow),
        ("machine.compile=true", "backward"),
    ],
)
def test_a_kernel_that_only_the_fast_form_has_is_found(worlds, tmp_path, form, kind) -> None:
    wrong = worlds.World(kernel=kind)
    folder = worlds.train(tmp_path, "run", (*OPTIONS, form), worlds.Happening(wrong))
    with worlds.living_in(wrong):
        found = diagnose(folder.path, 30, options=RemedyOptions(SAME))
    assert found.verdict.cause == "parallel or kernel bug"


def test_the_software_before_is_asked(worlds, tmp_path) -> None:
    new = worlds.World(software="shift")
    changed = worlds.Happening(worlds.World(), AT, new)
    folder = worlds.train(tmp_path, "run", OPTIONS, changed)
    with worlds.living_in(new):
        options = RemedyOptions(SAME, elsewhere(right_attention))
        assert diagnose(folder.path, 30, options=options).verdict.cause == "software"


@pytest.mark.slow
def test_a_poisoned_batch_is_told_from_a_rate_that_is_too_high(worlds, tmp_path) -> None:
    with worlds.poisoned((AT,), "random", 8):
        folder = worlds.train(tmp_path, "poisoned", OPTIONS, worlds.Happening())
        before = files_of(folder)
        found = diagnose(folder.path, AT)
    assert (found.symptom.kind, found.verdict.cause) == ("loss-spike", "data")
    assert files_of(folder) == before  # nothing is written, and nothing left behind
    raised = worlds.Happening(at=AT, sets=(("optim.lr", 0.6),))
    folder = worlds.train(tmp_path, "raised", OPTIONS, raised)
    found = diagnose(folder.path, 32)
    assert found.verdict.cause == "hyper-parameter"
    assert found.ladder.replays[0] == found.ladder.recorded  # the decision is replayed in its time


def test_a_healthy_run_is_reproduced_bit_by_bit_and_accuses_nobody(worlds, tmp_path) -> None:
    options = (*OPTIONS, "model.dropout=0.2")
    folder = worlds.train(tmp_path, "run", options, worlds.Happening())
    generator = torch.get_rng_state()
    found = diagnose(folder.path, 33, options=RemedyOptions(save=tmp_path / "kept"))
    assert found.verdict.cause == "undetermined"
    assert found.symptom.kind == "none"
    assert found.began == 16
    assert found.ladder.replays[0] == found.ladder.recorded
    assert torch.equal(torch.get_rng_state(), generator)
    with pytest.raises(UsageError, match="step 99: not made"):
        diagnose(folder.path, 99)

    # What was kept gives the same figures to another process, on another machine say.
    kept = sorted((tmp_path / "kept").iterdir())
    bundles = tuple(map(load_bundle, kept))
    twice = under_python(sys.executable, "cpu")(bundles)
    assert twice[0] == twice[1] == replay_each(bundles, torch.device("cpu"))
    (tmp_path / "figures").write_text(figures_text(twice))
    assert from_file(tmp_path / "figures")(bundles) == twice
    with pytest.raises(UsageError, match="not the figures of steps"):
        from_file(tmp_path / "figures")(bundles[:1])
    with pytest.raises(UsageError, match="cannot be run"):
        under_python("/no/such/python")(bundles)

    with pytest.raises(FileExistsError):
        save_bundle(kept[0], bundles[0])
    (kept[0] / "bundle.json").write_text("{}")
    with pytest.raises(RefusedCheckpoint):
        load_bundle(kept[0])
