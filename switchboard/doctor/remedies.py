"""What to do where a server does not let us in, by what its client says."""

from __future__ import annotations

from ..errors import SwitchboardError
from ..finding import Finding
from ..redact import safe_text

_REMEDIES = (
    ("is not set", "set it, in the environment of every process that runs Switchboard"),
    ("empty DATABASE_URL", "set DATABASE_URL, in the environment of every process that runs Switchboard"),
    ("password authentication failed", "correct the user or the password in the address"),
    ("WRONGPASS", "correct the user or the password in the address"),
    ("invalid username-password pair", "correct the user or the password in the address"),
    ("Authentication required", "put the user and the password into the address"),
    ("AuthenticationError", "correct the user or the password in the address"),
    ("no password supplied", "put the password into the address"),
    ("does not exist", "create it, or correct the address"),
    ("too many", "raise the server's limit of connections, or run fewer worker threads"),
    ("max number of clients", "raise maxclients, or run fewer worker processes"),
    ("remaining connection slots", "raise max_connections, or run fewer worker threads"),
    ("no pg_hba.conf entry", "allow this host, user and database in pg_hba.conf"),
    ("starting up", "wait: it recovers from a crash, or has just been started"),
    ("loading the dataset", "wait: it loads its data"),
    ("refused", "start the server, or correct host and port in the address"),
    ("No such file or directory", "start the server, or correct the socket's path in the address"),
    ("Name or service not known", "correct the host in the address, or the name service"),
    ("not known", "correct the host in the address, or the name service"),
    ("resolve", "correct the host in the address, or the name service"),
    ("CERTIFICATE", "name the authority that signed its certificate, with ssl_ca_certs or sslrootcert"),
    ("SSL", "use TLS on both sides or on neither"),
    ("imed out", "see whether it is frozen, overloaded or cut off (a firewall that drops packets)"),
    ("imeout", "see whether it is frozen, overloaded or cut off (a firewall that drops packets)"),
    ("no answer", "see whether it is frozen, overloaded or cut off (a firewall that drops packets)"),
    ("encoding", "create the database anew: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"),
    ("needs `pip install", "install what it names"),
    ("percent-encoded", "percent-encode the special characters of the password"),
)


def unreachable(subject: str, error: SwitchboardError) -> Finding:
    """The finding for a server that cannot be asked."""
    what = " ".join(safe_text(str(error)).split())
    remedy = next(
        (remedy for word, remedy in _REMEDIES if word in what), "correct the address, or what the error names"
    )
    return Finding("reach", subject, "error", what, remedy)
