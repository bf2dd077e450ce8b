"""What holds for each provider: any JSON gets a title, a changed API stops nothing, push and pull agree."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_bodies import BODIES, altered, any_json, body_of, is_one_readable_line, shape, unhurried

from switchboard import ConfigError, MessageInvalid, Shape
from switchboard.normalize import resolve_provider

PROVIDERS = ["github", "stripe", "slack", "dockerhub"]

each_provider = pytest.mark.parametrize("provider", PROVIDERS)


def stands(made: Shape) -> None:
    is_one_readable_line(made.title)
    for name in (made.kind, made.event_type):
        assert len(name) <= 200
        assert name.isprintable()


@each_provider
@unhurried
@given(value=any_json)
def test_any_json_is_a_todo_with_a_readable_title(provider: str, value: object) -> None:
    stands(shape(provider, json.dumps(value)))


@each_provider
@unhurried
@given(data=st.data())
def test_a_field_that_is_missing_or_of_another_type_stops_nothing(provider: str, data: st.DataObject) -> None:
    name, value = data.draw(altered(provider))
    stands(shape(provider, json.dumps(value), {"X-GitHub-Event": name.partition(".")[0]}))
    stands(shape(provider, json.dumps(value)))


@each_provider
@unhurried
@given(body=st.binary())
def test_any_bytes_are_a_todo_or_invalid(provider: str, body: bytes) -> None:
    with contextlib.suppress(MessageInvalid):
        stands(shape(provider, body))


@each_provider
@pytest.mark.parametrize("body", [b"", b"plain text", b"{", b"NaN", b"\xff\xfe", b"a=b", b"payload=%7B", b"<xml/>"])
def test_what_the_provider_never_sends_is_invalid(provider: str, body: bytes) -> None:
    with pytest.raises(MessageInvalid, match="sends"):
        shape(provider, body)


@each_provider
@pytest.mark.parametrize(
    "body", ['{"type":' + "[" * 501 + "]" * 501 + "}", '{"type": "invoice.paid", "amount": 1e200000}']
)
def test_json_that_cannot_be_stored_is_invalid(provider: str, body: str) -> None:
    with pytest.raises(MessageInvalid, match=r"nested deeper|a number outside"):
        shape(provider, body)


@pytest.mark.parametrize("body", [body for body in BODIES if not body.startswith("slack/")])
def test_the_payload_is_the_body_itself(body: str) -> None:
    provider, _, name = body.partition("/")
    assert shape(provider, body_of(provider, name)).payload is None


@each_provider
def test_an_escape_that_cannot_be_stored_is_all_that_changes(provider: str) -> None:
    body = r'{"type": "push", "push_data": {}, "zen": "a\u0000b", "hook": 0.10, "big": 1e400}'
    assert shape(provider, body).payload == body.replace(r"\u0000", r"\ufffd")


@pytest.mark.parametrize("body", BODIES)
def test_a_queue_without_the_headers_gives_the_todo_that_http_gives(body: str) -> None:
    provider, _, name = body.partition("/")
    sent = body_of(provider, name)
    pushed = shape(provider, sent, {"x-github-event": name.partition(".")[0], "content-type": "application/json"})
    assert shape(provider, sent) == pushed
    assert shape(provider, sent, {"X_GITHUB_EVENT": name.partition(".")[0]}) == pushed


@pytest.mark.parametrize("body", BODIES)
def test_a_title_says_more_than_the_event_s_name(body: str) -> None:
    provider, _, name = body.partition("/")
    made = shape(provider, body_of(provider, name))
    assert made.title not in (made.kind, made.event_type)
    assert made.kind
    assert made.event_type


@pytest.mark.parametrize("body", BODIES)
def test_a_provider_s_own_event_is_told_better_than_as_any_json(body: str) -> None:
    provider, _, name = body.partition("/")
    sent = body_of(provider, name)
    assert shape(provider, sent).title != shape("generic", sent).title


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("gihub", "github"), ("GitHub", "github"), ("strip", "stripe"), ("slak", "slack"), ("docker-hub", "dockerhub")],
)
def test_an_unknown_provider_is_told_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{wrong}.*did you mean '{nearest}'.*generic, github, stripe, slack, dockerhub"
    ):
        resolve_provider(wrong)
