import bz2
import gzip
import io
import lzma

import pytest

from longhaul.data.readers.streams import FileStream, bounded_lines


@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress, lzma.compress, bz2.compress])
def test_content_is_unpacked_by_its_first_bytes_whatever_its_name(tmp_path, pack):
    (tmp_path / "a.txt").write_bytes(pack(b"one\ntwo\n"))
    with FileStream(tmp_path / "a.txt") as opened:
        assert opened.stream.read() == b"one\ntwo\n"


def test_lines_up_to_the_limit_come_whole_and_longer_ones_as_none():
    stream = io.BytesIO(b"12345\n123456\n1\n" + b"x" * 1000 + b"\n12345")
    assert list(bounded_lines(stream, 5)) == [b"12345\n", None, b"1\n", None, b"12345"]


def test_an_over_long_line_without_end_is_one_none():
    assert list(bounded_lines(io.BytesIO(b"x" * 1_000_000), 5)) == [None]
