"""`longhaul train` from start to end, and started again."""

import pytest

from longhaul.core.clocks import time_spent, wall_seconds
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.reading import read_journal

SHORT = ("--set", "train.steps=20", "--set", "optim.schedule.warmup_steps=2")


def test_a_run_ends_with_all_that_was_promised_and_says_so_the_second_time(room) -> None:
    code, output = room.run("train", "drill", *SHORT, "--set", "sample.tokens=8")
    assert code == 0, output
    for promised in (
        "validation loss", "bits per byte", "sample, from the prompt", "where the time went",
        "goodput", f"run: {room.folder().path}", "optimizer groups",
    ):  # fmt: skip
        assert promised in output
    spent = time_spent(read_journal(room.folder()))
    assert spent["start-up"] > 0
    assert "restart" not in spent, "nothing has failed"
    seconds = sum(spent.values())
    assert seconds == pytest.approx(wall_seconds(room.records()), rel=0.01)

    code, output = room.run("train", "drill")
    assert code == 0
    assert "run drill is finished: 20 steps" in output

    # The options of the first start stay in force; more steps go on with the same run.
    code, output = room.run("train", "drill", "--set", "train.steps=24")
    assert code == 0, output
    assert "recipe changed: train.steps 20 → 24" in output
    assert "data: reusing" in output
    steps = [r.step for r in room.records() if isinstance(r, StepRecord)]
    assert steps == list(range(1, 25))
    code, output = room.run("tree", "drill")
    assert "1.01" in output

    code, output = room.run("train", "drill", "--set", "model.width=32")
    assert code == 2
    assert "model.width: 64 → 32" in output
    assert "--new" in output

    for command, promised in (
        (("eval", "drill"), "validation loss"),
        (("sample", "drill", "--prompt", "Ada ", "--tokens", "5"), "Ada "),
        (("data", "at", "drill", "--step", "7"), "synthetic:"),
        (("runs",), "finished"),
        (("log", "drill"), "loss"),
        (("diff", "drill"), "train.steps"),
    ):
        code, output = room.run(*command)
        assert code == 0, output
        assert promised in output
        assert "Traceback" not in output

    code, output = room.run("data", "at", "drill", "--step", "99")
    assert code == 2
    assert "step 99: not made by run drill" in output


def test_a_run_ends_at_its_time_limit_with_a_model(room) -> None:
    limit = ("--max-hours", "0.0004", "--set", "train.steps=100000")
    code, output = room.run("train", "drill", *limit)
    assert code == 0, output
    assert "finished at its time limit" in output
    code, output = room.run("train", "drill")
    assert "finished at its time limit" in output
    assert "segment" not in output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("drill", "--set", "optim.lrr=1", "--set", "model.heads=7"), "did you mean optim.lr?"),
        (("dril",), "did you mean drill?"),
        (("drill", "--device", "cuda"), "cuda does not answer"),
        (("drill", "--device", "abacus"), "'abacus' is not one of"),
        (("drill", "--set", "optim.lr"), "not of the form path=value"),
        (("drill", "--bogus"), "No such option"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(room, arguments, told) -> None:
    if "cuda" in arguments:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has a CUDA device")
    code, output = room.run("train", *arguments)
    assert code == 2
    assert told in output
    assert "Traceback" not in output


def test_a_first_start_that_failed_binds_nobody_to_what_was_typed(room) -> None:
    code, output = room.run("train", "drill", "--data", "typo.txt")
    assert code == 3
    assert "typo.txt: no such file" in output
    tiny = ("--set", "train.steps=4", "--set", "optim.schedule.warmup_steps=1")
    text = room.path / "right.txt"
    text.write_text("".join(f"line {n} of a text about nothing much\n" for n in range(4000)))
    tail = ("--set", "data.held_out.by=tail")
    code, output = room.run("train", "drill", "--data", str(text), *tiny, *tail)
    assert code == 0, output
    assert "recipe changed" not in output
    # What was trained on stays with the run: the source may go.
    text.unlink()
    code, output = room.run("train", "drill", "--set", "train.steps=6")
    assert code == 0, output
    assert "data: reusing" in output
    assert "finished: 6 steps" in output


def test_nobody_listening_does_not_end_a_run(room) -> None:
    tiny = ("--set", "train.steps=30", "--set", "optim.schedule.warmup_steps=1")
    process = room.start("train", "drill", *tiny)
    process.stdout.close()
    assert process.wait(60) == 0
    assert any(isinstance(r, Event) and r.kind == "finished" for r in room.records())


def test_new_starts_another_run_beside_the_first(room) -> None:
    tiny = ("--set", "train.steps=4", "--set", "optim.schedule.warmup_steps=1")
    assert room.run("train", "drill", *tiny)[0] == 0
    code, output = room.run("train", "drill", *tiny, "--new", "--set", "seed=5")
    assert code == 0, output
    assert room.folder("drill-2").exists
    code, output = room.run("train", "drill-2")
    assert "run drill-2 is finished: 4 steps" in output
    finished = [r for r in room.records("drill-2") if isinstance(r, Event) and r.kind == "finished"]
    assert len(finished) == 1


# Hardly trained, so that no layout's rounding decides between two tokens.
GREEDY = (
    "--set", "train.steps=2", "--set", "optim.schedule.warmup_steps=1", "--set", "optim.lr=1e-6",
    "--set", "sample.tokens=12", "--set", "sample.temperature=0", "--set", "model.layers=4",
    "--set", "model.zero_head=false",
    "--set", "evaluation.interval_steps=1", "--set", "sample.at_evaluations=true",
)  # fmt: skip


@pytest.mark.parametrize(
    ("nproc", "layout"),
    [
        (2, ("parallel.pipeline=2",)),
        pytest.param(2, ("parallel.tensor=2",), marks=pytest.mark.slow),
        pytest.param(2, ("parallel.pipeline=2", "parallel.stages_per_rank=2"),
                     marks=pytest.mark.slow),
        pytest.param(4, ("parallel.pipeline=2", "parallel.tensor=2"), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_ranks_that_have_parts_of_a_model_write_what_one_process_does(room, nproc, layout):
    written = []
    for ranks, options in ((1, ()), (nproc, layout)):
        sets = [word for option in options for word in ("--set", option)]
        code, output = room.run("train", "drill", *GREEDY, *sets, "--nproc", str(ranks), "--new")
        assert code == 0, output
        name = "drill" if ranks == 1 else "drill-2"
        samples = [r for r in room.records(name) if getattr(r, "kind", "") == "sample"]
        written.append([(sample.step, sample.data["text"]) for sample in samples])
    assert written[0] == written[1]
    assert [step for step, text in written[0] if text] == [1, 2]
