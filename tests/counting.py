"""A team's provider that counts what it shapes: each delivery that reaches the ledger, whether new or known."""

from pathlib import Path

from switchboard import Delivery, Shape
from switchboard.normalize import resolve_provider

#: What an adapter names as its provider then.
PROVIDER = "counting:shape"


def shape(delivery: Delivery) -> Shape:
    """As ``generic``, and notes it in the folder that its worker was started in."""
    with Path("counted").open("ab") as counted:
        counted.write(b".")
    return resolve_provider("generic")(delivery)


def count_in(folder: Path) -> str:
    """Puts this module where a worker that is started in the folder finds it; returns the provider's name."""
    (folder / "counting.py").write_text(Path(__file__).read_text())
    return PROVIDER


def counted_in(folder: Path) -> int:
    """How many deliveries were shaped."""
    counted = folder / "counted"
    return counted.stat().st_size if counted.exists() else 0
