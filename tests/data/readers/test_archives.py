import gzip
import io
import json
import tarfile

import pytest

from longhaul.data.documents import Breakage
from longhaul.data.readers import read_file


def read(path, text_field="text"):
    breakage = Breakage("test", 1.0)
    found = [(d.name, d.text) for d in read_file(path, path.name, text_field, breakage)]
    return found, breakage


def write_tar(path, **members):
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_a_sample_is_its_text_or_the_field_of_its_json(tmp_path):
    write_tar(tmp_path / "a.tar", **{
        "x/1.jpg": b"\xff\xd8", "x/1.txt": b"a caption", "x/1.json": b'{"width": 3}',
        "x/2.json": json.dumps({"text": "of JSON", "url": "…"}).encode(),
        "x/3.png": b"\x89PNG",
        "x/4.txt": b" \n",
    })  # fmt: skip
    found, breakage = read(tmp_path / "a.tar")
    assert found == [("a.tar:x/1.txt", "a caption"), ("a.tar:x/2.json", "of JSON")]
    assert (breakage.num_broken, breakage.num_empty, breakage.num_without_text) == (0, 1, 1)
    assert "1 without text left out (such as a.tar:x/3.png)" in breakage.summary()


def test_a_broken_member_is_named_and_skipped(tmp_path):
    write_tar(tmp_path / "a.tar", **{
        "1.json": b'{"body": "x"}', "2.json": b"{", "3.txt": b"caf\xe9", "4.txt": b"fine",
    })  # fmt: skip
    found, breakage = read(tmp_path / "a.tar")
    assert found == [("a.tar:4.txt", "fine")]
    assert breakage.num_broken == 3
    shown = "\n".join(breakage.worst())
    assert "1.json: no field 'text'" in shown
    assert "2.json: not JSON" in shown
    assert "3.txt: not UTF-8" in shown


@pytest.mark.parametrize("cut", [10_300, 20_580, 30_000])
def test_a_truncated_tar_keeps_what_is_whole_and_counts_by_its_bytes(tmp_path, cut):
    write_tar(tmp_path / "a.tar", **{f"{n}.txt": b"word " * 2000 for n in range(5)})
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(content[: cut + 1])
    found, breakage = read(tmp_path / "a.tar")
    assert len(found) == cut // 10_752
    assert breakage.fraction == 1, "how much is missing is unknown"
    assert "a.tar" in breakage.worst()[0]
    assert "so all of it counts" in breakage.worst()[0]


def test_what_is_no_tar_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"no tar at all " * 1000)
    assert "cannot be read as a tar" in read(tmp_path / "a.tar")[1].worst()[0]


PAGE = """<!doctype html><html><head><title>T</title><meta charset="utf-8"><script>var x = 1 < 2;
</script></head><body><h1>Caf&eacute;</h1><p>One   line
of text, <b>bold</b> &amp; plain.</p><ul><li>first<li>second</ul><style>p {}</style>
<pre>  kept   as is
</pre><table><tr><td>a</td><td>b</td></tr></table></body></html>"""
SHOWN = "Café\n\nOne line of text, bold & plain.\n\nfirst\nsecond\n\n  kept   as is\n\na\tb\n"


def write_warc(path, *records, gz=True):
    """Each record a gzip member of its own, as crawlers write them (WARC 1.0, annex A)."""
    whole = b""
    for kind, content, content_type, status in records:
        if kind == "response":
            content = (
                f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n\r\n".encode() + content
            )
            content_type = "application/http; msgtype=response"
        head = (
            f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a.example/\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        record = head.encode() + content + b"\r\n\r\n"
        whole += gzip.compress(record) if gz else record
    path.write_bytes(whole)


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc"])
def test_pages_of_a_crawl_are_their_text_and_all_else_is_counted(tmp_path, name):
    html = "text/html; charset=utf-8"
    write_warc(
        tmp_path / name,
        ("response", PAGE.encode(), html, "200 OK"),
        ("response", b"\x89PNG", "image/png", "200 OK"),
        ("response", b"moved", html, "301 Moved"),
        ("response", "plain ß".encode("latin-1"), "text/plain; charset=ISO-8859-1", "200 OK"),
        ("response", b"<p>caf\xe9", "text/html", "200 OK"),
        gz=name.endswith(".gz"),
    )
    found, breakage = read(tmp_path / name)
    assert found == [(f"{name}:1", SHOWN), (f"{name}:4", "plain ß")]
    assert breakage.num_without_text == 2
    assert f"{name}:5: a page that names no encoding and is not UTF-8" in breakage.worst()[0]


def test_text_that_was_extracted_already_is_as_it_is(tmp_path):
    text = "A page\n  and <b>its</b> text\n"
    write_warc(tmp_path / "a.wet.gz", ("conversion", text.encode(), "text/plain", ""))
    assert read(tmp_path / "a.wet.gz")[0] == [("a.wet.gz:1", text)]


def test_a_truncated_crawl_keeps_what_is_whole_and_counts_by_its_bytes(tmp_path):
    records = [("conversion", f"page {n} ".encode() * 500, "text/plain", "") for n in range(20)]
    write_warc(tmp_path / "a.wet", *records, gz=False)
    content = (tmp_path / "a.wet").read_bytes()[:-3000]
    for name, kept in (("a.wet", content), ("a.wet.gz", gzip.compress(content)[:-100])):
        (tmp_path / name).write_bytes(kept)
        found, breakage = read(tmp_path / name)
        assert 5 < len(found) < 20
        assert breakage.fraction == 1
        assert "was truncated" in breakage.worst()[0]


def test_a_crawl_that_ends_in_a_picture_is_truncated_too(tmp_path):
    page = ("conversion", b"a page", "text/plain", "")
    write_warc(
        tmp_path / "a.warc", page, ("response", b"\x89PNG" * 500, "image/png", "200 OK"), gz=False
    )
    content = (tmp_path / "a.warc").read_bytes()
    assert read(tmp_path / "a.warc")[1].fraction == 0
    (tmp_path / "a.warc").write_bytes(content[:-300])
    found, breakage = read(tmp_path / "a.warc")
    assert found == [("a.warc:1", "a page")]
    assert breakage.fraction == 1
