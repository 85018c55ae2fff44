"""What a site allows: the terms in `site.yaml`, the site's own file, which is never sent.

If a term is not written down, all is allowed that the program allows. Terms are checked before
anything is computed. What leaves is checked again before it does.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, time
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from fedapp.core.disk import check_owned, open_own_file
from fedapp.core.errors import ConfigError, FedAppError, name_suggestion
from fedapp.core.plugins import is_function_name
from fedapp.core.settings import CLOSED, OWN, check_patients, members_of
from fedapp.core.withdrawn import TAKEN_OUT, TERMS
from fedapp.data.datasets import NAMES as DATASETS
from fedapp.experiment.code_hash import code_digest, stands_in_for
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar, method_presets, presets, read_yaml
from fedapp.experiment.signed_runs import RunStatement, public_key, settings_digest, verify
from fedapp.learn.networks import is_timm_name, network_names
from fedapp.methods import method_names
from fedapp.protocol.messages import MASKED, MODEL, Origin
from fedapp.protocol.secure_aggregation.site_session import MIN_MEMBERS

TERMS_FILE = "site.yaml"
_SIMILAR_FILE = re.compile(r"site\.ya?ml", re.IGNORECASE)
REMEDY_NO_TERMS = (
    "write it (an example: fedapp terms --example), or say that every run of an approved app is "
    "allowed: fedapp node --no-terms, or no-terms=true in the node config"
)
"""The remedy if there is no file of terms."""
Kind = Literal["models", "prototypes", "sums", "numbers"]
KINDS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "models": (MODEL, "online", "psi", "group_*"),
        "prototypes": ("prototypes",),
        "sums": (
            *("sums", "guesses", "grid", "solution", "votes", "own_votes", "stack", "fitted"),
            *("patches", "clusters", "totals", "middle", "released", "rounded_sums", MASKED),
            *("filters", "directions", "other_sums", "rounded_other_sums"),
            *("few_sums", "few_other_sums", "gradient", "head"),
        ),
        "numbers": ("answer", "divergence"),
    }
)
"""Roles of contents that leave a site, by kind. SECURITY.md says what each of them reveals."""
BY_CLASS = frozenset({"prototypes", "sums", "rounded_sums", "few_sums", "guesses", "gradient"})
"""Roles whose contents have a part for each class."""
_NAME_SETTINGS = ("method.name", "model.name", "data.name")
_PATH_SETTINGS = ("data.root", "split.manifest", "model.weights")
"""Settings that name a file or folder which the site reads."""
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")

Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""Of a registered key, as `fedapp sites --members` prints it."""
LARGEST_DELTA = 1e-5
"""Largest delta of a run if the site's terms bound epsilon."""

Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class TermError(FedAppError):
    """A run or a task breaks a term of this site. term: its name."""

    def __init__(self, term: str, why: str) -> None:
        super().__init__(f"this site's terms ({term}): {why}")
        self.term = term
        self.lasting = term != "hours"


@dataclass(frozen=True, config=CLOSED)
class Terms:
    """A site's terms; None: no term. `conf/terms/site.yaml` explains each by an example."""

    started_by: Names | None = None
    """Public keys, ssh-ed25519 AAAA...: a run is done only if one of them has signed it."""
    runs: Names | None = None
    """Names of runs, with * and ?. Where no run must be signed, the server chooses its name."""
    methods: Names | None = None
    """Names of methods, as `method.name` has them."""
    networks: Names | None = None
    """Names of networks, as `model.name` has them."""
    data: Names | None = None
    """Names of data sets, as `data.name` has them: `own` for the site's own images."""
    folders: list[str] = Field(default_factory=list)
    """Folders below which a run may name a file to be read here."""
    own_modules: bool = False
    """Whether a run may name a module of this machine, package.module:name, to be imported."""
    stand_in: bool = False
    """Whether a run of another version is done by the code installed here, if its numbers are."""
    leaves: Annotated[list[Kind], Field(min_length=1)] | None = None
    """Kinds of content that may leave."""
    clip_at_most: Annotated[float, Field(gt=0)] | None = None
    """Largest `privacy.clip`; a run without clipping is refused then."""
    epsilon_at_most: Annotated[float, Field(gt=0)] | None = None
    """Highest `privacy.epsilon` of one run, which is of one image, or patient where the site knows
    whose its images are; a run without is refused then."""
    epsilon_of_all_runs: Annotated[float, Field(gt=0)] | None = None
    """Highest sum of the epsilons of all runs in the record, this one's counted. Those of an image,
    of a patient and, in runs of version 1.0.0, of the whole site are added alike."""
    delta_at_most: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Largest `privacy.delta` of a run with noise. Where an epsilon is bounded, delta is at most
    1e-5 and at most 1 / the number of the site's images, whether this is written down or not: at
    delta 0.5 any epsilon is bought by publishing half of the images. This can only be stricter."""
    rounds_at_most: Annotated[int, Field(ge=1)] | None = None
    """Rounds of a run."""
    answers_at_most: Annotated[int, Field(ge=1)] | None = None
    """Answers to tasks in one run: each evaluates a model, of the server's making if it lies."""
    hours: str | None = None
    """When tasks are done, by this machine's clock: 20:00-06:00."""
    megabytes_at_most: Annotated[float, Field(gt=0)] | None = None
    """MB (10^6 bytes) that may leave in one answer."""
    masked_only: bool = False
    """Whether a run must mask its sums, between members with registered keys."""
    least_members: Annotated[int, Field(ge=3)] | None = None
    """Sites in a masked sum at least."""
    most_members: Annotated[int, Field(ge=3)] | None = None
    """Sites in a masked sum at most."""
    members: Annotated[list[Fingerprint], Field(min_length=3)] | None = None
    """Fingerprints of the keys that may be in a masked sum. Without it the server says who the
    members are, and could make up all but this site."""
    colluding_at_least: Annotated[int, Field(ge=1)] = 1
    """Least `privacy.colluding` of a masked run: so many members may be in league with the server,
    and the others' noise must suffice without theirs."""
    patients: str = ""
    """Regular expression with one group that names the patient in the path of each of the site's
    own images. A run may not bring one, since the answers would spell the names of files."""
    score_counts: bool = True
    """Whether counts of its test images' scores may leave (`rounds.pooled_auroc`)."""
    least_count: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Counts from 1 to below this are withheld, and with them what is told by class. Patients are
    counted where the site knows whose its images are, else images."""

    def __post_init__(self) -> None:
        if self.hours is not None and not _HOURS.fullmatch(self.hours):
            raise ValueError("hours must be two times of day, such as 20:00-06:00")
        if self.hours is not None and self.hours[:5] == self.hours[6:]:
            raise ValueError("hours must be two different times: else no task is ever done")
        for term, known in (
            ("methods", method_names()),
            ("networks", network_names()),
            ("data", [OWN, *DATASETS]),
        ):
            for name in getattr(self, term) or ():
                if name not in known and not is_function_name(name):
                    raise ValueError(
                        f"{term}: no such name {name!r}; {name_suggestion(name, known)}"
                    )
        for key in self.started_by or ():
            try:
                public_key(key)
            except ConfigError as error:
                raise ValueError(f"started_by: {error}") from None
        for folder in self.folders:
            if not Path(folder).is_absolute():
                raise ValueError(f"folders: {folder!r} must begin with a slash")
        self._check_itself()

    def _check_itself(self) -> None:
        """Check terms that are about each other. Raises ValueError."""
        one, every = self.epsilon_at_most, self.epsilon_of_all_runs
        if one is not None and every is not None and one > every:
            raise ValueError("epsilon_of_all_runs must not be below epsilon_at_most")
        if self.bounds_epsilon and (self.delta_at_most or 0.0) > LARGEST_DELTA:
            raise ValueError(
                f"delta_at_most must be at most {LARGEST_DELTA:g} beside a bound on epsilon"
            )
        known = self.members and len(self.members)
        if (of := known or self.most_members) and self.bounds_epsilon:
            if self.colluding_at_least > max((of - 1) // 3, 1):
                raise ValueError(
                    f"colluding_at_least = {self.colluding_at_least} must be fewer than a third of "
                    f"the members, of which there are {of} at most: else no run fulfils it"
                )
        least, most = self.least_members or 0, self.most_members
        for count, what in (
            (most, "most_members"),
            (known, "members"),
        ):
            if count and count < least:
                raise ValueError(
                    f"{what} must not be fewer than least_members: here {count}, and {least}; "
                    "raise the first or lower the second"
                )
        for key, count in Counter(self.members or ()).items():
            if count > 1:  # it would count as several members, and it is one
                raise ValueError(
                    f"members names the key {key[:16]} {count} times: name each key once"
                )
        check_patients(self.patients)

    def said(self) -> dict[str, object]:
        """Return the terms that differ from their default, by name."""
        plain = Terms()
        every = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in every.items() if value != getattr(plain, name)}

    # --- before anything is computed --------------------------------------------------------------

    def check_started(
        self, token: Scalar, said: Mapping[str, Scalar], origin: Origin
    ) -> tuple[RunStatement, str]:
        """Return the word by which a run was started, and the fingerprint of whose it is.

        token: as the run brings it. said: its settings, `config.unchecked_settings`. Raises
        TermError where none of `started_by` has signed this very run.
        """
        try:
            word, who = verify(token, self.started_by or ())
        except ConfigError as error:
            raise TermError("started_by", str(error)) from error
        settings = settings_digest(said)
        # What was signed is compared with the code that runs here, not with the server's word.
        here = (code_digest(), stands_in_for())
        code = next((one for one in here if one and one.startswith(origin.code)), origin.code)
        if why := word.differs(origin.run, code, settings, origin.identity):
            raise TermError("started_by", why)
        return word, who

    def check_presets(self, preset: str, method_preset: str) -> None:
        """Check the paths of a run's presets before these files are read. Raises TermError."""
        for key, name, known in (
            ("preset", preset, presets()),
            ("method.preset", method_preset, method_presets()),
        ):
            if name not in ("", *known):
                self._check_path(key, name)

    def check_said(self, values: Mapping[str, Scalar], placed: bool = True) -> None:
        """Check a run's settings before anything that they name is imported or opened.

        values: the run's settings by dotted key. placed: whether the node's own config says where
        it keeps what it receives; then the run's own folder (`runtime.out`) is not used and not
        checked. Raises TermError.
        """
        if values.get("data.patients", "") != "":
            why = "data.patients would be matched with the names of files here"
            raise TermError(
                "patients", f"{why}: leave it out; each site has its own in its site.yaml"
            )
        for key in (*_NAME_SETTINGS, "rounds.robust", "model.body"):
            name = values.get(key, "")
            if key == "model.body" and str(name).startswith("timm:"):
                if not is_timm_name(str(name)):
                    raise TermError("own_modules", f"{key} = {name!r} is no network of timm's own")
                continue
            if isinstance(name, str) and is_function_name(name) and not self.own_modules:
                raise TermError("own_modules", f"{key} = {name!r} would import a module here")
        for key in _PATH_SETTINGS if placed else (*_PATH_SETTINGS, "runtime.out"):
            if path := str(values.get(key, "")):
                self._check_path(key, path)

    def check_run(self, experiment: Experiment, run: str) -> None:
        """Check a run by its settings. Raises TermError."""
        for term, allowed, key, name in (
            ("methods", self.methods, "method.name", experiment.method.name),
            ("networks", self.networks, "model.name", experiment.model.name),
            ("data", self.data, "data.name", experiment.data.name),
        ):
            if allowed is not None and name not in allowed:
                raise TermError(term, f"{key} = {name!r} is none of {', '.join(allowed)}")
        if self.runs is not None and not any(fnmatchcase(run, one) for one in self.runs):
            raise TermError("runs", f"{run!r} is none of {', '.join(self.runs)}")
        rounds = experiment.rounds.num_rounds
        if self.rounds_at_most is not None and rounds > self.rounds_at_most:
            said = f"rounds.num_rounds = {rounds} is more than {self.rounds_at_most}"
            raise TermError("rounds_at_most", said)
        if experiment.rounds.pooled_auroc and not self.score_counts:
            raise TermError("score_counts", "rounds.pooled_auroc = True would send them")
        self._check_privacy(experiment)

    def check_hour(self, now: datetime) -> None:
        """Check the time of day. Raises TermError."""
        if self.hours is None or (found := _HOURS.fullmatch(self.hours)) is None:
            return
        first, last = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
        here = now.time()
        inside = first <= here < last if first < last else here >= first or here < last
        if not inside:
            raise TermError("hours", f"it is {here:%H:%M} here, tasks are done {self.hours}")

    def check_round(self, number: int) -> None:
        """Check a task's round, whatever number of rounds the settings have. Raises TermError."""
        if self.rounds_at_most is not None and number > self.rounds_at_most:
            raise TermError("rounds_at_most", f"round {number} is past {self.rounds_at_most}")

    def check_answers(self, count: int) -> None:
        """Check a run's number of answers, with the one asked for now. Raises TermError."""
        most = self.answers_at_most
        if most is not None and count > most:
            raise TermError("answers_at_most", f"answer {count} of this run is past {most}")

    def check_sum(self, members: Sequence[int]) -> None:
        """Check the members of a masked sum, by number. Raises TermError."""
        if self.most_members is not None and len(members) > self.most_members:
            said = f"a masked sum of {len(members)} sites is more than {self.most_members}"
            raise TermError("most_members", said)

    def check_delta(self, delta: float, images: int) -> None:
        """Check the delta of a run with noise against the site's images. Raises TermError."""
        if self.bounds_epsilon and delta * images > 1:
            said = f"privacy.delta = {delta:g} is more than one in the number of images here"
            raise TermError("delta_at_most", said)

    @property
    def vouched(self) -> int | None:
        """How many members of a masked sum this site expects to add noise; None: all.

        If the terms list the members' keys, all of them count. Otherwise the server names the
        members and could invent some, so only as many count as the terms ask for at least: a larger
        number of members never makes this site add less noise.
        """
        return None if self.members is not None else self.least_members or MIN_MEMBERS

    def check_roles(self, roles: Iterable[str]) -> None:
        """Check the kinds of what a method sends, or adds to a masked sum. Raises TermError."""
        for role in roles:
            kind = kind_of(role)
            if self.leaves is not None and kind not in self.leaves:
                what = f"{role} ({kind})" if kind else role
                raise TermError("leaves", f"{what} may not leave, only {', '.join(self.leaves)}")

    def check_size(self, count: int) -> None:
        """Check the number of bytes that are to leave in one answer. Raises TermError."""
        most = self.megabytes_at_most
        if most is not None and count > most * 1e6:
            raise TermError("megabytes_at_most", f"{count / 1e6:.3g} MB are more than {most:g}")

    def check_epsilon(self, of_run: float, of_others: float) -> None:
        """Check a run's epsilon, alone and added to that of other runs. Raises TermError."""
        most = self.epsilon_at_most
        if most is not None and of_run > most:
            raise TermError(
                "epsilon_at_most", f"the run would come to {of_run:.4g}, above {most:g}"
            )
        every = self.epsilon_of_all_runs
        if every is not None and of_run + of_others > every:
            total = of_run + of_others
            raise TermError("epsilon_of_all_runs", f"it would come to {total:.4g}, above {every:g}")

    def withheld(self, counts: Mapping[int, int]) -> bool:
        """Whether counts by class must not leave: one is above 0 and below `least_count`."""
        return any(0 < count < self.least_count for count in counts.values())

    @property
    def bounds_epsilon(self) -> bool:
        """Whether a term is about epsilon."""
        return self.epsilon_at_most is not None or self.epsilon_of_all_runs is not None

    def _check_privacy(self, experiment: Experiment) -> None:
        privacy = experiment.privacy
        if self.masked_only and not (privacy.masked and privacy.members):
            said = (
                f"privacy.sums = {privacy.sums!r}" if not privacy.masked else "no privacy.members"
            )
            why = "the server would learn this site's own numbers"
            raise TermError("masked_only", f"{said}: {why}")
        if privacy.masked:
            self._check_members(experiment)
        if self.bounds_epsilon and not privacy.epsilon:
            term = "epsilon_at_most" if self.epsilon_at_most is not None else "epsilon_of_all_runs"
            raise TermError(term, "privacy.epsilon = 0: nothing would bound what leaves")
        if privacy.epsilon:
            self.check_epsilon(privacy.epsilon, 0.0)
        if self.clip_at_most is not None and not 0 < privacy.clip <= self.clip_at_most:
            said = f"privacy.clip = {privacy.clip:g} is not between 0 and {self.clip_at_most:g}"
            raise TermError("clip_at_most", said)
        most = self.delta_at_most or (LARGEST_DELTA if self.bounds_epsilon else None)
        if most is not None and privacy.epsilon and privacy.delta > most:
            said = f"privacy.delta = {privacy.delta:g} is more than {most:g}"
            raise TermError("delta_at_most", said)

    def _check_members(self, experiment: Experiment) -> None:
        privacy, data = experiment.privacy, experiment.data
        least = self.least_members
        if least is not None and privacy.least_members < least:
            said = f"privacy.least_members = {privacy.least_members} is fewer than {least}"
            raise TermError("least_members", said)
        if privacy.colluding < self.colluding_at_least:
            said = (
                f"privacy.colluding = {privacy.colluding} is fewer than {self.colluding_at_least}"
            )
            raise TermError("colluding_at_least", said)
        if self.members is None:
            return
        agreed = members_of(privacy.members, data.site_names, experiment.split.num_clients)
        if not agreed:
            raise TermError(
                "members", "no privacy.members: only members that are known here may be"
            )
        if strangers := sorted({*agreed.values()} - {*self.members}):
            why = f"{len(strangers)} of the run's members are not known here"
            raise TermError("members", f"{why}, such as {strangers[0][:16]}")

    def _check_path(self, key: str, text: str) -> None:
        path = Path(text).expanduser().resolve()
        if not any(path.is_relative_to(Path(folder).resolve()) for folder in self.folders):
            raise TermError("folders", f"{key} names a path outside of the folders allowed")


def kind_of(role: str) -> Kind | None:
    """Return the kind of a content by its role; None for a role of somebody else's method."""
    for kind, names in KINDS.items():
        if any(fnmatchcase(role, name) for name in names):
            return kind
    return None


def read_terms(path: Path, absent: bool = False) -> Terms:
    """Return the terms in a file.

    absent: a person has declared that there are no terms, so that all is allowed that the program
    allows. Raises ConfigError, with one line for each fault, if the file is missing and `absent` is
    not set, or if it is there and `absent` is set; if it is a link, is not readable, is writable
    for others, is damaged, or has something that is no term. So a file that was renamed or lost
    never means that everything is allowed.
    """
    text = _own_text(path, absent)
    return Terms() if text is None else _terms_of(path, _said_in(path, text))


def read_unfinished_terms(path: Path) -> tuple[Terms, list[str]]:
    """Return the terms in a file, less those whose keys are still to be written; and their names.

    For explaining a file like `conf/terms/strict.yaml` before it is in force: `read_terms` refuses
    it, since an empty list of keys allows nothing. Raises ConfigError as `read_terms` does.
    """
    said = _said_in(path, _own_text(path, False) or "")
    open_ones = [name for name in ("started_by", "members") if said.get(name) == []]
    return _terms_of(path, {k: v for k, v in said.items() if k not in open_ones}), open_ones


def _said_in(path: Path, text: str) -> dict[str, Any]:
    if not text.strip():
        raise ConfigError(f"{path}: is empty: {REMEDY_NO_TERMS}")
    return read_yaml(path, text)


def _terms_of(path: Path, said: dict[str, Any]) -> Terms:
    try:
        return Terms(**said)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError(*(f"{path}: {_explained(one)}" for one in found)) from None
    except TypeError as error:  # a key that is no text
        raise ConfigError(f"{path}: {error}") from None


def _own_text(path: Path, absent: bool) -> str | None:
    """Return the file's text; None if there is no file and `absent` is set. Raises ConfigError."""
    try:
        like = [one for one in os.listdir(path.parent) if _SIMILAR_FILE.fullmatch(one)]
        if not like and absent:
            return None
        if other := sorted({*like} - {path.name}):
            raise ConfigError(f"{path.with_name(other[0])}: the terms are {path.name}: rename it")
        if not like:
            raise ConfigError(f"{path}: is not there: {REMEDY_NO_TERMS}")
        if absent:
            raise ConfigError(f"{path}: is there, and no-terms was said: take back one of the two")
        check_owned(path)
        with open_own_file(path, os.O_RDONLY) as file:
            return file.readall().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no UTF-8"
        raise ConfigError(f"{path}: cannot be read ({why}): {REMEDY_NO_TERMS}") from error


def _explained(error: Mapping[str, object]) -> str:
    loc = error["loc"]
    assert isinstance(loc, tuple)
    name = ".".join(map(str, loc))
    if error["type"] == "unexpected_keyword_argument":
        if name in TERMS:
            return f"{name}: {TAKEN_OUT}; {TERMS[name]}"
        return f"{name}: no such term; {name_suggestion(name, [one.name for one in fields(Terms)])}"
    said = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "too_short" and isinstance(bounds := error["ctx"], Mapping):
        said = f"write in {bounds['min_length']} or more: an empty list allows nothing"
    return f"{name} = {error['input']!r}: {said}" if name else said
