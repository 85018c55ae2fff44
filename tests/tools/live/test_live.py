"""The live pages: what they say, who is answered, and that nobody can change anything by them."""

import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from fedapp.experiment.records import Records
from fedapp.ground.errors import RunError
from fedapp.site.record import Record
from fedapp.tools.live.run import run_page
from fedapp.tools.live.serve import server
from fedapp.tools.live.site import site_page
from fedapp.tools.node.approvals import Approvals
from server_app.attendance import Attendance
from tests.flower.results import loopback
from tests.small import small
from tests.tools.node.test_approvals import APP, FAB

RUN = {"run": "study", "identity": "a" * 64}


@pytest.fixture
def site(tmp_path):
    record = Record(tmp_path)
    record.add("introduced", **RUN, counts={"val": 8})
    record.add("asked", **RUN, asked="train 1")
    record.add("sent", **RUN, asked="train 1", digests={"model": "d"}, bytes=2000, epsilon=1.5,
               evaluations={"val": [6, 8], "test": [0, 0]})  # fmt: skip
    record.add("asked", **RUN, asked="train 2")
    record.add("refused", run="other", asked="who are you", why="<b>this site's terms</b>")
    Approvals(tmp_path).keep_waiting(APP, FAB)
    (tmp_path / "site.yaml").write_text("rounds_at_most: 7\n")
    (tmp_path / "site.yaml").chmod(0o600)
    return tmp_path


def test_a_sites_page_says_what_its_folder_says(site):
    page = site_page(site, 9)
    for said in ("not running", "whole: 5 lines", "at work", "75.0 (6 of 8)", "2.0 kB", "1.5",
                 "us app 2", APP.hash, "Rounds of a run: 7 at most."):  # fmt: skip
        assert said in page, said
    assert "&lt;b&gt;this site&#39;s terms" in page and "<b>" not in page
    assert "<script" not in page and "<form" not in page and "http" not in page.partition("<p")[2]


def test_a_damaged_folder_is_said_on_the_page_too(site):
    (site / "site.yaml").write_text("metods: []\n")
    record = Record(site)
    record.path.write_text(record.path.read_text().replace("2000", "2001"))
    page = site_page(site, 9)
    assert "BROKEN" in page and "Nothing: " in page and "no such term" in page


def test_an_empty_folder_has_a_page(tmp_path):
    assert "whole: 0 lines" in site_page(tmp_path, 9)


def test_a_coordinators_page_says_how_each_site_stands_and_who_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    run = loopback(small(runtime__out=str(tmp_path)))
    records = Records(run)
    why = "this site's terms (hours): <i>it is 12:00 here</i>"
    records.append_metrics({**records.metrics()[-1], "round": 99, "skipped": {"1": why}})
    page = run_page(run)
    assert "Ended after round 99." in page
    assert "round 99: this site&#39;s terms (hours): &lt;i&gt;it is" in page
    last = records.sites()[-1]["sites"]["0"]["val"]
    assert f"({last[0]} of {last[1]})" in page
    with pytest.raises(RunError, match="no run"):
        run_page(tmp_path / "nowhere")


def test_a_coordinators_page_says_who_is_online_who_is_slow_and_who_was_not_taken_in(tmp_path):
    run = loopback(small(runtime__out=str(tmp_path)))
    assert "nobody is online or slow" in run_page(run)
    about = Attendance(run)
    for site, seconds in enumerate((10.0, 12.0, 40.0)):
        about.took_in(100 + site, site, f"site {site} (s{site})")
        about.answered(100 + site, seconds, "train 2")
    about.refused(200, "site 'north' (node 200)", "this site's terms (methods): <b>", True)
    about.refused(201, "node 201", "no app", False)
    about.online([100, 101, 200])
    about.save(at_once=True)
    page = run_page(run)
    rows = ["".join(re.findall(r">([^<]+)<", row)) for row in page.split("<tr")]
    for wanted in (
        "0 (s0)online10.0", "1 (s1)online12.0", "2 (s2)offline40.0: slow, 3.3 times the median",
        "this site&#39;s terms (methods): &lt;b&gt;when its node signs on anew",
        "no applater in the run",
    ):  # fmt: skip
        assert any(wanted in "".join(row.split("\n")) for row in rows), (wanted, rows)


@contextmanager
def serving(page):
    """Serve a page on a port of this machine."""
    with server(page, 0) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield made.server_port
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture
def served(site):
    with serving(lambda: site_page(site, 9)) as port:
        yield port


def ask(port, path="/", method="GET", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    for name, value in headers.items():
        request.add_header(name, value)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, ""


def test_only_this_machines_browser_is_answered_and_only_with_the_page(served):
    status, headers, page = ask(served)
    assert status == 200 and "This site" in page and headers["Refresh"] == "5"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert ask(served, Host="evil.example")[0] == 421
    assert ask(served, Host=f"localhost:{served}")[0] == 200
    for path in ("/site.yaml", "/../record", "/?x"):
        assert ask(served, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(served, method=method)[0] == 501


def test_what_cannot_be_shown_just_now_is_said():
    def page():
        raise RunError("gone <for> now")

    with serving(page) as port:
        assert ask(port)[0] == 503


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs a browser")
def test_a_real_browser_shows_both_pages(site, tmp_path):
    run = loopback(small(runtime__out=str(tmp_path / "runs")))
    about = Attendance(run)
    for number, seconds in enumerate((10.0, 12.0, 40.0)):
        about.took_in(100 + number, number, f"site {number}")
        about.answered(100 + number, seconds, "train 2")
    about.refused(200, "site 'north'", "this site's terms (methods): <b>", True)
    about.online([100, 101, 200])
    about.save(at_once=True)
    for page, wanted in (
        (lambda: site_page(site, 9), ("75.0 (6 of 8)", "To be approved", "terms&lt;/b&gt;")),
        (lambda: run_page(run), ("online", "offline", "slow, 3.3 times", "(methods): &lt;b&gt;")),
    ):
        with serving(page) as port:
            dom = in_browser(tmp_path / "browser", "--dump-dom", f"http://127.0.0.1:{port}/")
        assert all(said in dom for said in wanted), dom


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs a browser")
def test_a_real_browser_asks_again_by_itself(site, tmp_path):
    thrice = threading.Semaphore(0)
    with serving(lambda: thrice.release() or site_page(site, 9)) as port:
        stays = "--remote-debugging-port=0", f"http://127.0.0.1:{port}/"
        with subprocess.Popen(command(tmp_path / "browser", *stays)) as browser:
            try:
                assert all(thrice.acquire(timeout=60) for _ in range(3))
            finally:
                browser.kill()


def command(profile, *more):
    """Return how Chromium is started without a screen."""
    return [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu",
        "--disable-background-networking", f"--user-data-dir={profile}", *more,
    ]  # fmt: skip


def in_browser(profile, *more):
    """Have Chromium show a page; return what it prints."""
    return subprocess.run(
        command(profile, *more), capture_output=True, text=True, timeout=120
    ).stdout
