"""Provider `github`: who did what where, from the event's header or from the body's own fields."""

import json
import re
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from provider_bodies import any_json, body_of, changed, document_of, names_of, shape, unhurried

from switchboard import Shape
from switchboard.normalize.storable import storable_json

TITLES = {
    "check_run.completed": "acme/shop: check lint timed out on fix-cart: No answer in an hour",
    "code_scanning_alert.created": "acme/shop: code scanning alert #4 created: high CodeQL: "
    "SQL query built from user-controlled sources",
    "create": "acme/shop: alice created branch fix-cart",
    "delete": "acme/shop: alice deleted tag v2.4.0",
    "dependabot_alert.created": "acme/shop: Dependabot alert #20 created: high semver: "
    "semver vulnerable to regular expression denial of service",
    "deployment_status.created": "acme/shop: deployment of main to production failed: The health check did not pass",
    "issue_comment.created": "acme/shop: alice commented on issue #7: Seen here as well, on 2.4.",
    "issues.opened": "acme/shop: issue #7 opened by bob: The cart empties itself",
    "milestone.closed": "acme/shop: milestone #3 closed by alice: Carts that last",
    "ping": "acme/shop: ping of webhook 109948940: Half measures are as bad as nothing at all.",
    "pull_request.closed": "acme/shop: pull request #12 merged by bob: Fix the cart",
    "pull_request.opened": "acme/shop: pull request #12 opened by alice: Fix the cart",
    "pull_request_review.submitted": "acme/shop: bob approved pull request #12: Fix the cart",
    "pull_request_review_comment.created": "acme/shop: bob commented on pull request #12: Why not round here?",
    "push": "acme/shop: alice pushed 2 commits to main: Fix the cart",
    "release.published": "acme/shop: release v2.4.1 published by alice: The cart stays full",
    "secret_scanning_alert.created": "acme/shop: secret scanning alert #5 created: Stripe API Key",
    "star.created": "acme/shop: starred by bob",
    "workflow_run.completed": "acme/shop: workflow CI failed on main: Fix the cart",
}


def but(name: str, *path: str, to: object) -> Shape:
    """The shape of that body with another value in one place."""
    return shape("github", json.dumps(changed(document_of("github", name), *path, to=to)))


@pytest.mark.parametrize("name", names_of("github"))
def test_a_title_says_where_who_what_and_about_what(name: str) -> None:
    assert shape("github", body_of("github", name)).title == TITLES[name]


@pytest.mark.parametrize("name", names_of("github"))
def test_the_event_is_the_kind_and_its_action_belongs_to_the_event_type(name: str) -> None:
    made = shape("github", body_of("github", name))
    assert (made.kind, made.event_type) == (name.partition(".")[0], name)


@pytest.mark.parametrize(
    ("name", "path", "to", "title"),
    [
        ("push", ["commits"], [], "acme/shop: alice pushed to main: Fix the cart"),
        ("push", ["commits"], [{}], "acme/shop: alice pushed 1 commit to main: Fix the cart"),
        ("push", ["forced"], True, "acme/shop: alice force-pushed 2 commits to main: Fix the cart"),
        ("push", ["deleted"], True, "acme/shop: alice deleted branch main"),
        ("push", ["ref"], "refs/tags/v1", "acme/shop: alice pushed tag v1: Fix the cart"),
        ("push", ["sender"], None, "acme/shop: alice pushed 2 commits to main: Fix the cart"),
        ("push", ["head_commit"], None, "acme/shop: alice pushed 2 commits to main"),
        (
            "pull_request.opened",
            ["action"],
            "synchronize",
            "acme/shop: pull request #12 updated by alice: Fix the cart",
        ),
        ("pull_request.opened", ["action"], "closed", "acme/shop: pull request #12 closed by alice: Fix the cart"),
        ("pull_request.opened", ["number"], "12", "acme/shop: pull request #12 opened by alice: Fix the cart"),
        (
            "pull_request.opened",
            ["pull_request", "number"],
            None,
            "acme/shop: pull request opened by alice: Fix the cart",
        ),
        ("pull_request.opened", ["pull_request"], 7, "acme/shop: pull request opened by alice"),
        ("pull_request.opened", ["repository"], [], "acme: pull request #12 opened by alice: Fix the cart"),
        (
            "issue_comment.created",
            ["action"],
            "edited",
            "acme/shop: comment on issue #7 edited by alice: Seen here as well, on 2.4.",
        ),
        (
            "issue_comment.created",
            ["issue", "pull_request"],
            {"url": "…"},
            "acme/shop: alice commented on pull request #7: Seen here as well, on 2.4.",
        ),
        (
            "pull_request_review.submitted",
            ["review", "state"],
            "changes_requested",
            "acme/shop: bob requested changes on pull request #12: Fix the cart",
        ),
        (
            "pull_request_review.submitted",
            ["action"],
            "dismissed",
            "acme/shop: review of pull request #12 dismissed by bob: Fix the cart",
        ),
        (
            "workflow_run.completed",
            ["workflow_run", "conclusion"],
            "success",
            "acme/shop: workflow CI succeeded on main: Fix the cart",
        ),
        (
            "workflow_run.completed",
            ["action"],
            "requested",
            "acme/shop: workflow CI was requested on main: Fix the cart",
        ),
        ("star.created", ["action"], "deleted", "acme/shop: unstarred by bob"),
        ("release.published", ["release", "name"], "v2.4.1", "acme/shop: release v2.4.1 published by alice"),
    ],
)
def test_a_title_follows_what_happened_and_leaves_out_what_is_missing(
    name: str, path: list[str], to: object, title: str
) -> None:
    assert but(name, *path, to=to).title == title


@pytest.mark.parametrize(
    ("action", "extra", "happened"),
    [
        ("assigned", {"assignee": {"login": "bob"}}, "assigned to bob by alice"),
        ("labeled", {"label": {"name": "bug"}}, "labeled bug by alice"),
        ("review_requested", {"requested_reviewer": {"login": "bob"}}, "review requested (bob) by alice"),
        ("review_requested", {"requested_team": {"name": "carts"}}, "review requested (carts) by alice"),
        ("ready_for_review", {}, "ready for review by alice"),
        ("labeled", {"label": ["bug"]}, "labeled by alice"),
    ],
)
def test_a_pull_request_s_title_says_with_whom_or_what(action: str, extra: dict[str, object], happened: str) -> None:
    made = shape("github", document_of("github", "pull_request.opened") | extra | {"action": action})
    assert made.title == f"acme/shop: pull request #12 {happened}: Fix the cart"


def test_the_header_outranks_what_the_fields_look_like() -> None:
    body = document_of("github", "pull_request.opened")
    made = shape("github", body, {"X-GitHub-Event": "pull_request_target"})
    assert (made.kind, made.event_type) == ("pull_request_target", "pull_request_target.opened")
    assert made.title == "acme/shop: pull request target opened by alice"


def test_an_event_that_nobody_has_heard_of_is_told_by_its_own_object() -> None:
    body = {"action": "moved", "cart": {"number": 3, "title": "Full"}, "sender": {"login": "alice"}}
    made = shape("github", body, {"X-GitHub-Event": "cart"})
    assert made == Shape(title="cart #3 moved by alice: Full", kind="cart", event_type="cart.moved")


@pytest.mark.parametrize("value", ["push\nx", "\x1b[2Jpush", "  push ", "p" * 5_000])
def test_a_header_is_one_bounded_line(value: str) -> None:
    made = shape("github", {"ref": "main"}, {"X-GitHub-Event": value})
    assert made.kind.isprintable()
    assert 1 <= len(made.kind) <= 200


def test_a_body_that_is_no_event_is_shaped_as_any_json() -> None:
    assert shape("github", '{"name": "Ada"}') == shape("generic", '{"name": "Ada"}')
    assert shape("github", "[1, 2]") == shape("generic", "[1, 2]")


# Forms


@pytest.mark.parametrize("name", names_of("github"))
def test_a_form_is_the_json_inside(name: str) -> None:
    text = body_of("github", name).decode()
    form = urlencode({"payload": text})
    made = shape("github", form, {"Content-Type": "application/x-www-form-urlencoded"})
    plain = shape("github", text)
    assert made == Shape(plain.title, plain.kind, plain.event_type, made.payload)
    assert made.payload == text


@unhurried
@given(any_json, st.booleans())
def test_a_form_s_payload_is_the_text_that_was_encoded(value: object, plus: bool) -> None:
    text = json.dumps({"zen": value, "n": "%22 %7B + & = ; %25"}, ensure_ascii=False)
    assume(storable_json(text) is None and not re.search("[\ud800-\udfff]", text))
    encoded = quote_plus(text) if plus else quote(text)
    for ending in ("", "&other=%7B"):
        assert shape("github", f"payload={encoded}{ending}").payload == text


def test_a_form_keeps_numbers_and_loses_what_cannot_be_stored() -> None:
    made = shape("github", "payload=" + quote_plus(r'{"zen": "a\u0000", "hook": 0.100, "é": 1e400}'))
    assert made.payload == r'{"zen": "a\ufffd", "hook": 0.100, "é": 1e400}'
