"""docs/DEPLOY.md as written: its commands, run on four homes in place of four machines.

Names, ports and `/data` are replaced by what holds here; rounds are few and the network is small.
Containers' commands and `make deploy-demo` are tried elsewhere (test_docker_files, test_topology).
"""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapp.core.processes import alive, free_port
from fedapp.data import published
from fedapp.data.inputs import DataSet
from fedapp.tools.deploy.compose_local import has_gateway
from tests.deploy.machines import ROOT, Document, Machine, listens, machines, until
from tests.flower.results import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SITES = ("north", "south", "west")
TRIED_ELSEWHERE = {
    "Try it on one machine first", "Containers", "The whole federation",
    "How large a model may be",  # test_attacks.py
    "As services",  # the units are, but for systemctl
}  # fmt: skip
SMALL = {
    "classes: .*": "classes: first, second, third",
    "image_size: .*": "image_size: 16",
    "width: .*": "width: 4",
    "local_epochs: .*": "local_epochs: 1",
    "warmup_epochs: .*": "warmup_epochs: 1",
    "join_wait_s: .*": "join_wait_s: 120.0",
}
"""What a coordinator changes in the preset, and what makes a run short."""


def pool() -> DataSet:
    """Fashion-MNIST where it has been fetched, else the digits."""
    root = Path(os.environ.get("FEDAPP_DATA", "/nonexistent"))
    source = published.source("fashion_mnist")
    if all((root / file).exists() for file, _ in source.files):
        return source.read(root)
    return published.read_digits()


def lay_out(folder: Path, site: str, images: DataSet) -> None:
    """Write a site's images: north by folders, south by patients, west with a test set alone."""
    names, lines = ("first", "second", "third"), ["path,label,group,split"]
    chosen = np.flatnonzero(images.labels.numpy() < len(names))[:450]
    for step, index in enumerate(chosen[SITES.index(site) :: 3].tolist()):
        label = names[int(images.labels[index])]
        path = Path("scans", f"{step}.png")
        if site == "north":
            path = Path(f"labelled/{label}" if step % 3 else "unlabelled", f"{step}.png")
        elif site == "south":
            lines.append(f"{path},{label if step % 2 else ''},patient-{step // 4},")
        else:
            lines.append(f"{path},{',,train' if step % 4 else f'{label},,test'}")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.inputs[index, 0].numpy()).save(target)
    if site != "north":
        (folder / "labels.csv").write_text("\n".join(lines) + "\n")


class Federation:
    """What the document's reader has, and the steps that are taken more than once."""

    def __init__(self, document: Document, here: dict[str, Machine], gateway: str) -> None:
        self.document, self.here, self.gateway = document, here, gateway
        self.server = here["server"]

    def numbers(self, state: str) -> dict[str, str]:
        """Return the numbers of the sites in a state, by name, as `fedapp sites` shows them."""
        said = self.server.run(self.document.inline("Seeing what happens", "fedapp sites"))
        return dict(re.findall(rf"│ (\w+) +│ {state} +│.*│ (\d+) +│", said))

    def join(self, site: str) -> None:
        """Start a site's node, as step 5 says, and wait until it is in."""
        self.here[site].start("supernode", f"exec {self.document.block('5. A site', 3)}")
        until(lambda: site in self.numbers("online"))
        self.here[site].run(self.document.inline("5. A site", "fedapp node --status"))

    def stop(self) -> str:
        """Stop the run that goes on; return its number."""
        said = self.server.log("run")
        number = re.findall(r"run (\d{5,})", said)[0]
        runs = self.document.inline("Seeing what happens", "flwr list hosp")
        assert number in self.server.run(runs)
        stop = self.document.inline("Stopping", "flwr stop")
        self.server.run(stop.replace("RUN_ID", number))
        return number


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Everything up to and including step 5: three sites are in."""
    folder = tmp_path_factory.mktemp("d")
    document = Document.read(ROOT / "docs/DEPLOY.md")
    link = str(free_port())
    gateway = str(free_port()) if has_gateway() else link
    words = {
        "fl.hospital.example:8443": f"localhost:{gateway}",
        "127.0.0.1:8000": f"127.0.0.1:{link}",
        "--port 8000": f"--port {link}",
        "rounds.num_rounds=20": "rounds.num_rounds=8",
    }
    own = {
        site: words
        | {"/data": str(folder / site / "data"), "north": site}
        | {"fedapp node": f"fedapp node --port {free_port()}"}
        for site in SITES
    }
    before = document.block("What every machine needs")
    with machines(folder, before, {"server": words, **own}) as here:
        made = Federation(document, here, gateway)
        prepare(made)
        serve(made, link)
        for site in SITES:
            checked = here[site].run(document.block("5. A site", 0))
            assert "no fault: this site can join" in checked and "answers; certificates" in checked
            told = here[site].run(document.block("5. A site", 1))
            assert "Tasks are done at any hour." in told
            own_terms = here[site].home / "fl/keys/site.yaml"
            own_terms.write_text("data: [own]\nleaves: [models, sums]\nrounds_at_most: 20\n")
            looked = here[site].run(document.block("5. A site", 2))
            assert looked.count("ok") == 5 and "is registered" in looked, looked
            made.join(site)
        yield made


def prepare(made):
    """Steps 1 and 2."""
    document, server = made.document, made.server
    server.run(document.block("1. Agree"))
    preset = server.project / "hospitals.yaml"
    text = preset.read_text()
    for pattern, new in SMALL.items():
        text, count = re.subn(rf"(?m)^(  ){pattern}$", rf"\g<1>{new}  # changed", text)
        assert count == 1, pattern
    preset.write_text(text)
    server.run(document.inline("1. Agree", "cp hospitals.yaml"))
    server.run(document.block("2. Keys", 0))
    server.run(document.block("2. Keys", 1))
    images = pool()
    for site in SITES:
        machine = made.here[site]
        shutil.copy(preset, machine.project / "hospitals.yaml")
        lay_out(machine.home / "data", site, images)
        shutil.copytree(server.home / "fl/trial/sites" / site, machine.home / "fl/keys")
    south = made.here["south"].home / "fl/keys"
    (south / "supernode.key").unlink()
    made.here["south"].run(document.block("2. Keys", 2))  # its own key
    shutil.copy(south / "supernode.key.pub", server.home / "fl/keys/supernodes/south.pub")


def serve(made, link):
    """Steps 3 and 4."""
    document, server = made.document, made.server
    server.start("superlink", f"exec {document.block('3. The server', 0)}")
    until(lambda: listens(link))
    server.start("superexec", f"exec {document.block('3. The server', 1)}")
    gateway, curls = document.block("3. The server", 2), document.block("3. The server", 3)
    if has_gateway():
        conf = server.project / "docker/gateway.conf"
        text = conf.read_text().replace("8443", made.gateway).replace("8442", str(free_port()))
        conf.write_text(text.replace("/tmp/", f"{server.home}/"))
        server.start("gateway", gateway.replace("nginx -c", "exec nginx -c"))
        until(lambda: listens(made.gateway))
        assert server.run(curls.replace("8443", made.gateway)).split() == ["200", "404"]
    server.run(document.block("4. Let the sites in", 0))
    said = server.run(document.block("4. Let the sites in", 1))
    assert said.count("registered successfully") == 3
    assert set(made.numbers("registered")) == set(SITES)


def test_sums_are_masked_by_the_pages_words(federation):
    """The keys' line goes into the preset; nothing changes at the sites."""
    document, server = federation.document, federation.server
    said = server.run(document.block("With masked sums"))
    [line] = re.findall(r'privacy\.members=(".*")', said)
    [text] = re.findall(r"```yaml\n(.*?)```", document.sections["With masked sums"], re.DOTALL)
    preset = server.project / "conf/hospitals.yaml"
    plain = preset.read_text()
    preset.write_text(plain + re.sub(r'members: ".*"', f"members: {line}", text))
    run = (
        document.block("6. A run")
        .replace("first", "masked")
        .replace("num_rounds=20", "num_rounds=1")
    )
    said = server.run(run.replace(" runtime.", " method.preset='one_round' runtime."))
    preset.write_text(plain)
    assert "sums are masked" in said and "The keys follow from the seed" not in said, said
    found = rows(server.home / "fl/runs/masked")
    assert [row["skipped"] for row in found] == [{}, {}]
    table = (server.home / "fl/runs/masked/per_site.csv").read_text()
    assert "all-sites" in table and "north" not in table
    for site in SITES:
        [key] = federation.here[site].home.glob("fl/**/secret.key")
        assert key.stat().st_mode & 0o777 == 0o600


def test_a_run_is_seen_stopped_and_taken_up_and_a_site_leaves_and_returns(federation):
    document, server = federation.document, federation.server
    west = federation.here["west"]
    run = server.home / "fl/runs/first"
    done = server.start("run", document.block("6. A run"))
    until(lambda: (run / "metrics.jsonl").exists() and rows(run))

    assert west.interrupt("supernode") == 0
    until(lambda: not alive(worker_pids(west)))
    until(lambda: "west" in federation.numbers("offline"))
    federation.join("west")
    number = federation.stop()
    assert done.wait() == 0
    until(lambda: "finished:stopped" in server.run("flwr list hospitals --format json"))
    log = document.inline("Seeing what happens", "flwr log").replace("RUN_ID", number)
    assert "sites: 0 north, 1 south, 2 west" in server.run(log)
    before = rows(run)
    assert not (run / "summary.json").exists()

    said = server.run(document.block("After a fault"))
    assert "hospitals: recommended, 3 sites, 8 rounds" in said
    whole = rows(run)
    assert [row["round"] for row in whole] == list(range(9)) and whole[: len(before)] == before
    assert whole[-1]["skipped"] == {} and whole[-1]["trained"] == 3
    assert json.loads((run / "summary.json").read_text())["rounds"] == 8
    for site in SITES:
        words = federation.here[site].log("supernode")
        assert "is ready" in words and "without a resident worker" not in words
    assert {heading for heading, _ in document.left} == TRIED_ELSEWHERE, "left out"


def worker_pids(machine):
    said = machine.log("supernode")
    return {int(pid) for pid in re.findall(r"resident worker (\d+) is ready", said)}


def break_an_image(data):
    broken = min((data / "labelled/first").glob("*.png"))
    broken.write_bytes(broken.read_bytes()[:100])


def empty(data):
    shutil.rmtree(data)
    data.mkdir()


def add_a_class(data):
    (data / "labelled/forth").mkdir()


def nothing(data):
    pass


SITE = "--site-name north"  # as the document writes it
REFUSALS = [
    {
        "north": (break_an_image, SITE, "images that are absent, damaged or outside its folder"),
        "south": (nothing, "--site-name sotuh", "did you mean 'south'?"),
        "west": (empty, SITE, "is not laid out as docs/OWN_DATA.md says"),
    },
    {
        "north": (add_a_class, SITE, "it has labels that are not in data.classes"),
        "south": (nothing, "", "needs site-name and data-path"),
        "west": (nothing, "--site-name west --node-config partition-id=2", "no partition-id"),
    },
]
"""For each site: what is wrong with its data, its name, and what the coordinator is told."""
NAMED = {break_an_image: ".png", empty: "no images, that is no", add_a_class: "labelled/forth"}
"""What the site's own log says of its data, and the coordinator's must not."""


@pytest.mark.parametrize("refusals", REFUSALS)
def test_refused_sites_are_told_why_and_the_coordinator_which(federation, refusals):
    start = federation.document.block("5. A site", 3)
    for site, (spoil, name, _) in refusals.items():
        machine = federation.here[site]
        machine.interrupt("supernode")
        machine.log_path("supernode").unlink()
        spoil(machine.home / "data")
        machine.start("supernode", f"exec {start.replace(SITE, name)}")
    until(lambda: len(federation.numbers("online")) == 3)
    said = federation.server.run(federation.document.block("6. A run").replace("first", "refused"))
    assert "none of 3 nodes can take part" in said
    for site, (spoil, _, told) in refusals.items():
        [line] = [line for line in said.splitlines() if f"site '{site}' (node" in line]
        assert "cannot take part" in line and told in line
        assert NAMED.get(spoil, told) in federation.here[site].log("supernode")
        assert NAMED.get(spoil, "\0") not in said


def test_a_site_that_is_taken_off_cannot_come_back(federation):
    document, server, north = federation.document, federation.server, federation.here["north"]
    take_off = document.inline("Who leaves, who comes", "flwr supernode unregister")
    number = federation.numbers("online")["north"]
    assert "unregistered" in server.run(take_off.replace("NUMBER", number))
    assert "north" not in federation.numbers(r"\w+")
    north.interrupt("supernode")
    north.start("supernode", f"exec {document.block('5. A site', 3)}")
    until(lambda: north.log("supernode").count("[code: 2004]") > 1)
    assert "north" not in federation.numbers(r"\w+"), "it knocks in vain"
    north.run(document.inline("5. A site", "fedapp node --status"), code=1)
    assert north.interrupt("supernode") == 0


def test_the_services_are_units_that_systemd_takes(federation):
    document, server = federation.document, federation.server
    define, services = document.block("As services", 0), document.block("As services", 1)
    server.run(f"{define}\n{services}")
    units = sorted((server.home / ".config/systemd/user").glob("fl-*.service"))
    assert [unit.stem for unit in units] == ["fl-gateway", "fl-site", "fl-superexec"]
    text = (units[1]).read_text()
    assert f"FEDAPP_SITES={server.home}/fl/site" in text and "Restart=always" in text
    assert f"--keys {server.home}/fl/keys" in text
    if shutil.which("systemd-analyze"):
        said = server.run(f"systemd-analyze verify --man=no {' '.join(map(str, units))} 2>&1")
        assert "fl-" not in said, said
