"""Bodies that providers send: their documented payloads, shortened, in `payloads/`, and what may come instead."""

import json
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st

from switchboard import Delivery, Shape
from switchboard.normalize import resolve_provider
from switchboard.normalize.title import MAX_TITLE

PAYLOADS = Path(__file__).parent / "payloads"

#: Every body there is, as `provider/name`.
BODIES = sorted(f"{path.parent.name}/{path.stem}" for path in PAYLOADS.glob("*/*"))

#: For a test on a machine that is busy: how long an example takes says nothing.
unhurried = settings(deadline=None)

texts = st.text(
    st.one_of(st.characters(exclude_categories=()), st.sampled_from('\x00\x1b\u2028\ud800\n"\\<>&|')), max_size=12
)
any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


def names_of(provider: str) -> list[str]:
    return [body.partition("/")[2] for body in BODIES if body.startswith(f"{provider}/")]


@cache
def body_of(provider: str, name: str) -> bytes:
    (path,) = (path for path in (PAYLOADS / provider).iterdir() if path.stem == name)
    return path.read_bytes()


def document_of(provider: str, name: str) -> dict[str, object]:
    value = json.loads(body_of(provider, name))
    assert isinstance(value, dict)
    return value


def shape(provider: str, body: bytes | str | Mapping[str, object], headers: dict[str, str] | None = None) -> Shape:
    if isinstance(body, Mapping):
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body
    return resolve_provider(provider)(Delivery(data, "1-0", "", headers or {}))


def changed(value: object, *path: str | int, to: object) -> object:
    """A copy of the document in which another value stands at a path."""
    if not path:
        return to
    if isinstance(value, dict):
        return {**value, path[0]: changed(value.get(str(path[0])), *path[1:], to=to)}
    if isinstance(value, list) and isinstance(path[0], int):
        return [changed(item, *path[1:], to=to) if index == path[0] else item for index, item in enumerate(value)]
    return {path[0]: changed(None, *path[1:], to=to)}


def _paths(value: object, *path: str | int) -> list[tuple[str | int, ...]]:
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [(*path, name) for name, _ in items] + [deep for name, item in items for deep in _paths(item, *path, name)]


def _without(value: object, *path: str | int) -> object:
    name, rest = path[0], path[1:]
    if isinstance(value, dict):
        kept = {each: item for each, item in value.items() if rest or each != name}
        return {each: _without(item, *rest) if each == name else item for each, item in kept.items()}
    assert isinstance(value, list)
    return [_without(item, *rest) if at == name else item for at, item in enumerate(value) if rest or at != name]


@st.composite
def altered(draw: st.DrawFn, provider: str) -> tuple[str, object]:
    """The name of a body, and that body with some fields missing or of any other value."""
    name = draw(
        st.sampled_from([each for each in names_of(provider) if not body_of(provider, each).startswith(b"token=")])
    )
    value: object = document_of(provider, name)
    for _ in range(draw(st.integers(1, 4))):
        paths = _paths(value)
        if not paths:
            break
        path = draw(st.sampled_from(paths))
        value = _without(value, *path) if draw(st.booleans()) else changed(value, *path, to=draw(any_json))
    return name, value


def is_one_readable_line(title: str) -> None:
    assert 1 <= len(title) <= MAX_TITLE
    assert len(title.splitlines()) == 1
    assert not {unicodedata.category(character) for character in title} & {"Cc", "Cs"}
