"""What the senders of webhooks send, signed as each of them documents it; and the example each of them publishes."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from switchboard.push import SENDERS, PushAdapter, Request

#: One secret an adapter type; none of them is anybody's.
GITHUB_SECRET = "It's a Secret to Everybody"
STRIPE_SECRET = "whsec_test_secret"
SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOKEN = "a-shared-token-5d41402abc4b"


@dataclass(frozen=True)
class Sent:
    """A request as its sender makes it, at that time."""

    type: str
    options: Mapping[str, Any]
    body: bytes
    headers: Mapping[str, str]
    at: float
    #: Those of the headers without which it must be refused.
    proof: tuple[str, ...] = field(default=())

    def adapter(self, **others: Any) -> PushAdapter:
        make: Callable[..., PushAdapter] = SENDERS[self.type]
        return make("line", queue="q", **{**self.options, **others})

    def request(self, **others: Any) -> Request:
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        return replace(Request(self.body, raw, b"", "203.0.113.7", self.at), **others)

    def without(self, name: str) -> "Sent":
        return replace(self, headers={key: value for key, value in self.headers.items() if key != name})

    def having(self, name: str, value: str) -> "Sent":
        return replace(self, headers={**self.headers, name: value})


def _hex(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def github(
    body: bytes,
    delivery: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    event: str = "push",
    secret: str = GITHUB_SECRET,
) -> Sent:
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": f"sha256={_hex(secret, body)}",
    }
    return Sent("github", {"secret": secret}, body, headers, time.time(), ("X-Hub-Signature-256",))


def stripe(body: bytes, secret: str = STRIPE_SECRET, at: float | None = None) -> Sent:
    at = time.time() if at is None else at
    signature = _hex(secret, f"{int(at)}.".encode() + body)
    headers = {"Content-Type": "application/json", "Stripe-Signature": f"t={int(at)},v1={signature}"}
    return Sent("stripe", {"secret": secret}, body, headers, at, ("Stripe-Signature",))


def slack(body: bytes, secret: str = SLACK_SECRET, at: float | None = None) -> Sent:
    at = time.time() if at is None else at
    headers = {
        "Content-Type": "application/json",
        "X-Slack-Request-Timestamp": str(int(at)),
        "X-Slack-Signature": f"v0={_hex(secret, f'v0:{int(at)}:'.encode() + body)}",
    }
    return Sent("slack", {"secret": secret}, body, headers, at, ("X-Slack-Signature", "X-Slack-Request-Timestamp"))


def standard(
    body: bytes,
    message: str = "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W",
    secret: str = STANDARD_SECRET,
    at: float | None = None,
) -> Sent:
    at = time.time() if at is None else at
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.digest(key, f"{message}.{int(at)}.".encode() + body, "sha256")).decode()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": f"v1,{signature}",
    }
    options = {"trust": "signed", "secret": secret}
    return Sent("generic", options, body, headers, at, ("webhook-id", "webhook-timestamp", "webhook-signature"))


#: How each signed sender signs a body, now.
SIGNED: dict[str, Callable[[bytes], Sent]] = {
    "github": github,
    "stripe": stripe,
    "slack": slack,
    "standard": standard,
}

#: The published examples. Stripe publishes none with its secret: that one was made with `openssl dgst -hmac`.
DOCUMENTED = {
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    "github": replace(github(b"Hello, World!"), at=1_400_000_000.0).having(
        "X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    ),
    # https://docs.stripe.com/webhooks, whose example has the same form, and the same time
    "stripe": stripe(
        b'{"id": "evt_1NG8Du2eZvKYlo2CUI79vXWy", "object": "event", "type": "invoice.paid"}', at=1_492_774_577
    ).having(
        "Stripe-Signature",
        "t=1492774577,v1=706cee79846d2ed220caa3e13cca3839ada6b0d82e2c327e454f3d7ddbfd5fdc,"
        "v1=11631360cd3de029a95671d8fc144579e6680e4edd8a8572549e1c1b38e57e57,"
        "v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39",
    ),
    # https://docs.slack.dev/authentication/verifying-requests-from-slack
    "slack": slack(
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
        at=1_531_420_618,
    ).having("X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
    # https://github.com/standard-webhooks/standard-webhooks, the example that its libraries test with
    "standard": standard(b'{"test": 2432232314}', message="msg_p5jXN8AQM9LWM0D4loKWxJek", at=1_614_265_330).having(
        "webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    ),
}
