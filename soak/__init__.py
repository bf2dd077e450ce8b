"""Minutes of traffic through real workers while everything around them fails, and a count from outside.

`make soak` runs it; `python -m soak.run --help` says how. It borrows the tests' helpers.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "faults")]
