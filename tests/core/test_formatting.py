"""Numbers as a person reads them."""

from fedapp.core.formatting import count, counted, duration, first_names, percent, points, size


def test_figures() -> None:
    assert [percent(x) for x in (0.0, 1.0, 0.8125, None)] == ["0.0", "100.0", "81.2", "-"]
    assert [points(x) for x in (0.031, -0.5, 0.0)] == ["+3.1", "-50.0", "+0.0"]
    assert [count(x) for x in (0, 1234.5, None)] == ["0", "1,234", "-"]
    assert [size(x) for x in (0, 999, 1000, 999_949, 999_950, 12_345_678, 5e15, None)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "12.3 MB",
        "5000.0 TB",
        "-",
    ]
    assert [duration(x) for x in (0, 59.4, 59.6, 102, 3599.6, 7500, None)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "1 min 42 s",
        "1 h 00 min",
        "2 h 05 min",
        "-",
    ]


def test_one_of_a_thing_is_singular() -> None:
    shown = [counted(n, what) for what in ("sites", "processes") for n in (0, 1, 2)]
    assert shown == ["0 sites", "1 site", "2 sites", "0 processes", "1 process", "2 processes"]
    assert [counted(1, "classes"), counted(20_000, "images")] == ["1 class", "20,000 images"]


def test_first_names() -> None:
    letters = list("abcdefghij")
    assert first_names([]) == "" and first_names(letters[:2], 2) == "a, b"
    assert first_names(letters[:3], 2) == "a, b and 1 more"
    assert first_names(letters) == "a, b, c, d, e, f, g, h and 2 more"
