"""Provider `stripe`: which object, what happened to it, how much money, whose, and why."""

import json

import pytest
from provider_bodies import body_of, changed, document_of, names_of, shape

from switchboard import Shape

TITLES = {
    "charge.dispute.created": "Dispute du_1Mt created: 10.00 USD, fraudulent",
    "charge.refunded": "Charge ch_3Pg refunded: 25.00 USD, cus_9",
    "checkout.session.completed": "Checkout session cs_live_a1b2 completed: 125000 JPY, cus_9",
    "customer.subscription.deleted": "Subscription sub_1Mow deleted: cus_9, payment failed",
    "invoice.payment_failed": "Invoice in_123 payment failed: 42.00 EUR, cus_9",
    "payment_intent.payment_failed": "Payment intent pi_3Pj payment failed (test mode): 42.00 EUR, cus_9, "
    "Your card has insufficient funds.",
    "payment_intent.succeeded": "Payment intent pi_3Pi succeeded: 5.120 KWD",
    "payout.failed": "Payout po_1Oa failed: 1100.00 EUR, The bank account has been closed",
    "v1.billing.meter.error_report_triggered": "Billing meter mtr_test_61R9I error report triggered",
}

KINDS = {
    "charge.dispute.created": "dispute",
    "charge.refunded": "charge",
    "checkout.session.completed": "checkout.session",
    "customer.subscription.deleted": "subscription",
    "invoice.payment_failed": "invoice",
    "payment_intent.payment_failed": "payment_intent",
    "payment_intent.succeeded": "payment_intent",
    "payout.failed": "payout",
    "v1.billing.meter.error_report_triggered": "billing.meter",
}


def invoice(**fields: object) -> Shape:
    """The shape of a failed invoice's event with other fields."""
    value: object = document_of("stripe", "invoice.payment_failed")
    for name, to in fields.items():
        value = changed(value, "data", "object", name, to=to)
    return shape("stripe", json.dumps(value))


@pytest.mark.parametrize("name", names_of("stripe"))
def test_a_title_says_what_happened_to_what_how_much_whose_and_why(name: str) -> None:
    assert shape("stripe", body_of("stripe", name)).title == TITLES[name]


@pytest.mark.parametrize("name", names_of("stripe"))
def test_the_kind_is_the_object_s_and_the_event_type_is_stripe_s(name: str) -> None:
    made = shape("stripe", body_of("stripe", name))
    assert (made.kind, made.event_type) == (KINDS[name], name)


@pytest.mark.parametrize(
    ("amount", "currency", "said"),
    [
        (4200, "eur", "42.00 EUR"),
        (5, "usd", "0.05 USD"),
        (0, "usd", "0.00 USD"),
        (-4200, "eur", "-42.00 EUR"),
        (-5, "usd", "-0.05 USD"),
        (500, "jpy", "500 JPY"),
        (0, "jpy", "0 JPY"),
        (-500, "krw", "-500 KRW"),
        (5120, "kwd", "5.120 KWD"),
        (7, "bhd", "0.007 BHD"),
        # Without a smaller coin, and counted in hundredths all the same.
        (500, "isk", "5.00 ISK"),
        (500, "ugx", "5.00 UGX"),
        (123456789012345678901, "usd", "1234567890123456789.01 USD"),
    ],
)
def test_an_amount_has_its_currency_s_digits(amount: int, currency: str, said: str) -> None:
    assert invoice(amount_due=amount, currency=currency).title == f"Invoice in_123 payment failed: {said}, cus_9"


@pytest.mark.parametrize("amount", [42.5, "4200", True, None, [4200], 10**40])
def test_an_amount_that_is_no_whole_number_is_not_said(amount: object) -> None:
    made = invoice(amount_due=amount, total=None)
    assert made.title == "Invoice in_123 payment failed: cus_9"


@pytest.mark.parametrize("currency", [None, "", "euro", 3, ["eur"], "e\n1"])
def test_an_amount_of_no_currency_is_not_said(currency: object) -> None:
    assert invoice(currency=currency).title == "Invoice in_123 payment failed: cus_9"


def test_a_refund_says_what_was_refunded_and_never_the_whole_charge() -> None:
    body = changed(document_of("stripe", "charge.refunded"), "data", "object", "amount_refunded", to=None)
    assert shape("stripe", json.dumps(body)).title == "Charge ch_3Pg refunded: cus_9"


def test_a_customer_may_be_expanded_and_is_not_said_twice() -> None:
    expanded = {"id": "cus_9", "object": "customer", "email": "carol@example.test"}
    assert invoice(customer=expanded).title == "Invoice in_123 payment failed: 42.00 EUR, cus_9"
    event = {"object": "event", "type": "customer.updated", "data": {"object": expanded}}
    assert shape("stripe", event).title == "Customer cus_9 updated"


def test_an_event_without_its_object_still_says_its_type() -> None:
    made = shape("stripe", {"type": "customer.subscription.trial_will_end", "data": None})
    assert made == Shape(
        "Customer subscription trial will end", "customer.subscription", "customer.subscription.trial_will_end"
    )
    assert shape("stripe", {"type": "push"}).title == "Push"


def test_a_body_that_is_no_event_is_shaped_as_any_json() -> None:
    assert shape("stripe", '{"name": "Ada"}') == shape("generic", '{"name": "Ada"}')
    assert shape("stripe", '"word"') == shape("generic", '"word"')
