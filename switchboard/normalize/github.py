"""Provider ``github``: what GitHub's webhooks send, whether it comes by HTTP or through a queue.

The source of names and fields is GitHub's "Webhook events and payloads".
"""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Delivery, JsonText, Shape
from .document import body_text, form_fields, read_document, text_at
from .generic import shape_json
from .github_titles import github_title
from .storable import storable_json
from .title import one_line

_EVENT_HEADER = "x-github-event"
_FORM = "payload="

# Which event a body is of, where no header says so: the first whose fields it has. Fields that come along with other
# events (a workflow_run with its deployment_status, an installation with everything) stand further down.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ping", ("zen", "hook")),
    ("push", ("ref", "before", "after")),
    ("create", ("ref", "ref_type", "master_branch")),
    ("delete", ("ref", "ref_type")),
    ("pull_request_review_comment", ("pull_request", "comment")),
    ("pull_request_review_thread", ("pull_request", "thread")),
    ("pull_request_review", ("pull_request", "review")),
    ("pull_request", ("pull_request",)),
    ("issue_comment", ("issue", "comment")),
    ("issues", ("issue",)),
    ("discussion_comment", ("discussion", "comment")),
    ("discussion", ("discussion",)),
    ("deployment_review", ("reviewers", "since")),
    ("commit_comment", ("comment",)),
    ("deployment_status", ("deployment_status",)),
    ("workflow_job", ("workflow_job",)),
    ("deployment_protection_rule", ("deployment_callback_url",)),
    ("deployment", ("deployment",)),
    ("check_run", ("check_run",)),
    ("check_suite", ("check_suite",)),
    ("workflow_run", ("workflow_run",)),
    ("workflow_dispatch", ("workflow", "inputs")),
    ("repository_dispatch", ("client_payload",)),
    ("release", ("release",)),
    ("registry_package", ("registry_package",)),
    ("package", ("package",)),
    ("status", ("sha", "context", "state")),
    ("fork", ("forkee",)),
    ("gollum", ("pages",)),
    ("page_build", ("build",)),
    ("secret_scanning_alert_location", ("alert", "location")),
    ("security_advisory", ("security_advisory",)),
    ("repository_advisory", ("repository_advisory",)),
    ("merge_group", ("merge_group",)),
    ("branch_protection_rule", ("rule",)),
    ("repository_ruleset", ("repository_ruleset",)),
    ("projects_v2_item", ("projects_v2_item",)),
    ("label", ("label",)),
    ("milestone", ("milestone",)),
    ("star", ("starred_at",)),
    ("membership", ("member", "team")),
    ("member", ("member",)),
    ("team", ("team", "action")),
    ("team_add", ("team",)),
    ("organization", ("organization", "membership")),
    ("deploy_key", ("key",)),
    ("org_block", ("blocked_user",)),
    ("sponsorship", ("sponsorship",)),
    ("marketplace_purchase", ("marketplace_purchase",)),
    ("meta", ("hook", "hook_id")),
    ("installation_repositories", ("repositories_added",)),
    ("installation", ("installation", "repositories")),
)

_ALERT_SIGNS = (
    ("secret_scanning_alert", "secret_type"),
    ("dependabot_alert", "security_advisory"),
    ("code_scanning_alert", "rule"),
)


def normalize_github(delivery: Delivery) -> Shape:
    """The todo of a GitHub event: its payload is the event's JSON, also where a form carries it.

    ``kind`` is the event (``pull_request``), ``event_type`` the event and its action (``pull_request.opened``). The
    event is what the header X-GitHub-Event says, or what the body's fields tell. Raises ``MessageInvalid`` for a body
    that is no JSON; JSON that is no event of GitHub's gets the shape that ``generic`` gives it.
    """
    text = body_text(delivery, "GitHub")
    payload = None
    if text.startswith(_FORM):
        text = form_fields(text)["payload"]
        payload = JsonText(text)
    value = read_document(text, "GitHub")
    payload = storable_json(text) or payload
    event = _event_header(delivery.headers)
    if not isinstance(value, dict):
        return shape_json(value, text, payload, event)
    event = event or _inferred(value)
    if not event:
        return shape_json(value, text, payload)
    action = text_at(value, "action")
    event_type = one_line(f"{event}.{action}") if action else event
    return Shape(title=github_title(value, event), kind=event, event_type=event_type, payload=payload)


def _event_header(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if len(name) == len(_EVENT_HEADER) and name.lower().replace("_", "-") == _EVENT_HEADER:
            return one_line(value)
    return ""


def _inferred(value: Mapping[str, object]) -> str:
    if "alert" in value and "location" not in value:
        return next((event for event, sign in _ALERT_SIGNS if sign in _fields(value["alert"])), "")
    for event, names in _SIGNS:
        if all(name in value for name in names):
            return event
    return ""


def _fields(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
