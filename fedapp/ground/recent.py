"""What was used last, up to a number of bytes: the one cache under all that is kept by content."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key, those used last, whose sizes together are at most `budget` bytes.

    A value larger than that is not kept. Threads may share it.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self._used = budget, 0
        self._known: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are kept now, at most `budget`."""
        return self._used

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str) -> Value | None:
        """Return a value, the last used from now on; None where it is not known."""
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key][0]

    def put(self, key: str, value: Value, size: int) -> None:
        """Keep a value of so many bytes, in place of an earlier one; those not used long go."""
        if size > self.budget:
            return
        with self._lock:
            self._used += size - self._known.pop(key, (None, 0))[1]
            self._known[key] = value, size
            while self._used > self.budget:
                self._used -= self._known.popitem(last=False)[1][1]

    def drop(self, keys: Iterable[str]) -> None:
        """Keep none of these any longer; those that are not known are passed over."""
        with self._lock:
            for key in keys:
                self._used -= self._known.pop(key, (None, 0))[1]

    def keep_only(self, keys: Collection[str]) -> None:
        """Drop all but these."""
        self.drop([key for key in list(self._known) if key not in keys])
