"""A hundred and more runs that a site's terms and approvals forbid.

Of each: no line of foreign code runs, no image is read before the refusal where the settings alone
break a term, nothing leaves but the refusal, and the record says what was refused and why.
"""

import base64
import collections
import os
import sys
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_app import node as site_node
from client_app.answering import SiteWork, answer
from client_app.resident.frames import Frame
from fedapp.core.errors import FedAppError, StoreError
from fedapp.experiment import preset_files
from fedapp.experiment.code_hash import code_digest, code_hash
from fedapp.experiment.config import experiment_digest, load_run_config, unchecked_settings
from fedapp.experiment.signed_runs import RunStatement, fingerprint, settings_digest, sign
from fedapp.learn.networks import initial_params
from fedapp.learn.params import digest_of, to_bytes
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import Hello, Incoming, ModelRef, Origin, Refusal, Task
from fedapp.site import policy
from fedapp.site.record import Record
from fedapp.site.terms import TermError
from tests.experiment.test_signed_runs import KEY, OTHER, line
from tests.flower.grids import preset
from tests.own import experiment, three_sites

RUN = "f" * 64
"""The runs' identity."""
KEY_2 = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PLAIN = {
    "methods": ["um_pfssl"], "networks": ["resnet9"], "data": ["own"], "leaves": ["models"],
    "rounds_at_most": 2, "megabytes_at_most": 50.0, "least_count": 2, "runs": ["study*"],
}  # fmt: skip
SIGNED = {**PLAIN, "started_by": [line(KEY), line(KEY_2)]}
CLIPPED = {**PLAIN, "clip_at_most": 1.0}
IMAGES = "method.preset=one_round method.features=plain privacy.epsilon=8.5"
OF_IMAGES = {
    **PLAIN, "methods": ["one_round"], "leaves": ["sums", "models"], "epsilon_at_most": 8.0,
    "epsilon_of_all_runs": 14.0, "delta_at_most": 1e-5,
}  # fmt: skip
TRAP = "tests.security.trap"
"""A module that is nowhere: who tries to import it is told so, by another error."""


def moved_end(token):
    """A word whose end is another, under the signature of the first."""
    word, dot, signature = token.partition(".")
    text = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    later = text.replace(b'"until":', b'"until":1')
    return base64.urlsafe_b64encode(later).decode().rstrip("=") + dot + signature


def attack(name, term, said="", *, terms=PLAIN, task=False, run="study-1", **more):
    """A run. said: its overrides. task: it is refused at a task, else at its first question."""
    return pytest.param(
        SimpleNamespace(term=term, said=said, terms=terms, task=task, run=run, **more), id=name
    )


def honest(**more):
    """A run that the terms allow: its first question, or a task of it."""
    return attack("honest", None, **{"honest": True, **more}).values[0]


ATTACKS = [
    *(attack(f"method {name}", "methods", f"method.preset={name}") for name in (
        "fedavg", "fedprox", "ditto", "fedbn", "sage", "local_only", "pfedme", "fedrod", "rscfed",
        "fedsem", "protofssl", "flexproto", "fedmatch", "fedsiam_d", "one_round", "recommended",
        "prior_shift", "fedavgm")),
    *(attack(f"network {name}", "networks", f"model.name={name}") for name in (
        "mlp", "resnet18")),
    *(attack(f"data set {name}", "data",
             f"data.name={name} data.classes= data.sites=")
      for name in ("digits", "mnist", "fashion_mnist", "cifar10")),
    *(attack(f"{key} = {name}", "own_modules", f"{key}={name}")
      for key in ("method.name", "model.name", "data.name", "rounds.robust",
                  "model.name=encoder model.body")
      for name in (f"{TRAP}:Thing", "os:system", "subprocess:run")),
    *(attack(f"{key} = {path}", "folders", f"{key}={path}")
      for key in ("data.root", "split.manifest", "model.weights")
      for path in ("/etc", "/", "~/.ssh", "../..", "{allowed}/../secret", "{allowed}/link")),
    *(attack(f"method preset at {path}", "folders", f"method.preset={path}/lying.yaml")
      for path in ("{secret}", "{allowed}/../secret", "{allowed}/link")),
    *(attack(f"preset at {path}", "folders", preset=f"{path}/lying.yaml")
      for path in ("{secret}", "{allowed}/../secret", "{allowed}/link")),
    *(attack(f"a preset that lies about {what}", term, lie=lie,
             preset="{allowed}/digits_sites.yaml")
      for what, term, lie in (
          ("its method", "methods", {"method": {"name": "fedavg"}}),
          ("its module", "own_modules", {"method": {"name": f"{TRAP}:Thing"}}),
          ("what it builds on", "folders", {"method": {"preset": "/etc/secret.yaml"}}),
          ("its network", "networks", {"model": {"name": "mlp"}}),
          ("its folder", "folders", {"data": {"root": "/etc"}}),
          ("its rounds", "rounds_at_most", {"rounds": {"num_rounds": 3}}),
          ("its robust rule", "own_modules", {"rounds": {"robust": "os:getcwd"}}))),
    *(attack(f"a pattern for file names, {pattern}", "patients", f"data.patients='{pattern}'")
      for pattern in ("/(a)", "(P[0-9]+)_", "((a+)+)$")),
    attack("timm's hub", "own_modules", "model.name=encoder model.body=timm:hf-hub:some/thing"),
    *(attack(f"{count} rounds", "rounds_at_most", f"rounds.num_rounds={count}")
      for count in (3, 4, 1000)),
    *(attack(f"round {number} of two", "rounds_at_most", task=True, round=number)
      for number in (3, 10, 10**6)),
    *(attack(f"run {name}", "runs", run=name) for name in ("other", "tudy-1", "Study")),
    *(attack(f"hour {hours}", "hours", terms={**PLAIN, "hours": hours})
      for hours in ("13:00-14:00", "00:00-11:59", "12:01-12:00")),
    attack("no clipping", "clip_at_most", terms=CLIPPED),
    attack("clip 0, said", "clip_at_most", "privacy.clip=0.0", terms=CLIPPED),
    attack("a longer change", "clip_at_most", "privacy.clip=1.1", terms=CLIPPED),
    attack("an epsilon of infinity", "epsilon_at_most", terms={**PLAIN, "epsilon_at_most": 5.0}),
    attack("a clip where an epsilon is asked for", "epsilon_at_most", "privacy.clip=1.0",
           terms={**CLIPPED, "epsilon_at_most": 5.0}),
    attack("no epsilon where all runs' is bounded", "epsilon_of_all_runs",
           terms={**PLAIN, "epsilon_of_all_runs": 5.0}),
    attack("too high an epsilon of an image", "epsilon_at_most", IMAGES, terms=OF_IMAGES),
    attack("all runs' epsilon of an image", "epsilon_of_all_runs", IMAGES, task=True,
           action="release", spent=6.0, terms={**OF_IMAGES, "epsilon_at_most": 9.0}),
    attack("an epsilon at a large delta", "delta_at_most", IMAGES + " privacy.delta=0.01",
           terms={**OF_IMAGES, "epsilon_at_most": 9.0}),
    attack("an image's epsilon where models are to be clipped", "clip_at_most", IMAGES,
           terms={**OF_IMAGES, "clip_at_most": 1.0, "epsilon_at_most": 9.0}),
    *(attack(f"one more {action} than may be answered", "answers_at_most", task=True,
             terms={**PLAIN, "answers_at_most": 1}, action=action,
             before={"event": "sent", "round": 0}) for action in ("warmup", "evaluate")),
    *(attack(f"one more {what} after one {event}", "answers_at_most", task=what == "task",
             terms={**PLAIN, "answers_at_most": 1}, before={"event": event, **more})
      for what in ("task", "hello")
      for event, more in (("introduced", {}), ("sent", {"round": 0}), ("refused", {"why": "x"}))),
    attack("an epsilon at a delta of a half", "delta_at_most", IMAGES + " privacy.delta=0.5",
           terms={key: value for key, value in OF_IMAGES.items() if key != "delta_at_most"}
           | {"epsilon_at_most": 9.0}),
    *(attack(f"the run's identity under another {what}", None, said, task=True,
             terms={**PLAIN, "methods": ["um_pfssl", "one_round"], "leaves": ["models", "sums"]},
             before={"event": "asked", "pinned": "0" * 64})
      for what, said in (("seed", "seed=5"), ("epsilon", IMAGES))),
    attack("a large answer", "megabytes_at_most", task=True,
           terms={**PLAIN, "megabytes_at_most": 0.0001}),
    *(attack(f"{name} of a class with one image", "least_count", f"method.preset={name}", task=True,
             terms={**PLAIN, "methods": [method], "leaves": ["models", "prototypes", "sums"],
                    "least_count": 1000})
      for name, method in (("protofssl", "protofssl"), ("flexproto", "flexproto"),
                           ("one_round", "one_round"), ("recommended", "prior_shift"))),
    *(attack(f"{name}, of which models alone may leave", "leaves", f"method.preset={name}",
             task=True, terms={**PLAIN, "methods": [method]})
      for name, method in (("protofssl", "protofssl"), ("one_round", "one_round"),
                           ("recommended", "prior_shift"), ("fedmatch", "fedmatch"),
                           ("fedsiam_d", "fedsiam_d"))),
    *(attack(f"signed: {what}", "started_by", **{"terms": SIGNED, "signed": how, **more})
      for what, how, more in (
          ("by nobody", lambda word: "", {}),
          ("by nobody, at a task", lambda word: "", {"task": True}),
          ("by another key", lambda word: sign(word, OTHER), {}),
          ("by text that is no word", lambda word: "x" * 9999, {}),
          ("by a number", lambda word: 1, {}),
          ("for other settings", lambda word: sign(word, KEY), {"said": "seed=77"}),
          ("for fewer rounds", lambda word: sign(word, KEY), {"said": "rounds.num_rounds=1"}),
          ("for other settings, at a task", lambda word: sign(word, KEY),
           {"said": "seed=77", "task": True}),
          ("for another name", lambda word: sign(replace(word, run="study-0"), KEY), {}),
          ("for other code", lambda word: sign(replace(word, code="0" * 64), KEY), {}),
          ("for another identity", lambda word: sign(replace(word, identity="e" * 64), KEY), {}),
          ("with its end moved", lambda word: moved_end(sign(word, KEY)), {}),
          ("for the day before", lambda word: sign(replace(word, until=10**9), KEY), {}),
          ("for the day before, at a task", lambda word: sign(replace(word, until=10**9), KEY),
           {"task": True}),
          ("for the day before, and told of by a run that nobody signed",
           lambda word: sign(replace(word, until=10**9), KEY), {"before": {"event": "introduced"}}),
          ("and past its rounds", lambda word: sign(word, KEY_2),
           {"task": True, "round": 3, "terms": {**SIGNED, "rounds_at_most": 9}}),
          ("and started again", lambda word: sign(word, KEY),
           {"task": True, "round": 0, "before": {"event": "sent", "round": 1}}),
          ("and set back by a round", lambda word: sign(word, KEY),
           {"task": True, "round": 1, "before": {"event": "sent", "round": 2}}),
      )),
    *(attack(f"terms of mode {mode:o}", None, task=False, mode=mode)
      for mode in (0o666, 0o664, 0o646)),
    attack("terms that are no terms", None, terms={"methods": "all"}),
    *(attack(f"terms that lie in {name}", None, file=name)
      for name in ("Site.yaml", "site.yml", "terms.yaml")),
    attack("a record that was changed", None, broken="changed"),
    attack("a record that was cut", None, broken="cut"),
    attack("a record that was changed in the middle", None, task=True, broken="in the middle"),
    attack("a record that cannot be written", None, broken="in the way"),
]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return three_sites(tmp_path_factory.mktemp("images"))


@pytest.fixture
def site(tmp_path, images, monkeypatch):
    """Ask a site as a server would; .reads: how often its images were opened."""
    folder, allowed, secret = (tmp_path / name for name in ("own", "allowed", "secret"))
    for one in (folder, allowed, secret):
        one.mkdir(mode=0o700)
    (allowed / "link").symlink_to(secret)
    base = experiment(images, rounds__num_rounds=2)
    honest = preset(base, allowed)
    plain = yaml.safe_load((allowed / f"{base.name}.yaml").read_text())
    plain["data"]["root"] = ""  # the site has its own
    (allowed / f"{base.name}.yaml").write_text(yaml.safe_dump(plain))
    (secret / "lying.yaml").write_text(yaml.safe_dump({"name": "x", "method": {"name": "fedavg"}}))
    made = SimpleNamespace(folder=folder, reads=0, honest=honest)
    real = site_node.federation_of

    def opened(*args):
        made.reads += 1
        return real(*args)

    monkeypatch.setattr(site_node, "federation_of", opened)
    monkeypatch.setattr(
        policy, "datetime", SimpleNamespace(now=lambda: datetime(2026, 1, 1, 12, 0))
    )
    node = {
        "site-name": "west", "data-path": str(images / "west"),
        "store-path": str(tmp_path / "store"), "site-folder": str(folder),
    }  # fmt: skip
    names = {"{allowed}": str(allowed), "{secret}": str(secret)}

    def filled(text):
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    def ask(attacked, by_worker=False):
        terms = {**attacked.terms, "folders": [str(allowed)]}
        file = folder / getattr(attacked, "file", "site.yaml")
        file.write_text(yaml.safe_dump(terms))
        file.chmod(getattr(attacked, "mode", 0o600))
        if lie := getattr(attacked, "lie", None):
            lying = {k: {**v, **lie.get(k, {})} if k in lie else v for k, v in plain.items()}
            if "method" in lie or "model" in lie:
                lying.update({key: lie[key] for key in ("method", "model") if key in lie})
            (allowed / "digits_sites.yaml").write_text(yaml.safe_dump(lying))
        file = filled(getattr(attacked, "preset", honest))
        run_config = {"preset": file, "set": filled(attacked.said)}
        origin = Origin(attacked.run, code_hash()[1], "0" * 64, identity=RUN)
        if how := getattr(attacked, "signed", None):
            settings = settings_digest(unchecked_settings(honest, {}))
            run_config["signed"] = how(RunStatement("study-1", code_digest(), settings, RUN, 2**39))
        if by_worker:
            head = {"run_config": run_config, "node_config": node}
            blobs = {"origin": encode(origin), "message": encode(Hello())}
            return SiteWork().answer(Frame(head, blobs))
        if not (attacked.task or hasattr(attacked, "honest")):
            return answer(run_config, node, origin, Hello(), {})
        made.experiment = load_run_config(run_config)
        origin = replace(origin, experiment=experiment_digest(made.experiment))
        if not attacked.task:
            return answer(run_config, node, origin, Hello(), {})
        w_0 = to_bytes(initial_params(made.experiment.model, (1, 8, 8), 3, made.experiment.seed))
        own = ModelRef(2, 0, digest_of(w_0))
        task = Task(2, getattr(attacked, "round", 0), getattr(attacked, "action", "warmup"), own)
        return answer(run_config, node, origin, task, {})

    made.ask = ask
    return made


def sealed(site, attacked):
    """Have the record as an attack finds it."""
    record = Record(site.folder)
    if before := getattr(attacked, "before", {}):
        facts = {"run": "study-1", "identity": RUN, "epsilon": 0.0, **before}
        record.add(facts.pop("event"), **facts)
    if spent := getattr(attacked, "spent", 0.0):
        run = getattr(attacked, "spent_by", "before")
        record.add("sent", run=run, identity=RUN if run == "study-1" else "", epsilon=spent)
    if getattr(attacked, "broken", "") == "changed":
        record.add("sent", bytes=1)
        record.path.write_text(record.path.read_text().replace('"bytes": 1', '"bytes": 2'))
    if getattr(attacked, "broken", "") in ("cut", "in the middle"):
        for number in range(3):
            record.add("sent", run="before", identity="", epsilon=0.0, bytes=number)
        lines = record.path.read_text().splitlines(keepends=True)
        if attacked.broken == "cut":
            lines.pop()
        else:
            lines[0] = lines[0].replace('"bytes": 0', '"bytes": 1')
        record.path.write_text("".join(lines))
    if getattr(attacked, "broken", "") == "in the way":
        (site.folder / "record").write_text("")


@pytest.mark.parametrize("attacked", ATTACKS)
def test_it_is_refused_and_nothing_leaves(site, attacked, monkeypatch):
    sealed(site, attacked)
    before = set(sys.modules)
    with pytest.raises(FedAppError) as refused:
        found = site.ask(attacked)
        assert isinstance(found, Incoming) and not isinstance(found.answer, Refusal), found.answer
    assert not {name for name in set(sys.modules) - before if name.startswith(TRAP)}
    assert TRAP not in str(refused.value) or isinstance(refused.value, TermError)
    if attacked.term is None:
        assert not isinstance(refused.value, TermError)
    else:
        assert isinstance(refused.value, TermError), repr(refused.value)
        assert refused.value.term == attacked.term, str(refused.value)
        last = list(Record(site.folder).lines())[-1]
        assert (last["event"], last["term"]) == ("refused", attacked.term)
        assert Record(site.folder).verify()
        sent = [one for one in Record(site.folder).lines() if one["event"] == "sent"]
        assert all("epsilon" in one for one in sent)  # before the attack
    if not attacked.task and not getattr(attacked, "broken", ""):
        assert site.reads == 0, "images were opened before the terms were asked"


@pytest.mark.parametrize(
    "attacked", [one for one in ATTACKS if one.values[0].term and not one.values[0].task]
)
def test_the_resident_worker_looks_at_nothing_before_the_terms_are_asked(
    site, attacked, monkeypatch
):
    """It notes which files a run reads; a run that is not allowed names none."""
    sealed(site, attacked)
    monkeypatch.setattr("client_app.answering.inputs_of", lambda *_: pytest.fail("looked"))
    before = set(sys.modules)
    frame, may_live = site.ask(attacked, by_worker=True)
    refusal = decode_answer(frame.blobs["message"])
    assert isinstance(refusal, Refusal) and f"({attacked.term})" in refusal.reason
    assert refusal.lasting is (attacked.term != "hours") and not may_live
    assert list(frame.blobs) == ["message"] and site.reads == 0
    assert not {name for name in set(sys.modules) - before if name.startswith(TRAP)}
    assert list(Record(site.folder).lines())[-1]["term"] == attacked.term


def test_the_resident_worker_notes_the_files_of_a_run_that_is_allowed(site):
    frame, may_live = site.ask(honest(), by_worker=True)
    reason = getattr(decode_answer(frame.blobs["message"]), "reason", "")
    assert "settings differ" in reason and not may_live  # the digest of settings here is no run's


def test_there_are_a_hundred_of_them_and_no_two_are_equal():
    assert len(ATTACKS) >= 100
    assert len({one.id for one in ATTACKS}) == len(ATTACKS)


def test_an_honest_run_gets_in_and_its_record_says_what_left(site):
    facts = site.ask(honest()).answer
    assert facts.name == "west" and facts.labelled
    done = site.ask(honest(task=True))
    assert done.payloads
    lines = list(Record(site.folder).lines())
    events = collections.Counter(line["event"] for line in lines)
    assert events == {"introduced": 1, "asked": 1, "sent": 1}
    assert lines[-1]["bytes"] == sum(map(len, done.payloads.values()))
    assert list(lines[-1]["digests"].values()) == list(done.payloads)
    assert lines[-1]["evaluations"]["test"][1] == facts.test
    assert not any("png" in str(line) or "nought" in str(line) for line in lines)


def test_a_task_that_fails_is_in_the_record(site, monkeypatch):
    monkeypatch.setattr(
        "fedapp.site.site.SiteClient._do", lambda *_: (_ for _ in ()).throw(ValueError("x"))
    )
    found = site.ask(honest(task=True))
    assert isinstance(found.answer, Refusal)
    last = list(Record(site.folder).lines())[-1]
    assert (last["event"], last["why"]) == ("refused", found.answer.reason)


def test_a_preset_that_is_changed_between_question_and_use_changes_nothing(site, monkeypatch):
    """It is read once: what the terms judged is what is done."""
    real, reads = preset_files.Path.read_text, []

    def swapped(path, *args, **kwargs):
        text = real(path, *args, **kwargs)
        if path.name == "small.yaml":
            reads.append(path)
            if len(reads) > 1:
                return text.replace("name: um_pfssl", f"name: {TRAP}:Thing")
        return text

    monkeypatch.setattr(preset_files.Path, "read_text", swapped)
    frame, _ = site.ask(honest(), by_worker=True)
    reason = getattr(decode_answer(frame.blobs["message"]), "reason", "")
    assert TRAP not in reason and len(reads) == 1


def test_five_settings_of_one_identity_are_one_account(site):
    """As measured: five runs of one name and identity, each with settings of its own."""
    terms = {**OF_IMAGES, "epsilon_at_most": 3.0, "epsilon_of_all_runs": 3.0}
    done = []
    for number in range(5):
        said = IMAGES.replace("8.5", "1.5") + f" privacy.delta={number + 1}e-7"
        run = honest(said=said, task=True, terms=terms, action="release")
        try:
            site.ask(run)
            done.append("")
        except FedAppError as error:
            done.append(str(error))
    assert not any("under other settings" in one for one in done[:1]), done
    assert all("under other settings" in one for one in done[1:]), done
    asked = [one for one in Record(site.folder).lines() if one["event"] == "asked"]
    assert sum(one["epsilon"] for one in asked) == 1.5


def test_introductions_are_answers(site):
    terms = {**PLAIN, "answers_at_most": 2}
    for _ in range(2):
        site.ask(honest(terms=terms))
    with pytest.raises(TermError, match="answer 3 of this run is past 2"):
        site.ask(honest(terms=terms))


def test_the_sites_own_pattern_says_whose_an_image_is(site):
    """In site.yaml it reads paths of this site; another pattern deals other images to the parts."""
    found = {}
    for pattern in ("", r"(\d)\.png", r"(x)"):
        terms = {**PLAIN, "least_count": 1, **({"patients": pattern} if pattern else {})}
        try:
            facts = site.ask(honest(terms=terms)).answer
            found[pattern] = facts.test
        except FedAppError as error:
            found[pattern] = str(error)
    assert isinstance(found[""], int)
    assert "does not match" in str(found["(x)"])


def test_an_answer_whose_line_cannot_be_written_does_not_leave(site, monkeypatch):
    real = Record.add

    def full(record, event, *provided, **facts):
        if event == "sent":
            raise StoreError("No space left on device")
        real(record, event, *provided, **facts)

    monkeypatch.setattr(Record, "add", full)
    with pytest.raises(StoreError, match="No space left"):
        site.ask(honest(task=True))
    assert [line["event"] for line in Record(site.folder).lines()] == ["asked", "refused"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_terms_of_another_user_let_nothing_run(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("rounds_at_most: 7\n")
    path.chmod(0o600)
    assert policy.SitePolicy(tmp_path).terms.rounds_at_most == 7
    os.chown(path, 12345, -1)
    with pytest.raises(FedAppError, match="belongs to user 12345"):
        policy.SitePolicy(tmp_path).terms  # noqa: B018


def test_a_site_folder_changes_no_number(site, monkeypatch):
    """The same bytes leave with terms and a record as without."""
    found = [site.ask(honest(task=True))]
    without = policy.SitePolicy(None, no_terms=True)
    monkeypatch.setattr("client_app.answering.policy_of", lambda _: without)
    found.append(site.ask(honest(task=True)))
    assert found[0].payloads == found[1].payloads and found[0].payloads
    assert found[0].answer == found[1].answer


def test_parts_with_small_counts_are_not_used_at_all(site, caplog):
    """West has 15 validation and 30 test images of three classes: none has eleven of each."""
    many = {**PLAIN, "least_count": 1000}
    told = site.ask(honest(terms=many)).answer
    assert (told.val, told.test) == (0, 0) and told.labelled == 12
    assert "terms (least_count: 1000): runs do not use the val and the test images" in caplog.text
    assert list(Record(site.folder).lines())[-1]["withheld"] == ["val", "test"]
    done = site.ask(honest(task=True, terms=many))
    assert all(found.samples == 0 for found in done.answer.evaluations.values())
    assert done.payloads


def signed(**more):
    """An honest run that its coordinator has signed."""
    return honest(**{"terms": SIGNED, "signed": lambda word: sign(word, KEY), **more})


def test_a_signed_run_gets_in_is_done_and_may_be_taken_up_again_after_its_time(site):
    assert site.ask(signed()).answer.name == "west"
    introduced = list(Record(site.folder).lines())[-1]
    assert introduced["signed"] == fingerprint(KEY.public_key())
    over = {"signed": lambda word: sign(replace(word, until=10**9), KEY_2)}
    assert site.ask(signed(**over)).answer.name == "west"
    for number in (0, 1, 1, 2):  # a round that was cut is done again
        assert site.ask(signed(task=True, round=number, **over)).payloads
    assert [one.get("round") for one in Record(site.folder).lines() if one["event"] == "sent"] == [
        0, 1, 1, 2
    ]  # fmt: skip
    with pytest.raises(TermError, match="round 1 is over: round 2 of this run was done"):
        site.ask(signed(task=True, round=1))
    resumed = signed(said="runtime.resume=true runtime.run_name=study-1")
    with pytest.raises(TermError, match="its settings are not those"):
        site.ask(resumed)  # the name in the settings is signed too; `runtime.resume` alone is not
    assert site.ask(signed(said="runtime.resume=true")).answer.name == "west"


def test_a_clock_that_is_set_back_opens_no_run_that_was_done(site, monkeypatch):
    """The end is by the clock; that a round is done, the record knows."""
    early = {"signed": lambda word: sign(replace(word, until=10**9), KEY)}
    monkeypatch.setattr("time.time", lambda: 10**9 - 5)
    assert site.ask(signed(**early)).answer.name == "west"
    assert site.ask(signed(task=True, round=2, **early)).payloads
    with pytest.raises(TermError, match="is over"):
        site.ask(signed(task=True, round=1, **early))
