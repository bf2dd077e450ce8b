"""Why a demo cannot go on."""

from ..errors import SwitchboardError


class DemoFailed(SwitchboardError):
    """The demo cannot go on; the message says what is wrong, in words for the person who ran it."""
