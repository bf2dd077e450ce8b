"""A team's provider that counts what it shapes: each delivery that reaches the ledger, whether new or known."""

from pathlib import Path

_MODULE = """
import os
from switchboard.normalize import resolve_provider

generic = resolve_provider("generic")
counted = os.open("counted", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def shape(delivery):
    os.write(counted, b".")
    return generic(delivery)
"""

#: What an adapter names as its provider then.
PROVIDER = "counting:shape"


def count_in(folder: Path) -> str:
    """Puts the module where a worker that is started in the folder finds it; returns the provider's name."""
    (folder / "counting.py").write_text(_MODULE)
    return PROVIDER


def counted_in(folder: Path) -> int:
    """How many deliveries were shaped."""
    counted = folder / "counted"
    return counted.stat().st_size if counted.exists() else 0
