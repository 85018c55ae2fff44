"""The server's side: the app of the installed package."""

from server_app.app import app

__all__ = ["app"]
