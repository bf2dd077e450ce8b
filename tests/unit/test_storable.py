"""What PostgreSQL's `jsonb` and `text` cannot hold is found or replaced, and nothing else is touched."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchboard import MessageInvalid
from switchboard.normalize.storable import (
    MAX_DEPTH,
    NotJson,
    NumberText,
    read_json,
    read_texts,
    storable_json,
    storable_text,
)

REPLACEMENT = "\ufffd"
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

#: Text made of what breaks text handling, beside any other.
nasty_text = st.text(
    st.one_of(
        st.sampled_from('\\"u0d8\x00\ud800\udbff\udc00\udfff\ufffd\n/é𝄞'),
        st.characters(exclude_categories=()),
    ),
    max_size=20,
)
nasty_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), nasty_text),
    lambda children: st.one_of(st.lists(children, max_size=5), st.dictionaries(nasty_text, children, max_size=5)),
    max_leaves=20,
)


def cleaned(value: object) -> object:
    """The value with each character that PostgreSQL cannot hold replaced."""
    if isinstance(value, str):
        return UNSTORABLE.sub(REPLACEMENT, value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(name): cleaned(item) for name, item in value.items()}
    return value


@given(nasty_json)
def test_storable_json_means_the_same_but_for_what_cannot_be_stored(value: object) -> None:
    text = json.dumps(value)
    assert json.loads(storable_json(text) or text) == cleaned(json.loads(text))


@given(nasty_json)
def test_storable_json_is_none_exactly_where_nothing_has_to_change(value: object) -> None:
    text = json.dumps(value)
    assert (storable_json(text) is None) == (json.loads(text) == cleaned(json.loads(text)))


@pytest.mark.parametrize(
    ("text", "storable"),
    [
        (r'"\u0000"', r'"\ufffd"'),
        (r'"a\u0000b\u0000"', r'"a\ufffdb\ufffd"'),
        (r'{"\u0000": 1}', r'{"\ufffd": 1}'),
        (r'"\ud800"', r'"\ufffd"'),
        (r'"\uDBFF"', r'"\ufffd"'),
        (r'"\udc00"', r'"\ufffd"'),
        (r'"\udc00\ud800"', r'"\ufffd\ufffd"'),
        # A lone one before a pair takes none of the pair.
        (r'"\ud83d\ud83d\ude00"', r'"\ufffd\ud83d\ude00"'),
        (r'"\ud83d\ude00\ude00"', r'"\ud83d\ude00\ufffd"'),
        (r'"\ud83d \ude00"', r'"\ufffd \ufffd"'),
        # Behind an escaped backslash the escape is a real one again.
        (r'"\\\u0000"', r'"\\\ufffd"'),
        (r'"\\\\\u0000"', r'"\\\\\ufffd"'),
    ],
)
def test_what_cannot_be_stored_is_replaced_escape_by_escape(text: str, storable: str) -> None:
    assert storable_json(text) == storable


@pytest.mark.parametrize(
    "text",
    [
        r'"\\u0000"',
        r'"\\\\u0000"',
        r'"\\ud800"',
        r'"\ud83d\ude00"',
        r'"\uD83D\uDE00"',
        r'"\u00e9\u0001\ue000\uffff"',
        '{"a": [1, 2.50, "é 😀"]}',
        '"C:\\\\users"',
        "",
    ],
)
def test_what_can_be_stored_is_left_as_it_is(text: str) -> None:
    assert storable_json(text) is None


@given(nasty_text)
def test_storable_text_has_neither_nul_nor_lone_surrogates_and_its_other_characters(text: str) -> None:
    storable = storable_text(text)
    assert not UNSTORABLE.search(storable)
    assert len(storable) == len(text)
    assert all(new == old for new, old in zip(storable, text, strict=True) if not UNSTORABLE.match(old))


@pytest.mark.parametrize("number", ["1e400", "-1e400", "0.1000", "12345678901234567890", "1E5", "-0", "1e131071"])
def test_a_number_is_read_as_its_own_text(number: str) -> None:
    assert read_json(f"[{number}]") == [number]


def read_texts_of(text: str) -> object:
    return read_texts(text.encode(), text)


#: What is true of either reader.
either = pytest.mark.parametrize("read", [read_json, read_texts_of], ids=["read_json", "read_texts"])
type_reader = Callable[[str], object]


@either
@pytest.mark.parametrize(
    "number",
    [
        "1e131072",
        "1e999999999999999999999",
        "-1E+200000",
        "1E131072",
        "1" * 5_900 + "e125173",
        "1e-16384",
        "0.1e-16383",
        "0." + "1" * 5_900 + "e-10484",
        "0." + "1" * 16_384,
        "9" * 131_073,
        "1" + "0" * 131_072,
    ],
    ids=lambda number: number[:24],
)
def test_a_number_out_of_range_is_invalid(read: type_reader, number: str) -> None:
    with pytest.raises(MessageInvalid, match="number"):
        read(f'{{"amount": {number}}}')


def test_the_longest_numbers_are_read() -> None:
    for number in ("9" * 131_072, "0." + "1" * 16_383, "1e-16383", "-" + "9" * 131_072):
        assert read_json(number) == number


def nested(levels: int, inside: str = "") -> str:
    return "[" * levels + inside + "]" * levels


@either
def test_the_deepest_nesting_is_read(read: type_reader) -> None:
    assert read(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))


@either
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 1_000, 100_000])
def test_a_deeper_nesting_is_invalid(read: type_reader, levels: int) -> None:
    with pytest.raises(MessageInvalid, match=str(MAX_DEPTH)):
        read(nested(levels))


@either
def test_a_deeper_nesting_of_objects_is_invalid(read: type_reader) -> None:
    with pytest.raises(MessageInvalid):
        read('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1))


@either
def test_brackets_within_strings_do_not_nest(read: type_reader) -> None:
    for inside in ("[" * 1_000, '\\"' + "[" * 1_000, "{[" * 1_000 + "\\\\"):
        text = f'{{"log": "{inside}"}}'
        assert read(text) == json.loads(text)


@either
def test_brackets_side_by_side_do_not_nest(read: type_reader) -> None:
    text = "[" + ",".join(["[[]]"] * 2_000) + "]"
    assert read(text) == json.loads(text)


@either
@pytest.mark.parametrize(
    "text", ["", " ", "{", "nul", "{'a': 1}", '"a\nb"', '"\x00"', "[1,]", "01", "1 2", "\ufeff{}", r'"\x41"']
)
def test_what_is_no_json_is_said_to_be_none(read: type_reader, text: str) -> None:
    with pytest.raises(NotJson):
        read(text)


@either
@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_calls_json_is_none(read: type_reader, constant: str) -> None:
    with pytest.raises(NotJson):
        read(f"[{constant}]")


# A body of some kilobytes that held up its worker for minutes would be delivered again and again.
@either
@pytest.mark.timeout(20)
def test_the_depth_of_a_hostile_text_is_found_in_linear_time(read: type_reader) -> None:
    with pytest.raises((MessageInvalid, NotJson)):
        read("[" * (MAX_DEPTH + 1) + '"' + '\\"' * 200_000)


def without_numbers(value: object) -> object:
    if isinstance(value, list):
        return [without_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: without_numbers(item) for name, item in value.items()}
    is_number = isinstance(value, int | float | NumberText) and not isinstance(value, bool)
    return "a number" if is_number else value


def outcome(read: type_reader, text: str) -> object:
    try:
        return without_numbers(read(text))
    except (NotJson, MessageInvalid) as error:
        return type(error)


@given(nasty_json, st.data())
def test_both_readers_judge_a_text_alike(value: object, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    text = text.encode("utf-8", "replace").decode()
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text)))
        wrong = data.draw(st.sampled_from(["", ",", "]", "}", '"', "\\", "-", "0", ".", "e", "\x00", "\n", "NaN", " "]))
        text = text[:at] + wrong + text[at + 1 :]
    assert outcome(read_texts_of, text) == outcome(read_json, text)
