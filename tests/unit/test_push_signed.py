"""Who signed a webhook: each sender's published example verifies, and nothing that differs from it in anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from senders import DOCUMENTED, SIGNED, SLACK_SECRET, Sent, github, slack, standard, stripe

from switchboard import SignatureInvalid
from switchboard.push import Slack
from switchboard.redact import redact_headers

#: Those that sign the time too, and within how many seconds of now it has to be.
TIMED, TOLERANCE = ("stripe", "slack", "standard"), 300

each_sender = pytest.mark.parametrize("sender", DOCUMENTED)
each_timed = pytest.mark.parametrize("sender", TIMED)


def refusal(sent: Sent, **others: object) -> str:
    with pytest.raises(SignatureInvalid) as caught:
        sent.adapter().verify(sent.request(**others))
    message = str(caught.value)
    assert str(sent.options["secret"]) not in message
    return message


@each_sender
def test_the_published_example_verifies(sender: str) -> None:
    sent = DOCUMENTED[sender]
    delivery = sent.adapter().verify(sent.request())
    assert delivery.body == sent.body
    assert delivery.source_ip == "203.0.113.7"
    assert delivery.verify_detail.endswith("secret 1 of 1")


@each_sender
def test_one_bit_of_the_body_flipped_is_refused_wherever_it_is(sender: str) -> None:
    sent = DOCUMENTED[sender]
    for position in range(len(sent.body)):
        changed = bytearray(sent.body)
        changed[position] ^= 1
        refusal(sent, body=bytes(changed))


@each_sender
@pytest.mark.parametrize("change", [b"", b"\n", b" ", b"\x00"])
def test_a_body_that_is_empty_or_longer_is_refused(sender: str, change: bytes) -> None:
    sent = DOCUMENTED[sender]
    refusal(sent, body=sent.body + change if change else b"")


@each_sender
def test_another_secret_is_refused(sender: str) -> None:
    sent = DOCUMENTED[sender]
    secret = str(sent.options["secret"])
    with pytest.raises(SignatureInvalid):
        sent.adapter(secret=secret[:-1] + ("A" if secret[-1] != "A" else "B")).verify(sent.request())


@pytest.mark.parametrize(("sender", "name"), [(key, name) for key, sent in DOCUMENTED.items() for name in sent.proof])
@pytest.mark.parametrize("fault", ["missing", "empty", "not ASCII", "twice", "spaced", "garbage", "cut"])
def test_a_header_of_the_proof_that_is_not_as_it_was_is_refused(sender: str, name: str, fault: str) -> None:
    sent = DOCUMENTED[sender]
    value = sent.headers[name]
    if fault == "missing":
        refusal(sent.without(name))
    elif fault == "twice":
        request = sent.request()
        refusal(sent, headers=[*request.headers, (name.lower().encode(), value.encode())])
    else:
        changed = {"empty": "", "not ASCII": f"{value}é", "spaced": f"{value[:9]} {value[9:]}", "garbage": "=,;\t="}
        refusal(sent.having(name, changed.get(fault, value[: len(value) // 2])))


@each_sender
@given(st.binary(max_size=80))
def test_no_signature_of_any_bytes_verifies_or_raises_anything_else(sender: str, value: bytes) -> None:
    sent = DOCUMENTED[sender]
    for name in sent.proof:
        others = [pair for pair in sent.request().headers if pair[0] != name.lower().encode()]
        if value != sent.headers[name].encode():
            refusal(sent, headers=[*others, (name.lower().encode(), value)])


@each_timed
@pytest.mark.parametrize("seconds", [-TOLERANCE, 0, TOLERANCE])
def test_a_time_within_the_tolerance_verifies(sender: str, seconds: int) -> None:
    sent = DOCUMENTED[sender]
    sent.adapter().verify(sent.request(received_at=sent.at + seconds))


@each_timed
@pytest.mark.parametrize("seconds", [-TOLERANCE - 1, TOLERANCE + 1, 10**9])
def test_an_old_time_and_a_future_one_are_refused(sender: str, seconds: int) -> None:
    sent = DOCUMENTED[sender]
    assert "its time is" in refusal(sent, received_at=sent.at + seconds)


@each_timed
def test_the_tolerance_can_be_set(sender: str) -> None:
    sent = DOCUMENTED[sender]
    late = sent.request(received_at=sent.at + 11)
    sent.adapter(tolerance="12s").verify(late)
    with pytest.raises(SignatureInvalid):
        sent.adapter(tolerance="10s").verify(late)


@each_timed
@pytest.mark.parametrize("text", ["-1", "1.5", "1e9", "0x5f", "٣", "9" * 30, " 1", ""])
def test_a_time_that_is_no_number_is_refused(sender: str, text: str) -> None:
    sent = DOCUMENTED[sender]
    name = "Stripe-Signature" if sender == "stripe" else next(name for name in sent.proof if "imestamp" in name)
    changed = sent.headers[name].replace(str(int(sent.at)), text)
    others = [pair for pair in sent.request().headers if pair[0] != name.lower().encode()]
    refusal(sent, headers=[*others, (name.lower().encode(), changed.encode())])


@each_sender
def test_while_secrets_rotate_either_verifies_and_the_delivery_says_which(sender: str) -> None:
    sent = DOCUMENTED[sender]
    secret = sent.options["secret"]
    other = "whsec_" + "AAAA" * 8
    for secrets, which in (([secret, other], "1 of 2"), ([other, secret], "2 of 2"), (["", secret], "2 of 2")):
        assert sent.adapter(secret=secrets).verify(sent.request()).verify_detail.endswith(f"secret {which}")
    with pytest.raises(SignatureInvalid):
        sent.adapter(secret=[other]).verify(sent.request())


@each_sender
def test_an_adapter_whose_secret_is_empty_is_off_and_verifies_nothing(sender: str) -> None:
    sent = DOCUMENTED[sender]
    adapter = sent.adapter(secret=["", ""])
    assert adapter.off == "its secret is not set"
    with pytest.raises(SignatureInvalid):
        adapter.verify(sent.request())
    assert SIGNED[sender](b"{}").adapter().off == ""


@each_sender
def test_no_signature_is_in_what_is_stored_or_shown(sender: str) -> None:
    sent = DOCUMENTED[sender]
    adapter = sent.adapter()
    delivery = adapter.verify(sent.request())
    signature = sent.headers[next(name for name in sent.proof if "ignature" in name)]
    stored = redact_headers(delivery.headers)
    assert "«redacted»" in stored.values()
    for shown in (
        str(stored),
        repr(delivery),
        repr(adapter),
        repr(adapter.options),
        str(adapter.describe()),
        repr(sent.request()),
    ):
        assert signature not in shown
        assert str(sent.options["secret"]) not in shown


# Ids


def test_a_delivery_of_github_is_known_by_its_header() -> None:
    sent = github(b"{}", delivery="0a1b-2c")
    assert sent.adapter().verify(sent.request()).native_id == "0a1b-2c"
    without = sent.without("X-GitHub-Delivery")
    assert without.adapter().verify(without.request()).native_id is None


@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 201, "a\tb"])
def test_what_is_no_id_is_refused(value: str) -> None:
    assert "x-github-delivery" in refusal(github(b"{}").having("X-GitHub-Delivery", value))


def test_a_delivery_of_stripe_is_known_by_its_event() -> None:
    sent = DOCUMENTED["stripe"]
    assert sent.adapter().verify(sent.request()).native_id == "evt_1NG8Du2eZvKYlo2CUI79vXWy"


def test_a_delivery_of_slack_is_known_by_its_event() -> None:
    sent = slack(b'{"type": "event_callback", "event_id": "Ev08MFMKH6"}')
    assert sent.adapter().verify(sent.request()).native_id == "Ev08MFMKH6"


def test_a_delivery_of_standard_webhooks_is_known_by_its_header() -> None:
    sent = standard(b"\xff\x00", message="msg_1")
    assert sent.adapter().verify(sent.request()).native_id == "msg_1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"id": null}',
        b'{"id": 7}',
        b'{"id": ["a"]}',
        b'{"id": ""}',
        b'{"id": "a\\u0000"}',
        b"{" * 5000,
        b'{"id": "' + b"x" * 300,
    ],
)
def test_a_signed_body_without_an_id_is_known_by_its_bytes(body: bytes) -> None:
    sent = stripe(body)
    assert sent.adapter().verify(sent.request()).native_id is None


# Each sender's own


def test_only_v1_of_stripe_is_a_signature() -> None:
    sent = stripe(b"{}")
    refusal(sent.having("Stripe-Signature", sent.headers["Stripe-Signature"].replace("v1=", "v0=")))


def test_two_times_in_one_stripe_header_are_refused() -> None:
    sent = stripe(b"{}")
    refusal(sent.having("Stripe-Signature", f"t=1,{sent.headers['Stripe-Signature']}"))


def test_the_signature_of_sha1_does_not_do_for_github() -> None:
    sent = github(b"{}").without("X-Hub-Signature-256").having("X-Hub-Signature", "sha1=" + "0" * 40)
    assert "missing" in refusal(sent)


def test_slack_hears_its_challenge_and_nothing_else_is_answered() -> None:
    adapter = Slack("line", queue="q", secret=SLACK_SECRET)
    for body, answer in (
        (b'{"type": "url_verification", "challenge": "3eZbrw1a", "token": "x"}', "3eZbrw1a"),
        (b'{"type": "event_callback", "challenge": "3eZbrw1a"}', None),
        (b'{"type": "event_callback", "event": {"type": "url_verification"}}', None),
        (b'{"type": "url_verification"}', ""),
        (b"type=url_verification&challenge=x", None),
    ):
        sent = slack(body)
        assert adapter.answer(adapter.verify(sent.request())) == answer


@pytest.mark.parametrize("sender", SIGNED)
def test_before_there_is_a_body_a_signature_is_asked_for_and_not_judged(sender: str) -> None:
    sent = SIGNED[sender](b'{"id": "1", "event_id": "1"}')
    sent.adapter().check_head(sent.request(body=b""))
    for name in sent.proof:
        with pytest.raises(SignatureInvalid):
            sent.without(name).adapter().check_head(sent.without(name).request(body=b""))
