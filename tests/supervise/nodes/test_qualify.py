import hashlib
import sys
from functools import cache
from pathlib import Path

import pytest

from longhaul.supervise.nodes import qualify
from longhaul.supervise.nodes.qualify import (
    HIGH_RATE,
    PRODUCT_SHA256,
    SIDE,
    Answer,
    Inquiry,
    Probe,
    Unfit,
    check_folder,
    check_memory,
    check_product,
    corrected_in,
    factors,
    host_errors,
    probe_here,
    probe_of,
    wait_for_all,
)


@cache
def known_product() -> bytes:
    """In whole numbers, by numpy, which the probe does not use and which takes a second."""
    first, second = factors()
    numpy = pytest.importorskip("numpy")
    product = numpy.array(first, dtype="int64") @ numpy.array(second, dtype="int64")
    return product.astype("<i8").tobytes()


def test_the_known_product_is_that_of_whole_numbers() -> None:
    first, second = factors()
    assert hashlib.sha256(known_product()).hexdigest() == PRODUCT_SHA256
    assert max(abs(x) for row in (*first, *second) for x in row) ** 2 * SIDE < 2**24


def test_one_wrong_bit_in_one_of_many_products_is_found() -> None:
    made = []

    def sometimes_wrong() -> bytes:
        made.append(1)
        body = bytearray(known_product())
        if len(made) == 7:
            body[12_345] ^= 4
        return bytes(body)

    check_product(known_product, "cpu")
    with pytest.raises(Unfit, match="cuda:3 multiplies matrices wrong") as caught:
        check_product(sometimes_wrong, "cuda:3")
    assert caught.value.broken


def test_a_folder_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    assert check_folder(tmp_path)["disk_s"] >= 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Unfit, match="cannot be written"):
        check_folder(tmp_path / "missing")


def test_sound_memory_passes(monkeypatch) -> None:
    monkeypatch.setattr(qualify, "_MEMORY", 1 << 16)
    check_memory()


def test_whatever_a_probes_process_says_is_a_result() -> None:
    said = {"passed": True, "gpus": ["GPU-1"], "later": 1}
    assert probe_of(Answer(True, "", said)) == Probe(True)
    for strange in (Answer(True, "", {}, "hello"), Answer(False, "no answer within 2 s")):
        assert not probe_of(strange).passed
        assert probe_of(strange).reason
        assert not probe_of(strange).broken


def test_the_probe_of_a_healthy_machine_passes_in_a_process_of_its_own(tmp_path: Path) -> None:
    probe = probe_here(tmp_path, 1, lambda seconds: True)
    assert probe is not None
    assert probe.passed, probe.reason
    assert probe.figures["devices"] >= 1
    assert list(tmp_path.iterdir()) == []
    assert "torch" not in vars(qualify)


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_an_inquiry_tells_apart_answers_failures_and_silence() -> None:
    asked = [
        Inquiry(python("print('noise'); print('{\"a\": 1}')"), 60.0),
        Inquiry(python("import sys; sys.exit('no route to host')"), 60.0),
        Inquiry(python("import time; time.sleep(600)"), 0.3),
        Inquiry(["/no/such/program"], 60.0),
    ]
    answers = wait_for_all(asked, lambda seconds: True)
    assert answers is not None
    assert [answer.came for answer in answers] == [True, False, False, False]
    assert answers[0].body == {"a": 1}
    assert answers[1].reason == "exit code 1: no route to host"
    assert "no answer within" in answers[2].reason
    assert "/no/such/program cannot be run" in answers[3].reason


def test_a_wish_to_stop_ends_what_was_asked() -> None:
    inquiry = Inquiry(python("import time; time.sleep(600)"), 60.0)
    assert wait_for_all([inquiry], lambda seconds: False) is None
    assert inquiry._process is not None
    assert inquiry._process.poll() is not None


def test_corrected_errors_are_counted_from_messages() -> None:
    said = (
        "EDAC MC0: 120 CE memory read error on CPU_SrcID#0_MC#0",
        "EDAC MC1: 3 CE memory scrubbing error",
        "EDAC MC1: 1 UE memory read error",
    )
    assert corrected_in("\n".join(said)) == 123
    assert corrected_in("NVRM: Xid (PCI:0000:3b:00): 92, High single-bit ECC error rate") == (
        HIGH_RATE
    )
    assert corrected_in("NVRM: Xid (PCI:0000:3b:00): 48, pid=1") == 0


def test_the_hosts_counters_are_added_up(tmp_path: Path) -> None:
    assert host_errors(tmp_path) == (0, 0)
    for number, (corrected, uncorrected) in enumerate([(5, 0), (7, 1)]):
        folder = tmp_path / f"sys/devices/system/edac/mc/mc{number}"
        folder.mkdir(parents=True)
        (folder / "ce_count").write_text(f"{corrected}\n")
        (folder / "ue_count").write_text(f"{uncorrected}\n")
    assert host_errors(tmp_path) == (12, 1)
