"""The web's room: ``switchboard.web:app`` is the ASGI application, served by ``switchboard serve`` or mounted in a
team's own.
"""

from .app import create_app

#: Reads its configuration when it starts, or with its first request.
app = create_app()

__all__ = ["app", "create_app"]
