"""Provider `slack`: who said or did what where, and no todo holds the verification token."""

import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_bodies import (
    any_json,
    body_of,
    changed,
    document_of,
    is_one_readable_line,
    names_of,
    shape,
    texts,
    unhurried,
)

from switchboard import MessageInvalid, Shape
from switchboard.redact import MASK

TOKEN = "XXYYZZ-not-a-token"

TITLES = {
    "app_mention": "C024BE91L: U061F7AUR: @U0LAN0Z89 restart db-1",
    "block_actions": "#ops: alice: enlarge: Enlarge it",
    "message": "C024BE91L: U061F7AUR: disk full on db-1 & db-2, @U0LAN0Z89 look",
    "message.bot_message": "C024BE91L: grafana: [FIRING] Disk full on db-1",
    "message.message_changed": "C024BE91L: U061F7AUR (edited): disk full on db-3",
    "reaction_added": "C024BE91L: U061F7AUR reacted with :rotating_light:",
    "slash_command": "#ops: alice: /enlarge db-1 by 20 %",
    "url_verification": "Slack verifies this URL",
    "view_submission": "alice submitted Report an incident",
}


def payload_of(made: Shape) -> object:
    assert made.payload is not None
    return json.loads(made.payload)


def but(name: str, *path: str | int, to: object) -> str:
    return shape("slack", json.dumps(changed(document_of("slack", name), *path, to=to))).title


@pytest.mark.parametrize("name", names_of("slack"))
def test_a_title_says_where_who_and_what(name: str) -> None:
    assert shape("slack", body_of("slack", name)).title == TITLES[name]


@pytest.mark.parametrize("name", names_of("slack"))
def test_the_type_is_the_kind_and_its_subtype_belongs_to_the_event_type(name: str) -> None:
    made = shape("slack", body_of("slack", name))
    assert (made.kind, made.event_type) == (name.partition(".")[0], name)


@pytest.mark.parametrize(
    ("name", "path", "to", "title"),
    [
        (
            "message",
            ["event", "channel"],
            {"id": "C024BE91L", "name": "ops"},
            "#ops: U061F7AUR: disk full on db-1 & db-2, @U0LAN0Z89 look",
        ),
        ("message", ["event", "user"], None, "C024BE91L: disk full on db-1 & db-2, @U0LAN0Z89 look"),
        (
            "message",
            ["event", "text"],
            "<!here> <#C1|ops> <@U1|bob> <!subteam^S1|@carts> <mailto:a@b.test|a> &lt;b&gt; &amp;amp;",
            "C024BE91L: U061F7AUR: @here #ops @bob @carts a <b> &amp;",
        ),
        ("message", ["event", "text"], "a < b > c & <", "C024BE91L: U061F7AUR: a b c & <"),
        ("message", ["event", "text"], 7, "C024BE91L: U061F7AUR: 7"),
        ("message", ["event", "text"], None, "C024BE91L: U061F7AUR"),
        (
            "message.message_changed",
            ["event", "subtype"],
            "message_deleted",
            "C024BE91L: message deleted: disk full on db-1",
        ),
        ("message.bot_message", ["event", "username"], None, "C024BE91L: B0G9QF9GZ: [FIRING] Disk full on db-1"),
        ("reaction_added", ["event", "type"], "reaction_removed", "C024BE91L: U061F7AUR took back :rotating_light:"),
        ("reaction_added", ["event", "item"], "odd", "U061F7AUR reacted with :rotating_light:"),
        ("reaction_added", ["event", "type"], "team_join", "Slack team join: U061F7AUR"),
        ("block_actions", ["actions"], None, "#ops: alice: an action"),
        ("block_actions", ["channel", "name"], "directmessage", "C024BE91L: alice: enlarge: Enlarge it"),
        ("block_actions", ["actions", 0, "text"], None, "#ops: alice: enlarge: db-1"),
        ("view_submission", ["type"], "view_closed", "alice closed Report an incident"),
        ("block_actions", ["type"], "message_action", "#ops: alice: shortcut: Disk full on db-1"),
    ],
)
def test_a_title_follows_what_happened_and_leaves_out_what_is_missing(
    name: str, path: list[str | int], to: object, title: str
) -> None:
    assert but(name, *path, to=to) == title


def test_a_message_of_files_names_them() -> None:
    event = {"type": "message", "channel": "C1", "user": "U1", "text": "", "files": [{"name": "a.pdf"}, {"title": "b"}]}
    assert shape("slack", {"type": "event_callback", "event": event}).title == "C1: U1: a.pdf, b"


def test_a_body_that_is_no_event_is_shaped_as_any_json() -> None:
    assert shape("slack", '{"name": "Ada"}') == shape("generic", '{"name": "Ada"}')
    assert shape("slack", "[1]") == shape("generic", "[1]")


# Forms


def test_a_slash_command_is_an_object_of_its_fields_without_its_token() -> None:
    fields = payload_of(shape("slack", body_of("slack", "slash_command")))
    assert isinstance(fields, dict)
    assert fields["token"] == MASK
    assert (fields["command"], fields["text"], fields["user_name"]) == ("/enlarge", "db-1 by 20 %", "alice")
    assert fields["response_url"] == "https://hooks.slack.com/commands/T061EG9R6/1/not-a-url"


def test_what_an_outgoing_webhook_saw_is_a_message() -> None:
    form = urlencode(
        {"token": TOKEN, "channel_name": "ops", "user_name": "alice", "text": "disk?", "trigger_word": "d"}
    )
    made = shape("slack", form)
    assert (made.title, made.kind, made.event_type) == ("#ops: alice: disk?", "message", "message")


@pytest.mark.parametrize("name", ["block_actions", "view_submission"])
def test_an_interaction_in_a_form_is_the_json_inside(name: str) -> None:
    text = body_of("slack", name).decode()
    assert shape("slack", urlencode({"payload": text})) == shape("slack", text)


def test_json_in_a_form_without_a_token_is_kept_as_it_was() -> None:
    assert shape("slack", urlencode({"payload": '{"type" : "x", "n": 0.10}'})).payload == '{"type" : "x", "n": 0.10}'


@pytest.mark.parametrize("body", ["a=b", "text", "&=&", "name=token"])
def test_a_form_that_is_not_slack_s_is_invalid(body: str) -> None:
    with pytest.raises(MessageInvalid, match="JSON or a form"):
        shape("slack", body)


def test_a_repeated_token_in_a_form_is_masked() -> None:
    made = shape("slack", f"token={TOKEN}1&command=%2Fx&t%6Fken={TOKEN}2")
    assert payload_of(made) == {"token": MASK, "command": "/x"}


# The verification token


@pytest.mark.parametrize("name", names_of("slack"))
def test_no_todo_holds_the_token(name: str) -> None:
    body = body_of("slack", name)
    made = shape("slack", body)
    assert TOKEN.encode() in body
    assert TOKEN not in f"{made}"
    assert MASK in (made.payload or "")


@pytest.mark.parametrize("name", [each for each in names_of("slack") if each != "slash_command"])
def test_the_token_is_all_that_changes(name: str) -> None:
    body = body_of("slack", name).decode()
    assert shape("slack", body).payload == body.replace(TOKEN, MASK)


@pytest.mark.parametrize(
    ("body", "masked"),
    [
        ('{"token": "s", "n": 0.1000}', '{"token": "«redacted»", "n": 0.1000}'),
        ('\n{ "n" : 1e400 , "token" :\t"s" }\n', '\n{ "n" : 1e400 , "token" :\t"«redacted»" }\n'),
        ('{"token":"s","text":"s"}', '{"token":"«redacted»","text":"s"}'),
        ('{"token":"s","event":{"token":"t"}}', '{"token":"«redacted»","event":{"token":"t"}}'),
        ('{"event":{"token":"t"},"token":"s"}', '{"event":{"token":"t"},"token":"«redacted»"}'),
        ('{"token":"s","token":"t"}', '{"token":"«redacted»","token":"«redacted»"}'),
        (r'{"\u0074oken":"s"}', r'{"\u0074oken":"«redacted»"}'),
        (r'{"token":"s","tok\u0065\u006E":"t"}', r'{"token":"«redacted»","tok\u0065\u006E":"«redacted»"}'),
        (r'{"a\"token":"t","token":"s"}', r'{"a\"token":"t","token":"«redacted»"}'),
        ('{"type":"token","token":"s"}', '{"type":"token","token":"«redacted»"}'),
        (r'{"text":"\"token\":\"s\"","token":"s\"}"}', r'{"text":"\"token\":\"s\"","token":"«redacted»"}'),
        ('{"token":{"token":["s"]}}', '{"token":"«redacted»"}'),
        ('{"token":1234,"a":[]}', '{"token":"«redacted»","a":[]}'),
        ('{"token":' + "9" * 5_000 + "}", '{"token":"«redacted»"}'),
        (
            '{"a":' + "9" * 5_000 + ',"token":"s","token":"s"}',
            '{"a":' + "9" * 5_000 + ',"token":"«redacted»","token":"«redacted»"}',
        ),
        (
            '{"Token":"s","tokens":"t","token ":"u","token":null}',
            '{"Token":"s","tokens":"t","token ":"u","token":"«redacted»"}',
        ),
    ],
    ids=lambda text: text[:40],
)
def test_the_token_is_masked_where_it_stands(body: str, masked: str) -> None:
    assert shape("slack", body).payload == masked


@pytest.mark.parametrize("body", ['{"event":{"token":"t"}}', '[{"token":"t"}]', '"token"', '{"text":"\\"token\\":1"}'])
def test_without_a_token_of_its_own_a_body_is_the_payload_itself(body: str) -> None:
    assert shape("slack", body).payload is None


@st.composite
def json_with_tokens(draw: st.DrawFn) -> str:
    """An object's text in which members are called token, or nearly, written in any of the ways there are."""
    space = st.sampled_from(["", "", " ", "\n\t"])

    def member() -> str:
        name = draw(st.one_of(st.sampled_from(["token", "token", "Token", "tokens", "type", "event"]), texts))
        letters = [
            f"\\u{ord(each):04x}" if draw(st.booleans()) and ord(each) < 0x10000 else json.dumps(each)[1:-1]
            for each in name
        ]
        key = "".join(letters) if draw(st.booleans()) else json.dumps(name)[1:-1]
        nested = st.one_of(any_json, any_json.map(lambda value: {"token": value, "text": '"token":"s"'}))
        value = (
            json.dumps(draw(nested), ensure_ascii=draw(st.booleans()))
            if draw(st.booleans())
            else draw(st.sampled_from(["1e400", "0.1000", "-0", "12345678901234567890", '"token"', '"\\"token\\": 1"']))
        )
        return f'{draw(space)}"{key}"{draw(space)}:{draw(space)}{value}{draw(space)}'

    return "{" + ",".join(member() for _ in range(draw(st.integers(1, 5)))) + "}"


def members(text: str) -> list[tuple[str, object]]:
    """The object's members in order, repeated ones too, every number as it was written."""
    value = json.loads(text, parse_int=lambda n: ("n", n), parse_float=lambda n: ("n", n), object_pairs_hook=list)
    assert isinstance(value, list)
    return value


@unhurried
@given(json_with_tokens())
def test_any_object_means_the_same_but_for_its_own_token(text: str) -> None:
    body = text.encode("utf-8", "replace")
    text = body.decode()
    made = shape("slack", body)
    is_one_readable_line(made.title)
    before = members(text)
    if any(name == "token" for name, _ in before):
        assert made.payload is not None
        assert members(made.payload) == [(name, MASK if name == "token" else value) for name, value in before]
    else:
        assert made.payload is None or "\\u" in text


# A body of some megabytes that held up its worker for minutes would be delivered again and again.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "body",
    [
        "{" + '"token":1,' * 100_000 + '"token":1}',
        '{"token":"' + '\\"token' * 100_000 + '"}',
        '{"a":"' + "<" * 500_000 + '","token":' + " " * 500_000 + "1}",
        '{"type":"event_callback","event":{"type":"message","text":"' + "<@" * 500_000 + '"}}',
    ],
    ids=["repeated", "quoted", "blank", "markup"],
)
def test_a_hostile_body_is_read_in_linear_time(body: str) -> None:
    is_one_readable_line(shape("slack", body).title)
