"""A site's terms: what each allows and refuses, files that are no terms, the example."""

import os
from contextlib import nullcontext
from datetime import datetime
from types import SimpleNamespace

import pytest
import torch
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from fedapp.core.errors import ConfigError
from fedapp.data.sites import Part, SiteData
from fedapp.experiment.config import load_experiment, unchecked_settings
from fedapp.experiment.preset_files import CONF, method_presets
from fedapp.learn.networks import build_model
from fedapp.learn.params import to_bytes
from fedapp.methods.base import schemas, sent_roles
from fedapp.protocol.messages import MASKED, Incoming, ModelRef, Origin, Reply, SumStep, Task
from fedapp.site.policy import SitePolicy
from fedapp.site.terms import BY_CLASS, KINDS, TermError, Terms, kind_of, read_terms
from fedapp.tools.node.terms import explained, sentences

RSA, COORDINATOR = (
    private.public_key()
    .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    for private in (rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate())
)  # fmt: skip
EXAMPLE, STRICT = CONF / "terms" / "site.yaml", CONF / "terms" / "strict.yaml"


def refused(terms, term, **settings):
    preset = settings.pop("preset", "digits_demo")
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    with pytest.raises(TermError) as found:
        terms.check_presets(preset, str(overrides.get("method.preset", "")))
        terms.check_said(unchecked_settings(preset, overrides))
        terms.check_run(load_experiment(preset, overrides), "study-1")
    assert found.value.term == term
    return str(found.value)


def allowed(terms, preset="digits_demo", **settings):
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    terms.check_presets(preset, str(overrides.get("method.preset", "")))
    terms.check_said(unchecked_settings(preset, overrides))
    terms.check_run(load_experiment(preset, overrides), "study-1")


LEARNED = {"method.preset": "one_round", "method.features": "both"}
"""A method whose features are learned from sums of patches."""
FROZEN = {
    "method.preset": "one_round", "method.features": "network", "model.name": "encoder",
    "model.body": "lite0",
}  # fmt: skip
"""A method over a frozen network, whose sums travel rounded."""
KEYS = [f"{number:064x}" for number in range(6)]
"""Fingerprints of the keys of five sites, and of one that the attacker made up."""


def masked(keys=KEYS[:5], **more):
    agreed = ",".join(f"{number}={key}" for number, key in enumerate(keys))
    return {
        "method__preset": "fedavg", "split__num_clients": 5, "privacy__sums": "masked",
        "privacy__members": agreed, "privacy__least_members": 3, **more,
    }  # fmt: skip


CLIPPED = {"method__preset": "um_pfssl", "privacy__clip": 1.0}
PRIVATE = {"method__preset": "one_round", "privacy__epsilon": 3.0}


@pytest.fixture
def written(tmp_path):
    """Write a site's file of terms; return its path."""

    def write(text):
        path = tmp_path / "site.yaml"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def test_without_terms_all_that_the_program_allows_is_allowed_but_paths_and_modules():
    allowed(Terms())
    allowed(Terms(), **PRIVATE), allowed(Terms(), **CLIPPED)
    assert "rounds.num_rounds" not in refused(Terms(), "folders", data__root="/etc")


@pytest.mark.parametrize(("term", "settings"), [
    ({"methods": ["fedavg"]}, {"method__preset": "um_pfssl"}),
    ({"networks": ["mlp"]}, {}),
    ({"data": ["own"]}, {}),
    ({"runs": ["other-*"]}, {}),
    ({"rounds_at_most": 3}, {"rounds__num_rounds": 4}),
    ({"clip_at_most": 1.0}, {}),
    ({"clip_at_most": 1.0}, {**CLIPPED, "privacy__clip": 1.1}),
    ({"clip_at_most": 1.0}, PRIVATE),
    ({"epsilon_at_most": 8.0}, {}),
    ({"epsilon_at_most": 8.0}, CLIPPED),
    ({"epsilon_at_most": 2.9}, PRIVATE),
    ({"epsilon_of_all_runs": 8.0}, {}),
    ({"delta_at_most": 1e-6}, {**PRIVATE, "privacy__delta": 1e-5}),
    ({"masked_only": True}, {"method__preset": "fedavg"}),
    ({"least_members": 4}, masked()),
    ({"colluding_at_least": 2}, masked()),
    ({"score_counts": False}, {"rounds__pooled_auroc": True}),
])  # fmt: skip
def test_each_term_refuses_by_its_name(term, settings):
    refused(Terms(**term), next(iter(term)), **settings)


@pytest.mark.parametrize(("term", "settings"), [
    ({"methods": ["fedavg", "um_pfssl"]}, {"method__preset": "um_pfssl"}),
    ({"networks": ["resnet9"]}, {}),
    ({"data": ["digits"]}, {}),
    ({"runs": ["other-*", "study-?"]}, {}),
    ({"rounds_at_most": 3}, {"rounds__num_rounds": 3}),
    ({"clip_at_most": 1.0}, CLIPPED),
    ({"epsilon_at_most": 3.0}, PRIVATE),
    ({"delta_at_most": 1e-5}, {**PRIVATE, "privacy__delta": 1e-5}),
    ({"delta_at_most": 1e-9}, {}),
    ({"colluding_at_least": 1}, masked()),
    ({"colluding_at_least": 2}, masked(privacy__colluding=2)),
    ({"score_counts": True}, {"rounds__pooled_auroc": True}),
    ({"score_counts": False}, {}),
])  # fmt: skip
def test_the_very_bound_is_allowed(term, settings):
    allowed(Terms(**term), **settings)


@pytest.mark.parametrize("bound", ["epsilon_at_most", "epsilon_of_all_runs"])
@pytest.mark.parametrize(("delta", "kept"), [(0.5, False), (1.01e-5, False), (1e-5, True)])
def test_a_bound_on_epsilon_bounds_delta_too(bound, delta, kept):
    """Epsilon 3 at delta .5 is bought by publishing half of the images as they are."""
    run = {**PRIVATE, "privacy__delta": delta}
    if kept:
        allowed(Terms(**{bound: 3.0}), **run)
    else:
        refused(Terms(**{bound: 3.0}), "delta_at_most", **run)
    allowed(Terms(), **run)  # nobody speaks of epsilon
    with pytest.raises(ValueError, match="at most 1e-05"):
        Terms(**{bound: 3.0}, delta_at_most=0.5)
    refused(Terms(**{bound: 3.0}, delta_at_most=1e-6), "delta_at_most", **PRIVATE)


def test_delta_is_at_most_one_in_the_number_of_images():
    terms = Terms(epsilon_at_most=3.0)
    terms.check_delta(1e-5, 100_000), Terms().check_delta(0.5, 10)
    with pytest.raises(TermError, match="delta_at_most"):
        terms.check_delta(1e-5, 100_001)


def test_members_that_the_server_made_up_are_refused():
    """One real key and four of the server's: without pins they pass every other term."""
    pinned = Terms(masked_only=True, least_members=3, members=KEYS[:5])
    allowed(pinned, **masked())
    made_up = [KEYS[5], *KEYS[1:5]]
    allowed(Terms(masked_only=True, least_members=3), **masked(made_up))
    assert KEYS[5][:16] in refused(pinned, "members", **masked(made_up))
    # Without members all keys follow from the public seed.
    assert "no privacy.members" in refused(pinned, "masked_only", **masked(privacy__members=""))
    refused(Terms(members=KEYS[:5]), "members", **masked(privacy__members=""))
    allowed(Terms(members=KEYS[:5]), method__preset="fedavg")  # of plain sums it says nothing


def test_how_many_members_there_may_be_and_how_many_count_for_the_noise():
    terms = Terms(least_members=3, most_members=4)
    terms.check_sum(range(4)), Terms().check_sum(range(500))
    with pytest.raises(TermError, match="most_members"):
        terms.check_sum(range(5))
    assert Terms().vouched == 3  # whoever else the server names
    assert Terms(least_members=7).vouched == 7
    assert Terms(members=KEYS, least_members=3).vouched is None  # all of them are known here


@pytest.mark.parametrize("pattern", ["(P[0-9]+)_", "(.)", "((a+)+)$", "(", "x" * 9999])
def test_a_run_that_brings_a_pattern_for_the_sites_paths_is_refused_before_it_is_compiled(pattern):
    """Counts or a refusal would come back: 589 questions spelled a file's name."""
    with pytest.raises(TermError, match="matched with the names of files here") as found:
        Terms(patients="(P[0-9]+)_").check_said({"data.name": "own", "data.patients": pattern})
    assert found.value.term == "patients"


@pytest.mark.parametrize("name", [
    "timm:/etc/weights", "timm:hf-hub:somebody/model", "timm:local-dir:/data", "timm:os:system",
    "timm:", "timm:../x", "timm:resnet18.a/b", "timm:resnet18\n:x",
])  # fmt: skip
def test_what_timm_would_fetch_or_open_is_no_name_of_a_network(name):
    from fedapp.learn.networks import is_timm_name

    assert not is_timm_name(name)
    assert is_timm_name("timm:resnet18") and is_timm_name("timm:vit_small_patch16_224.dino")
    with pytest.raises(TermError, match="own_modules"):
        Terms().check_said({"model.name": "encoder", "model.body": name})
    Terms().check_said({"model.name": "encoder", "model.body": "timm:resnet18"})


@pytest.fixture
def in_masked_run(tmp_path, written):
    """Ask a policy about a task of a masked run whose contents have these roles."""

    def ask(roles, labels=(0,) * 9, members=3, **terms):
        written(yaml.safe_dump(terms))
        run = load_experiment("digits_demo", {"method.preset": "fedavg"})
        known = Part(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), torch.tensor(labels))
        nothing = Part(known.inputs[:0], known.labels[:0])
        parts = {"labelled": known, "unlabelled": Part(known.inputs[:0])}
        parts |= {"val": nothing, "test": nothing}
        data = SiteData(0, parts, 2, (0.5,), (0.25,), None)
        site = SimpleNamespace(masks=True, shared=roles, data=data, experiment=run)
        step = SumStep(0, "add", members=tuple(range(members)))
        task = Task(0, 0, "train", ModelRef(0, 0, "0" * 64), sum=step)
        origin = Origin("run", "c" * 16, "0" * 64, identity="d" * 64)
        SitePolicy(tmp_path).before(task, site, origin)

    return ask


def test_what_may_not_leave_may_not_leave_in_a_masked_sum_either(in_masked_run):
    """Members in league with the server learn a site's own part from the sum."""
    in_masked_run(["model"], leaves=["models"])
    in_masked_run(["sums"], leaves=["sums"])
    for roles in (["model"], ["sums", "prototypes"]):
        with pytest.raises(TermError, match=r"\(leaves\)"):
            in_masked_run(roles, leaves=["sums"])


def test_a_sum_of_too_many_members_is_refused_before_it_is_added_to(in_masked_run):
    in_masked_run(["model"], members=5, most_members=5)
    with pytest.raises(TermError, match="most_members"):
        in_masked_run(["model"], members=6, most_members=5)


def test_small_counts_stay_out_of_masked_sums_too(in_masked_run):
    rare = (0,) * 9 + (1,) * 4
    for roles in (["sums"], ["prototypes"], ["guesses"]):
        with pytest.raises(TermError, match=r"\(least_count\)"):
            in_masked_run(roles, rare, least_count=5)
        in_masked_run(roles, rare, least_count=4)
    in_masked_run(["model"], rare, least_count=5)  # tells nothing by class


@pytest.mark.parametrize("masks", [False, True])
def test_guesses_of_few_images_stay_at_home(tmp_path, written, masks):
    """Counts of guesses are shares of images: 0.4 of one is none, 4.4 are four. Masked ones are in
    a row that nobody reads by itself."""
    written("least_count: 5\n")
    run = load_experiment("digits_demo", {"method.preset": "one_round"})
    site = SimpleNamespace(masks=masks, experiment=run)
    task = Task(0, 0, "guess", ModelRef(0, 0, "0" * 64))
    origin = Origin("run", "c" * 16, "0" * 64, identity="d" * 64)

    def leaves(*counts):
        payload = to_bytes({"counts": torch.tensor(counts), "by_class": torch.zeros(3, 2)})
        sent = Reply(0, 0, "0" * 64, contents={"guesses": "1" * 64})
        came = Incoming(sent, {"1" * 64: payload})
        assert SitePolicy(tmp_path).after(came, site, task, origin).answer == sent

    leaves(0.4, 5.0, 90.2)
    with nullcontext() if masks else pytest.raises(TermError, match=r"least_count.*guesses"):
        leaves(0.4, 4.4, 90.2)


MODULES = [
    {"method__name": "tests.site.trap:Method"}, {"model__name": "tests.site.trap:network"},
    {"data__name": "tests.site.trap:data"}, {"rounds__robust": "tests.site.trap:rule"},
    {"model__name": "encoder", "model__body": "tests.site.trap:network"},
]  # fmt: skip


@pytest.mark.parametrize("settings", MODULES)
def test_a_module_is_refused_before_it_is_imported(settings, tmp_path, monkeypatch):
    import sys

    refused(Terms(), "own_modules", **settings)
    assert "tests.site.trap" not in sys.modules


@pytest.mark.parametrize("key", ["data__root", "split__manifest", "model__weights"])
def test_paths_are_refused_unless_they_lie_below_a_folder_that_is_named(key, tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    (inside / "link").symlink_to(outside)
    terms = Terms(folders=[str(inside)])
    for path in (outside, tmp_path, inside / "../out", inside / "link", "relative", "~", "/"):
        said = refused(terms, "folders", **{key: str(path)})
        assert str(path) not in said or str(path) in "/~", "a path of the site is told to nobody"
    terms.check_said({key.replace("__", "."): str(inside / "a")})


def test_a_run_may_name_a_folder_to_write_to_only_where_the_node_says_none(tmp_path):
    said = {"runtime.out": str(tmp_path)}
    Terms().check_said(said, placed=True)
    Terms(folders=[str(tmp_path)]).check_said(said, placed=False)
    with pytest.raises(TermError, match=r"runtime\.out"):
        Terms().check_said(said, placed=False)


def test_a_preset_that_is_a_file_is_a_path_too(tmp_path):
    lying = tmp_path / "digits_demo.yaml"
    lying.write_text("name: digits_demo\nmethod:\n  name: os:system\n")
    refused(Terms(), "folders", preset=str(lying))
    refused(Terms(), "folders", method__preset=str(lying))
    refused(Terms(folders=[str(tmp_path)]), "own_modules", preset=str(lying))


@pytest.mark.parametrize(("hours", "inside", "outside"), [
    ("08:00-18:00", ["08:00", "17:59"], ["07:59", "18:00", "00:00"]),
    ("20:00-06:00", ["20:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "19:59"]),
])  # fmt: skip
def test_hours_by_hand(hours, inside, outside):
    terms = Terms(hours=hours)
    for at in inside:
        terms.check_hour(datetime.strptime(at, "%H:%M"))
    for at in outside:
        with pytest.raises(TermError, match="tasks are done"):
            terms.check_hour(datetime.strptime(at, "%H:%M"))


def test_sizes_rounds_roles_counts_and_epsilons_at_their_bounds():
    terms = Terms(
        megabytes_at_most=1.0, rounds_at_most=5, leaves=["models"], least_count=3,
        epsilon_at_most=2.0, epsilon_of_all_runs=3.0,
    )  # fmt: skip
    terms.check_size(10**6), terms.check_round(5), terms.check_roles(["model", "online"])
    terms.check_epsilon(2.0, 1.0), Terms(answers_at_most=2).check_answers(2)
    for check in (
        lambda: terms.check_size(10**6 + 1),
        lambda: terms.check_round(6),
        lambda: Terms(answers_at_most=2).check_answers(3),
        lambda: terms.check_roles(["model", "sums"]),
        lambda: terms.check_roles(["somebody_elses"]),
        lambda: terms.check_epsilon(2.001, 0.0),
        lambda: terms.check_epsilon(1.5, 1.501),
    ):
        with pytest.raises(TermError):
            check()
    assert terms.withheld({0: 2, 1: 9}) and terms.withheld({0: 1})
    assert not terms.withheld({0: 3, 1: 0}) and not Terms().withheld({0: 1})


def test_every_content_of_every_method_has_a_kind():
    named = {role for names in KINDS.values() for role in names}
    met = set()
    bags = {"fedul", "fedpl", "fedllp", "fedllp_vat"}
    of_method = [
        {"method.preset": name} | ({"split.bags": 12} if name in bags else {})
        for name in method_presets()
    ]
    for settings in (*of_method, LEARNED, FROZEN):
        made = load_experiment("digits_demo", settings)
        for role in schemas(made.method, build_model(made.model, (1, 8, 8), 10)):
            met.add(role)
            assert kind_of(role) is not None, (settings, role)
    # Masked sums stand for all others.
    assert all(role in met or role in ("group_*", MASKED) for role in named)
    assert met >= BY_CLASS


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "said"), [
    ("metods: [fedavg]", "metods: no such term; did you mean 'methods'?"),
    ("methods: fedavg", "methods"),
    ("methods: []", "methods"),
    ("methods: [fedavgg]", "no such name 'fedavgg'; did you mean 'fedavg'?"),
    ("networks: [resnet10]", "no such name 'resnet10'"),
    ("data: [owned]", "no such name 'owned'"),
    ("leaves: [everything]", "leaves"),
    ("leaves: []", "leaves"),
    ("own_modules: yes please", "own_modules"),
    ("own_modules: 1", "own_modules"),
    ("rounds_at_most: 0", "rounds_at_most"),
    ("rounds_at_most: 1.5", "rounds_at_most"),
    ("clip_at_most: -1.0", "clip_at_most"),
    ("noise_at_least: 2.0", "noise_at_least: was taken out in 2.0; write epsilon_at_most"),
    ("epsilon_at_most: .nan", "epsilon_at_most"),
    ("epsilon_at_most: .inf", "epsilon_at_most"),
    ("delta_at_most: 1.0", "delta_at_most"),
    ("epsilon_at_most: 9.0\nepsilon_of_all_runs: 8.0", "must not be below"),
    (f"members: [{', '.join(3 * ['a' * 64])}]", "members names the key aaaaaaaaaaaaaaaa 3 times"),
    (
        f"least_members: 4\nmembers: [{', '.join(sign * 64 for sign in 'abca')}]",
        "members names the key aaaaaaaaaaaaaaaa 2 times: name each key once",
    ),
    ("hours: 20-6", "two times of day"),
    ("hours: 24:00-06:00", "two times of day"),
    ("hours: 20:00-20:00", "no task is ever done"),
    ("megabytes_at_most: 0", "megabytes_at_most"),
    ("least_count: 0", "least_count"),
    ("answers_at_most: 0", "answers_at_most"),
    ("stand_in: 1", "stand_in"),
    ("started_by: []", "started_by"),
    ("started_by: nobody", "started_by"),
    ("started_by: [nobody]", "'nobody': is no public key"),
    ("started_by: [ssh-ed25519 AAAA]", "is no public key"),
    (f"started_by: [{RSA}]", "must be an Ed25519 key"),
    ("folders: [data]", "must begin with a slash"),
    ("folders: data", "folders"),
    ("- a list", "must hold groups of keys"),
    ("", "is empty: write it"),
    ("methods: [fedavg", "line 1"),
    ("3: x", "keywords must be strings"),
    ("members: [abc]", "members"),
    ("members: [ABC]", "members"),
    ("most_members: 2", "most_members"),
    ("colluding_at_least: 0", "colluding_at_least"),
    ("least_members: 5\nmost_members: 4", "most_members must not be fewer than least_members"),
    (f"least_members: 4\nmembers: {KEYS[:3]}", "members must not be fewer than least_members"),
    ("patients: '('", "patients"),
    ("patients: 'P[0-9]+'", "patients"),
    ("patients: '(a){99999999999}'", "patients"),
    (f"patients: '{'(' * 5000}'", "patients"),
])  # fmt: skip
def test_a_file_that_is_no_terms_is_refused_by_name(written, text, said):
    with pytest.raises(ConfigError) as found:
        read_terms(written(text))
    assert said in str(found.value) and "site.yaml" in str(found.value)


def test_the_example_is_a_file_of_terms_and_names_them_all():
    terms = read_terms(EXAMPLE)
    assert terms.methods and not terms.own_modules
    # A first trial, by day, with few images: it is done, and measured.
    terms.check_run(load_experiment("own_data"), "trial")
    for hour in range(24):
        terms.check_hour(datetime(2026, 1, 1, hour))
    assert not terms.withheld({0: 1, 1: 20})
    text = EXAMPLE.read_text()
    plain = text.replace("# clip", "clip").replace("# eps", "eps")
    plain = plain.replace("# delta", "delta").replace("# runs", "runs")
    plain = plain.replace("# started", "started").replace("# masked", "masked")
    for term in ("least", "most", "members", "colluding", "patients", "hours"):
        plain = plain.replace(f"# {term}", term)
    assert set(Terms.__dataclass_fields__) == {
        line.partition(":")[0] for line in plain.splitlines() if line[:1].isalpha()
    }


STUDY = {
    "preset": "own_data", "data__sites": "a, b, c, d, e", "method__preset": "one_round",
    "privacy__epsilon": 1.0, "privacy__delta": 1e-6,
    **{key: value for key, value in masked().items() if key != "method__preset"},
    "privacy__members": ", ".join(map("{}={}".format, "abcde", KEYS)),
    "privacy__least_members": 5,
}  # fmt: skip
"""A run that the strict example is for: masked sums of five sites, with noise."""
BY_NUMBER = {"rounds__sample_rate": 1.0, "privacy__members": masked()["privacy__members"]}


def test_the_strict_example_refuses_everything_until_keys_are_filled_in(written):
    with pytest.raises(ConfigError) as found:
        read_terms(written(STRICT.read_text()))
    started, members = str(found.value).splitlines()
    assert "started_by = []" in started and "members = []" in members
    assert STRICT.read_text().count("[yours]\n") == 4


def test_terms_whose_keys_are_not_written_yet_are_explained_all_the_same(written):
    """But for the first line and the keys' names it is what the finished file says."""
    path = written(STRICT.read_text())
    first, *unfinished = explained(path.parent)
    assert first.startswith("NOT IN FORCE") and "started_by and members" in first
    text = STRICT.read_text().replace("started_by: []", f"started_by: ['{COORDINATOR}']")
    path.write_text(text.replace("members: []", f"members: {KEYS[:5]}"))
    differs = [pair for pair in zip(unfinished, explained(path.parent), strict=True)
               if pair[0] != pair[1]]  # fmt: skip
    said = [line.split(" the keys in ")[1].split()[0].strip(",") for line, _ in differs]
    assert said == ["started_by", "members"]
    path.write_text("started_by: []\nmethods: [nosuch]\n")
    with pytest.raises(ConfigError, match="nosuch"):
        list(explained(path.parent))


@pytest.mark.parametrize(("term", "changed"), [
    ("", {}),
    ("masked_only", {"privacy__sums": "plain", "privacy__members": ""}),
    ("members", {"privacy__members": STUDY["privacy__members"].replace(KEYS[4], KEYS[5])}),
    ("least_members", {"privacy__least_members": 4}),
    ("epsilon_at_most", {"privacy__epsilon": 0.0}),
    ("epsilon_at_most", {"privacy__epsilon": 1.5}),
    ("delta_at_most", {"privacy__delta": 1e-5}),
    ("methods", {"method__preset": "fedavg", "model__norm": "group"}),
    ("networks", {"model__name": "resnet18"}),
    ("data", {"preset": "digits_demo", "data__sites": "", **BY_NUMBER}),
    ("rounds_at_most", {"rounds__num_rounds": 2}),
    ("score_counts", {"rounds__pooled_auroc": True}),
    ("folders", {"data__root": "/srv/images"}),
    ("own_modules", {"model__name": "tests.site.trap:network"}),
])  # fmt: skip
def test_the_strict_example_allows_one_study_and_refuses_the_rest(written, term, changed):
    text = STRICT.read_text().replace("started_by: []", f"started_by: ['{COORDINATOR}']")
    terms = read_terms(written(text.replace("members: []", f"members: {KEYS[:5]}")))
    settings = {**STUDY, **changed}
    refused(terms, term, **settings) if term else allowed(terms, **settings)
    with pytest.raises(TermError, match="runs"):
        terms.check_run(load_experiment("own_data", {"method.preset": "one_round"}), "trial")
    with pytest.raises(TermError, match="started_by"):
        terms.check_started("", {}, Origin("study-1", "0" * 16, "0" * 64))
    with pytest.raises(TermError, match="leaves"):
        terms.check_roles(["model"])
    terms.check_roles(["sums", "released", MASKED])


@pytest.mark.parametrize(
    ("settings", "sends_models"),
    [
        ({"method.preset": "one_round"}, False),
        (LEARNED, False),
        (FROZEN, False),
        ({"method.preset": "recommended"}, True),
        ({"method.preset": "fedavg"}, True),
    ],
)
def test_a_method_that_sends_no_model_needs_no_leave_for_one(settings, sends_models):
    experiment = load_experiment("own_data", settings)
    network = build_model(experiment.model, (3, 32, 32), 4)
    roles = sent_roles(experiment.method, schemas(experiment.method, network))
    assert ("model" in roles) == sends_models
    sums_only = Terms(leaves=["sums"])
    if sends_models:
        with pytest.raises(TermError, match="models"):
            sums_only.check_roles(roles)
    else:
        sums_only.check_roles(roles)


def _renamed(name):
    return lambda path: path.with_name(name).write_text("methods: [fedavg]")


NO_FILE = {
    "no file": lambda path: None,
    "no folder": lambda path: path.parent.rmdir(),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link": lambda path: (_renamed("terms")(path), path.symlink_to("terms")),
    "Site.yaml": _renamed("Site.yaml"),
    "site.yml": _renamed("site.yml"),
    "SITE.YAML": _renamed("SITE.YAML"),
    "an empty file": lambda path: path.touch(),
    "a file of spaces": lambda path: path.write_text(" \n\n"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "bytes that are no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "two files": lambda path: (_renamed("site.yaml")(path), _renamed("Site.yaml")(path)),
}  # fmt: skip


@pytest.mark.parametrize("how", NO_FILE)
def test_a_site_without_a_readable_file_of_that_name_allows_nothing(tmp_path, how):
    """Each door asks `SitePolicy.terms`: the node's start, every request, the gate."""
    path = tmp_path / "own/site.yaml"
    path.parent.mkdir()
    NO_FILE[how](path)
    with pytest.raises(ConfigError) as found:
        SitePolicy(path.parent).terms  # noqa: B018
    assert "site.y" in str(found.value).lower() and "\n" not in str(found.value)
    if how in ("no file", "no folder", "an empty file"):
        assert "no-terms" in str(found.value)
    if how == "no file":
        assert SitePolicy(path.parent, no_terms=True).terms == Terms()
    else:  # it is not said lightly either
        with pytest.raises(ConfigError):
            SitePolicy(path.parent, no_terms=True).terms  # noqa: B018


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_the_node_may_not_read_allows_nothing(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("methods: [fedavg]")
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        SitePolicy(tmp_path).terms  # noqa: B018


def test_terms_and_the_word_that_there_are_none_contradict_each_other(tmp_path, written):
    written("methods: [fedavg]")
    assert SitePolicy(tmp_path).terms.methods == ["fedavg"]
    with pytest.raises(ConfigError, match="no-terms was said"):
        SitePolicy(tmp_path, no_terms=True).terms  # noqa: B018


@pytest.mark.parametrize(("column", "kept"), [
    ([1] * 5 + [0] * 5, True), ([1] * 4 + [0] * 6, False), ([1] * 7 + [0] * 3, False),
    ([1] * 10, True), ([-1] * 10, True), ([1] * 4 + [-1] * 6, False),
])  # fmt: skip
def test_small_counts_of_findings_are_withheld_too(tmp_path, written, column, kept):
    """Of images that show a finding, and of those that do not; what was not read is neither."""
    written("least_count: 5\n")
    labels = torch.tensor([[1] * 5 + [0] * 5, column]).T
    parts = {"val": Part(labels, labels[:, :1]), "test": Part(labels, labels)}
    data = SimpleNamespace(parts=parts, patients={}, with_parts=lambda **changed: changed)
    shown = SitePolicy(tmp_path).shown(data)
    assert shown is data if kept else [*shown] == ["test"] and not len(shown["test"].labels)


@pytest.mark.parametrize(("patients", "kept"), [
    ([0, 1, 2, 3, 4] * 2, True), ([0, 0, 1, 2, 3] * 2, False), ([7] * 5 + [0, 1, 2, 3, 4], False),
])  # fmt: skip
def test_least_count_counts_patients_and_not_their_images(tmp_path, written, patients, kept):
    """Five images of each of two classes, by all that is counted without patients enough."""
    written("least_count: 5\n")
    part = Part(torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.tensor([0] * 5 + [1] * 5))
    parts = {"labelled": part, "unlabelled": Part(part.inputs[:0]), "val": part, "test": part}
    data = SiteData(0, parts, 2, (0.5,), (0.25,), None, patients={"test": torch.tensor(patients)})
    shown = SitePolicy(tmp_path).shown(data)
    assert len(shown.test) == (10 if kept else 0) and len(shown.val) == 10
    if not kept:
        assert shown.test_groups is None  # nobody is left whose images they would be


def test_terms_in_plain_words_promise_no_noise_that_nobody_asks_for():
    masked = list(sentences(Terms(masked_only=True)))
    assert "Noise: none is required; the sum of all sites is exact." in masked
    assert any(one.startswith("If a masked run has noise, the noise suffices") for one in masked)
    few = list(sentences(Terms(most_members=9)))
    said = "If a run masks its sums: of 3 sites or more and 9 at most. A plain run is allowed."
    assert said in few and said not in sentences(Terms())


def test_terms_in_plain_words_say_who_reads_the_numbers_and_whose_epsilon_is():
    def said(**terms):
        return "\n".join(sentences(Terms(**terms)))

    assert "Without them the server reads what this site sends." in said()
    assert "Masks: none" not in said(masked_only=True)
    noisy = said(epsilon_at_most=1, least_count=5)
    assert "Without them the server reads what this site sends, with their noise." in noisy
    assert "Epsilon is of one IMAGE" in noisy and "scores" not in noisy and "1 to 4" not in noisy
    assert "Epsilon is of one patient" in said(epsilon_at_most=1, patients="(P[0-9]+)")
    assert "Epsilon" not in said(least_count=5)
    unbounded = said(delta_at_most=1e-6)
    assert "Noise: none is required" in unbounded and "its epsilon may be any" in unbounded
    assert KEYS[0] in said(members=KEYS[:5])


@pytest.mark.parametrize(("members", "most"), [(3, 1), (5, 1), (7, 2), (13, 4)])
def test_terms_that_no_run_can_fulfil_are_refused(members, most):
    """Of so many members fewer than a third may collude, or one of three."""
    pinned = [f"{number:064x}" for number in range(members)]
    Terms(epsilon_at_most=1, members=pinned, colluding_at_least=most)
    for given in ({"members": pinned}, {"most_members": members}):
        with pytest.raises(ValueError, match="no run fulfils it"):
            Terms(epsilon_at_most=1, colluding_at_least=most + 1, **given)
