import pytest

from longhaul.data.clean.masks import mask_addresses, mask_secrets

# Put together here, so that nobody's search for secrets finds them in this file.
TOKENS = [
    "AKIA" + "ABCDEFGH12345678",
    "AIza" + "b" * 35,
    "ghp_" + "a1" * 18,
    "github_pat_" + "a1" * 30,
    "glpat-" + "a1" * 10,
    "xoxb-" + "123456789012-abc",
    "sk_live_" + "a1" * 12,
    "sk-" + "a1" * 24,
    "sk-ant-" + "a1" * 20,
    "hf_" + "a" * 34,
    "npm_" + "a1" * 18,
    "pypi-AgE" + "a1" * 40,
    "eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + "." + "SflKxwRJSMeKKF2QT4",
]


@pytest.mark.parametrize("token", TOKENS, ids=[token[:8] for token in TOKENS])
def test_keys_of_known_services_are_masked(token):
    masked, count = mask_secrets(f"TOKEN={token}, and more")
    assert count == 1
    assert masked.startswith("TOKEN=")
    assert masked.endswith("<KEY>, and more")
    assert token[-8:] not in masked


def test_private_keys_and_quoted_passwords_are_masked():
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\nAAKCAQEA\n-----END RSA PRIVATE KEY-----"
    assert mask_secrets(f"a\n{key}\nb") == ("a\n<KEY>\nb", 1)
    assert mask_secrets("password = 'hunter2hunter2'") == ("password = '<KEY>'", 1)
    assert mask_secrets('"api_key": "0123456789abcdef"') == ('"api_key": "<KEY>"', 1)


@pytest.mark.parametrize(
    "text",
    [
        "task-management-of-something-with-a-very-long-name-in-2024",
        "password = 'your-password-here'",
        "the token is read from the environment",
        "sk-learn is scikit-learn; ghp_short; hf_hub_download",
        "xox" + " and eyJ",
        "secret = os.environ['SECRET_TOKEN_1234567']",
    ],
)
def test_what_only_looks_like_one_stays(text):
    assert mask_secrets(text) == (text, 0)


def test_mail_addresses_and_public_addresses_of_machines_are_masked():
    text = "Ask <ada.l+x@mail.example.org>, or 8.8.8.8:53. Ada@example.com!"
    assert mask_addresses(text) == ("Ask <<EMAIL>>, or <IP_ADDRESS>:53. <EMAIL>!", 3)


@pytest.mark.parametrize(
    "text",
    [
        "localhost is 127.0.0.1, the router 192.168.1.1, 10.0.0.7",
        "version 4.18.2.1, v1.2.3.4",
        "section 8.8.8.8.8 and 999.8.8.8",
        "@property\ndef f(x): ...  # mail me @ home; a@b",
        "git@github",
    ],
)
def test_numbers_and_signs_that_are_no_address_stay(text):
    assert mask_addresses(text) == (text, 0)
