"""What went wrong with a request: a line in the node's log and an answer to the server."""

import logging
from functools import lru_cache

from fedapp.core.errors import FedAppError, message_for_server, one_line
from fedapp.protocol.messages import Incoming, Refusal

log = logging.getLogger("flwr")


def refusal_of(error: Exception) -> Incoming:
    """Log the error, with its traceback where it is none of ours, and return the refusal."""
    if isinstance(error, FedAppError):
        _say_once(one_line(error))
    else:
        log.error("a request could not be answered", exc_info=error)
    lasting = isinstance(error, FedAppError) and error.lasting
    return Incoming(Refusal(-1, 0, message_for_server(error), lasting))


@lru_cache(maxsize=256)
def _say_once(reason: str) -> None:
    """Log a reason once a process: in simulation a hundred sites may lack the same file."""
    log.error("%s", reason)
