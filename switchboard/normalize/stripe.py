"""Provider ``stripe``: Stripe's events, whole ones and the thin ones of its newer API.

The source of names and fields is Stripe's "The Event object" and "Supported currencies".
"""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Delivery, Shape, type_json
from .document import at, body_text, first_text, number_at, read_document, text_at
from .generic import shape_json
from .storable import storable_json
from .title import one_line, spoken

#: Digits after the point that an amount has in Stripe's smallest unit; every other currency has two, ISK and UGX too,
#: which have no smaller coin and are counted in hundredths all the same.
_DIGITS = dict.fromkeys("BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF".split(), 0) | dict.fromkeys(
    "BHD JOD KWD OMR TND".split(), 3
)

# Which amount an event is about: the first that its object has.
_AMOUNTS = ("amount", "amount_total", "amount_due", "total")
_AMOUNTS_OF_EVENTS: Mapping[str, tuple[str, ...]] = {
    "charge.refunded": ("amount_refunded",),
    "invoice.paid": ("amount_paid",),
    "invoice.payment_succeeded": ("amount_paid",),
}

# Why it went wrong: the object says it itself, or in an error of its own.
_REASONS = ("failure_message", "failure_reason", "failure_code", "reason")
_ERRORS = ("last_payment_error", "last_setup_error", "last_finalization_error")


def normalize_stripe(delivery: Delivery) -> Shape:
    """The todo of an event: ``Invoice in_123 payment failed: 42.00 EUR, cus_9``.

    ``event_type`` is the event's type, ``kind`` the type of the object that it is about (``invoice``, ``charge``,
    ``checkout.session``). Raises ``MessageInvalid`` for a body that is no JSON; JSON that is no event of Stripe's gets
    the shape that ``generic`` gives it.
    """
    text = body_text(delivery, "Stripe")
    value = read_document(text, "Stripe")
    payload = storable_json(text)
    event_type = one_line(text_at(value, "type"))
    if not event_type:
        return shape_json(value, text, payload)
    kind = text_at(value, "data", "object", "object") or text_at(value, "related_object", "type")
    kind = one_line(kind) or event_type.rpartition(".")[0] or event_type
    return Shape(title=_title(value, event_type, kind), kind=kind, event_type=event_type, payload=payload)


def _title(value: type_json, event_type: str, kind: str) -> str:
    subject = at(value, "data", "object")
    id_ = text_at(subject, "id") or text_at(value, "related_object", "id")
    happened = spoken(event_type.rpartition(".")[2]) if "." in event_type else ""
    said = " ".join(filter(None, (spoken(kind).capitalize(), id_, happened)))
    about = ", ".join(filter(None, (_money(subject, event_type), _customer(subject), _reason(subject))))
    test = " (test mode)" if at(value, "livemode") is False else ""
    return one_line(f"{said}{test}: {about}" if about else f"{said}{test}") or "Stripe event"


def _money(subject: type_json, event_type: str) -> str:
    names = _AMOUNTS_OF_EVENTS.get(event_type, _AMOUNTS)
    amount = next(filter(None, (number_at(subject, name) for name in names)), "")
    currency = text_at(subject, "currency").upper()
    digits, minus = amount.removeprefix("-"), "-" if amount.startswith("-") else ""
    # An amount is a whole number of the smallest unit; of anything else it is not known what it counts.
    if not (digits.isdecimal() and len(digits) < 30 and len(currency) == 3 and currency.isalpha()):
        return ""
    after = _DIGITS.get(currency, 2)
    if not after:
        return f"{minus}{digits} {currency}"
    digits = digits.rjust(after + 1, "0")
    return f"{minus}{digits[:-after]}.{digits[-after:]} {currency}"


def _customer(subject: type_json) -> str:
    if text_at(subject, "object") == "customer":
        return ""
    return text_at(subject, "customer") or text_at(subject, "customer", "id")


def _reason(subject: type_json) -> str:
    reason = first_text(subject, *_REASONS) or text_at(subject, "cancellation_details", "reason")
    reason = reason or next(filter(None, (text_at(subject, error, "message") for error in _ERRORS)), "")
    return reason if " " in reason else reason.replace("_", " ")
