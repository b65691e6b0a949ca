import os

import pytest

from longhaul.config.data import SourceSection
from longhaul.core.errors import DataError
from longhaul.data import sources
from longhaul.data.documents import Breakage
from longhaul.data.sources import file_stem, locate


def find(path, tmp_path, **settings):
    source = SourceSection(path=str(path), **settings)
    return locate(source, 1, tmp_path / "downloads", lambda line: None)


def read(corpus, limit=0.0):
    return [d.name for d in corpus.documents(Breakage(corpus.name, limit))]


def test_a_folder_is_read_recursively_in_sorted_order_known_files_only(tmp_path):
    folder = tmp_path / "corpus"
    for name in ("b.txt", "a/z.py", "a/.hidden.txt", "picture.png", ".git/config.txt", "s.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "c.jsonl").write_text('{"text": "x"}\n')
    assert read(find(folder, tmp_path)) == ["a/z.py", "b.txt", "c.jsonl:1"]


def test_the_identity_follows_names_sizes_and_times_and_nothing_else(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    os.utime(folder / "a.txt", ns=(1, 1))
    before = find(folder, tmp_path).identity
    (folder / "ignored.png").write_text("x")
    assert find(folder, tmp_path).identity == before
    os.utime(folder / "a.txt", ns=(1, 2))
    assert find(folder, tmp_path).identity != before


@pytest.mark.parametrize(
    ("path", "message", "advice"),
    [
        ("corpus.txt", "no such file", "corpus.text"),
        ("python-stdlb", "no such file", "built-in source python-stdlib"),
        ("nothing-like-it", "no such file", "relative paths start at"),
        ("empty", "an empty folder", ".jsonl"),
        ("pictures", "without a file that can be read (it has a.png, …)", ".txt"),
        ("lines", "rename them to .jsonl", ".jsonl"),
        ("table.xls", "no reader for this kind", "table.txt"),
        ("pipe.txt", "neither a regular file nor a folder", ".txt"),
    ],
)
def test_what_cannot_be_a_source_says_why_at_once(tmp_path, monkeypatch, path, message, advice):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.text").write_text("x")
    (tmp_path / "table.xls").write_text("a,b")
    for folder in ("empty", "pictures", "lines"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pictures/a.png").write_bytes(b"x")
    (tmp_path / "lines/a.json").write_text('{"text": "x"}')
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError) as raised:
        find(path, tmp_path)
    assert message in raised.value.message
    assert path in raised.value.message
    assert advice in raised.value.remedy


def test_broken_files_of_the_standard_library_are_no_fault_of_the_users(tmp_path, monkeypatch):
    for name, content in (("good.py", b"x = 1"), ("bad.py", b"\xff"), ("__init__.py", b"")):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr("longhaul.data.sources.stdlib_folder", lambda: tmp_path)
    assert read(find("python-stdlib", tmp_path)) == ["good.py"]


def test_installed_packages_are_known_by_their_versions(tmp_path, monkeypatch):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/m.py").write_text("x = 1")
    (tmp_path / "p-1.0.dist-info").mkdir()
    monkeypatch.setattr("longhaul.data.sources.package_folders", lambda: [tmp_path])
    before = find("python-packages", tmp_path)
    assert read(before) == ["p/m.py"]
    (tmp_path / "p-1.0.dist-info").rename(tmp_path / "p-1.1.dist-info")
    assert find("python-packages", tmp_path).identity != before.identity


def test_synthetic_follows_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_SYNTHETIC_DOCUMENTS", 3)
    corpus = find("synthetic", tmp_path)
    assert read(corpus) == ["synthetic:1", "synthetic:2", "synthetic:3"]
    other = locate(SourceSection(path="synthetic"), 2, tmp_path, lambda line: None)
    assert other.identity != corpus.identity


def test_file_stems_are_safe_and_never_hidden():
    assert file_stem("my data/ü.jsonl") == "my-data-ü.jsonl"
    assert file_stem("../..") == "source"
