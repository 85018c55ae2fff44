"""A site's side: the app of the installed package."""

from client_app.app import app

__all__ = ["app"]
