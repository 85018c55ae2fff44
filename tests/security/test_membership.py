"""Who a node is in masked sums: its registered key, and the keys of a simulation only in one."""

import pytest

from client_app import identity
from client_app.answering import answer
from client_app.identity import simulated_here
from client_app.node import open_site, policy_of
from client_app.refusals import refusal_of
from fedapp.core.errors import ConfigError, FedAppError
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import experiment_digest, load_run_config
from fedapp.protocol.messages import Hello, Origin, Refusal, SiteFacts
from fedapp.site.mask_identity import SIGNING_KEY
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.deploy.registered_sites import members_line

NAMES = ("a", "b", "c", "d")
SIMULATED = {"partition-id": 0, "num-partitions": 4}
"""The node config that Flower's simulation makes."""


@pytest.fixture
def simulation(monkeypatch):
    """This process counts as one of Ray's, in which Flower's simulation runs apps."""
    monkeypatch.setattr(identity, "in_ray", lambda: True)


@pytest.fixture
def there(tmp_path):
    """A run whose sums are masked, and the keys of its four sites."""
    make_certs(tmp_path / "keys", ["localhost"], NAMES)
    agreed = members_line([tmp_path / "keys/server/supernodes"]).split('"')[1]
    for number, name in enumerate(NAMES):
        agreed = agreed.replace(f"{name}=", f"{number}=")
    (tmp_path / "house").mkdir(mode=0o700)

    def made(members=True, **over):
        given = {"data.subset": 400, "split.num_clients": 4, "privacy.sums": "masked",
                 "method.preset": "fedavg", "rounds.sample_rate": 1.0, "model.name": "mlp",
                 "runtime.device": "cpu", **over}  # fmt: skip
        return {"preset": "digits_demo", "set": " ".join(
            f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in
            {**given, **({"privacy.members": agreed} if members else {})}.items()
        )}  # fmt: skip

    made.key = str(tmp_path / "keys/sites/b/supernode.key")
    made.house = tmp_path / "house"
    return made


def origin(run_config, run="run", identity="f" * 64):
    digest = experiment_digest(load_run_config(run_config))
    return Origin(run, code_hash()[1], digest, identity=identity)


def hello(run_config, **node_config):
    try:
        return answer(run_config, node_config, origin(run_config), Hello(), {}).answer
    except FedAppError as error:
        return refusal_of(error).answer


def summing(run_config, run="run", **node_config):
    config = {"partition-id": 1, "no-terms": True, **node_config}
    asked = origin(run_config, run), {}, policy_of(config), lambda: None
    return open_site(run_config, config, *asked)[0].summing


@pytest.mark.parametrize("own", [
    {}, {"store-path": "store"}, {"num-partitions": 4}, {"num-partitions": 4, SIGNING_KEY: "key"},
    {"num-partitions": 4, "site-folder": "house"},
])  # fmt: skip
def test_a_real_node_masks_with_no_keys_that_follow_from_the_seed(there, own, tmp_path):
    """Finding 25 c: a server that names no members had them all know each other's masks."""
    places = {"store": str(tmp_path / "store"), "house": str(there.house), "key": there.key}
    config = {name: places.get(value, value) for name, value in own.items()}
    answer = hello(there(members=False), **{"partition-id": 1, "no-terms": True, **config})
    assert isinstance(answer, Refusal)
    assert "privacy.members is empty, and this site is no simulation" in answer.reason
    assert "\n" not in answer.reason


def test_a_simulated_node_masks_with_keys_that_follow_from_the_seed(there, simulation):
    assert isinstance(hello(there(members=False), **SIMULATED), SiteFacts)
    answer = hello(there(), **SIMULATED)
    assert isinstance(answer, Refusal) and "has no registered key" in answer.reason


def test_what_makes_a_node_a_simulated_one(simulation):
    assert simulated_here(SIMULATED)
    for own in "site-folder", "site-name", "data-path", "store-path", "no-terms", SIGNING_KEY:
        assert not simulated_here({**SIMULATED, own: "x"})
    assert not simulated_here({"partition-id": 0}) and not simulated_here({"num-partitions": 4})


def test_a_supernode_with_the_config_of_a_simulated_node_is_real():
    """Flower's own pages start SuperNodes with these two numbers."""
    assert not simulated_here(SIMULATED)


NO_HOUSE = (
    {"partition-id": 1}, SIMULATED, {"num-partitions": 4, "partition-id": 1, "worker-idle-s": 0},
    {"partition-id": 1, "no-terms": False}, {"partition-id": 1, "no-terms": "true"},
    {"partition-id": 1, "site-folder": ""},
)  # fmt: skip


@pytest.mark.parametrize("config", NO_HOUSE)
def test_a_real_node_without_a_site_folder_answers_nothing_unless_its_config_says_so(there, config):
    """The run is a plain one: its model would leave, whatever the site wants."""
    plain = {"preset": "digits_demo", "set": "data.subset=400 split.num_clients=4"}
    answer = hello(plain, **config)
    assert isinstance(answer, Refusal)
    assert "site.yaml: is not there, since the node config names no site-folder" in answer.reason
    assert "no-terms=true in the node config" in answer.reason and "\n" not in answer.reason
    assert isinstance(hello(plain, **{"partition-id": 1, "no-terms": True}), SiteFacts)


def test_it_answers_nothing_before_what_a_run_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "brought.py").write_text(f"open({str(tmp_path / 'done')!r}, 'x').close()")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"preset": "digits_demo", "set": "method.name=brought:Method"}
    request = Origin("run", code_hash()[1], "0" * 64), Hello(), {}
    with pytest.raises(ConfigError, match="names no site-folder"):
        answer(named, {"partition-id": 1}, *request)
    assert not (tmp_path / "done").exists()


def test_a_real_node_needs_its_own_key(there):
    real = {"partition-id": 1, "no-terms": True}
    answer = hello(there(), **real)
    assert isinstance(answer, Refusal) and "knows no key of its own" in answer.reason
    answer = hello(there(), **{**real, "partition-id": 2, SIGNING_KEY: there.key})
    assert isinstance(answer, Refusal) and "agreed on for site 2" in answer.reason
    assert isinstance(hello(there(), **real, **{SIGNING_KEY: there.key}), SiteFacts)


def test_masked_only_is_broken_by_a_run_without_members(there):
    """Finding 27 c: a mask that everybody can take off is none."""
    (there.house / "site.yaml").write_text("masked_only: true\n")
    (there.house / "site.yaml").chmod(0o600)
    own = {"partition-id": 1, "site-folder": str(there.house), SIGNING_KEY: there.key}
    answer = hello(there(members=False), **own)
    assert isinstance(answer, Refusal)
    assert "this site's terms (masked_only): no privacy.members" in answer.reason


def test_no_setting_of_a_run_and_no_name_moves_the_journal(there, tmp_path):
    """Another journal would do a sum once more, for other survivors."""
    own = {SIGNING_KEY: there.key, "store-path": str(tmp_path / "store")}
    one = summing(there(), **own)
    for other in (
        summing(there(), run="other", **own),
        summing(there(**{"runtime.out": str(tmp_path / "elsewhere")}), **own),
        summing(there(**{"training.learning_rate": 0.5}), **own),
    ):
        assert other.root == one.root
        assert other.head == one.head
    assert one.root.is_relative_to(tmp_path / "store")
    own["site-folder"] = str(there.house)
    housed = summing(there(), **own)
    assert housed.root.is_relative_to(there.house)


def test_members_that_nobody_vouches_for_never_mean_less_noise(there, tmp_path):
    """Finding 25 d: one real key and three of the server's; each site adds as if among three."""
    own = {SIGNING_KEY: there.key, "site-folder": str(there.house)}
    assert summing(there(), **own).membership.vouched == 3
    (there.house / "site.yaml").write_text("least_members: 4\n")
    (there.house / "site.yaml").chmod(0o600)
    asked = there(**{"privacy.least_members": 4})
    own["no-terms"] = False
    assert summing(asked, **own).membership.vouched == 4
