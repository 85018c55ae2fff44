"""A page as a reader's programs see it."""

import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "path", "rect", "circle", "br", "link", "img"})


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps what matters to a reader."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.headings: list[int] = []
        self.landmarks: set[str] = set()
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag in {"header", "nav", "main"}:
            self.landmarks.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip() and self.open[-1] not in {"style", "title"}:
            self.seen.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.seen)


def check(text: str) -> Page:
    """Check what all pages must be, and return the page."""
    page = Page(text)
    assert text.startswith("<!doctype html>") and len(text.encode()) < 5_000_000
    assert "http:" not in text and "https:" not in text and "//" not in re.sub(r"<!--", "", text)
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert page.landmarks == {"header", "nav", "main"}
    ids = [a["id"] for _, a in page.attributes if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, given in page.attributes:
        assert tag not in {"script", "img", "link", "iframe"}
        assert not any(name.startswith("on") for name in given)
        if tag == "a":
            assert given["href"].startswith("#") and given["href"][1:] in ids
        if tag == "svg":
            assert given.get("aria-hidden") or (given["role"] == "img" and given["aria-label"])
        if given.get("class") == "scroll":  # a keyboard can scroll it, and hears what it is
            assert given["tabindex"] == "0" and given["aria-label"]
    return page
