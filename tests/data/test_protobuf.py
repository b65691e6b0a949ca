import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.data.sentencepiece import Malformed, as_float, as_int, as_text, fields


def parsed(content: bytes) -> list:
    return [(n, v if isinstance(v, int) else bytes(v)) for n, v in fields(memoryview(content))]


def test_the_examples_of_the_documentation():
    assert parsed(b"\x08\x96\x01") == [(1, 150)]
    assert parsed(b"\x12\x07testing") == [(2, b"testing")]
    assert parsed(b"\x0d\x00\x00\x80\x3f") == [(1, b"\x00\x00\x80\x3f")]
    assert as_float(memoryview(b"\x00\x00\x80\x3f")) == 1.0
    assert as_int(parsed(b"\x08" + b"\xff" * 9 + b"\x01")[0][1]) == -1
    assert as_text(memoryview("▁the".encode())) == "▁the"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x08", "within a number"),
        (b"\x08" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x12\xff\xff\xff\xff\x0fab", "a field of 4,294,967,295 bytes, 2 before the end"),
        (b"\x0d\x00", "a field of 4 bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x01", "field number 0"),
    ],
)
def test_what_is_no_message_is_said_to_be_none(content, message):
    with pytest.raises(Malformed, match=message):
        parsed(content)


def test_a_field_of_another_type_is_refused():
    for read, value in ((as_text, 1), (as_int, memoryview(b"a")), (as_float, memoryview(b"abc"))):
        with pytest.raises(Malformed):
            read(value)
    with pytest.raises(Malformed, match="not UTF-8"):
        as_text(memoryview(b"\xff"))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_malformed(content):
    try:
        found = parsed(content)
    except Malformed:
        return
    assert sum(len(value) for _, value in found if isinstance(value, bytes)) <= len(content)
