"""Provider `dockerhub`: which tag of which image was pushed, and by whom."""

import json

import pytest
from provider_bodies import body_of, changed, document_of, shape

from switchboard import Shape


def but(*path: str, to: object) -> str:
    return shape("dockerhub", json.dumps(changed(document_of("dockerhub", "push"), *path, to=to))).title


def test_a_push_says_image_tag_and_pusher() -> None:
    assert shape("dockerhub", body_of("dockerhub", "push")) == Shape("acme/api:1.4.2 pushed by bob", "push", "push")


@pytest.mark.parametrize(
    ("path", "to", "title"),
    [
        (["push_data", "pusher"], None, "acme/api:1.4.2 pushed"),
        (["push_data", "tag"], "", "acme/api pushed by bob"),
        (["push_data", "tag"], "v\n1", "acme/api:v 1 pushed by bob"),
        (["push_data"], {}, "acme/api pushed"),
        (["repository", "repo_name"], 7.50, "7.5:1.4.2 pushed by bob"),
        (["repository", "repo_name"], None, "acme/api:1.4.2 pushed by bob"),
        (["repository"], None, "an image:1.4.2 pushed by bob"),
    ],
)
def test_what_is_missing_or_odd_is_left_out(path: list[str], to: object, title: str) -> None:
    assert but(*path, to=to) == title


@pytest.mark.parametrize("body", ['{"name": "Ada"}', '{"push_data": [1]}', "[1]", "{}"])
def test_a_body_that_is_no_push_is_shaped_as_any_json(body: str) -> None:
    assert shape("dockerhub", body) == shape("generic", body)
