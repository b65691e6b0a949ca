import hashlib

from longhaul.config.data import SourceSection
from longhaul.data import sources
from longhaul.data.sources import locate, synthetic_documents


def test_the_standard_library_is_found_from_a_virtual_environment_without_its_packages(tmp_path):
    found = locate(SourceSection(path="python-stdlib"), 1, tmp_path, lambda line: None)
    files = [name for name, _ in found.identity["files"]]
    assert "os.py" in files
    assert "json/decoder.py" in files
    assert not any("-packages/" in path for path in files)
    assert files == sorted(files, key=lambda path: path.split("/"))


def test_synthetic_text_is_a_pure_function_of_the_seed(monkeypatch):
    monkeypatch.setattr(sources, "_SYNTHETIC_DOCUMENTS", 20)

    def digest(seed):
        return hashlib.sha256("".join(d.text for d in synthetic_documents(seed)).encode())

    assert digest(1).digest() == digest(1).digest() != digest(2).digest()
    # The same on every machine and Python version: prepared data is shared between them.
    assert digest(1337).hexdigest()[:16] == "37f0f2f5aec935f4"


def test_synthetic_documents_differ_and_their_sums_are_right():
    documents = list(synthetic_documents(7))
    assert len({d.text for d in documents}) == len(documents) == 2_000
    assert 2e6 < sum(len(d.text) for d in documents) < 8e6
    for line in documents[0].text.splitlines():
        if "counts:" in line:
            a, _, b, _, total = line.rstrip(".").split("counts: ")[1].split()
            assert int(a) + int(b) == int(total)
