"""Placeholder until the real one comes."""


def flips(name):
    return False


def weak(images, flip, stream):
    return images


def strong(images, flip, stream):
    return images
