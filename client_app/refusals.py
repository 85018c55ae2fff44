"""Turn an error of a request into a line of the node's log and an answer for the server."""

import logging
from functools import lru_cache

from fedapp.core.errors import FedAppError, message_for_server, one_line
from fedapp.protocol.messages import Incoming, Refusal

log = logging.getLogger("flwr")


def refusal_of(error: Exception) -> Incoming:
    """Log an error, with its traceback unless it is a FedAppError, and return the refusal."""
    if isinstance(error, FedAppError):
        _say_once(one_line(error))
    else:
        log.error("a request could not be answered", exc_info=error)
    lasting = isinstance(error, FedAppError) and error.lasting
    return Incoming(Refusal(-1, 0, message_for_server(error), lasting))


@lru_cache(maxsize=256)
def _say_once(reason: str) -> None:
    """Log a reason once in a process: in a simulation a hundred sites may lack the same file."""
    log.error("%s", reason)
