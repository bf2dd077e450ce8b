"""A body becomes a todo's shape: pure functions, one file a provider."""

from .providers import Normalizer, resolve_provider
from .storable import storable_json, storable_text

__all__ = ["Normalizer", "resolve_provider", "storable_json", "storable_text"]
