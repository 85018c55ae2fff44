"""How a method is shown, the same in every table and figure: name, colour, line.

Colours are told apart by colour-blind readers (Okabe and Ito 2008; Tol 2021). A colour stands for
the algorithm; the line for what it learns from: solid all images, dashed the labelled ones alone,
dotted all labels (an upper reference), dash-dotted a part of UM-pFSSL taken away.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import MappingProxyType

MIX = "mix"
"""The paper's ensemble of FixAvg, FixProx and FixBN, of which there is no preset."""

SOLID, DASHED, DOTTED, DASH_DOTTED = "-", "--", ":", "-."

BLUE, GREEN, SKY, VERMILION, ORANGE = "#0072B2", "#009E73", "#56B4E9", "#D55E00", "#E69F00"
PINK, OLIVE, WINE, BLACK, GREY = "#CC79A7", "#999933", "#882255", "#000000", "#777777"
TEAL, PURPLE, INDIGO, FOREST, ROSE = "#44AA99", "#AA4499", "#332288", "#117733", "#CC6677"
BROWN, MAGENTA, UMBER, NAVY = "#661100", "#EE3377", "#994F00", "#004488"

PALETTE = (BLUE, ORANGE, GREEN, WINE, SKY, VERMILION, INDIGO, OLIVE, PINK, GREY)
"""For what has no colour of its own: methods of others, and classes."""

# Dark violet to light green, of even steps in lightness: values of one parameter.
_SCALE = ("#440154", "#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D")


@dataclass(frozen=True)
class Look:
    """A method's name for readers, its colour (#rrggbb), and its line (as Matplotlib names it)."""

    label: str
    colour: str
    line: str = SOLID


NAMES: Mapping[str, str] = {
    "fedavg_sl": "FedAvg-SL",
    "fedprox_sl": "FedProx-SL",
    "fedbn_sl": "FedBN-SL",
    "fixavg": "FixAvg",
    "fixprox": "FixProx",
    "fixbn": "FixBN",
    "fedper": "FedPer",
    "lg_fedavg": "LG-FedAvg",
    "pfedme": "pFedMe",
    "um_pfssl": "UM-pFSSL",
    "um_pfssl_en": "UM-pFSSL EN",
    "um_pfssl_ta": "UM-pFSSL TA",
}
"""Our method presets -> the paper's names."""

_OWN = {
    "local_only": Look("LocalOnly", GREY, DASHED),
    "fedavg": Look("FedAvg (labelled)", BLUE, DASHED),
    "fedprox": Look("FedProx (labelled)", GREEN, DASHED),
    "fedbn": Look("FedBN (labelled)", SKY, DASHED),
    "fedavg_ft": Look("FedAvg fine-tuned", TEAL, DASHED),
    "fedprox_ft": Look("FedProx fine-tuned", FOREST, DASHED),
    "fedrod": Look("FedRoD", PURPLE, DASHED),
    "ditto": Look("Ditto", ROSE, DASHED),
    "sage": Look("SAGE", INDIGO),
    "fixmatch_global": Look("FixMatch common teacher", UMBER),
    "recommended": Look("Recommended", MAGENTA),
    "fedavg_logit_adjusted": Look("FedAvg, logits adjusted", MAGENTA, DASHED),
    "one_round": Look("One round", NAVY),
    MIX: Look("Mix", BLACK),
    "um_pfssl_mi": Look("UM-pFSSL MI", VERMILION),
    "um_pfssl_mi_labels": Look("UM-pFSSL MI, labels too", BROWN),
    "um_pfssl_no_search": Look("UM-pFSSL no search", INDIGO, DASH_DOTTED),
    "um_pfssl_no_aggregation": Look("UM-pFSSL no aggregation", FOREST, DASH_DOTTED),
    "um_pfssl_no_pseudo_labels": Look("UM-pFSSL no pseudo-labels", ROSE, DASH_DOTTED),
} | {
    name: Look(NAMES[name], colour, line)
    for name, colour, line in (
        ("fedavg_sl", BLUE, DOTTED),
        ("fedprox_sl", GREEN, DOTTED),
        ("fedbn_sl", SKY, DOTTED),
        ("fixavg", BLUE, SOLID),
        ("fixprox", GREEN, SOLID),
        ("fixbn", SKY, SOLID),
        ("fedper", PINK, SOLID),
        ("lg_fedavg", OLIVE, SOLID),
        ("pfedme", WINE, SOLID),
        ("um_pfssl", ORANGE, SOLID),
        ("um_pfssl_en", TEAL, DASH_DOTTED),
        ("um_pfssl_ta", PURPLE, DASH_DOTTED),
    )
}


_FEATURED = (
    *(
        "recommended",
        "one_round",
        "fedavg_logit_adjusted",
        "fedavg_ft",
        "um_pfssl_mi_labels",
        "um_pfssl_mi",
        "um_pfssl",
        "ditto",
    ),
    *("fedper", "fedavg", MIX, "fixavg", "sage", "fedrod", "local_only"),
)
"""Presets that come first where there is room for some only."""


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
PARAMETER = re.compile(rf"(?<![\w.])([A-Za-z][\w.]*) ?= ?({_NUMBER})(?![\w.])")


def parameters(name: str) -> tuple[dict[str, float], str]:
    """Return the parameters that a name gives values to, and the rest of the name.

    "um_pfssl nu=5" -> {"nu": 5.0}, "um_pfssl".
    """
    found = {key: float(value) for key, value in PARAMETER.findall(name)}
    rest = PARAMETER.sub(" ", name)
    return found, " ".join(rest.replace(",", " ").split())


def featured(methods: Sequence[str], presets: Mapping[str, str]) -> list[str]:
    """Return the methods, those of most interest first; presets: as `ComparisonRecord` has them."""
    known = [presets.get(name, name) for name in methods]
    first = [methods[known.index(preset)] for preset in _FEATURED if preset in known]
    return [*first, *(name for name in methods if name not in first)]


def looks(
    methods: Sequence[str], presets: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Look]:
    """Return the look of each method, by name; presets: as `ComparisonRecord` has them.

    A method of another name than its preset's keeps that name, and takes the preset's colour if it
    is the only one of it. Methods that are values of a parameter (nu=1, nu=5) get colours in that
    order; all others the palette's, in the order given.
    """
    found = {name: _OWN[name] for name in methods if name in _OWN}
    used = Counter(presets.get(name, name) for name in methods)
    for name in methods:
        preset = presets.get(name, name)
        if name not in found and preset in _OWN and used[preset] == 1:
            found[name] = replace(_OWN[preset], label=name)
    values = [name for name in methods if name not in found and parameters(name)[0]]
    if len(values) > 1:
        values.sort(key=lambda name: tuple(parameters(name)[0].values()))
        for place, name in enumerate(values):
            colour = _SCALE[place * (len(_SCALE) - 1) // (len(values) - 1)]
            line = (SOLID, DASHED)[place % 2] if len(values) > len(_SCALE) else SOLID
            found[name] = Look(name, colour, line)
    taken = {(look.colour, look.line) for look in found.values()}
    lines = (SOLID, DASHED, DOTTED, DASH_DOTTED)
    free = [(colour, line) for line in lines for colour in PALETTE if (colour, line) not in taken]
    unknown = [name for name in methods if name not in found]
    for name, (colour, line) in zip(unknown, cycle(free), strict=False):
        found[name] = Look(name, colour, line)
    return found
