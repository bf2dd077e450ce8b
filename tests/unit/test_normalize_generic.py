"""Provider `generic`: any body becomes a todo's shape that a person can read and PostgreSQL can hold."""

import base64
import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchboard import Delivery, MessageInvalid, Shape
from switchboard.normalize.generic import normalize_generic
from switchboard.normalize.title import MAX_TITLE

LONG = "deploy of checkout " * 40


def shape(body: str | bytes, **headers: str) -> Shape:
    data = body if isinstance(body, bytes) else body.encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return normalize_generic(Delivery(data, "1-0", "redis acl: default", named))


def payload_of(made: Shape) -> object:
    assert made.payload is not None
    return json.loads(made.payload)


# Payloads


@pytest.mark.parametrize(
    "body",
    [
        '{"title": "Deploy"}',
        '  {"a" : 1}\n',
        "[1, 2, 3]",
        '"text"',
        "null",
        "true",
        '{"a": 1e400, "b": 0.1000, "c": 12345678901234567890, "d": -0}',
        '{"a": 1, "a": 2}',
        r'{"path": "C:\\u0000", "face": "\ud83d\ude00"}',
        '{"é": "😀"}',
    ],
)
def test_json_is_kept_as_it_came(body: str) -> None:
    assert shape(body).payload is None


def test_an_escape_that_cannot_be_stored_is_all_that_changes() -> None:
    made = shape(r'{"amount": 0.1000, "big": 1e400, "note": "a\u0000b\ud800", "path": "\\u0000"}')
    assert made.payload == r'{"amount": 0.1000, "big": 1e400, "note": "a\ufffdb\ufffd", "path": "\\u0000"}'


def test_text_becomes_an_object_with_the_text() -> None:
    assert payload_of(shape("Disk almost full\non db-1 \x00 é")) == {"text": "Disk almost full\non db-1 \ufffd é"}


@pytest.mark.parametrize("body", ["NaN", "[Infinity]", '{"a": -Infinity}', "{'a': 1}", "{", '"open'])
def test_what_is_nearly_json_is_text(body: str) -> None:
    assert payload_of(shape(body)) == {"text": body}


@pytest.mark.parametrize("body", [b"\xff\xfe", b"\x1f\x8b\x08\x00", b'{"a": "\xe9"}', b"\xed\xa0\x80"])
def test_bytes_that_are_no_utf_8_are_kept_in_base64(body: bytes) -> None:
    made = shape(body)
    assert payload_of(made) == {"base64": base64.b64encode(body).decode()}
    assert made.title == f"{len(body)} bytes of binary data"


def test_an_empty_body_is_an_empty_text() -> None:
    made = shape(b"")
    assert payload_of(made) == {"text": ""}
    assert made.title == "Empty message"


def test_json_that_is_too_deep_is_invalid() -> None:
    with pytest.raises(MessageInvalid):
        shape("[" * 501 + "]" * 501)


def test_json_with_a_number_out_of_range_is_invalid() -> None:
    with pytest.raises(MessageInvalid):
        shape('{"amount": 1e200000}')


def test_text_with_many_brackets_is_text() -> None:
    body = "log: " + "[" * 600
    assert payload_of(shape(body)) == {"text": body}


# Titles


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ('{"title": "Deploy checkout", "name": "checkout"}', "Deploy checkout"),
        ('{"subject": "Invoice 7"}', "Invoice 7"),
        ('{"summary": "Disk full"}', "Disk full"),
        ('{"name": "checkout"}', "checkout"),
        ('{"message": "two\\nlines\\tand  spaces"}', "two lines and spaces"),
        ('{"title": "", "text": "the next one"}', "the next one"),
        ('{"title": ["no text"], "description": "said"}', "said"),
        ('{"type": "push", "ref": "main"}', "push"),
        ('{"service": "checkout", "version": 3}', "service, version"),
        ("{}", "Empty message"),
        ('""', "Empty message"),
        ('"a word"', "a word"),
        ("[1, 2]", "JSON [1, 2]"),
        ("  hello\n  world ", "hello world"),
    ],
)
def test_a_title_is_what_the_body_says_of_itself(body: str, title: str) -> None:
    assert shape(body).title == title


def test_a_header_s_event_type_is_the_title_where_the_body_has_none() -> None:
    assert shape('{"ref": "main"}', X_Event_Type="push").title == "push"
    assert shape("[1]", X_Event_Type="push").title == "push"
    assert shape(b"\xff", X_Event_Type="push").title == "push"
    assert shape(b"", X_Event_Type="push").title == "push"


def test_a_long_title_is_cut_and_says_so() -> None:
    title = shape(json.dumps({"title": LONG})).title
    assert len(title) == MAX_TITLE
    assert title.endswith("…")
    assert LONG.startswith(title[:-1])


def test_white_space_before_the_words_is_no_empty_message() -> None:
    assert shape("\n" * 5_000 + "Disk full").title == "Disk full"


words = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\x00\x1b\x07\u2028\x85\n\r\t\x7f"))
)


def is_one_readable_line(title: str) -> None:
    assert title
    assert len(title) <= MAX_TITLE
    assert len(title.splitlines()) == 1
    # No NUL, no surrogate, and nothing that a terminal would obey.
    assert not {unicodedata.category(character) for character in title} & {"Cc", "Cs"}


@given(words)
@example("\x1b[2J\x07")
def test_the_title_of_a_text_is_one_readable_line(text: str) -> None:
    is_one_readable_line(shape(text).title)


@given(st.sampled_from(["title", "message", "event"]), words)
@example("title", "\x00")
@example("title", "\x1b]0;owned\x07")
def test_the_title_of_an_object_is_one_readable_line(name: str, text: str) -> None:
    is_one_readable_line(shape(json.dumps({name: text})).title)


@given(words, st.lists(words, min_size=1))
@example("", ["a" * 1_000])
def test_the_title_of_a_list_or_of_field_names_is_one_readable_line(name: str, items: list[str]) -> None:
    is_one_readable_line(shape(json.dumps(items, ensure_ascii=False)).title)
    is_one_readable_line(shape(json.dumps({name: items}, ensure_ascii=False)).title)


@given(st.binary())
def test_any_body_gets_a_shape_with_a_readable_title(body: bytes) -> None:
    is_one_readable_line(shape(body).title)


def test_a_lone_surrogate_in_a_title_is_replaced() -> None:
    is_one_readable_line(shape(r'{"title": "a\ud800b"}').title)


# Kind and event type


@pytest.mark.parametrize(
    ("body", "kind", "event_type"),
    [
        ('{"event_type": "deploy.started", "kind": "deploy"}', "deploy", "deploy.started"),
        ('{"event": "push", "type": "git"}', "git", "push"),
        ('{"type": "push"}', "push", "push"),
        ('{"event": "push"}', "push", "push"),
        ('{"kind": "deploy"}', "deploy", "deploy"),
        ('{"ref": "main"}', "", ""),
        ('{"type": {"no": "text"}}', "", ""),
        ('{"type": ""}', "", ""),
        ("[1]", "", ""),
        ("plain text", "", ""),
    ],
)
def test_kind_and_event_type_come_from_the_fields_people_use(body: str, kind: str, event_type: str) -> None:
    made = shape(body)
    assert (made.kind, made.event_type) == (kind, event_type)


@pytest.mark.parametrize("header", ["event_type", "Event-Type", "X-Event-Type", "type", "CE-Type", "ce_type"])
def test_without_such_a_field_they_come_from_a_header(header: str) -> None:
    made = normalize_generic(Delivery(b"{}", "1-0", "", {header: "push"}))
    assert (made.kind, made.event_type) == ("push", "push")


@pytest.mark.parametrize("body", ["text", "[1]", b"\xff", b""])
def test_a_body_without_fields_takes_them_from_a_header(body: str | bytes) -> None:
    made = shape(body, X_Event_Type="push")
    assert (made.kind, made.event_type) == ("push", "push")


def test_the_body_s_own_event_type_outranks_a_header_s() -> None:
    made = shape('{"event_type": "deploy"}', X_Event_Type="push")
    assert (made.kind, made.event_type) == ("deploy", "deploy")


def test_an_event_type_of_a_header_is_one_line_without_nul() -> None:
    assert shape("{}", X_Event_Type="a\x00\nb").event_type == "a\ufffd b"


# Shape.of


def test_shape_of_writes_any_json_value() -> None:
    made = Shape.of({"a": [1, "é", None]}, title="t", kind="k", event_type="e")
    assert made == Shape(title="t", kind="k", event_type="e", payload=made.payload)
    assert payload_of(made) == {"a": [1, "é", None]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": {1, 2}}, b"bytes", object()])
def test_shape_of_refuses_what_json_cannot_say(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Shape.of(value, title="t")


def test_shape_of_none_is_null_and_not_the_body() -> None:
    assert Shape.of(None, title="t").payload == "null"
