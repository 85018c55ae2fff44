"""The commands of docker/compose.yaml make a federation, and its demo shows a result."""

import json
import stat

import pytest

from fedapp.tools.deploy.compose_local import APP, Service, Services, read_compose, shown
from tests.flower.results import rows

SITES = ("north", "south", "west")


def two_services(tmp_path):
    (tmp_path / "compose.yaml").write_text(
        "services:\n"
        "  link: {command: [serve, --host=0.0.0.0, --port=8000], expose: ['8000'],\n"
        "    volumes: ['inner:/keys/a/b']}\n"
        "  edge: {command: [proxy], expose: ['8443'], volumes: ['./edge.conf:/etc/edge.conf:ro'],\n"
        "    tmpfs: [/tmp], depends_on: {link: {condition: service_healthy}}}\n"
        "  site: {command: [join, edge:8443], expose: ['9094'], volumes: ['store:/site']}\n"
    )
    (tmp_path / "edge.conf").write_text("listen 8443; pid /tmp/pid; server link:8000;")
    return tmp_path / "compose.yaml"


def test_addresses_and_paths_of_containers_become_those_of_this_machine(tmp_path):
    here = tmp_path / "here"
    made = Services(two_services(tmp_path), here, {})
    ports = {k: v.removeprefix("127.0.0.1:") for k, v in made.addresses.items()}
    assert set(ports) == {"link:8000", "edge:8443", "site:9094"}
    link, edge = ports["link:8000"], ports["edge:8443"]
    assert (
        made.text("link", "0.0.0.0:8000 --port=8000 18000")
        == f"127.0.0.1:{link} --port={link} 18000"
    )
    assert (
        made.text("site", "edge:8443 /site/x /sites")
        == f"127.0.0.1:{edge} {here}/volumes/store/x /sites"
    )
    assert (
        made.text("link", "--key=/keys/s.key /my/keys") == f"--key={here}/link/keys/s.key /my/keys"
    )
    assert (here / "edge/edge.conf").read_text() == (
        f"listen {edge}; pid {here}/edge/tmpfs/tmp/pid; server 127.0.0.1:{link};"
    )
    (here / "link/keys/a/b/s.key").touch()
    assert (here / "volumes/inner/s.key").exists(), "a volume below another mount"


def test_a_service_that_is_left_out_is_answered_for(tmp_path):
    made = Services(two_services(tmp_path), tmp_path / "here", {"edge": "link"})
    assert made.addresses["edge:8443"] == made.addresses["link:8000"]
    assert made.text("site", "edge:8443") == made.addresses["link:8000"]


def test_what_the_demo_prints_points_to_where_its_run_stays(tmp_path, monkeypatch):
    inside, mine = tmp_path / "gone/runs", tmp_path / "mine"
    monkeypatch.setenv("FEDAPP_OUT", str(mine))
    said = f"Files in {inside}/demo-1\nPictures: fedapp report demo-1\n"
    kept = f"Files in {mine}/demo-1\nPictures: fedapp report demo-1\n"
    assert shown(said, inside, mine) == kept
    assert shown(said, inside, inside) == said.replace("report ", f"report {inside}/")


def test_it_reads_what_the_compose_file_says():
    site = read_compose(APP / "docker/compose.yaml")["south"]
    assert isinstance(site, Service)
    assert (site.ports, site.after) == (
        ("9094",),
        {
            "images": "completed_successfully",
            "register": "completed_successfully",
            "gateway": "healthy",
        },
    )
    assert site.mounts == {
        "/tmp": "",
        "/keys": "south-keys",
        "/data": "south-images",
        "/site": "south",
        "/heads": "south-heads",
    }
    assert site.health[:2] == ("fedapp", "node")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_of_the_compose_file_trains_three_sites_and_shows_the_result(made):
    assert made.start("demo").wait() == 0, made.log("demo")
    said = made.log("demo")
    assert "digits_sites: um_pfssl, 3 sites, 3 rounds" in said
    assert "sites: 0 north, 1 south, 2 west" in said
    assert "Right answers on the sites' own test images" in said
    [run] = made.volume("runs").glob("demo-*")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] == 3 or summary["round"] == 3
    assert [row["skipped"] for row in rows(run)] == [{}, {}, {}, {}]
    for site in SITES:  # each kept models in a place of its own, and answered by a resident worker
        assert list(made.volume(site).rglob("*.safetensors")), site
        assert "is ready" in made.log(site) and "without a resident worker" not in made.log(site)
    keys = [p for who in ("server", *SITES) for p in made.volume(f"{who}-keys").rglob("*.key")]
    assert len(keys) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
