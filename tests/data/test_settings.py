"""Settings of data and of splits that contradict each other, or have no effect, are refused."""

import pytest

from fedapp.core.settings import DataSettings, SplitSettings
from tests import own, vectors

DATA, SPLIT = DataSettings, SplitSettings
IN_FILES = {"name": "folder"}
NO_IMAGES = {"name": "digits", "image_size": 0, "classes": "", "sites": "", "channels": 0}
NO_WINDOWS = ("auto", "5", "5,5", "9,1", "1,2,3", "0,inf", "nan,1", "0:9", ",")


@pytest.mark.parametrize(("make", "fields", "says"), [
    (own.agreed, {"classes": ""}, "classes must name two or more"),
    (own.agreed, {"classes": "a"}, "classes must name two or more"),
    (own.agreed, {"classes": "a, b, a"}, "classes must differ: 'a' stands twice"),
    (own.agreed, {"classes": "a,,b"}, "classes: '': a class's name has 1"),
    (own.agreed, {"classes": "a, b/c"}, "classes: 'b/c': .*no slash"),
    (own.agreed, {"classes": "a, ..b"}, r"classes: '\.\.b': .*no dot"),
    (own.agreed, {"sites": "a, a"}, "sites must differ"),
    (DATA, {"name": "heart", "sites": "cleveland, cleveland"}, "sites must differ"),
    (own.agreed, {"sites": "a b"}, "sites: 'a b': a site's name"),
    (own.agreed, {"sites": "a, .."}, "at most 64 letters"),
    (own.agreed, {"image_size": 0}, "own data need an image_size"),
    (own.agreed, {"channels": 2}, "own data need an image_size in .* channels of 1 or 3"),
    (own.agreed, {"subset": 5}, "and no subset"),
    (own.agreed, {"std": 0.0}, "greater than 0"),
    (own.agreed, {"mean": 1.5}, "of pixels"),
    (own.agreed, {"mean": -0.1}, "of pixels"),
    (own.agreed, {"std": 2.0}, "of pixels"),
    (own.agreed, {"name": "folder"}, "classes is a setting of own data"),
    (own.agreed, {"patients": "(a)(b)"}, "has 2 groups in parentheses, must have one"),
    (own.agreed, {"patients": "("}, "no regular expression"),
    (own.agreed, {**NO_IMAGES, "patients": "(a)"}, "is a setting of images in files"),
    (vectors.agreed, {"image_size": 64}, "image_size is a setting of images: drop it, or"),
    (vectors.agreed, {"channels": 3}, "channels is a setting of images"),
    (vectors.agreed, {"patients": "(p)"}, "patients is a setting of images"),
    (vectors.agreed, {"vector_size": 0, "image_size": 8, "channels": 1}, "encoder is a setting of"),
    (vectors.agreed, {"vector_size": 0, "encoder": ""}, "own data need an image_size in"),
    (vectors.agreed, {"name": "digits"}, "is a setting of own data"),
    *[(DATA, {**IN_FILES, "window": text}, "two numbers, the lower") for text in NO_WINDOWS],
    (DATA, {"name": "digits", "window": "0,9"}, "set name to 'own' or 'folder'"),
    (SPLIT, {"bags": 2, "labels": "all"}, "labels has no effect beside bags"),
    (SPLIT, {"bags": 2, "label_share": 0.2}, "label_share has no effect where no site has labels"),
    (SPLIT, {"bags": 2, "knows": "labels, nothing"}, "knows must name bags where bags is above 0"),
    (SPLIT, {"knows": "labels, bags"}, "knows must name bags where bags is above 0"),
    (SPLIT, {"bags": 2, "knows": "bags, label"}, "no such kind 'label'; did you mean 'labels'"),
    (SPLIT, {"bag_mix": "dominant"}, "bag_mix has no effect without bags"),
    (SPLIT, {"prior_noise": 0.1}, "prior_noise has no effect without bags"),
    (SPLIT, {"labels": "all", "label_share": 0.2}, "label_share has no effect where labels is"),
    (SPLIT, {"deal": "iid", "dirichlet_alpha": 0.1}, "alpha has no effect where deal is 'iid'"),
    (SPLIT, {"deal": "dirichlet_unlabelled", "label_alpha": 3.0}, "label_alpha has no effect"),
    (SPLIT, {"label_share": 0.6}, "label_share must be at most 0.5 where deal is 'dirichlet'"),
    (SPLIT, {"deal": "uneven_labels", "label_share": 0.05}, "label_share must be above 0.05"),
    (SPLIT, {"test_images": 100, "train_share": 0.8}, "train_share has no effect where"),
    (SPLIT, {"shift_kinds": "rotatoin"}, "no such kind 'rotatoin'; did you mean 'rotation'"),
    (SPLIT, {"shift_kinds": "blur, x"}, "no such kind 'x'; valid: blur, brightness, contrast"),
    (SPLIT, {"shift_kinds": "blur, blur"}, "'blur' stands twice"),
    (SPLIT, {"shift_kinds": ""}, "must name one or more of rotation, brightness, contrast"),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(make, fields, says):
    with pytest.raises(ValueError, match=says):
        make(**fields)


def test_numbers_of_vectors_may_have_any_range():
    assert vectors.agreed(mean=-120.0, std=60.0).inputs == (vectors.SIZE,)
