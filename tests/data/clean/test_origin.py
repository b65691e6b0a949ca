import pytest

from longhaul.core.errors import RecipeError
from longhaul.data.clean.origin import Scripts, count_scripts, host_of, read_domains
from longhaul.data.documents import Document


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("Ada, née 1815", {"latin": 6}),
        ("Ада и Ada", {"cyrillic": 4, "latin": 3}),
        ("日本語のテスト", {"han": 3, "hiragana": 1, "katakana": 3}),
        ("한국어 ＡＢ", {"hangul": 3, "latin": 2}),
        ("שלום 123 …", {"hebrew": 4, "latin": 0}),
    ],
)  # fmt: skip
def test_letters_are_counted_by_script(text, counts):
    assert {k: v for k, v in count_scripts(text).items() if v} == {
        k: v for k, v in counts.items() if v
    }


def test_too_few_letters_of_the_scripts_asked_for():
    latin = Scripts(frozenset({"latin"}), 0.8)
    assert latin.reason("abcdefgh ди") is None
    assert latin.reason("abcdefg дии") == "scripts: cyrillic"
    assert Scripts(frozenset({"latin", "cyrillic"}), 0.8).reason("abc дии") is None
    assert latin.reason("123 — 456") is None


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "domains.txt"
    path.write_text("# chosen by hand\nexample.com\nSpam.Example.org  # worse\n\n")
    return path


@pytest.mark.parametrize(
    ("url", "is_listed"),
    [
        ("https://example.com/page", True),
        ("https://www.EXAMPLE.com:8080/?q=1", True),
        ("example.com/page", True),
        ("https://notexample.com/", False),
        ("https://example.com.evil.net/", False),
        ("https://example.org/spam", False),
        ("https://a.b.spam.example.org/", True),
    ],
)
def test_a_domain_stands_for_all_below_it(lists, url, is_listed):
    document = Document("text", "web.jsonl:1", url)
    blocked = read_domains(lists, blocks=True).reason(document)
    allowed = read_domains(lists, blocks=False).reason(document)
    assert (blocked is not None, allowed is not None) == (is_listed, not is_listed)


def test_a_document_without_an_address_stays():
    assert host_of(Document("text", "books.txt")) == ""
    assert host_of(Document("text", "https://example.com/named")) == "example.com"
    assert host_of(Document("text", "x", "http://[broken")) == ""


def test_a_list_that_is_none_is_refused(tmp_path, lists):
    assert read_domains(lists, blocks=True).reason(Document("text", "books.txt")) is None
    with pytest.raises(RecipeError, match=r"allowed_domains: .*none\.txt cannot be read"):
        read_domains(tmp_path / "none.txt", blocks=False)
    lists.write_text("# nothing\n")
    with pytest.raises(RecipeError, match="has no domain in it"):
        read_domains(lists, blocks=True)
