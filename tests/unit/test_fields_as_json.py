"""An entry's fields as a body: a JSON object where it can be one, and nothing is ever lost."""

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchboard.normalize.storable import read_json
from switchboard.pull.stream_fields import deliver, fields_as_json


def recovered(body: bytes) -> list[bytes]:
    """The fields that a body was made of."""

    def data(value: object) -> bytes:
        if isinstance(value, dict):
            assert list(value) == ["base64"]
            return base64.b64decode(value["base64"], validate=True)
        assert isinstance(value, str)
        return value.encode()

    document = json.loads(body)
    pairs = document.items() if isinstance(document, dict) else document
    return [data(part) for name, value in pairs for part in (name, value)]


def test_fields_are_an_object_in_their_order() -> None:
    fields = [b"service", b"checkout", b"id", b"7", b"note", "é 😀".encode()]
    assert fields_as_json(fields) == '{"service":"checkout","id":"7","note":"é 😀"}'.encode()


def test_values_that_look_like_json_stay_text() -> None:
    assert json.loads(fields_as_json([b"n", b"1", b"o", b'{"a": 1}'])) == {"n": "1", "o": '{"a": 1}'}


def test_a_field_without_a_name_is_a_field_where_no_field_is_the_body() -> None:
    delivery = deliver("1-0", [b"", b"value"], 1, "redis acl: default", body="", key="")
    assert (delivery.body, delivery.content_type) == (b'{"":"value"}', "application/json")


def test_a_name_that_repeats_makes_pairs() -> None:
    fields = [b"tag", b"a", b"id", b"7", b"tag", b"b"]
    assert json.loads(fields_as_json(fields)) == [["tag", "a"], ["id", "7"], ["tag", "b"]]


def test_what_is_not_utf_8_makes_pairs_with_base64_for_it_alone() -> None:
    fields = [b"id", b"7", b"blob", b"\xff\x00"]
    assert json.loads(fields_as_json(fields)) == [["id", "7"], ["blob", {"base64": "/wA="}]]


def test_a_name_that_is_not_utf_8_is_base64_too() -> None:
    assert json.loads(fields_as_json([b"\xff", b"v"])) == [[{"base64": "/w=="}, "v"]]


def test_an_encoded_surrogate_is_not_utf_8() -> None:
    assert json.loads(fields_as_json([b"s", b"\xed\xa0\x80"])) == [["s", {"base64": "7aCA"}]]


@pytest.mark.parametrize("value", [b"", b"\x00", b'\n\r\t"\\', b'{"base64":"/w=="}', b"\xe2\x80\xa8"])
def test_an_awkward_value_comes_back(value: bytes) -> None:
    assert recovered(fields_as_json([b"k", value])) == [b"k", value]


field = st.one_of(st.binary(max_size=12), st.text(max_size=12).map(str.encode), st.sampled_from([b"a", b"b"]))
entries = st.lists(st.tuples(field, field), min_size=1, max_size=8).map(
    lambda pairs: [part for pair in pairs for part in pair]
)


@given(entries)
@example([b"base64", b"/w=="])
@example([b"a", b"", b"a", b""])
def test_every_field_can_be_recovered_in_order(fields: list[bytes]) -> None:
    assert recovered(fields_as_json(fields)) == fields


@given(entries)
def test_the_same_fields_give_the_same_bytes(fields: list[bytes]) -> None:
    assert fields_as_json(fields) == fields_as_json(tuple(bytes(bytearray(part)) for part in fields))


@given(entries, entries)
def test_other_fields_give_other_bytes(one: list[bytes], other: list[bytes]) -> None:
    assert (fields_as_json(one) == fields_as_json(other)) == (one == other)


@given(entries)
def test_the_body_is_json_that_can_be_normalized(fields: list[bytes]) -> None:
    assert isinstance(read_json(fields_as_json(fields).decode("utf-8")), (dict, list))
