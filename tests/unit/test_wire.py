"""Arrays packed by ourselves are what psycopg's own dumper would have sent."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg import postgres
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format
from psycopg.types.json import Jsonb

from switchboard.ledger import wire
from switchboard.ledger.wire import ByteaArray, JsonbArray, PackedArray, TextArray

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


def by_psycopg(values: list[Any]) -> tuple[int, bytes]:
    """The oid and the bytes that psycopg sends for a list in binary."""
    transformer = Transformer(None)
    dumper = transformer.get_dumper(values, PyFormat.BINARY)
    dumped = dumper.dump(values)
    assert dumped is not None
    return dumper.oid, bytes(dumped)


def read_back(oid: int, packed: bytes) -> Any:
    return Transformer(None).get_loader(oid, Format.BINARY).load(packed)


def with_nulls(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    # Of a list with nothing but NULLs psycopg cannot know the type, and an empty one has no dimension there.
    return st.lists(st.one_of(st.none(), values), min_size=1).filter(lambda some: any(x is not None for x in some))


@given(with_nulls(st.binary()))
@example([b"", None, b"\x00\xff"])
def test_bytes_are_packed_as_psycopg_packs_them(values: list[bytes | None]) -> None:
    assert (1001, ByteaArray(values).packed) == by_psycopg(values)


@given(with_nulls(texts))
@example(["", None, "é😀"])
def test_texts_are_packed_as_psycopg_packs_them(values: list[str | None]) -> None:
    assert (1009, TextArray.of(values).packed) == by_psycopg(values)


@given(st.lists(json_values, min_size=1))
def test_json_is_packed_as_psycopg_packs_it(values: list[Any]) -> None:
    packed = JsonbArray([json.dumps(value).encode() for value in values]).packed
    assert (3807, packed) == by_psycopg([Jsonb(value) for value in values])


@given(st.lists(st.one_of(st.none(), st.binary())))
@example([])
@example([None])
def test_packed_bytes_read_back_as_they_were(values: list[bytes | None]) -> None:
    assert read_back(1001, ByteaArray(values).packed) == values


@given(st.lists(st.one_of(st.none(), texts)))
@example([])
@example([None, None])
def test_packed_texts_read_back_as_they_were(values: list[str | None]) -> None:
    assert read_back(1009, TextArray.of(values).packed) == values


@given(st.lists(st.one_of(st.none(), json_values.filter(lambda value: value is not None))))
def test_packed_json_reads_back_as_it_was(values: list[Any]) -> None:
    packed = JsonbArray([None if value is None else json.dumps(value).encode() for value in values]).packed
    assert read_back(3807, packed) == values


@pytest.mark.parametrize(
    ("array", "name", "dumper"),
    [
        (ByteaArray, "bytea", wire._ByteaArrayDumper),
        (TextArray, "text", wire._TextArrayDumper),
        (JsonbArray, "jsonb", wire._JsonbArrayDumper),
    ],
)
def test_the_oids_are_postgresql_s(array: type[PackedArray], name: str, dumper: type[wire._PackedDumper]) -> None:
    known = postgres.types[name]
    assert (array.element_oid, dumper.oid) == (known.oid, known.array_oid)


def test_a_text_that_is_no_utf_8_is_an_error_here_and_not_on_the_wire() -> None:
    with pytest.raises(UnicodeEncodeError):
        TextArray.of(["\ud800"])
