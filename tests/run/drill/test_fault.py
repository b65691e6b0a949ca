import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.load import load_recipe
from longhaul.core.errors import UsageError
from longhaul.run.drill.fault import KINDS, XIDS, Fault, check_faults, parse_fault

TWO_NODES = (
    "supervise.node=[{name='A', slots=1, identity=['board:a1']}, "
    "{name='B', slots=1, identity=['board:b1']}]",
    "train.steps=30",
)
STRENGTHS = {
    "none": st.just(""),
    "seconds": st.sampled_from(["", "0", "3", "0.25", "120"]),
    "factor": st.sampled_from(["", "1.2", "3", "1.05"]),
    "whole": st.sampled_from(["", "0", "4", "31"]),
}


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(sorted(KINDS)))
    known = KINDS[kind]
    if known.takes == "word":
        strength = draw(st.sampled_from(["", *known.words]))
    elif kind == "ecc":
        strength = draw(st.sampled_from(["", *map(str, XIDS)]))
    else:
        strength = draw(STRENGTHS[known.takes])
    first = draw(st.integers(0, 10**6))
    last = draw(st.none() | st.integers(first, 10**7)) if known.lasts else None
    node = draw(st.sampled_from(["", "A", "gpu-17.rack_3"]))
    rank = draw(st.integers(0, 4095)) if not node else draw(st.none() | st.integers(0, 7))
    every = draw(st.booleans())
    attempt = None if every else draw(st.none() | st.integers(1, 99))
    return Fault(kind, first, last, rank, node, attempt, every, strength)


@settings(max_examples=200)
@given(faults())
def test_what_is_printed_is_read_back(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault
    assert str(parse_fault(str(fault))) == str(fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill@rank1:step20", Fault("kill", 20, rank=1)),
        ("kill@step20", Fault("kill", 20, rank=0)),
        ("slow:1.2@rank0:step10-60", Fault("slow", 10, 60, 0, strength="1.2")),
        ("ecc@nodeA:step5", Fault("ecc", 5, node="A")),
        (
            "exception@rank0:step9:attempt*",
            Fault("exception", 9, rank=0, in_every_attempt=True),
        ),
        ("oom:4@rank1:step2:attempt3", Fault("oom", 2, rank=1, attempt=3, strength="4")),
    ],
)
def test_a_fault_means_what_the_page_says(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kil@rank1:step20", "did you mean kill"),
        ("zzz@rank1:step20", "there are: kill, stop"),
        ("kill", "not NAME"),
        ("kill@rank1", "names no step"),
        ("kill@rank1:rank2:step3", "one rank too many"),
        ("kill@rank1:step3:yesterday", "'yesterday' is no rank, node, step or attempt"),
        ("kill@rank-1:step3", "'rank-1' is no rank"),
        ("kill@rank1:step3-9", "acts in one step"),
        ("slow@rank1:step9-3", "end before they begin"),
        ("slow:0.5@rank1:step3", "0.5 is not above 1"),
        ("slow:fast@rank1:step3", "'fast' is no number"),
        ("exception:3@rank1:step3", "exception has no strength"),
        ("cuda-error:blue@rank1:step3", "'blue' is not one of illegal-access"),
        ("bitflip-weight:32@rank1:step3", "no bit 32"),
        ("ecc:7@rank0:step3", "Xid 7 is not one of 48"),
    ],
)
def test_a_slip_is_named_with_the_way_out(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_fault(text)
    assert repr(text) in str(refused.value)
    assert why in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kill@rank2:step3", "ranks 0 to 1; --nproc"),
        ("kill@rank0:step31", "ends after step 30"),
        ("slow@rank0:step3-31", "ends after step 30"),
        ("store-gone@rank0:step3", "no remote tier"),
        ("kill@nodeC:step3", "there are: A, B"),
    ],
)
def test_what_cannot_befall_a_run_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="fault") as refused:
        check_faults([parse_fault(text)], load_recipe("drill", TWO_NODES).recipe)
    assert why in str(refused.value)


def test_what_can_befall_a_run_is_not_refused() -> None:
    texts = ("kill@rank1:step30", "store-hang@rank0:step1", "kill@nodeB:step3")
    remote = "checkpoint.remote=['/elsewhere']"
    check_faults(map(parse_fault, texts), load_recipe("drill", (*TWO_NODES, remote)).recipe)
    endless = load_recipe(
        "drill", ("train={max_hours=1.0}", "optim.schedule.shape='constant'")
    ).recipe
    check_faults([parse_fault("kill@rank0:step10000")], endless)
