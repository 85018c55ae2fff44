"""`labelled_repeat`: how often each labelled image stands among those that a pass goes through."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedapp.learn.objectives import fixmatch, index_pairs, supervised
from tests.learn.test_objectives import work as local_training


def work(labelled, unlabelled, repeat, size=2, view=lambda images: images):
    made = local_training(labelled, unlabelled, size=size)
    return replace(made, labelled_repeat=repeat, view=view)


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_a_pass_sees_each_labelled_image_so_often_in_so_many_more_steps(repeat):
    counts = Counter()

    def noted(images):
        counts.update(image.sum().item() for image in images)
        return images

    assert len(list(supervised(work(6, 0, repeat, view=noted)))) == 3 * repeat
    assert len(counts) == 6 and set(counts.values()) == {repeat}


@pytest.mark.parametrize(("labelled", "unlabelled", "steps"), [(4, 10, 6), (6, 2, 9), (5, 0, 7)])
def test_beside_unlabelled_images_too(labelled, unlabelled, steps):
    """12, 18, 15 labelled ones are seen once; the others as often as it takes."""
    drawn = list(index_pairs(work(labelled, unlabelled, 3)))
    counts = Counter(int(i) for batch, _ in drawn for i in batch)
    assert len(drawn) == steps and set(counts.values()) == {3}
    assert len(counts) == labelled


def test_a_loss_that_is_cut_off_has_the_gradient_of_weight_0():
    """What the released code does: the strong view is detached before its loss is taken."""
    at = work(4, 4, 1, size=8)
    [step] = list(fixmatch(at, lambda images: images, lambda images: images, 0.0, 0.0))
    head = at.model[1].weight
    [ours] = torch.autograd.grad(step(at.model), head)
    known, others = (at.normalise(part) for part in (at.data.labelled, at.data.unlabelled))
    logits = at.model(torch.cat([known, others, others]))
    strong = logits[8:].detach()
    loss = F.cross_entropy(logits[:4], at.data.labels) + F.cross_entropy(strong, strong.argmax(1))
    [theirs] = torch.autograd.grad(loss, head)
    torch.testing.assert_close(ours, theirs)
    assert ours.any()
