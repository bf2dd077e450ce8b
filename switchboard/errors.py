"""Every exception Switchboard raises.

SwitchboardError
├── ConfigError            a setting is missing or wrong; the message names its key
├── LedgerError            PostgreSQL answered, and the answer was no
│   ├── NotFound           no such row
│   ├── Conflict           the row is there, and not in the state the change needs
│   └── LedgerUnavailable  PostgreSQL did not answer; the same call may succeed later
├── BrokerUnavailable      the source's server did not answer; the same call may succeed later
├── PublishRejected        the broker refused the message for good
├── PoisonMessage          a message failed by itself as often as it may
├── MessageInvalid         a delivery cannot be given a todo's shape, for its body or its id
├── AckFailed              what is stored could not be acknowledged; a redelivery of it dedups
├── SignatureInvalid       a webhook is not signed by who it says it is from
│   └── SignatureMismatch  it has all that a signature or a token needs, and is another's
└── CredentialInvalid      no endpoint or session in force has this credential
"""


class SwitchboardError(Exception):
    """Base of every error below."""


class ConfigError(SwitchboardError):
    """A setting is missing or wrong; the message names its key and what was expected."""


class LedgerError(SwitchboardError):
    """PostgreSQL refused what it was asked."""


class NotFound(LedgerError):
    """No row has that id."""


class Conflict(LedgerError):
    """The row exists but is not in the state the change needs."""


class LedgerUnavailable(LedgerError):
    """PostgreSQL could not be reached, gave no answer in time, or answered that it cannot serve now."""

    #: Whether the connection was lost, which what was asked may have done; else PostgreSQL said why it cannot serve.
    connection_lost = False


class BrokerUnavailable(SwitchboardError):
    """The source's server could not be reached, gave no answer in time, or answered that it cannot serve now."""

    #: Whether the server answered, and refused what it was asked: another question may be answered.
    answered = False


class PublishRejected(SwitchboardError):
    """The broker refused the message for good: trying again cannot help."""


class PoisonMessage(SwitchboardError):
    """A message failed by itself as often as its adapter allows."""


class MessageInvalid(SwitchboardError):
    """A delivery's body cannot be given a todo's shape, or its id is none."""


class AckFailed(SwitchboardError):
    """An acknowledgement did not reach the source; what it is for is safe in the ledger."""


class SignatureInvalid(SwitchboardError):
    """A webhook's signature or token does not verify."""


class SignatureMismatch(SignatureInvalid):
    """A webhook's signature or token is well-formed, and not what its secret makes."""


class CredentialInvalid(SwitchboardError):
    """No endpoint or session in force has this credential; what is wrong with it is never said."""
