"""Credentials as they are made: unlike each other, found by scanners, and never shown by accident."""

import hashlib
import re

import pytest

from switchboard.errors import CredentialInvalid
from switchboard.ledger.credentials import STARTS, Kind, digest_of, mint, same
from switchboard.redact import MASK, redact

KINDS: list[Kind] = ["endpoint", "session"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_has_the_form_that_a_scanner_can_look_for(kind: Kind) -> None:
    assert re.fullmatch(rf"{STARTS[kind]}[0-9A-Za-z]{{43}}", mint(kind).plaintext)


def test_the_forms_begin_as_documented() -> None:
    assert STARTS == {"endpoint": "swb_", "session": "swbs_"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_its_sha256_and_its_beginning(kind: Kind) -> None:
    minted = mint(kind)
    assert minted.digest == hashlib.sha256(minted.plaintext.encode()).digest() == digest_of(kind, minted.plaintext)
    assert minted.prefix == minted.plaintext[: len(STARTS[kind]) + 8]


def test_no_two_are_alike_and_every_character_is_drawn() -> None:
    secrets = [mint("endpoint").plaintext.removeprefix("swb_") for _ in range(2000)]
    assert len(set(secrets)) == 2000
    # At each place all 62 characters come up: that one is missing has a chance of 10^-10.
    assert {len(set(place)) for place in zip(*secrets, strict=True)} == {62}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "swb_",
        "swb_" + "a" * 42,
        "swb_" + "a" * 44,
        "swb_" + "a" * 43 + "\n",
        " swb_" + "a" * 43,
        "SWB_" + "a" * 43,
        "swbs_" + "a" * 43,
        "swb_" + "a" * 42 + "é",
        "swb_" + "a" * 42 + "\N{ARABIC-INDIC DIGIT ONE}",
        "swb_" + "a" * 42 + "\x00",
        "swb_" + "a" * 42 + "\ud800",
        "swb_" + "a" * 42 + "-",
        "swb_" + "a" * 10_000_000,
    ],
    ids=lambda text: ascii(text)[:60],
)
def test_what_has_not_the_form_of_one_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(CredentialInvalid) as refused:
        digest_of("endpoint", text)
    assert str(refused.value) == "no endpoint in force has this credential"


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_masked_wherever_a_text_quotes_it(kind: Kind) -> None:
    minted = mint(kind)
    for text in ("no agent {}", "GET /?a%3D{}&b", "Bearer {}", "{0}{0}"):
        shown = redact(text.format(minted.plaintext))
        assert minted.plaintext[len(STARTS[kind]) :] not in shown
        assert f"{STARTS[kind]}{MASK}" in shown


def test_its_representation_does_not_hold_it() -> None:
    minted = mint("endpoint")
    assert minted.plaintext not in repr(minted)


def test_hashes_are_the_same_only_where_every_bit_is() -> None:
    digest = mint("endpoint").digest
    assert same(digest, bytes(digest))
    for bit in range(256):
        flipped = bytearray(digest)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not same(digest, bytes(flipped))
