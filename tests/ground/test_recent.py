"""The cache under all others: what was used last stays, within its bytes, whoever shares it."""

from concurrent.futures import ThreadPoolExecutor

from fedapp.ground.recent import Recent


def test_the_last_used_stay_within_the_budget() -> None:
    """Three values of 16 bytes in 40: the one not asked for goes."""
    recent = Recent[str](40)
    recent.put("a", "A", 16)
    recent.put("b", "B", 16)
    assert recent.get("a") == "A"
    recent.put("c", "C", 16)
    assert [recent.get(key) for key in "abc"] == ["A", None, "C"]
    assert recent.used == 32


def test_one_larger_than_the_budget_is_not_kept() -> None:
    recent = Recent[str](40)
    recent.put("a", "A", 41)
    assert (recent.get("a"), recent.used) == (None, 0)
    recent.put("b", "B", 40)
    assert "b" in recent


def test_a_key_counts_once_with_its_last_value_and_size() -> None:
    recent = Recent[str](40)
    for value, size in (("A", 16), ("B", 20)):
        recent.put("a", value, size)
    assert (recent.get("a"), recent.used) == ("B", 20)


def test_what_is_dropped_gives_its_bytes_back() -> None:
    recent = Recent[str](40)
    for key in "abc":
        recent.put(key, key, 10)
    recent.drop(["a", "never known"])
    assert recent.used == 20
    recent.keep_only({"c"})
    assert (recent.used, "b" in recent, "c" in recent) == (10, False, True)


def test_threads_may_share_it() -> None:
    recent = Recent[int](50)

    def work(first: int) -> int:
        most = 0
        for i in range(2000):
            recent.put(str((first + i) % 20), i, 10)
            recent.get(str(i % 20))
            most = max(most, recent.used)
        return most

    with ThreadPoolExecutor(4) as pool:  # 10: one more while the oldest is dropped
        assert max(pool.map(work, range(4))) <= 50 + 10
    recent.keep_only({str(i) for i in range(20)})
    assert recent.used == 10 * sum(str(i) in recent for i in range(20)) == 50
