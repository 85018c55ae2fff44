"""Errors that a person can act on: each message names the thing, the broken rule and the remedy."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_QUOTED = 2000
"""Maximum length in characters of an error that quotes another machine."""

DIVERGED_REMEDY = "lower training.learning_rate"
"""The remedy where a site's answers, or its weights after training, are NaN or infinite."""

_PATH = re.compile(r"""(?<![\w.:/])~?/(?=\S)(?:[^:;,()'"]*/)?[^\s:;,()'"]*""")
"""Matches an absolute path, including spaces in it, but no URL and no path inside this project."""


def one_line(text: object, limit: int = MAX_QUOTED) -> str:
    """Return at most `limit` characters; characters that are unsafe on a terminal become spaces."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:limit])


def name_suggestion(name: str, names: Iterable[str]) -> str:
    """Return the remedy for a name that is not one of `names`: the closest one, or all of them."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(sorted(names))}"


class FedAppError(Exception):
    """Base class of every error that this project raises on purpose.

    lasting: True where a site would answer the same task with the same error for the rest of the
    run, so that the server need not ask again.
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
"""`Problem.where` of a setting that comes from no file but from a command line or a caller."""


class ConfigError(FedAppError):
    """A setting is unknown, has the wrong type, is out of range, or contradicts another.

    problems: everything that is wrong, one line each; a text where it is about something else than
    a setting of an experiment.
    """

    def __init__(self, *problems: Problem | str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class Contradiction(ValueError):
    """Fields of one group of settings (`keys`) contradict one another; raised by `__post_init__`.

    pydantic passes it on to the caller, who knows in which file the values are written.
    """

    def __init__(self, rule: str, *keys: str) -> None:
        super().__init__(rule)
        self.keys = keys


@dataclass(frozen=True)
class Incompatibility:
    """A setting that cannot be combined with settings of another group, or with the method.

    setting: its dotted key. reason: the rule that its value breaks. remedy: as in `Problem`.
    """

    setting: str
    reason: str
    remedy: str = ""


class DataError(FedAppError):
    """Images or labels are missing, damaged, or not what the experiment declares."""


class ImageError(DataError):
    """An error whose text names a site's image, and so perhaps a patient or a label.

    The text therefore stays in the site's own log. file: the image's file. what: the rule that it
    breaks. for_server: what the server is told instead.
    """

    for_server = "one of the site's images cannot be used; the site's own log names it"

    def __init__(self, file: object, what: str, remedy: str) -> None:
        super().__init__(file, what, remedy)
        self.file, self.what, self.remedy = file, what, remedy

    def __str__(self) -> str:
        # A file's name may contain control characters.
        return f"{one_line(self.file, 1000)}: {one_line(self.what)}: {self.remedy}"


class WithheldError(FedAppError):
    """Work on images that differential privacy protects has failed; the text stays at the site.

    Whether and how the work fails may depend on a single image, and so would reveal something about
    it. The server is therefore told the same line whatever the reason was.
    """

    for_server = (
        "the site could not do this; where single images are protected (privacy.epsilon), the "
        "reason stays in the site's own log"
    )


class ProtocolError(FedAppError):
    """A message or a model from another machine is not what the protocol allows.

    The text may quote what was received, so it is always cut to one short printable line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, MAX_QUOTED))


class StoreError(FedAppError):
    """A model or a record cannot be written to the disk or read from it."""


class RunError(FedAppError):
    """A run cannot continue: too few replies, no sites, or another experiment's checkpoint."""


def message_for_server(error: Exception) -> str:
    """Return what a site tells the server about an error; the full text is for the site's own log.

    An unforeseen error may quote anything, so that only its type is named. Paths are removed: a
    folder is often named after a person, and the server has no use for it.
    """
    if isinstance(error, ImageError | WithheldError):
        return error.for_server
    if isinstance(error, FedAppError):
        return _PATH.sub("[a path at the site]", one_line(error))
    return f"{type(error).__name__} at the site; the site's own log says more"
