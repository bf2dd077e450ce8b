"""No credential passes `redact`, and nothing passes `safe_text` that PostgreSQL cannot store."""

import re
import time
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from switchboard.redact import MASK, redact, redact_headers, safe_text

#: Any printable text between two marks: a mask that ends too early shows the second, one that begins too late the
#: first.
START, END = "Zq8x", "Zq9y"
passwords = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(
    lambda inside: f"{START}{inside}{END}"
)


def assert_hidden(shown: str) -> None:
    assert START not in shown
    assert END not in shown


@given(
    st.sampled_from(
        [
            "redis://deploy-bot:{}@redis.example:6379/0",
            "rediss://:{}@[::1]:6380",
            "unix://bot:{}@/run/redis.sock?db=1",
            "redis://redis.example/0?password={}",
            "postgresql://app:{}@db.example/orders?sslmode=require",
            "postgres://app:{}@a.example:5432,b.example:5433/orders",
            "postgresql://db.example/orders?user=app&password={}&connect_timeout=5",
            "amqp://guest:{}@rabbit.example:5672/%2f",
            "amqps://guest:{}@rabbit.example",
        ]
    ),
    passwords,
)
def test_a_password_never_survives_in_an_address(address: str, password: str) -> None:
    url = address.format(quote(password, safe=""))
    assert_hidden(redact(url))
    assert_hidden(redact(f"cannot connect to {url}: refused; tried <{url}>, then '{url}'."))


@given(st.sampled_from(["redis://bot:{}@redis.example/0", "amqp://:{}@rabbit.example"]), passwords)
@example("redis://bot:{}@redis.example/0", f"{START}@{END}")
@example("redis://bot:{}@redis.example/0", f"{START}:#?{END}")
def test_a_password_that_nobody_encoded_does_not_survive_either(address: str, password: str) -> None:
    # A space ends an address for everybody: what is behind it cannot be known to belong to it. The slash is below.
    assert_hidden(redact(address.format(password.replace(" ", "").replace("/", ""))))


def test_a_slash_in_a_password_that_nobody_encoded_hides_none_of_it_from_the_mask() -> None:
    # Such an address is refused by every client, so that it is just what an error message quotes.
    assert_hidden(redact(f"cannot read redis://bot:{START}/{END}@redis.example/0"))


@given(passwords)
@example(f"{START}'{END}")
@example(f"{START},;&{END}")
@example(f"{START}\\{END}")
@example(f"{START} {END}")
def test_a_password_never_survives_in_a_connection_string(password: str) -> None:
    conninfo = make_conninfo(host="db.example", password=password, dbname="orders")
    assert_hidden(redact(conninfo))
    assert_hidden(redact(f"invalid connection string: {conninfo}"))


@pytest.mark.parametrize(
    "pair", ["api_key=", "API-KEY: ", "client_secret = ", "access_token=", "passwd:", "PGPASSWORD="]
)
def test_a_named_secret_is_masked(pair: str) -> None:
    assert redact(f"sent {pair}{START}{END} to host=db") == f"sent {pair}{MASK} to host=db"


def test_the_rest_of_an_address_stays() -> None:
    assert redact("redis://bot:secret@redis.example:6379/0") == f"redis://bot:{MASK}@redis.example:6379/0"
    assert redact("host=db password=secret dbname=orders") == f"host=db password={MASK} dbname=orders"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "redis://redis.example:6379/0",
        "https://example.com/a?b=c@d",
        "a@b.example said: no",
        "10:30 is late",
        'password authentication failed for user "app"',
    ],
)
def test_what_holds_no_secret_is_left_alone(text: str) -> None:
    assert redact(text) == text


@given(st.text())
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "Set-Cookie",
        "X-Api-Key",
        "x-api_key",
        "apikey",
        "X-Hub-Signature",
        "X-Hub-Signature-256",
        "Stripe-Signature",
        "X-Slack-Signature",
        "X-Gitlab-Token",
        "X-Amz-Security-Token",
        "password",
        "client_secret",
        "private-key",
        # What proxies add, which have verified somebody, and what senders without a standard use.
        "Cf-Access-Jwt-Assertion",
        "X-Goog-IAP-JWT-Assertion",
        "X-Amzn-Oidc-Data",
        "X-Amzn-Oidc-Identity",
        "X-Forwarded-Client-Cert",
        "X-Amzn-Mtls-Clientcert",
        "ssl-client-cert",
        "Authentication",
        "X-Auth",
        "X-Webhook-Auth",
        "X-Jwt",
        "X-Sig",
        "x_sig",
        "sig-256",
        "X-Key",
        "X-Signing-Key",
        "X-Functions-Key",
        "Ocp-Apim-Subscription-Key",
    ],
)
def test_a_header_that_carries_a_credential_is_masked(name: str) -> None:
    for cased in (name, name.lower(), name.upper()):
        assert redact_headers({cased: "anything"}) == {cased: MASK}


@pytest.mark.parametrize(
    "name",
    [
        "X-Author",
        "X-Author-Email",
        "X-Authority",
        "Idempotency-Key",
        "X-Idempotency-Key",
        "Ce-Key",
        "Ce-Partitionkey",
        "routing-key",
        "key",
        "Message-Key",
        "X-Issue-Key",
        "X-Signed-Off-By",
        "Design",
        "X-Assigned-To",
        "Webhook-Id",
        "Webhook-Timestamp",
        "X-Slack-Request-Timestamp",
        "X-GitHub-Event",
        "X-GitHub-Delivery",
        "X-GitHub-Hook-Installation-Target-ID",
        "X-Forwarded-For",
        "User-Agent",
        "traceparent",
    ],
)
def test_a_header_that_people_need_stays_readable(name: str) -> None:
    for cased in (name, name.lower(), name.upper()):
        assert redact_headers({cased: "anything"}) == {cased: "anything"}


def test_other_headers_are_kept_in_their_order() -> None:
    headers = {
        "Content-Type": "application/json",
        "X-Event-Type": "push",
        "User-Agent": "GitHub-Hookshot/1",
        "a": "b:c@d",
    }
    assert list(redact_headers(headers).items()) == list(headers.items())


def test_an_address_in_another_header_loses_its_password() -> None:
    assert redact_headers({"origin": "redis://bot:secret@host/0"}) == {"origin": f"redis://bot:{MASK}@host/0"}


any_text = st.text(st.characters(exclude_categories=()))


@given(any_text, st.integers(1, 600))
def test_a_safe_text_can_be_stored_and_is_no_longer_than_its_limit(text: str, limit: int) -> None:
    safe = safe_text(text, limit)
    assert not re.search("[\x00\ud800-\udfff]", safe)
    assert len(safe) <= limit


@given(any_text)
def test_a_safe_text_of_an_error_says_which_it_was(text: str) -> None:
    safe = safe_text(KeyError(text))
    assert safe.startswith("KeyError: ")
    assert not re.search("[\x00\ud800-\udfff]", safe)


def test_a_long_text_is_cut_and_says_so() -> None:
    assert safe_text("x " * 400, 10) == "x x x x x…"


def test_a_text_of_the_limit_is_whole() -> None:
    assert safe_text("x" * 500) == "x" * 500


def test_a_password_is_masked_before_the_cut() -> None:
    # Cut first, and the @ that makes it an address would be gone.
    assert "secret" not in safe_text("redis://bot:secretsecretsecret@redis.example", 30)


# An error that quotes a body, of megabytes perhaps, is made safe inside the transaction that stores its batch.
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["a", "a-", "0123456789abcdef", "x=", "redis://", "token", "password=", "'", "a:b@", " "]
)
def test_a_long_text_takes_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    redact(text)
    redact("redis://" + text)
    redact("password='" + text)


def cpu_seconds(text: str) -> float:
    """What masking the text costs, the least of three tries."""
    tries = []
    for _ in range(3):
        began = time.thread_time()
        redact(text)
        tries.append(time.thread_time() - began)
    return min(tries)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        "://:",
        "://a:",
        "://:x@",
        "://a: ",
        "token",
        'token=\\"',
        f"secret{'_' * 40}{' ' * 8}",
        "password='\\\\",
        "swbs_",
    ],
)
def test_what_was_made_to_take_long_costs_about_what_other_text_does(piece: str) -> None:
    small, large = (piece * (size // len(piece)) for size in (100_000, 400_000))
    # Four times as much: four times as long where that is linear, sixteen where it is quadratic.
    assert cpu_seconds(large) < 8 * max(cpu_seconds(small), 0.002)
    # A pattern that begins anew at each of many marks may be linear all the same, at thousands of steps a character.
    assert cpu_seconds(small) < 15 * cpu_seconds("holds no secret " * 6_250)
