"""Scores are reused by content: a site scores a model when it meets it first, and never again."""

from collections import Counter, defaultdict

import pytest

from fedapp.methods.um_pfssl import method as um_pfssl
from fedapp.protocol.messages import Reply
from fedapp.simulation.in_process import Loopback
from tests.methods.conformance import play_in_one_store
from tests.small import small

SEARCH_ROUNDS, ROUNDS = 4, 6


class Watched(Loopback):
    """Notes for every site and round what its task made it look at, and what it scored."""

    def __init__(self, *where, scorings):
        super().__init__(*where)
        self._scorings = scorings
        self.seen, self.looks = defaultdict(set), 0
        self.expected, self.counted = Counter(), Counter()

    def exchange(self, outbox, fetch, deadline_s):
        for outgoing in outbox:
            task, before = outgoing.task, len(self._scorings)
            [(site, incoming)] = super().exchange([outgoing], fetch, deadline_s)
            assert isinstance(incoming.answer, Reply)
            where = (task.round, task.site)
            self.counted[where] = len(self._scorings) - before
            looked_at = self._looked_at(task, incoming.answer)
            self.expected[where] = len(looked_at - self.seen[task.site])
            self.seen[task.site] |= looked_at
            self.looks += len(looked_at)
            yield site, incoming

    @staticmethod
    def _looked_at(task, reply):
        refs = [ref for group in task.models.values() for ref in group]
        if task.action == "train" and (task.own.version or not reply.helpers):
            refs.append(task.own)
        return {ref.digest for ref in refs}


@pytest.fixture
def scorings(monkeypatch):
    """One entry for every scoring of a model."""
    calls, plain = [], um_pfssl.mc_probabilities

    def counted(*args):
        calls.append(args)
        return plain(*args)

    monkeypatch.setattr(um_pfssl, "mc_probabilities", counted)
    return calls


def test_models_scored_per_site_and_round_are_those_never_seen(tmp_path, scorings):
    experiment = small(
        runtime__out=str(tmp_path),
        runtime__run_name="run",
        rounds__num_rounds=ROUNDS,
        method__search_rounds=SEARCH_ROUNDS,
    )
    made = []

    def watched(*where):
        made.append(Watched(*where, scorings=scorings))
        return made[0]

    play_in_one_store(experiment, watched)
    [sites] = made
    assert sites.counted == sites.expected
    assert sum(sites.counted.values()) == len(scorings) == sum(map(len, sites.seen.values()))
    assert sites.looks > 1.3 * len(scorings)  # many a model was met again
