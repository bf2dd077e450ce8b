"""Webhooks in the configuration: what is right is read, what is wrong names its key, and a secret that is not set only
turns its adapter off.
"""

from datetime import timedelta

import pytest

from switchboard import ConfigError
from switchboard.config import WebOptions, read_adapters, read_web, read_webhooks
from switchboard.push import SENDERS, PushAdapter
from switchboard.push.base import MOST_HELD

SECRET = "hunter2-swordfish"

SIGNED, TOKENS = ("github", "stripe", "slack"), ("dockerhub", "generic")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", SECRET)
    monkeypatch.setenv("NEXT", "the-next-one-of-them")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("BLANK", " \n")
    monkeypatch.delenv("UNSET", raising=False)


def table(kind: str, *lines: str) -> str:
    return "\n".join(["[adapters.line]", f'type = "{kind}"', 'queue = "todos"', *lines])


def only(text: str) -> PushAdapter:
    [adapter] = read_webhooks(text)
    return adapter


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_webhooks(text)
    message = str(caught.value)
    assert "\n" not in message, "an error is one line"
    assert SECRET not in message
    return message


def key_of(kind: str) -> str:
    return "secret" if kind in SIGNED else "token"


@pytest.mark.parametrize("kind", SENDERS)
def test_a_webhook_adapter_needs_its_type_its_queue_and_its_secret(kind: str) -> None:
    adapter = only(table(kind, f'{key_of(kind)} = "${{SET}}"'))
    assert (adapter.name, adapter.options.queue, adapter.options.provider, adapter.off) == ("line", "todos", kind, "")
    assert adapter.options.max_body == (1 if kind == "generic" else 25) * 1024**2
    assert adapter.namespace == f"{kind}:line"
    assert adapter.trust_mode == ("signed" if kind in SIGNED else "token")


@pytest.mark.parametrize("kind", SENDERS)
@pytest.mark.parametrize("value", ["", '"${UNSET}"', '"${EMPTY}"', '"${BLANK}"', '["${UNSET}", "${EMPTY}"]', "[]"])
def test_without_its_secret_an_adapter_is_off_and_the_rest_is_read(kind: str, value: str) -> None:
    key = key_of(kind)
    text = (
        table(kind, f"{key} = {value}" if value else "")
        + "\n[adapters.other]\ntype='generic'\nqueue='q'\ntoken='${SET}'"
    )
    off, on = read_webhooks(text)
    assert off.off == f"its {key} is not set"
    assert on.off == ""


@pytest.mark.parametrize("kind", SENDERS)
def test_several_secrets_are_read_in_their_order(kind: str) -> None:
    adapter = only(table(kind, f'{key_of(kind)} = ["${{UNSET}}", "${{SET}}", "${{NEXT}}"]'))
    assert [secret.get_secret_value() for secret in adapter.secrets] == ["", SECRET, "the-next-one-of-them"]


@pytest.mark.parametrize("kind", SENDERS)
def test_no_secret_is_in_what_is_shown(kind: str) -> None:
    adapter = only(table(kind, f'{key_of(kind)} = ["${{SET}}", "${{NEXT}}"]'))
    for shown in (repr(adapter), str(adapter), repr(adapter.options), str(adapter.options), str(adapter.describe())):
        assert SECRET not in shown
        assert "the-next-one-of-them" not in shown


@pytest.mark.parametrize("kind", SENDERS)
@pytest.mark.parametrize("literal", ['"literal"', '["${SET}", "literal"]', '"${SET}x"'])
def test_a_literal_secret_is_refused_without_showing_it(kind: str, literal: str) -> None:
    message = refusal(table(kind, f"{key_of(kind)} = {literal}"))
    assert f"adapters.line.{key_of(kind)} is wrong: a literal password" in message
    assert '"literal"' not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table("githup"), "adapters.line.type: unknown type 'githup'; did you mean 'github'?"),
        (table("github", 'sekret = "${SET}"'), "adapters.line: unknown key 'sekret'; did you mean 'secret'?"),
        (table("github", 'token = "${SET}"'), "adapters.line: unknown key 'token'"),
        (table("github", 'tolerance = "10s"'), "adapters.line: unknown key 'tolerance'"),
        (table("github", "batch = 1"), "adapters.line: unknown key 'batch'"),
        (table("stripe", 'tolerance = "soon"'), "adapters.line.tolerance: expected a duration"),
        (table("github", 'max_body = "many"'), "adapters.line.max_body: expected a size"),
        (table("github", f'max_body = "{MOST_HELD + 1}b"'), f"less than or equal to {MOST_HELD}"),
        (table("generic", 'max_body = "1GiB"'), f"less than or equal to {MOST_HELD}"),
        (table("github", "secret = 7"), "adapters.line.secret"),
        (table("github", 'provider = "githup"'), "did you mean 'github'?"),
        (table("generic", 'trust = "opened"'), "adapters.line.trust"),
        (table("generic", 'trust = "signed"', 'secret = "${SET}"'), "expected base64"),
        (table("generic", 'trust = "open"', 'token = "${SET}"'), 'token is for trust = "token"'),
        ('[adapters."a b"]\ntype = "github"\nqueue = "q"', "letters, digits"),
        ('[adapters.line]\ntype = "github"', "adapters.line.queue: is missing"),
    ],
)
def test_what_is_wrong_names_its_key(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize("kind", SENDERS)
def test_the_longest_body_is_what_the_web_can_hold(kind: str) -> None:
    adapter = only(table(kind, f'{key_of(kind)} = "${{SET}}"', f'max_body = "{MOST_HELD}b"'))
    assert adapter.options.max_body == MOST_HELD


@pytest.mark.parametrize("kind", SENDERS)
@pytest.mark.parametrize("value", ['"${SHORT}"', '["${SET}", "${SHORT}"]'])
def test_a_short_secret_is_refused_without_showing_it(kind: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "f1fteen-letters")
    message = refusal(table(kind, f"{key_of(kind)} = {value}"))
    assert f"adapters.line.{key_of(kind)} is wrong: expected at least 16 characters" in message
    assert "f1fteen" not in message
    monkeypatch.setenv("SHORT", "sixteen-letters!")
    assert only(table(kind, f"{key_of(kind)} = {value}")).off == ""


def test_each_family_reads_its_own_tables_and_needs_its_own_variables_alone() -> None:
    text = (
        table("github", 'secret = "${SET}"')
        + "\n[adapters.s]\ntype='redis-stream'\nurl='${UNSET}'\nstream='s'\nqueue='q'"
    )
    assert [adapter.name for adapter in read_webhooks(text)] == ["line"]
    with pytest.raises(ConfigError, match="UNSET is not set"):
        read_adapters(text)
    assert read_adapters(table("github", 'secret = "${UNSET}"')) == []
    for read in (read_adapters, read_webhooks):
        with pytest.raises(ConfigError, match="did you mean 'redis-stream'"):
            read("[adapters.s]\ntype = 'redis-steam'")


# [web]


def test_the_web_has_defaults_and_reads_its_table() -> None:
    assert read_web("") == WebOptions()
    assert read_web(
        "[web]\ntrusted_proxies = ['10.0.0.0/8', '::1']\nmax_in_progress = 7\nread_timeout = '5s'"
    ) == WebOptions(trusted_proxies=("10.0.0.0/8", "::1"), max_in_progress=7, read_timeout=timedelta(seconds=5))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("web = 1", "web: expected a table"),
        ("[web]\ntrusted_proxy = ['::1']", "web: unknown key 'trusted_proxy'; did you mean 'trusted_proxies'?"),
        ("[web]\ntrusted_proxies = ['proxy.example']", "web.trusted_proxies: expected addresses and networks"),
        ("[web]\ntrusted_proxies = ['10.0.0.1/8']", "web.trusted_proxies: expected addresses and networks"),
        ("[web]\nmax_in_progress = 0", "web.max_in_progress"),
        ("[web]\nread_timeout = 5", "web.read_timeout: expected a duration"),
    ],
)
def test_what_is_wrong_with_the_web_names_its_key(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_web(text)
    assert said in str(caught.value)
