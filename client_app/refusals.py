"""What a node's log shows, and the answer that the server gets where a request fails."""

import logging
import os
from functools import lru_cache

from fedapp.core.errors import FedAppError, message_for_server, one_line
from fedapp.protocol.messages import Incoming, Refusal

log = logging.getLogger("flwr")
_HERE = os.path.dirname(__file__)


def show_own_lines() -> None:
    """Show the INFO lines of this project although Flower shows warnings only.

    `fedapp node` has Flower show warnings only (FLWR_LOG_LEVEL), since Flower writes ten lines for
    each message, and none of them says how far a run is. At the end of a simulation Flower warns
    that it ends each of its own workers: that line would be among the last that a user reads. No
    setting of Flower or Ray hides it alone.
    """
    log.addFilter(lambda record: not str(record.msg).startswith("Manually terminating"))
    for handler in log.handlers:
        if handler.level == logging.WARNING:
            handler.setLevel(logging.INFO)
            handler.addFilter(_is_worth_a_line)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    ours = record.name != log.name or record.pathname.startswith(_HERE)
    return ours or record.levelno > logging.INFO


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
