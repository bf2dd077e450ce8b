"""Senders that show a token, and those of whom nothing is known."""

from collections.abc import Callable, Sequence
from urllib.parse import quote_plus

import pytest
from pydantic import ValidationError
from senders import TOKEN

from switchboard import MessageInvalid, SignatureInvalid
from switchboard.push import DockerHub, Generic, PushAdapter, Request
from switchboard.push.token import MAX_FIELDS
from switchboard.redact import redact_headers

both = pytest.mark.parametrize("adapter_class", [DockerHub, Generic])


def request(*headers: tuple[bytes, bytes], query: str = "", body: bytes = b"{}") -> Request:
    return Request(body, headers, query.encode("latin-1"), None, 1_700_000_000.0)


def adapter_of(adapter_class: Callable[..., PushAdapter], token: str | Sequence[str] = TOKEN) -> PushAdapter:
    return adapter_class("line", queue="q", token=token)


def refused(adapter: PushAdapter, given: Request) -> str:
    with pytest.raises(SignatureInvalid) as caught:
        adapter.verify(given)
    assert TOKEN not in str(caught.value)
    return str(caught.value)


@both
@pytest.mark.parametrize(
    ("given", "where"),
    [
        (request((b"x-webhook-token", TOKEN.encode())), "x-webhook-token"),
        (request((b"authorization", b"Bearer " + TOKEN.encode())), "authorization"),
        (request((b"authorization", b"bearer  " + TOKEN.encode())), "authorization"),
        (request(query=f"token={TOKEN}"), "the query"),
        (request(query=f"a=1&token={TOKEN}&b="), "the query"),
    ],
)
def test_a_token_in_a_header_or_in_the_query_verifies(
    adapter_class: Callable[..., PushAdapter], given: Request, where: str
) -> None:
    delivery = adapter_of(adapter_class).verify(given)
    assert delivery.verify_detail == f"token in {where}, 1 of 1"
    assert TOKEN not in str(delivery)


@both
@pytest.mark.parametrize("beside", ["l=caf%C3%A9", "l=caf%E9", "l=caf\xe9", "%ff=1", "l=%&m=%zz"])
def test_what_else_is_in_the_query_does_not_matter(adapter_class: Callable[..., PushAdapter], beside: str) -> None:
    for query in (f"token={TOKEN}&{beside}", f"{beside}&token={TOKEN}"):
        assert adapter_of(adapter_class).verify(request(query=query)).verify_detail == "token in the query, 1 of 1"


@both
def test_a_token_may_have_any_characters(adapter_class: Callable[..., PushAdapter]) -> None:
    token = "pässwört & 100% ✓ + more"
    given = request(query=f"token={quote_plus(token)}")
    assert adapter_of(adapter_class, token).verify(given).verify_detail == "token in the query, 1 of 1"
    refused(adapter_of(adapter_class, token), request(query=f"token={quote_plus(token.replace('ä', 'a'))}"))


@both
def test_a_query_of_too_many_fields_is_refused_as_that(adapter_class: Callable[..., PushAdapter]) -> None:
    for count, said in ((MAX_FIELDS, ""), (MAX_FIELDS + 1, "its query has too many fields")):
        given = request(query="&".join([*(f"a{n}=" for n in range(count - 1)), f"token={TOKEN}"]))
        if said:
            assert refused(adapter_of(adapter_class), given) == said
        else:
            adapter_of(adapter_class).verify(given)


@both
@pytest.mark.parametrize(
    "given",
    [
        request(),
        request(query="token="),
        request(query=f"token={TOKEN}x"),
        request(query=f"token={TOKEN[:-1]}"),
        request(query=f"Token={TOKEN}"),
        request(query=f"token={TOKEN}&token={TOKEN}"),
        request((b"x-webhook-token", TOKEN.encode()), query=f"token={TOKEN}"),
        request((b"x-webhook-token", TOKEN.encode()), (b"x-webhook-token", TOKEN.encode())),
        request((b"x-webhook-token", b"")),
        request((b"x-webhook-token", TOKEN.encode() + b"\xe9")),
        request((b"x-webhook-token", TOKEN.upper().encode())),
        request((b"authorization", TOKEN.encode())),
        request((b"authorization", b"Basic " + TOKEN.encode())),
        request((b"cookie", b"token=" + TOKEN.encode())),
        request(query="&".join(f"a{n}=1" for n in range(1000)) + f"&token={TOKEN}"),
        request(query="token=%ff%00%"),
    ],
)
def test_any_other_is_refused(adapter_class: Callable[..., PushAdapter], given: Request) -> None:
    refused(adapter_of(adapter_class), given)


@both
def test_while_tokens_rotate_either_verifies_and_the_delivery_says_which(
    adapter_class: Callable[..., PushAdapter],
) -> None:
    adapter = adapter_of(adapter_class, ["the-old-one-of-two", "the-new-one-of-two"])
    assert adapter.verify(request(query="token=the-new-one-of-two")).verify_detail == "token in the query, 2 of 2"
    assert adapter.verify(request(query="token=the-old-one-of-two")).verify_detail == "token in the query, 1 of 2"


@both
def test_without_a_token_it_is_off_and_an_empty_token_opens_nothing(adapter_class: Callable[..., PushAdapter]) -> None:
    for adapter in (adapter_of(adapter_class, ""), adapter_class("line", queue="q")):
        assert adapter.off == "its token is not set"
        refused(adapter, request(query="token="))
        refused(adapter, request())


@both
def test_a_token_that_a_proxy_copied_into_another_header_is_masked(adapter_class: Callable[..., PushAdapter]) -> None:
    given = request(
        (b"x-original-uri", f"/webhooks/line?token={TOKEN}".encode()),
        (b"x-forwarded-prefix", TOKEN.encode()),
        (b"referer", b"https://example.com/?a=1&token=other"),
        query=f"token={TOKEN}",
    )
    headers = adapter_of(adapter_class).verify(given).headers
    assert TOKEN not in str(headers)
    assert "other" not in str(redact_headers(headers))


@both
def test_the_headers_are_text_as_they_came(adapter_class: Callable[..., PushAdapter]) -> None:
    given = request(
        (b"x-event-type", "dépôt ✓".encode()),
        (b"x-branch", "dépôt".encode("latin-1")),
        (b"x-query", b"secret=rotated"),
        (b"x-tag", b"a"),
        (b"x-tag", b"b"),
        query=f"token={TOKEN}",
    )
    assert adapter_of(adapter_class).verify(given).headers == {
        "x-event-type": "dépôt ✓",
        "x-branch": "dépôt",
        "x-query": "secret=rotated",
        "x-tag": "a, b",
    }


@both
def test_a_header_with_its_own_token_is_masked_whatever_the_characters(
    adapter_class: Callable[..., PushAdapter],
) -> None:
    token = "pässwört-of-many-letters"
    given = request((b"x-copy", f"it was {token}".encode()), query=f"token={quote_plus(token)}")
    assert adapter_of(adapter_class, token).verify(given).headers == {"x-copy": "«redacted»"}


def test_docker_hub_gives_no_id() -> None:
    given = request((b"webhook-id", b"1"), query=f"token={TOKEN}")
    assert adapter_of(DockerHub).verify(given).native_id is None


def test_any_other_sender_may_give_an_id() -> None:
    adapter, query = adapter_of(Generic), f"token={TOKEN}"
    assert adapter.verify(request((b"webhook-id", b"m1"), query=query)).native_id == "m1"
    assert adapter.verify(request((b"x-delivery-id", b"d1"), query=query)).native_id == "d1"
    assert adapter.verify(request((b"x-delivery-id", b"d1"), (b"webhook-id", b"m1"), query=query)).native_id == "m1"
    assert adapter.verify(request(query=query)).native_id is None
    for bad in (b"", b"a b", b"\xe9", b"x" * 201):
        # Whoever has the token is told what is wrong with the id.
        with pytest.raises(MessageInvalid, match="webhook-id"):
            adapter.verify(request((b"webhook-id", bad), query=query))


@pytest.mark.parametrize("sender", [Generic, DockerHub])
def test_a_token_decides_before_there_is_a_body(sender: Callable[..., PushAdapter]) -> None:
    adapter = adapter_of(sender)
    adapter.check_head(request(query=f"token={TOKEN}"))
    for query in ("", "token=wrong"):
        with pytest.raises(SignatureInvalid):
            adapter.check_head(request(query=query))


# Open


def test_an_open_adapter_takes_everything_and_says_on_each_that_nobody_was_verified() -> None:
    adapter = Generic("line", queue="q", trust="open")
    assert adapter.off == ""
    assert adapter.trust_mode == "open"
    assert adapter.verify(request()).verify_detail == "OPEN: nobody was verified"


def test_no_adapter_is_open_unless_that_is_written_in_full() -> None:
    assert Generic("line", queue="q").trust_mode == "token"
    for trust in ("Open", "opened", "", None, True):
        with pytest.raises(ValidationError, match="trust"):
            Generic("line", queue="q", trust=trust)


@pytest.mark.parametrize(
    "options",
    [
        {"trust": "open", "token": TOKEN},
        {"trust": "open", "secret": "whsec_AAAAAAAAAAAA"},
        {"trust": "signed", "token": TOKEN},
        {"secret": "whsec_AAAAAAAAAAAA"},
        {"token": TOKEN, "tolerance": "10s"},
    ],
)
def test_an_option_that_its_trust_does_not_look_at_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="is for trust =") as caught:
        Generic("line", queue="q", **options)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("secret", ["whsec_!!!!!!!!!!!", "this is not base64", "whsec_MfKQ9r8GKYq!", "é" * 16])
def test_a_secret_that_is_not_base64_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(ValidationError, match="expected base64") as caught:
        Generic("line", queue="q", trust="signed", secret=secret)
    assert secret not in str(caught.value).replace("expected base64, after whsec_", "")
