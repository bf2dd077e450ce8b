"""``switchboard doctor``: reaches everything that the configuration names, and says what is wrong and what to do.

A check is a function that gives findings; there is one file a subject. What concerns a transport alone is asked of
the adapter (``PullAdapter.inspect``).
"""

from .examine import examine

__all__ = ["examine"]
