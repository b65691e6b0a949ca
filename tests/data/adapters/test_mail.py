import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.data.adapters.mail import HEADERS, NOTHING_OWN, QUOTES, SIGNATURES, adapt_mail
from longhaul.data.adapters.records import Record
from longhaul.data.removed import Removed

REPLY = """\
Message-ID: <1@example.org>
From: Ada <ada@example.org>
To: crew@example.org
Subject: Re: [crew] The
 bridge

On Monday, 3 May 1999, Bruno <bruno@example.org>
wrote:
> When is it done?
> > It never is.

Next week, if the wood comes.

Bruno wrote:
> And the paint?

Green.

--\x20
Ada, builder of bridges
_______________________________________________
crew mailing list
"""


def adapted(*texts, name="mail.jsonl:{}"):
    removed = Removed()
    records = (Record(name.format(n), {"text": text}, "text") for n, text in enumerate(texts, 1))
    return [made.document for made in adapt_mail(records, removed)], removed


def test_what_the_writer_wrote_is_left_under_the_subject():
    (document,), removed = adapted(REPLY)
    assert document.text == "Re: [crew] The bridge\n\nNext week, if the wood comes.\n\n\nGreen.\n"
    assert removed.documents == 0
    assert removed.reasons[HEADERS].examples[0][1].startswith("Message-ID: <1@")
    quoted = removed.reasons[QUOTES].examples[0][1]
    assert quoted.startswith("On Monday, 3 May 1999, Bruno <bruno@example.org>\nwrote:\n> When is")
    assert "mailing list" in removed.reasons[SIGNATURES].examples[0][1]


@pytest.mark.parametrize(
    "reply",
    [
        "Yes.\n\n-----Original Message-----\nFrom: Bruno\nSent: Monday\n\nCan you?\n",
        "Yes.\n\nFrom: Bruno\nSent: Monday\nTo: Ada\nSubject: Boat\n\nCan you?\n",
        "Yes.\n\n____________________________\ncrew mailing list\nhttp://example.org/listinfo\n",
        "From: a@example.org\nContent-Type: multipart/alternative; boundary=B\n\n--B\n"
        "Content-Type: text/html\n\n<p>No.</p>\n--B\nContent-Type: text/plain\n\nYes.\n--B--\n",
        "From: a@example.org\nContent-Transfer-Encoding: base64\n\nWWVzLg==\n",
        "From: a@example.org\nContent-Type: text/html\n\n<div><p>Yes.</p></div>\n",
    ],
)
def test_forwards_footers_and_parts_leave_the_reply(reply):
    (document,), _ = adapted(reply)
    assert document.text.strip() == "Yes."


def test_letters_beyond_ascii_stay_what_they_were_read_as():
    body = "Grüße aus Škofja Loka – \\u00fc ist kein ü.\n"
    plain = f"From: a@example.org\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\n\n{body}"
    (document,), _ = adapted(plain)
    assert document.text == f"Grüße\n\n{body}"
    quoted = (
        "From: a@example.org\nContent-Type: text/plain; charset=iso-8859-1\n"
        "Content-Transfer-Encoding: quoted-printable\n\nGr=FC=DFe\n"
    )
    assert adapted(quoted)[0][0].text == "Grüße\n"


def test_an_archive_is_cut_into_its_messages_also_across_pieces_of_its_file():
    envelope = "From ada at example.org  Mon May  3 10:00:00 1999\n"
    first, second = f"{envelope}Subject: one\n\nFirst.\n\n", f"{envelope}Subject: two\n\nSecond.\n"
    documents, _ = adapted(first + second[:60], second[60:], name="1999-May.txt#{}")
    assert [(d.name, d.text) for d in documents] == [
        ("1999-May.txt/1", "one\n\nFirst.\n"),
        ("1999-May.txt/2", "two\n\nSecond.\n"),
    ]


def test_a_message_of_nothing_but_quotes_goes():
    documents, removed = adapted("> All that was said.\n")
    assert documents == []
    assert removed.reasons[NOTHING_OWN].documents == 1


@given(st.text())
def test_no_mail_however_broken_ends_the_reading(text):
    adapted(text, f"From: x\nContent-Transfer-Encoding: base64\n\n{text}", f"Subject: {text}\n\nx")
