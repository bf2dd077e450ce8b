"""Provider ``slack``: events, slash commands and what people do in messages and dialogs.

The source of names and fields is Slack's "Events API", "Slash commands" and "Interaction payloads". Each of these
carries the verification token that Slack has replaced by signatures: it is a credential, and no todo holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ..errors import MessageInvalid
from ..model import Delivery, JsonText, Shape, type_json
from ..redact import MASK
from .document import at, body_text, first_text, form_fields, list_at, read_document, text_at
from .generic import shape_json
from .masked import mask_member
from .storable import NotJson, read_json, storable_json
from .title import MAX_TITLE, one_line, sentence, spoken

_TOKEN = "token"  # noqa: S105 - the name of the field that holds one

#: Fields of which a form of Slack's has at least one.
_FORM_FIELDS = frozenset({"payload", "command", "trigger_word", _TOKEN})

# Names that Slack gives instead of a channel's where it does not tell them.
_UNTOLD_CHANNELS = frozenset({"directmessage", "privategroup"})

_MARKUP = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")


def normalize_slack(delivery: Delivery) -> Shape:
    """The todo of a message, an event, a slash command or an interaction: ``#ops: alice: disk full on db-1``.

    Slack names people and channels by id in most events: then the title does, too. The payload is the document with
    its ``token`` masked; of a form the JSON in its field ``payload``, else an object of its fields. ``event_type`` is
    the event's type, with its subtype after a point. Raises ``MessageInvalid`` for a body that is neither JSON nor a
    form of Slack's; other JSON gets the shape that ``generic`` gives it.
    """
    text = body_text(delivery, "Slack")
    payload = None
    try:
        value = read_json(text)
    except NotJson:
        fields = form_fields(text)
        if not _FORM_FIELDS & fields.keys():
            raise MessageInvalid("Slack sends JSON or a form, and this body is neither") from None
        if "payload" not in fields:
            return _command(fields)
        text = fields["payload"]
        value = read_document(text, "Slack")
        payload = JsonText(text)
    if isinstance(value, dict) and _TOKEN in value:
        payload = mask_member(text, _TOKEN)
    else:
        payload = storable_json(text) or payload
    if not isinstance(value, dict):
        return shape_json(value, text, payload)
    event = at(value, "event") if text_at(value, "type") == "event_callback" else value
    kind = one_line(text_at(event, "type"))
    if not kind:
        return shape_json(value, text, payload)
    subtype = text_at(event, "subtype")
    event_type = one_line(f"{kind}.{subtype}") if subtype else kind
    return Shape(title=_title(event, kind, subtype), kind=kind, event_type=event_type, payload=payload)


def _command(fields: Mapping[str, str]) -> Shape:
    """A slash command, or a message that an outgoing webhook saw."""
    kind = "slash_command" if "command" in fields else "message"
    said = sentence(fields.get("command", ""), _plain(fields.get("text", "")))
    title = one_line(_spoken_at(_channel(fields), first_text(fields, "user_name", "user_id"), said))
    told = {name: MASK if name == _TOKEN else value for name, value in fields.items()}
    return Shape.of(told, title=title or "Slack form", kind=kind, event_type=kind)


def _title(event: type_json, kind: str, subtype: str) -> str:
    said = _TITLES[kind](event, subtype) if kind in _TITLES else _any_event(event, kind)
    return one_line(said) or "Slack event"


def _message(event: type_json, subtype: str) -> str:
    # An edited or deleted message is inside its event.
    message = {"message_changed": at(event, "message"), "message_deleted": at(event, "previous_message")}.get(subtype)
    said = _said(event if message is None else message)
    if subtype == "message_deleted":
        return _spoken_at(_channel(event), "", f"message deleted: {said}")
    who = _who(event) or _who(message)
    return _spoken_at(_channel(event), f"{who} (edited)" if subtype == "message_changed" and who else who, said)


def _reaction(did: str) -> Callable[[type_json, str], str]:
    def title(event: type_json, _subtype: str) -> str:
        reaction = text_at(event, "reaction")
        who = _who(event) or "somebody"
        return _spoken_at(
            text_at(event, "item", "channel"), "", sentence(who, did, f":{reaction}:" if reaction else "")
        )

    return title


def _block_actions(event: type_json, _subtype: str) -> str:
    return _spoken_at(
        _channel(event), _who(event), ", ".join(map(_chosen, list_at(event, "actions")[:10])) or "an action"
    )


def _chosen(action: type_json) -> str:
    """What somebody pressed or chose: the element's id, and its words or value."""
    words = text_at(action, "text", "text") or text_at(action, "selected_option", "text", "text")
    words = words or first_text(action, "value", "selected_date", "selected_user", "selected_channel")
    return sentence(first_text(action, "action_id", "name", "type"), about=_plain(words))


def _view(did: str) -> Callable[[type_json, str], str]:
    def title(event: type_json, _subtype: str) -> str:
        view = text_at(event, "view", "title", "text") or text_at(event, "view", "callback_id") or "a view"
        return sentence(_who(event) or "somebody", did, view)

    return title


def _shortcut(event: type_json, _subtype: str) -> str:
    used = sentence("shortcut", text_at(event, "callback_id"))
    return _spoken_at(_channel(event), _who(event), sentence(used, about=_said(at(event, "message"))))


def _url_verification(_event: type_json, _subtype: str) -> str:
    return "Slack verifies this URL"


def _any_event(event: type_json, kind: str) -> str:
    about = ", ".join(filter(None, (_channel(event), _who(event))))
    return sentence("Slack", spoken(kind), about=about)


_TITLES: Mapping[str, Callable[[type_json, str], str]] = {
    "message": _message,
    "app_mention": _message,
    "reaction_added": _reaction("reacted with"),
    "reaction_removed": _reaction("took back"),
    "block_actions": _block_actions,
    "interactive_message": _block_actions,
    "view_submission": _view("submitted"),
    "view_closed": _view("closed"),
    "shortcut": _shortcut,
    "message_action": _shortcut,
    "url_verification": _url_verification,
}


def _spoken_at(channel: str, who: str, said: str) -> str:
    return ": ".join(part for part in (channel, who, said) if part)


def _channel(value: type_json) -> str:
    name = text_at(value, "channel_name") or text_at(value, "channel", "name")
    if name and name not in _UNTOLD_CHANNELS:
        return f"#{name}"
    return first_text(value, "channel", "channel_id") or text_at(value, "channel", "id")


def _who(value: type_json) -> str:
    user = at(value, "user")
    if isinstance(user, dict):
        return first_text(user, "name", "username", "real_name", "id")
    return text_at(value, "user_profile", "name") or first_text(value, "user", "username", "bot_id")


def _said(message: type_json) -> str:
    if text := text_at(message, "text"):
        return _plain(text)
    for attachment in list_at(message, "attachments")[:1]:
        return _plain(first_text(attachment, "fallback", "title", "text"))
    return ", ".join(filter(None, (first_text(each, "title", "name") for each in list_at(message, "files")[:10])))


def _plain(text: str) -> str:
    """The first words without Slack's markup: ``<@U1|bob> &amp; <https://acme.test|this>`` is ``@bob & this``."""
    start = text.lstrip()[: MAX_TITLE * 4]
    if "<" in start:
        start = _MARKUP.sub(_marked_up, start)
    return start.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") if "&" in start else start


def _marked_up(match: re.Match[str]) -> str:
    sign, target, label = match.groups()
    if sign == "!":
        return label or f"@{target}"
    if sign:
        return f"{sign}{(label or target).removeprefix(sign)}"
    return label or target
