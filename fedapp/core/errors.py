"""Errors a person can act on: each message names the thing, the rule it broke and the remedy."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_QUOTED = 2000
"""Characters of an error that quotes another machine."""

DIVERGED_REMEDY = "lower training.learning_rate"
"""What a site advises whose answers, or whose weights after training, are no numbers."""

_PATH = re.compile(r"""(?<![\w.:/])~?/(?=\S)(?:[^:;,()'"]*/)?[^\s:;,()'"]*""")
"""An absolute path, with the spaces inside it; no URL, no path within this project."""


def one_line(text: object, limit: int = MAX_QUOTED) -> str:
    """Return at most `limit` characters; what no terminal should be sent becomes a space."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:limit])


def name_suggestion(name: str, names: Iterable[str]) -> str:
    """Return the advice for a name that is not one of `names`."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(sorted(names))}"


class FedAppError(Exception):
    """Base of every error this project raises on purpose.

    lasting: of one at a site, that the same question has no other answer in this run.
    """

    lasting = False


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the settings of an experiment.

    where: the file that has the settings, or `OVERRIDE`. settings: the dotted keys and their
    values; several where they contradict one another. rule: what they break. remedy: empty where
    the rule already says what to do.
    """

    where: str
    settings: Mapping[str, object]
    rule: str
    remedy: str = ""

    def __str__(self) -> str:
        shown = ", ".join(f"{key} = {value!r}" for key, value in self.settings.items())
        rule = f"{self.rule}; {self.remedy}" if self.remedy else self.rule
        return ": ".join(filter(None, [self.where, shown, rule]))


OVERRIDE = "override"
"""`Problem.where` of what no file says: a command line, a grid or a caller does."""


class ConfigError(FedAppError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another.

    found: all that is wrong; a text where no setting of an experiment is. One line each.
    """

    def __init__(self, *found: Problem | str) -> None:
        super().__init__(*found)
        self.problems = found

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class Contradiction(ValueError):
    """What a group of settings says of itself when it is made: `keys`, its fields, break a rule.

    pydantic passes it on to whoever knows where the values stand.
    """

    def __init__(self, rule: str, *keys: str) -> None:
        super().__init__(rule)
        self.keys = keys


@dataclass(frozen=True)
class Incompatibility:
    """A setting that does not go with settings of another group, or with the method.

    setting: its dotted key. reason: the rule that its value breaks. remedy: as of `Problem`.
    """

    setting: str
    reason: str
    remedy: str = ""


class DataError(FedAppError):
    """Images or labels are absent, damaged or not what the experiment declares."""


class ImageError(DataError):
    """Names an image of a site, so perhaps a patient or a label: it stays in the site's log.

    file: where it lies. what: the rule that it breaks. for_server: what the server may be told
    instead.
    """

    for_server = "one of the site's images cannot be used; the site's own log names it"

    def __init__(self, file: object, what: str, remedy: str) -> None:
        super().__init__(file, what, remedy)
        self.file, self.what, self.remedy = file, what, remedy

    def __str__(self) -> str:
        # A file's name may hold what no terminal should be sent.
        return f"{one_line(self.file, 1000)}: {one_line(self.what)}: {self.remedy}"


class WithheldError(FedAppError):
    """What went wrong in the work on protected images; its text stays in the site's log.

    Whether and how work fails may depend on a single image. So the server is told one and the same
    line, whatever it was.
    """

    for_server = (
        "the site could not do this; where single images are protected (privacy.epsilon), the "
        "reason stays in the site's own log"
    )


class ProtocolError(FedAppError):
    """A message or a model from another machine is not what the protocol allows.

    It quotes what came, so its text is always one short line that a terminal can show.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, MAX_QUOTED))


class StoreError(FedAppError):
    """A model or a record cannot be written to, or read from, the disk."""


class RunError(FedAppError):
    """A run cannot go on: too few replies, no sites, or a checkpoint of another experiment."""


def message_for_server(error: Exception) -> str:
    """Return what a site tells the server of an error; the whole of it is for the site's own log.

    An error that nobody foresaw may quote anything, so only its kind is told. Paths are left out:
    a folder is often named after a person, and the server can do nothing with it.
    """
    if isinstance(error, ImageError | WithheldError):
        return error.for_server
    if isinstance(error, FedAppError):
        return _PATH.sub("[a path at the site]", one_line(error))
    return f"{type(error).__name__} at the site; the site's own log says more"
