from pathlib import Path

import pytest

from longhaul.core.errors import RecipeError
from longhaul.supervise.causes import (
    Death,
    classify,
    first_cause,
    last_message,
    load_signatures,
    of_device,
    shape_of,
)

KNOWN = load_signatures()
TRACE = "Traceback (most recent call last):\n  File 'x.py', line 3, in f\n"
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=71, Ch 00000008"


@pytest.mark.parametrize(
    ("death", "cause", "remedy"),
    [
        (Death(0, -9), "killed", "restart"),
        (Death(0, -9, kernel="Out of memory: Killed process 71 (python)"),
         "out-of-host-memory", "restart"),
        (Death(0, 16, "longhaul: rank 0 of 2 waited for the others (control), and not all of them "
         "came: timed out"), "collective-failed", "restart"),
        (Death(0, -11), "crash", "restart"),
        (Death(0, -7), "bus-error", "restart"),
        (Death(0, 2), "recipe-wrong", "stop"),
        (Death(0, 3), "data-wrong", "stop"),
        (Death(0, 17), "needs-person", "stop"),
        (Death(0, 17, "longhaul: the device ran out of memory: tried to allocate"),
         "out-of-memory", "stop"),
        (Death(0, 1, TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried"),
         "out-of-memory", "stop"),
        (Death(0, 1, TRACE + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
         "`cublasCreate(handle)`"), "out-of-memory", "stop"),
        (Death(0, 1, TRACE + "torch.AcceleratorError: CUDA error: out of memory"),
         "out-of-memory", "stop"),
        (Death(0, 17, "longhaul: rank 1 ran out of page-locked host memory at step 3: nothing"),
         "out-of-memory", "stop"),
        (Death(0, 16, "longhaul: rank 1 ran out of device memory at step 3: logits grew most; the "
         "next attempt computes 4 sequences at once"), "out-of-memory", "restart"),
        (Death(0, 16, "longhaul: rank 1 ran out of device memory at step 3 in an evaluation: …; "
         "the next attempt evaluates 1 sequence at once"), "out-of-memory", "restart"),
        (Death(0, 1, TRACE + "RuntimeError: CUDA error: an illegal memory access"),
         "cuda-error", "probe"),
        (Death(0, 1, TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
         "ecc-uncorrectable", "cordon"),
        (Death(0, 1, TRACE + "RuntimeError: CUDA error: unknown error", XID.format(79)),
         "gpu-lost", "cordon"),
        (Death(0, 1, TRACE + "ModuleNotFoundError: No module named 'torch'"),
         "software-missing", "stop"),
        (Death(0, 1, TRACE + "OSError: [Errno 28] No space left on device"), "disk-full", "stop"),
        (Death(0, 1, TRACE + "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed "
         "by peer [127.0.0.1]:9"), "collective-failed", "restart"),
    ],
)  # fmt: skip
def test_what_happened_to_others_is_recognised(death, cause, remedy) -> None:
    found = classify(death, KNOWN)
    assert (found.name, found.remedy) == (cause, remedy)


def test_what_a_rank_had_only_warned_of_is_not_its_cause() -> None:
    for warning in (
        "WARNING: the batch of step 7 could not be saved: [Errno 28] No space left on device",
        "WARNING: step-20 is not in s3://b/run yet: ConnectError: Connection refused; it is sent",
    ):
        text = f"{warning}\nstep 9  loss 3.1\n"
        cause = classify(Death(0, -9, text), KNOWN)
        assert (cause.name, cause.remedy, cause.consequence) == ("killed", "restart", False)
        cause = classify(Death(0, 1, f"{text}{TRACE}ValueError: no"), KNOWN)
        assert (cause.name, cause.consequence) == ("unknown: ValueError: no", False)


@pytest.mark.parametrize(
    "chosen",
    ["evaluation: 4 sequences", "micro-batch: 4 sequences of 16", "segment 1.01: restart: 4",
     "step     12  cause: 4"],
)  # fmt: skip
def test_what_an_earlier_attempt_ran_out_of_is_not_what_this_one_died_of(chosen) -> None:
    """Rank 0 says at its start why fewer are computed at once, and then loses another rank."""
    said = f"{chosen} at once; rank 1 ran out of device memory at step 2: nothing had grown\n"
    lost = "longhaul: rank 0 of 2 waited for the others (training), and not all of them came"
    cause = classify(Death(0, 16, said + lost), KNOWN)
    assert (cause.name, cause.remedy) == ("collective-failed", "restart")


def test_a_signal_without_a_name_is_a_death_like_any_other() -> None:
    cause = classify(Death(0, -40), KNOWN)
    assert (cause.name, cause.words) == ("unknown: SIG40", "SIG40")


def test_the_same_unknown_trouble_is_counted_together() -> None:
    said = "RuntimeError: shape [{0}, 4] at 0x7f{0}a of /tmp/run-{0}/x.bin is invalid"
    first, second = (classify(Death(0, 1, TRACE + said.format(n)), KNOWN) for n in (12, 4711))
    assert first.name == second.name
    assert first.name.startswith("unknown: RuntimeError: shape [N, N]")
    assert first.message == said.format(12), "people are shown what it said"
    another = classify(Death(0, 1, TRACE + "ValueError: no"), KNOWN)
    assert another.name != first.name
    assert classify(Death(0, 5), KNOWN).name == "unknown: exit code 5"


def test_the_cause_of_a_groups_end_is_the_first_death_that_no_other_one_led_to() -> None:
    lost = "RuntimeError: Connection reset by peer"
    deaths = [
        Death(0, 1, lost, ended=1.0),
        Death(1, 1, "ValueError: the culprit", ended=1.4),
        Death(2, 1, lost, ended=1.1),
    ]
    assert first_cause(deaths, KNOWN).rank == 1
    assert first_cause([deaths[2], deaths[0]], KNOWN).rank == 0, "the earliest where all are"


def test_last_words_are_the_exceptions_not_the_chatter_after_it() -> None:
    text = TRACE + "ValueError: bad thing\nsys:1: ResourceWarning: unclosed file\n\n"
    assert last_message(text) == "ValueError: bad thing"
    assert last_message("just this\n\n") == "just this"
    assert last_message("") == ""


def test_a_users_signatures_come_first_and_may_be_about_one_device(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "format = 1\n[[signature]]\ncause = 'flaky-link'\nremedy = 'cordon'\n"
        "text = 'illegal memory access'\ndevice = 'H200'\n"
    )
    signatures = load_signatures(str(own))
    death = Death(0, 1, "RuntimeError: CUDA error: an illegal memory access")
    assert classify(death, of_device(signatures, "NVIDIA H200")).name == "flaky-link"
    assert classify(death, of_device(signatures, "NVIDIA A100")).name == "cuda-error"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("format = 2", "format 2 is not 1"),
        ("format = 1\n[[signature]]\nremedy = 'stop'\nexit = [1]", "cause: is required"),
        ("format = 1\n[[signature]]\ncause = 'x'\nremedy = 'pray'\nexit = [1]", "'pray' is not"),
        ("format = 1\n[[signature]]\ncause = 'x'\nremedy = 'stop'", "it fits everything"),
        ("format = 1\n[[signature]]\ncause = 'x'\nremedy = 'stop'\ntext = '('", "no regular"),
        ("format = 1\n[[signature]]\ncause = 'x'\nremedy = 'stop'\ntex = 'a'", "tex: unknown"),
        ("format = ", "not TOML"),
        ("format = 1\n[signature]\ncause = 'x'", "no list of tables"),
        ("format = 1\n[[signature]]\ncause = 'x'\nremedy = 'stop'\nexit = 16", "exit: 16 is not a"),
        (
            "format = 1\n[[signature]]\ncause = 'x'\nremedy = 'stop'\nsignal = 'SIGBUS'",
            "signal: 'SIGBUS' is not a list",
        ),
        (
            "format = 1\n[[signature]]\ncause = 'x'\nremedy = 'stop'\nsignal = ['kill']",
            "by their names",
        ),
        ("format = 1\n[[signature]]\ncause = 3\nremedy = 'stop'\nexit = [1]", "cause: 3 is not a"),
    ],
)
def test_a_signature_that_makes_no_sense_is_refused(tmp_path: Path, text, told) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(RecipeError) as refused:
        load_signatures(str(own))
    assert told in str(refused.value)
    assert "own.toml" in str(refused.value)


def test_what_is_known_of_one_device_is_not_asked_on_another(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'format = 1\n[[signature]]\ncause = "odd"\nmeaning = "an odd word"\nremedy = "cordon"\n'
        'kernel = "odd"\ndevice = "H100"\n'
    )
    known = load_signatures(str(own))
    assert of_device(known, "NVIDIA H100 80GB HBM3") == list(known)
    assert of_device(known, "NVIDIA A100") == of_device(known, "") == list(KNOWN)


def test_a_shape_keeps_words_and_drops_what_varies() -> None:
    assert shape_of("step 17 at /a/b.c: 0xdeadbeef 1.5e-3") == "step N at /…: … N"
