"""RandAugment's operations by Pillow, as the code of FixMatch's authors calls it."""

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from fedapp.data.randaugment import GEOMETRY, GREY, PIXELS

POOL = [(act.__name__, low, high) for act, low, high in PIXELS] + [
    (name, -limit, limit) for name, limit in GEOMETRY
]
"""Every operation with its least and its greatest magnitude."""


def as_pillow(image):
    """uint8 [1 or 3, h, w] as an image of Pillow."""
    return Image.fromarray((image[0] if len(image) == 1 else image.permute(1, 2, 0)).numpy())


def as_tensor(array):
    """Pixels [h, w] or [h, w, 3] as uint8 [1 or 3, h, w]."""
    pixels = torch.from_numpy(array)
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def through_pillow(images, act):
    """Apply a function of Pillow to each of the images [n, c, h, w]."""
    return torch.stack([as_tensor(np.array(act(as_pillow(image)))) for image in images])


def pillows(name, level):
    """Pillow's own call for one operation at a magnitude."""
    v = level / 65536

    def transform(image):
        width, height = image.size
        fill = (GREY,) * 3 if image.mode == "RGB" else GREY
        if name == "rotate":
            return image.rotate(v, fillcolor=fill)
        matrix = {
            "shear_x": (1, v, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, v, 1, 0),
            "translate_x": (1, 0, v * width, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, v * height),
        }[name]
        return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=fill)

    def stretched(image):
        table = []  # Pillow's autocontrast, without its error of rounding
        for low, high in np.atleast_2d(image.getextrema()).tolist():
            span = high - low
            table += [(i - low) * 255 // span if span and i >= low else i for i in range(256)]
        return image.point([min(value, 255) for value in table])

    return {
        "autocontrast": stretched,
        "brightness": lambda i: ImageEnhance.Brightness(i).enhance(level / 1024),
        "color": lambda i: ImageEnhance.Color(i).enhance(level / 1024),
        "contrast": lambda i: ImageEnhance.Contrast(i).enhance(level / 1024),
        "equalize": ImageOps.equalize,
        "identity": lambda i: i,
        "posterize": lambda i: ImageOps.posterize(i, level),
        "sharpness": lambda i: ImageEnhance.Sharpness(i).enhance(level / 1024),
        "solarize": lambda i: ImageOps.solarize(i, level),
    }.get(name, transform)
