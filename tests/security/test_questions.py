"""Every field of a task is paid for, or cannot change what a site that protects images answers.

`Task.question` is what a site pays by, and what its noise and its choice of images follow from. A
field that is left out of it, and that an answer depends on, would buy a second look at the images.
Whoever adds a field to `Task` or to `SumStep` must decide here which of the two it is.
"""

from dataclasses import fields, replace

import pytest

from fedapp.core.settings import TrainSettings
from fedapp.learn.params import to_bytes
from fedapp.methods.averaging._noisy_training import noisy_steps
from fedapp.methods.closed_form._contents import RELEASE
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import Announcement, Confirmation, ModelRef, Sealed, SumStep, Task
from fedapp.site.protected_sums import pay
from tests.security.test_one_image import asked, assert_one_look, closed, opened, question, trained

assert opened  # a fixture

pytest.importorskip("dp_accounting")

MASKED = SumStep(0, "add", 1, (0, 1, 2))
NAMED = Announcement(1, 1, "0" * 64, "0" * 64, "0" * 64, "00", "00")
OTHER_TASK = {
    "site": 1,
    "round": 2,
    "action": "warm_up",
    "own": ModelRef(0, 1, "1" * 64),
    "models": {"server": (ModelRef(-2, 2, "2" * 64),)},
    "private": "3" * 64,
    "phase": 1,
    "numbers": {"step": 1.0},
    "sum": MASKED,
}
"""For each field of a task another value than `question` gives."""
OTHER_STEP = {
    "number": 1,
    "stage": "open",
    "attempt": 2,
    "members": (0, 1, 2, 3),
    "announced": "4" * 64,
    "announcements": (NAMED,),
    "earlier": (NAMED,),
    "sealed": (Sealed(1, 0, "00"),),
    "survivors": (0, 1),
    "confirmations": (Confirmation(1, "00", "00"),),
}
"""For each field of a step of a masked sum another value than `MASKED` has."""
KEPT_OUT = {"private", "sum"}
"""Fields that are no part of the question; below it is shown that they change no answer."""


def of_round(client, **more) -> Task:
    return question(client, "train", 1, to_bytes(client._initial()), **more)


def test_somebody_has_decided_about_every_field() -> None:
    assert OTHER_TASK.keys() == {field.name for field in fields(Task)}
    assert OTHER_STEP.keys() == {field.name for field in fields(SumStep)}


@pytest.mark.parametrize("name", [field.name for field in fields(Task)])
def test_a_field_is_in_the_question_or_changes_no_answer(name, opened) -> None:
    """The payment takes the question's bytes: a field that counts must be among these."""
    client = opened(trained(), "one")
    task = of_round(client)
    other = replace(task, **{name: OTHER_TASK[name]})
    assert getattr(other, name) != getattr(task, name)
    in_question = encode(other.question) != encode(task.question)
    assert in_question == (name not in KEPT_OUT)
    if not in_question:
        assert_one_look(client, (task, other))


def test_what_a_released_row_of_sums_is_does_not_depend_on_what_is_kept_out(opened) -> None:
    client = opened(closed("plain"), "one")
    weights = to_bytes(client._initial())
    one, other = (asked(client, RELEASE, 0, weights, private=private) for private in ("", "3" * 64))
    assert one.payloads == other.payloads != {}


@pytest.mark.parametrize("name", [field.name for field in fields(SumStep)])
def test_a_field_of_a_sum_is_paid_for_or_draws_the_same_images(name, opened) -> None:
    """Of one step, whose noise is added to the row: each number of a sum is paid for by itself."""
    one_step = TrainSettings(warmup_epochs=0, local_steps=1, learning_rate=0.1, momentum=0.0)
    client = opened(trained(training=one_step), "one")
    task, drawn, paid = of_round(client, sum=MASKED), [], []
    for step in (MASKED, replace(MASKED, **{name: OTHER_STEP[name]})):
        one = replace(task, sum=step)
        context, _ = client.context(one)
        pay(one, context, client.experiment.method, client.releases)
        paid.append(client.releases.made())
        drawn.append(noisy_steps(one, context).secret(b"sampled 0"))
    counts = paid[1] > paid[0]
    assert (drawn[0] != drawn[1]) == counts == (name == "number")
