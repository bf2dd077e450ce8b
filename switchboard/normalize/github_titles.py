"""What a person reads of a GitHub event: where it happened, who did what, and what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..model import type_json
from .document import at, first_text, list_at, text_at
from .title import one_line, sentence, spoken

# How a run, a check, a status or a deployment ended or goes, as words that follow its name.
_OUTCOMES = {
    "success": "succeeded",
    "failure": "failed",
    "error": "failed",
    "timed_out": "timed out",
    "cancelled": "was cancelled",
    "skipped": "was skipped",
    "neutral": "ended neutral",
    "stale": "went stale",
    "action_required": "needs an action",
    "startup_failure": "failed to start",
    "pending": "is pending",
    "queued": "is queued",
    "in_progress": "is in progress",
    "inactive": "is inactive",
    "requested": "was requested",
    "rerequested": "was requested again",
    "created": "was created",
    "waiting": "is waiting",
    "completed": "completed",
}

_REVIEWS = {"approved": "approved", "changes_requested": "requested changes on", "commented": "reviewed"}


def github_title(value: type_json, event: str) -> str:
    """One line for an event of that name; a field that is missing is left out."""
    place = text_at(value, "repository", "full_name") or text_at(value, "organization", "login")
    place = place or text_at(value, "installation", "account", "login")
    said = _TITLES[event](value) if event in _TITLES else _any_event(value, event)
    return one_line(f"{place}: {said}" if place else said) or "GitHub event"


def _who(value: type_json) -> str:
    return text_at(value, "sender", "login")


def _by(value: type_json) -> str:
    who = _who(value)
    return f"by {who}" if who else ""


def _numbered(what: str, value: type_json) -> str:
    number = text_at(value, "number")
    return f"{what} #{number}" if number else what


def _first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0]


def _sha(text: str) -> str:
    return text[:7]


def _on(place: str) -> str:
    return f"on {place}" if place else ""


def _any_event(value: type_json, event: str) -> str:
    subject = at(value, event)
    # A repository's name is said already.
    names = () if event == "repository" else ("title", "name", "summary", "description")
    happened = spoken(text_at(value, "action"))
    return sentence(_numbered(spoken(event), subject), happened, _by(value), about=first_text(subject, *names))


def _push(value: type_json) -> str:
    who = _who(value) or text_at(value, "pusher", "name") or "somebody"
    ref = text_at(value, "ref")
    tag = ref.removeprefix("refs/tags/") if ref.startswith("refs/tags/") else ""
    name = tag or ref.removeprefix("refs/heads/")
    if at(value, "deleted") is True:
        return sentence(who, "deleted", "tag" if tag else "branch", name)
    about = _first_line(text_at(value, "head_commit", "message"))
    if tag:
        return sentence(who, "pushed tag", name, about=about)
    commits = len(list_at(value, "commits"))
    pushed = "force-pushed" if at(value, "forced") is True else "pushed"
    if not commits:
        created = at(value, "created") is True
        return sentence(who, "created branch" if created else f"{pushed} to", name, about=about)
    return sentence(who, pushed, "1 commit" if commits == 1 else f"{commits} commits", "to", name, about=about)


def _ref_event(did: str) -> Callable[[type_json], str]:
    return lambda value: sentence(_who(value) or "somebody", did, text_at(value, "ref_type"), text_at(value, "ref"))


def _happened(value: type_json) -> str:
    """What was done to an issue or a pull request, with what it was done with."""
    action = text_at(value, "action")
    if action == "synchronize":
        return "updated"
    if action in ("assigned", "unassigned") and (whom := text_at(value, "assignee", "login")):
        return f"{action} {'to' if action == 'assigned' else 'from'} {whom}"
    if action in ("labeled", "unlabeled") and (label := text_at(value, "label", "name")):
        return f"{action} {label}"
    if action in ("review_requested", "review_request_removed"):
        whom = text_at(value, "requested_reviewer", "login") or text_at(value, "requested_team", "name")
        return f"{spoken(action)} ({whom})" if whom else spoken(action)
    return spoken(action)


def _pull_request(value: type_json) -> str:
    subject = at(value, "pull_request")
    merged = text_at(value, "action") == "closed" and at(subject, "merged") is True
    happened = "merged" if merged else _happened(value)
    return sentence(_numbered("pull request", subject), happened, _by(value), about=text_at(subject, "title"))


def _issues(value: type_json) -> str:
    subject = at(value, "issue")
    return sentence(_numbered("issue", subject), _happened(value), _by(value), about=text_at(subject, "title"))


def _comment_on(name: str) -> Callable[[type_json], str]:
    def title(value: type_json) -> str:
        subject = at(value, name)
        pull_request = name == "pull_request" or at(subject, "pull_request") is not None
        what = _numbered("pull request" if pull_request else name, subject)
        return _commented(value, what)

    return title


def _commit_comment(value: type_json) -> str:
    return _commented(value, f"commit {_sha(text_at(value, 'comment', 'commit_id'))}".rstrip())


def _commented(value: type_json, what: str) -> str:
    about = text_at(value, "comment", "body")
    action = text_at(value, "action")
    if action == "created" and (who := _who(value)):
        return sentence(who, "commented on", what, about=about)
    return sentence("comment on", what, spoken(action), _by(value), about=about)


def _review(value: type_json) -> str:
    subject = at(value, "pull_request")
    what = _numbered("pull request", subject)
    # The review event says "approved" where the API says "APPROVED".
    did = _REVIEWS.get(text_at(value, "review", "state").lower())
    about = text_at(value, "review", "body") or text_at(subject, "title")
    if text_at(value, "action") == "submitted" and did and (who := _who(value)):
        return sentence(who, did, what, about=about)
    return sentence("review of", what, spoken(text_at(value, "action")), _by(value), about=about)


def _release(value: type_json) -> str:
    release = at(value, "release")
    tag, name = text_at(release, "tag_name"), text_at(release, "name")
    return sentence("release", tag, spoken(text_at(value, "action")), _by(value), about="" if name == tag else name)


def _outcome(value: type_json, run: type_json) -> str:
    action = text_at(value, "action")
    # One that is asked for again still has the conclusion of the last time.
    ended = text_at(run, "conclusion") if action in ("completed", "") else ""
    term = ended or action or text_at(run, "status")
    return _OUTCOMES.get(term, spoken(term))


def _workflow_run(value: type_json) -> str:
    run = at(value, "workflow_run")
    branch = _on(text_at(run, "head_branch"))
    about = _first_line(text_at(run, "display_title") or text_at(run, "head_commit", "message"))
    return sentence("workflow", text_at(run, "name"), _outcome(value, run), branch, about=about)


def _workflow_job(value: type_json) -> str:
    job = at(value, "workflow_job")
    workflow = text_at(job, "workflow_name")
    of = f"of {workflow}" if workflow else ""
    return sentence("job", text_at(job, "name"), of, _outcome(value, job), _on(text_at(job, "head_branch")))


def _check_run(value: type_json) -> str:
    run = at(value, "check_run")
    place = text_at(run, "check_suite", "head_branch") or _sha(text_at(run, "head_sha"))
    about = text_at(run, "output", "title")
    return sentence("check", text_at(run, "name"), _outcome(value, run), _on(place), about=about)


def _check_suite(value: type_json) -> str:
    suite = at(value, "check_suite")
    place = text_at(suite, "head_branch") or _sha(text_at(suite, "head_sha"))
    return sentence("check suite of", text_at(suite, "app", "name"), _outcome(value, suite), _on(place))


def _status(value: type_json) -> str:
    state = text_at(value, "state")
    place, about = _on(_sha(text_at(value, "sha"))), text_at(value, "description")
    return sentence("status", text_at(value, "context"), _OUTCOMES.get(state, spoken(state)), place, about=about)


def _deployed(value: type_json, happened: str, about: str) -> str:
    deployment = at(value, "deployment")
    ref, environment = text_at(deployment, "ref"), text_at(deployment, "environment")
    of = f"of {ref}" if ref else ""
    to = f"to {environment}" if environment else ""
    return sentence("deployment", of, to, happened, about=about)


def _deployment(value: type_json) -> str:
    happened = f"{spoken(text_at(value, 'action'))} {_by(value)}".strip()
    return _deployed(value, happened, text_at(value, "deployment", "description"))


def _deployment_status(value: type_json) -> str:
    state = text_at(value, "deployment_status", "state")
    about = text_at(value, "deployment_status", "description")
    return _deployed(value, _OUTCOMES.get(state, spoken(state)), about)


def _alert(value: type_json, what: str, about: str) -> str:
    return sentence(_numbered(what, at(value, "alert")), spoken(text_at(value, "action")), about=about)


def _dependabot_alert(value: type_json) -> str:
    alert = at(value, "alert")
    package = text_at(alert, "dependency", "package", "name")
    severity = text_at(alert, "security_advisory", "severity")
    about = sentence(severity, package, about=text_at(alert, "security_advisory", "summary"))
    return _alert(value, "Dependabot alert", about)


def _secret_scanning_alert(value: type_json) -> str:
    about = first_text(at(value, "alert"), "secret_type_display_name", "secret_type")
    return _alert(value, "secret scanning alert", about)


def _code_scanning_alert(value: type_json) -> str:
    rule = at(value, "alert", "rule")
    severity = first_text(rule, "security_severity_level", "severity")
    about = sentence(severity, text_at(value, "alert", "tool", "name"), about=first_text(rule, "description", "id"))
    return _alert(value, "code scanning alert", about)


def _star(value: type_json) -> str:
    return sentence("unstarred" if text_at(value, "action") == "deleted" else "starred", _by(value))


def _fork(value: type_json) -> str:
    name = text_at(value, "forkee", "full_name")
    return sentence("forked", _by(value), f"to {name}" if name else "")


def _gollum(value: type_json) -> str:
    pages = list_at(value, "pages")
    about = ", ".join(filter(None, (text_at(page, "title") for page in pages[:10])))
    return sentence("wiki edited", _by(value), about=about)


def _ping(value: type_json) -> str:
    hook = text_at(value, "hook_id") or text_at(value, "hook", "id")
    return sentence("ping of webhook", hook, about=text_at(value, "zen"))


def _member(value: type_json) -> str:
    return sentence("member", text_at(value, "member", "login"), spoken(text_at(value, "action")), _by(value))


_TITLES: Mapping[str, Callable[[type_json], str]] = {
    "push": _push,
    "create": _ref_event("created"),
    "delete": _ref_event("deleted"),
    "pull_request": _pull_request,
    "issues": _issues,
    "issue_comment": _comment_on("issue"),
    "pull_request_review_comment": _comment_on("pull_request"),
    "discussion_comment": _comment_on("discussion"),
    "commit_comment": _commit_comment,
    "pull_request_review": _review,
    "release": _release,
    "workflow_run": _workflow_run,
    "workflow_job": _workflow_job,
    "check_run": _check_run,
    "check_suite": _check_suite,
    "status": _status,
    "deployment": _deployment,
    "deployment_status": _deployment_status,
    "dependabot_alert": _dependabot_alert,
    "secret_scanning_alert": _secret_scanning_alert,
    "code_scanning_alert": _code_scanning_alert,
    "star": _star,
    "watch": _star,
    "fork": _fork,
    "gollum": _gollum,
    "ping": _ping,
    "member": _member,
}
