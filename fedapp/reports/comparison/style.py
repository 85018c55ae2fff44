"""Name, colour and line of each method, the same in every table and figure.

Colour-blind readers can tell the colours apart (Okabe and Ito 2008; Tol 2021). The colour stands
for the algorithm. The line stands for what it learns from: solid for all images, dashed for
labelled images only, dotted for images that all have labels (an upper reference), dash-dotted for
an ablation of UM-pFSSL.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import MappingProxyType

MIX = "mix"
"""The paper's ensemble of FixAvg, FixProx and FixBN, which is no preset."""

SOLID, DASHED, DOTTED, DASH_DOTTED = "-", "--", ":", "-."

BLUE, GREEN, SKY, VERMILION, ORANGE = "#0072B2", "#009E73", "#56B4E9", "#D55E00", "#E69F00"
PINK, OLIVE, WINE, BLACK, GREY = "#CC79A7", "#999933", "#882255", "#000000", "#777777"
TEAL, PURPLE, INDIGO, FOREST, ROSE = "#44AA99", "#AA4499", "#332288", "#117733", "#CC6677"
BROWN, MAGENTA, UMBER, NAVY = "#661100", "#EE3377", "#994F00", "#004488"

PALETTE = (BLUE, ORANGE, GREEN, WINE, SKY, VERMILION, INDIGO, OLIVE, PINK, GREY)
"""Colours of methods that have none of their own, and of classes."""

# Colours for values of one parameter: dark violet to light green, in even steps of lightness.
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
"""The paper's name of each method preset."""

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
    "mixmatch_avg": Look("MixMatch-FedAvg", ROSE),
    "fixmatch_global": Look("FixMatch common teacher", UMBER),
    "recommended": Look("Recommended", MAGENTA),
    "fedavg_logit_adjusted": Look("FedAvg, logits adjusted", MAGENTA, DASHED),
    "one_round": Look("One round", NAVY),
    MIX: Look("Mix", BLACK),
    "um_pfssl_mi": Look("UM-pFSSL MI", VERMILION),
    "um_pfssl_mi_labels": Look("UM-pFSSL, labels by mutual information", BROWN),
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
        "one_round",
        "recommended",
        "fedavg_logit_adjusted",
        "fedavg_ft",
        "um_pfssl_mi_labels",
        "um_pfssl_mi",
        "um_pfssl",
        "ditto",
    ),
    *("fedper", "fedavg", MIX, "fixavg", "sage", "fedrod", "local_only"),
)
"""Presets that are shown first where there is not room for all methods."""


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
PARAMETER = re.compile(rf"(?<![\w.])([A-Za-z][\w.]*) ?= ?({_NUMBER})(?![\w.])")


def parameters(name: str) -> tuple[dict[str, float], str]:
    """Return the parameters that a name gives values to, and the rest of the name.

    For example "um_pfssl nu=5" gives {"nu": 5.0} and "um_pfssl".
    """
    found = {key: float(value) for key, value in PARAMETER.findall(name)}
    rest = PARAMETER.sub(" ", name)
    return found, " ".join(rest.replace(",", " ").split())


def featured(methods: Sequence[str], presets: Mapping[str, str]) -> list[str]:
    """Return the methods, the most interesting ones first. presets: as in `ComparisonRecord`."""
    known = [presets.get(name, name) for name in methods]
    first = [methods[known.index(preset)] for preset in _FEATURED if preset in known]
    return [*first, *(name for name in methods if name not in first)]


def looks(
    methods: Sequence[str], presets: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Look]:
    """Return how each method is shown, by name. presets: as in `ComparisonRecord`.

    A method whose name differs from its preset's keeps its name; it gets the preset's colour if no
    other method has the same preset. Methods that are values of a parameter (nu=1, nu=5) get
    colours of a scale in the order of the values. All others get colours of the palette, in the
    order given.
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
