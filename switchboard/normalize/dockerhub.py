"""Provider ``dockerhub``: what Docker Hub's webhooks send, which is one event alone: a tag was pushed.

The source of its fields is Docker Hub's "Webhooks".
"""

from __future__ import annotations

from ..model import Delivery, Shape
from .document import at, body_text, read_document, text_at
from .generic import shape_json
from .storable import storable_json
from .title import one_line, sentence


def normalize_dockerhub(delivery: Delivery) -> Shape:
    """The todo of a push: ``acme/api:1.4.2 pushed by bob``, of kind and event type ``push``.

    Raises ``MessageInvalid`` for a body that is no JSON; JSON that is no push gets the shape that ``generic`` gives it.
    """
    text = body_text(delivery, "Docker Hub")
    value = read_document(text, "Docker Hub")
    payload = storable_json(text)
    if not isinstance(at(value, "push_data"), dict):
        return shape_json(value, text, payload)
    image, tag = _repository(value), text_at(value, "push_data", "tag")
    pusher = text_at(value, "push_data", "pusher")
    said = sentence(f"{image}:{tag}" if tag else image, "pushed", f"by {pusher}" if pusher else "")
    return Shape(title=one_line(said), kind="push", event_type="push", payload=payload)


def _repository(value: object) -> str:
    if name := text_at(value, "repository", "repo_name"):
        return name
    namespace, name = text_at(value, "repository", "namespace"), text_at(value, "repository", "name")
    return "/".join(filter(None, (namespace, name))) or "an image"
