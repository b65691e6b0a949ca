import pytest

from longhaul.core import addresses
from longhaul.core.addresses import (
    forget_addresses,
    holds_a_secret,
    scrubbed,
    sealed,
    sealed_values,
    unsealed,
    without_secrets,
)
from longhaul.core.errors import UsageError


@pytest.fixture(autouse=True)
def fresh():
    forget_addresses()
    yield
    forget_addresses()


@pytest.mark.parametrize(
    ("whole", "kept", "shown"),
    [
        ("http://anna:pass@h:80/a.txt", "http://***@h:80/a.txt", "http://h:80/a.txt"),
        ("https://h/a?sig=XYZW&x=1", "https://h/a?sig=***&x=***", "https://h/a"),
        ("https://token@h/a", "https://***@h/a", "https://h/a"),
        ("https://h/a?bare-token", "https://h/a?***", "https://h/a"),
        ("https://h/a#access=XYZW", "https://h/a#access=***", "https://h/a"),
        ("https://u:a/b@c@h/a", "https://***@h/a", "https://h/a"),
        ("zip://*.csv::https://u:pass@h/f.zip", "zip://*.csv::https://***@h/f.zip",
         "zip://*.csv::https://h/f.zip"),
        ("http://[::1]:80/a", "http://[::1]:80/a", "http://[::1]:80/a"),
        ("s3://bucket/data-??.txt", "s3://bucket/data-??.txt", "s3://bucket/data-??.txt"),
        ("abfs://box@account/a", "abfs://box@account/a", "abfs://box@account/a"),
        ("/a/folder?sig=x", "/a/folder?sig=x", "/a/folder?sig=x"),
    ],
)  # fmt: skip
def test_secrets_are_taken_out_and_come_back(whole, kept, shown):
    assert sealed(whole) == kept
    assert sealed(kept) == kept
    assert without_secrets(whole) == without_secrets(kept) == shown
    assert unsealed(kept) == whole
    assert unsealed(f"{kept}/more" if "?" not in kept and "#" not in kept else kept)


def test_addresses_that_differ_in_their_secrets_only_stay_two():
    one, two = sealed("https://h/a?id=1"), sealed("https://h/a?id=2")
    assert one != two
    assert (unsealed(one), unsealed(two)) == ("https://h/a?id=1", "https://h/a?id=2")


def test_a_started_process_knows_them_by_its_environment(monkeypatch):
    kept = sealed("https://u:pass@h/a")
    addresses._whole.clear()  # as in a process that has just begun
    assert unsealed(kept) == "https://u:pass@h/a"


def test_what_is_not_known_is_asked_for_by_name():
    with pytest.raises(UsageError, match=r"https://h/a\?*: its password or signature is needed"):
        unsealed("https://***@h/a?sig=***")


def test_a_reference_is_no_secret_and_is_taken_from_the_environment(monkeypatch):
    address = "https://anna:${LH_PW}@h/a?${LH_QUERY}"
    assert sealed(address) == address
    monkeypatch.setenv("LH_PW", "pass")
    with pytest.raises(UsageError, match="no variable LH_QUERY"):
        unsealed(address)
    monkeypatch.setenv("LH_QUERY", "sv=1&sig=x")
    assert unsealed(address) == "https://anna:pass@h/a?sv=1&sig=x"


def test_a_message_loses_a_password_that_a_library_took_out_of_its_address():
    sealed("https://anna:p%40ssword@h/a")
    said = scrubbed("401 for https://anna:p%40ssword@h/a with BasicAuth('anna', 'p@ssword')")
    assert said == "401 for https://h/a with BasicAuth('anna', '***')"


def test_every_text_of_a_recipe_is_sealed():
    given = {"a": [{"path": "https://u:pass@h/a"}], "b": ("curl https://h/x?k=secret | sh",)}
    kept = sealed_values(given)
    assert kept == {"a": [{"path": "https://***@h/a"}], "b": ("curl https://h/x?k=*** | sh",)}
    assert holds_a_secret("pass")
    assert not holds_a_secret(str(kept))
    assert unsealed(kept["b"][0], references=False) == given["b"][0]
