"""The closed form, as methods use it: which sums a site sends, and what the server makes of them.

Everything happens in one round:

- Features that are learned are learned first, from sums of patches.
- Sites send sums over the features of their labelled images (`_discriminant`); the server adds
  them up and solves for a grid of lambda.
- Each site votes: how likely its validation labels are for each lambda and each of several
  temperatures. The server takes the best pair.
- Sites vote on how many times more, from 0 to 100, their own labelled images count.
- Where labels are few, sites also send the second moment of their unlabelled images, which the
  covariance takes in once their classes are guessed, or at once where none are guessed.
- With its head and its class mix each site guesses the classes of its unlabelled images and sends
  their sums by class. The server adds these to the sums of labelled images and solves again, as
  long as validation labels become likelier (expectation maximisation; Dempster, Laird and Rubin
  1977). If they did, sites vote on their own images once more.
- If the run asks for it, a regression moves the common head by gradients on labelled images, as
  long as validation labels become likelier (`_regression`).
- The solution is sent: class means, covariance, the common head, and the weight of own images.

`_contents`: what travels, and checks of what arrives. `_features`: features by name.
`_discriminant`: the mathematics. `_server`, `_site`: the two sides. `_findings`, `_protected`: the
same for findings, and for sums with noise. `one_round` is the method that consists of this alone.
"""
