"""Privacy of single images: noise in whole numbers, and the account of what it buys.

Two sets of data are neighbours where one image, with its label, is replaced by nothing in one of
them, while the numbers of images stay what they are said to be ("zero-out" neighbours: Kairouz et
al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling"). Everything that a
site releases is a sum over images of vectors of bounded length, plus noise.
"""
