"""The closed form, as methods use it: which sums a site sends, and what the server makes of them.

All in one round. Features that are learned come first, by sums of patches. Sites send sums over
features of their images (`_discriminant`). The server adds them and solves, for a grid of
lambda; each site votes: how likely its validation labels are under each, for a grid of
temperatures, and the server takes the best of both. Then sites vote on how much more their own
labelled images count, from 0 to 100 times. By the head that each has now, and its class mix, sites
guess the classes of their unlabelled images, and send the sums over these by class; the server adds
them to those of labelled images and solves anew, as long as validation labels become likelier
(expectation maximisation; Dempster, Laird and Rubin 1977). Where they did, sites vote on their own
images once more. What follows is the solution: class means, covariance, the common head, and that
weight.

`_contents`: what travels, and checks of what arrives. `_features`: by name. `_discriminant`: the
mathematics. `_server`, `_site`: the two sides. `_findings`, `_protected`: the same of findings, and
of sums with noise. `one_round` is the method of this alone.
"""
