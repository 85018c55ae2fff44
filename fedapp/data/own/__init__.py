"""Images or vectors that lie at a site and are never seen by anybody else: docs/OWN_DATA.md."""

from fedapp.data.own.entries import Entry, Fault, Kind, Listing, OwnDataError
from fedapp.data.own.listing import list_agreed, list_own
from fedapp.data.own.read import OwnSites, Place, simulated_places

__all__ = [
    "Entry",
    "Fault",
    "Kind",
    "Listing",
    "OwnDataError",
    "OwnSites",
    "Place",
    "list_agreed",
    "list_own",
    "simulated_places",
]
