"""A server that looks for one image of a protected site finds it in no answer, refusal or handle.

The adversary chooses all that it sends: weights under which numbers overflow for one image and for
no other, questions asked twice, and questions that fail for one image.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.errors import DataError, FedAppError, ImageError, WithheldError, message_for_server
from fedapp.core.settings import PrivacySettings, RoundSettings, TrainSettings
from fedapp.data.sites import Part
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.learn.params import without as without_names
from fedapp.methods.averaging._noisy_training import noisy_steps
from fedapp.methods.averaging.base import WARM_UP
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.closed_form._contents import COUNT, FILTERS, RELEASE, TOTALS
from fedapp.methods.closed_form._protected import SENSITIVITY
from fedapp.methods.closed_form._site import ClosedSite
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.protocol.messages import (
    EVALUATE,
    MEMORY_LOST,
    ModelRef,
    Refusal,
    Reply,
    SumStep,
    Task,
)
from fedapp.protocol.secure_aggregation.fixed_point import max_number, to_words
from fedapp.protocol.store import ModelStore
from fedapp.site.federation import federation_of
from fedapp.site.policy import SitePolicy
from fedapp.site.private_state import SALT
from fedapp.site.protected_sums import errors_withheld, pay, within_bound
from fedapp.site.site import SiteClient
from fedapp.site.terms import Terms
from tests.small import small

PIXELS = 64
ROUNDS = 12


def trained(**changes):
    return small(**{
        "method": FedAvg(),
        "model": MLPSettings(hidden="4, 4", dropout=0.0),
        "training": TrainSettings(warmup_epochs=0, local_steps=3, learning_rate=0.1, momentum=0.0),
        "rounds": RoundSettings(num_rounds=ROUNDS, sample_rate=1.0),
        "privacy": PrivacySettings(epsilon=3.0, sampling=0.5),
        "split__num_clients": 2, "split__label_alpha": 100.0, "split__dirichlet_alpha": 100.0,
        **changes,
    })  # fmt: skip


def closed(features="network", **changes):
    method, rounds = OneRound(features=features), RoundSettings(num_rounds=1)
    return trained(method=method, rounds=rounds, privacy=PrivacySettings(epsilon=3.0), **changes)


@pytest.fixture
def opened(tmp_path):
    """A real site of an experiment, in a folder of its own."""

    def made(experiment, folder, site: int = 0) -> SiteClient:
        root = tmp_path / folder
        store = ModelStore(root / "store")
        client = federation_of(experiment).site(site, experiment, store, root)
        return replace(client, data=replace(client.data, audit=None))

    return made


def sought(client: SiteClient, part: str = "labelled") -> int:
    """Return the image of a part that is easiest told from the others of it by its pixels."""
    pixels = client.data.parts[part].inputs.flatten(1).double()
    pixels = pixels - pixels.mean(0)
    own = pixels.square().sum(1)
    others = (pixels @ pixels.T).fill_diagonal_(-torch.inf).amax(1)
    return int((own - others).argmax())


def without(client: SiteClient, image: int, part: str = "labelled") -> SiteClient:
    """Return the neighbour: a site that has a black image in the place of one."""
    of = client.data.parts[part]
    inputs = of.inputs.clone()
    inputs[image] = 0
    parts = {part: Part(inputs, of.labels)}
    return replace(client, data=client.data.with_parts(**parts))


def overflowing(client: SiteClient, image: torch.Tensor, *others: torch.Tensor) -> Params:
    """Return weights of the network by which numbers overflow for an image and no other.

    They look the way in which it lies from the mean of the others; it must be the farthest there.
    """
    context, _ = client.context(hello(client))
    every = torch.cat([context.normalise(part).flatten(1) for part in others]).double()
    along = context.normalise(image[None]).flatten().double() - every.mean(0)
    reached = sorted({round(x, 6) for x in (every @ along).tolist()})
    weights = {name: torch.zeros_like(of) for name, of in client._initial().items()}
    weights["layers.0.weight"][0] = along.float()
    # Above 0 for the image that lies farthest that way, and for no other.
    weights["layers.0.bias"][0] = -(reached[-2] + reached[-1]) / 2
    weights["layers.1.weight"][0, 0] = weights["head.weight"][0, 0] = 1e38
    return weights


def hello(client: SiteClient) -> Task:
    own = to_bytes(client._initial())
    client.store.put(own)
    return Task(client.data.site, 0, EVALUATE, ModelRef(0, 0, digest_of(own)))


def asked(client, action, number, blob=b"", role="server", **more):
    own = hello(client).own
    ref = ModelRef(-2, 1, digest_of(blob), "model" if role == "server" else role)
    task = Task(client.data.site, number, action, own, models={role: (ref,)}, **more)
    return client.handle(task, {ref.digest: blob})


def shown(incoming) -> object:
    """Return all that a server sees of an answer, but for the numbers that have noise."""
    answer = incoming.answer
    sizes = sorted(map(len, incoming.payloads.values()))
    if isinstance(answer, Reply):
        noisy = {digest: "noisy" for digest in incoming.payloads}
        held = sorted(noisy.get(digest, digest) for digest in answer.held)
        contents = {role: "noisy" for role in answer.contents}
        model = noisy.get(answer.model, answer.model)
        answer = replace(answer, model="0" * 64, contents=contents, held=(), private="")
        return answer, model, held, sizes, incoming.head_bytes
    return answer, sizes


def test_training_by_weights_that_overflow_for_one_image_tells_nothing(opened):
    """As the audit did it: over many rounds, with the image and without. Both networks finite."""
    with_it = opened(trained(), "with")
    image = sought(with_it)
    data = with_it.data
    weights = to_bytes(
        overflowing(with_it, data.labelled[image], data.labelled, data.val, data.test)
    )
    sites = [with_it, without(opened(trained(), "without"), image)]
    for number in range(1, ROUNDS + 1):
        answers = [asked(site, "train", number, weights) for site in sites]
        first, second = map(shown, answers)
        assert isinstance(answers[0].answer, Reply), answers[0].answer
        assert first == second
        blobs = [one.payloads[one.answer.model] for one in answers]
        assert all(np.isfinite(np.frombuffer(of[-4 * 10 :], np.float32)).all() for of in blobs)


def test_an_image_whose_numbers_overflow_changes_a_released_row_as_little_as_any(opened):
    with_it = opened(closed(), "with")
    image = sought(with_it)
    data = with_it.data
    weights = to_bytes(
        overflowing(with_it, data.labelled[image], data.labelled, data.unlabelled, data.val)
    )
    sites = [with_it, without(opened(closed(), "without"), image)]
    answers = [asked(site, RELEASE, 1, weights, FILTERS) for site in sites]
    assert all(isinstance(one.answer, Reply) for one in answers), answers
    assert shown(answers[0]) == shown(answers[1])
    rows = []
    for site in sites:
        ref = ModelRef(-2, 1, digest_of(weights), FILTERS)
        task = replace(hello(site), action=RELEASE, models={FILTERS: (ref,)})
        context, _ = site.context(task)
        rows.append(ClosedSite.of("network", task, context).released(task)[TOTALS])
    assert bool(rows[0].isfinite().all())
    assert float((rows[0] - rows[1]).norm()) <= SENSITIVITY


def test_only_the_question_decides_which_release_is_paid_for(opened):
    """Two networks answer alike but for one image: which of them is refused must not tell of it."""
    with_it = opened(closed(), "with")
    image = sought(with_it)
    data = with_it.data
    blind = overflowing(with_it, data.labelled[image], data.labelled, data.unlabelled, data.val)
    blind["layers.1.weight"].zero_()
    seeing = {name: of.clone() for name, of in blind.items()}
    seeing["layers.1.weight"][0, 0] = 1.0  # for all other images the two are the same function
    said = []
    for site in (with_it, without(opened(closed(), "without"), image)):
        asked(site, RELEASE, 0, to_bytes(blind), FILTERS)
        second = asked(site, RELEASE, 1, to_bytes(seeing), FILTERS)
        assert isinstance(second.answer, Refusal) and "pays for 1 release" in second.answer.reason
        said.append(shown(second))
        again = asked(site, RELEASE, 2, to_bytes(blind), FILTERS)  # that one is answered for ever
        assert isinstance(again.answer, Reply)
    assert said[0] == said[1]


@pytest.mark.parametrize("part", ["val", "test"])
def test_measuring_a_network_that_fails_for_one_image_is_answered_the_same(opened, part):
    with_it = opened(trained(), "with")
    image = sought(with_it, part)
    data = with_it.data
    weights = overflowing(with_it, data.parts[part].inputs[image], data.val, data.test)
    shows = []
    for site in (with_it, without(opened(trained(), "without"), image, part)):
        shows.append(shown(asked(site, EVALUATE, 1, to_bytes(weights))))
        assert isinstance(shows[-1][0], Reply) and not shows[-1][0].evaluations
    assert shows[0] == shows[1]


@pytest.mark.parametrize("error", [
    ValueError("pixel 7 of image 12"), FedAppError("image 12 is broken"),
    ImageError("jane-doe.png", "is broken", "mend it"), RuntimeWarning("invalid value"),
    FloatingPointError("underflow"), MemoryError("of image 12"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_whatever_goes_wrong_with_an_image_the_server_is_told_one_line(
    opened, monkeypatch, caplog, error
):
    """In training as in sums; the site's log has the whole of it."""

    def fails(*_):
        raise error

    monkeypatch.setattr("fedapp.privacy.dp_sgd.DPSGD.train", fails)
    monkeypatch.setattr(ClosedSite, "released", fails)
    for experiment, action in ((trained(), "train"), (closed("plain"), RELEASE)):
        site = opened(experiment, action)
        own = to_bytes(site._initial())
        named = {"server": own} if action == "train" else {}
        incoming = (
            asked(site, action, 1, own)
            if named
            else site.handle(replace(hello(site), action=action), {})
        )
        answer = incoming.answer
        assert isinstance(answer, Refusal) and not incoming.payloads
        assert (answer.reason, answer.lasting) == (WithheldError.for_server, False)
        assert str(error) in caplog.text


def test_a_simulated_site_says_what_went_wrong(opened, monkeypatch):
    """Nobody's images are in it, and whoever studies a method must find the fault."""

    def fails(*_):
        raise FedAppError("the fault")

    monkeypatch.setattr(ClosedSite, "released", fails)
    experiment = closed("plain")
    site = replace(opened(experiment, "one"), data=federation_of(experiment).dealt.site(0))
    answer = site.handle(replace(hello(site), action=RELEASE), {}).answer
    assert isinstance(answer, Refusal) and answer.reason == "the fault"


def test_what_has_no_noise_is_refused_before_an_image_is_looked_at(opened):
    """Else a server would see by which of two lines it is refused whether the work failed."""
    with_it = opened(closed(), "with")
    image = sought(with_it)
    data = with_it.data
    weights = to_bytes(
        overflowing(with_it, data.labelled[image], data.labelled, data.unlabelled, data.val)
    )
    pair = [with_it, without(opened(closed(), "without"), image)]
    answers = [asked(site, COUNT, 1, weights, FILTERS).answer for site in pair]
    assert answers[0] == answers[1]
    assert "has no noise and may not leave" in answers[0].reason


def test_a_masked_row_near_its_bound_is_cut_and_never_refused():
    """A step of a masked sum has no noise yet: weights near the bound would show one image."""
    task = Task(
        0, 1, "train", ModelRef(0, 0, "0" * 64), sum=SumStep(0, "add", members=(0, 1, 2, 3))
    )
    most = max_number(4)
    rows = [np.array([most - 0.5, 1.0, -most, x]) for x in (np.nan, np.inf)]
    rows.append(rows[0] + np.array([1.0, 0, -1.0, 0]))
    for row in rows:
        found = within_bound(task, row)
        to_words(found, 4)  # raises on what is beyond
        assert found[1] == 1.0
    # Cutting brings no two rows further apart.
    drawn = np.random.default_rng(1).normal(0, 2 * most, (2, 1000))
    apart = within_bound(task, drawn[0]) - within_bound(task, drawn[1])
    assert np.all(np.abs(apart) <= np.abs(drawn[0] - drawn[1]))


def test_a_masked_step_on_weights_at_the_bound_is_answered(opened):
    """Weights that are images' number below the bound: the gradient of one image went beyond."""
    experiment = trained(
        training=TrainSettings(warmup_epochs=0, local_steps=1, learning_rate=1e3, momentum=0.0),
        privacy=PrivacySettings(epsilon=3.0, sampling=0.5, sums="masked", least_members=3),
        split__num_clients=4,
    )
    site = replace(opened(experiment, "one"), summing=Unmasked())
    weights = {name: torch.zeros_like(of) for name, of in site._initial().items()}
    # The largest n w that the sum still holds; the step's size is the server's choice too.
    most = torch.tensor(max_number(4) / len(site.data.labels))
    weights["head.bias"] += torch.nextafter(most, torch.zeros(()))
    step = SumStep(0, "add", members=(0, 1, 2, 3))
    answer = asked(site, "train", 1, to_bytes(weights), sum=step).answer
    assert isinstance(answer, Reply), answer
    # The same sum by other weights: whether its row would be another must not be seen.
    weights["head.bias"] += 1e9
    other = asked(site, "train", 1, to_bytes(weights), sum=step).answer
    assert isinstance(other, Refusal) and "pays for one request" in other.reason


def test_no_two_digests_of_what_a_site_keeps_can_be_compared(opened):
    """In a masked sum the kept model has no noise: equal digests would tell of equal models.

    These weights are so large that the step is lost in their rounding. A server that leaves those
    small which one image alone moves would learn from two digests that differ, for certain, that
    this image is there. A question that is asked again has the same digest again.
    """
    experiment = trained(
        training=TrainSettings(warmup_epochs=0, local_steps=1, learning_rate=0.1, momentum=0.0),
        privacy=PrivacySettings(epsilon=3.0, sampling=0.5, sums="masked", least_members=3),
        split__num_clients=4,
    )
    site = replace(opened(experiment, "one"), summing=Unmasked())
    weights = {name: torch.full_like(of, 1e7) for name, of in site._initial().items()}
    found, models = [], []
    for round, number in ((1, 0), (1, 1), (2, 0), (2, 0)):
        step = SumStep(number, "add", members=(0, 1, 2, 3))
        answer = asked(site, "train", round, to_bytes(weights), sum=step).answer
        assert isinstance(answer, Reply), answer
        kept = site.private_parts.load(answer.private, site._stored)
        assert kept is not None
        models.append(digest_of(to_bytes({n: t for n, t in kept.items() if n != SALT})))
        found.append(answer.private)
    assert len(set(models)) == 1 and len(set(found)) == 3 and found[2] == found[3]


class Unmasked:
    """A site's part in a sum, without keys and masks: numbers as words, with noise."""

    def counted(self, step):
        return len(step.members)

    def begin(self, task):
        pass

    def masked(self, task, numbers, noise, left):
        return to_words(numbers, 4) + noise(b"k", 4).view(np.uint64)


def test_where_data_cannot_be_read_a_protected_site_says_one_line(caplog):
    with pytest.raises(WithheldError) as caught, errors_withheld(True):
        raise ImageError("jane-doe.png", "is broken", "mend it")
    assert message_for_server(caught.value) == WithheldError.for_server and "jane-doe" in str(
        caught.value
    )
    with pytest.raises(DataError, match="of class cat"), errors_withheld(False):
        raise DataError("one image of class cat is left")


def test_a_small_count_decides_nothing_that_a_protected_run_shows(opened, tmp_path):
    """A part with four images of a class would not be there, and with five it would."""
    policy = SitePolicy(tmp_path / "house")
    policy.__dict__["terms"] = Terms(least_count=10**6)
    data = opened(trained(), "one").data
    assert not policy.shown(data).counts["val"]
    assert policy.shown(data, protected=True) is data


# --- what is called by a digest -------------------------------------------------------------------


def fedper(**changes):
    return small(**{"method": FedPer(), "rounds__num_rounds": 1, **changes})


@pytest.mark.parametrize("simulated", [False, True])
def test_what_a_site_keeps_cannot_be_found_by_its_digest(opened, simulated):
    """The adversary knows the weights themselves, and even so cannot tell that they are these."""
    experiment = fedper()
    site = opened(experiment, "one")
    if simulated:
        site = replace(site, data=federation_of(experiment).dealt.site(0))
    own = to_bytes(without_names(site._initial(), site._kept))
    answer = trains(site, own)
    assert isinstance(answer, Reply) and answer.private
    kept = site.private_parts.load(answer.private, site._stored)
    assert kept is not None and kept.keys() >= site._kept
    known = to_bytes({name: kept[name] for name in sorted(kept) if name != "salt"})
    assert answer.private != digest_of(known)
    again = trains(site, own, answer.private)  # it goes on from there
    assert not again.metrics.get(MEMORY_LOST)


def test_two_sites_with_the_same_images_are_not_seen_to_have_them(opened):
    experiment = fedper()
    answers = []
    for folder in ("one", "two"):
        site = opened(experiment, folder)
        answers.append(trains(site, to_bytes(without_names(site._initial(), site._kept))))
    assert answers[0].model == answers[1].model  # it is sent, whole
    assert answers[0].private != answers[1].private


def trains(site: SiteClient, own: bytes, private: str = "") -> Reply:
    site.store.put(own)
    ref = ModelRef(-2, 1, digest_of(own))
    task = Task(0, 1, "train", ModelRef(0, 0, ref.digest), {"server": (ref,)}, private)
    answer = site.handle(task, {}).answer
    assert isinstance(answer, Reply), answer
    return answer


@pytest.mark.parametrize("sums", [(), (0, 1)])
def test_what_a_server_says_that_a_site_keeps_buys_no_second_look(opened, sums):
    """A site pays for a question, and its draws are of the same question: not of `Task.private`.

    Else a server that names another digest each time has as many trainings as it likes for one
    payment. In a masked run of several steps two sums of a round do the same.
    """
    client = opened(trained(), "one")
    weights = to_bytes(client._initial())
    tasks = [question(client, "train", 1, weights, private=f"{turn}" * 64) for turn in range(2)]
    if sums:
        steps = [SumStep(number, "add", 1, (0, 1, 2)) for number in sums]
        tasks = [replace(task, sum=step) for task, step in zip(tasks, steps, strict=True)]
    assert_one_look(client, tasks)


def assert_one_look(client, tasks):
    """Check that a site takes tasks for one question: one payment, one model of the same draws."""
    models = set()
    for task in tasks:
        context, _ = client.context(task)
        pay(task, context, client.experiment.method, client.releases)
        models.add(digest_of(to_bytes(client.experiment.method.site_round(task, context).params)))
    paid = [line for line in client.releases._known() if line.startswith("model-")]
    assert len(paid) == len(models) == 1


def question(client, action, number, blob, **more) -> Task:
    client.store.put(blob)
    ref = ModelRef(-2, 1, digest_of(blob))
    own = hello(client).own
    return Task(client.data.site, number, action, own, models={"server": (ref,)}, **more)


def test_a_plan_of_short_trainings_pays_for_no_long_ones(opened):
    """Two rounds of two steps each are planned, and a warm-up of twenty: 24 steps, in three tasks.

    A server that asked for the warm-up three times, in several rounds, had sixty of them.
    """
    experiment = trained(
        training=TrainSettings(
            warmup_epochs=10, warmup_rounds=1, local_epochs=1, learning_rate=0.1, momentum=0.0
        ),
        rounds=RoundSettings(num_rounds=2, sample_rate=1.0),
    )  # fmt: skip
    client, method = opened(experiment, "one"), experiment.method
    weights, taken = to_bytes(client._initial()), 0
    for round in range(4):
        for action in (WARM_UP, "train"):
            task = question(client, action, round, weights)
            context, _ = client.context(task)
            try:
                pay(task, context, method, client.releases)
            except FedAppError as error:
                assert "privacy.epsilon = 3 pays for" in str(error)
            else:
                taken += noisy_steps(task, context).count
    assert taken == experiment.protection.plan.steps
