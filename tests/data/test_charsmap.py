import base64
import json
import struct

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.data.sentencepiece import Malformed, check_charsmap


def rules() -> bytes:
    """The trie of one rule, "A" → "ä": root at 256, its child's leaf at 512."""
    units = np.zeros(768, "<u4")
    units[0] = 256 << 10
    units[256 ^ ord("A")] = (256 ^ ord("A") ^ 512) << 10 | 1 << 8 | ord("A")
    units[512] = 1 << 31
    return struct.pack("<I", units.nbytes) + units.tobytes() + "ä\0".encode()


def normalized(charsmap: bytes, text: str) -> str:
    encoded = base64.b64encode(charsmap).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": encoded}
    model = {"type": "BPE", "vocab": {"x": 0}, "merges": []}
    made = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", "normalizer": normalizer, "model": model, "added_tokens": []})
    )
    return made.normalizer.normalize_str(text)


def test_rules_that_hold_are_used():
    check_charsmap(rules())
    assert normalized(rules(), "BAB") == "BäB"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "rules of 0 bytes"),
        (b"\xff\xff\xff\x7fabcd", "rules of 2,147,483,647 bytes"),
        (struct.pack("<I", 4) + bytes(4), "out of their table"),
        (rules()[:-3], "a replacement that is not there"),
        (rules()[:-3] + b"\xff\0", "not UTF-8"),
    ],
)
def test_rules_that_would_lead_astray_are_refused(content, message):
    with pytest.raises(Malformed, match=message):
        check_charsmap(content)


@settings(max_examples=300, deadline=None)
@given(
    damage=st.lists(
        st.tuples(
            st.sampled_from([0, 256 ^ ord("A"), 512]) | st.integers(0, 767),
            st.integers(0, 3),
            st.integers(0, 255),
        ),
        max_size=3,
    ),
    text=st.text("AB ä", min_size=1, max_size=4),
)
def test_what_is_let_through_never_ends_the_library(damage, text):
    content = bytearray(rules())
    for unit, byte, value in damage:
        content[4 + 4 * unit + byte] = value
    try:
        check_charsmap(bytes(content))
    except Malformed:
        return
    # A panic of the library is no Exception, and fails here.
    assert isinstance(normalized(bytes(content), text), str)
