"""Which backbones and settings of a carried state the contract's laws are tried with."""

import pytest

from holdover import BACKBONES
from tiny import BLOCKS, LAYERS, ROWS, RSA_DECODERS, RSA_ENCODERS

WINDOW = 9
RSA = {"rsa": True, "rem_counts": (1, 0, 0, 0, 1, 1), "rem_dilations": (2, 3)}
OPTIONS = {
    "pooled": {},
    "all-layers": {"insert_layer": "all", "slots": 3},
    "top-layer": {"insert_layer": LAYERS},
    "max": {"pooling": "max", "slots": 2},
    "last": {"pooling": "last", "slots": 2},
    "attention": {"pooling": "attention", "slots": 2},
    "fixed-key": {"pooling": "fixed-key"},
    "last-layer": {"mix_layers": "last", "map_hidden": (), "map_activation": "gelu"},
    "learned-start": {"start": "learned", "slots": 2},
    "overlap": {"overlap": 3},
    "non-overlap": {"overlap": 3, "pool_positions": "non_overlap"},
    "batched-lower": {"lower_layers": "batched", "insert_layer": LAYERS},
    "batched-lower-max": {"lower_layers": "batched", "pooling": "max"},
    "tokens": {"carry": "tokens", "slots": 2},
    "tokens-learned": {"carry": "tokens", "slots": 3, "start": "learned", "overlap": 2},
    "none": {"carry": "none"},
    "rsa": {**RSA, "carry": "none"},
    "rsa-pooled": {**RSA, "insert_layer": "all", "slots": 2, "rem_truncate": 4},
    "rsa-batched-lower": {**RSA, "lower_layers": "batched", "insert_layer": LAYERS},
    "rsa-tokens": {**RSA, "carry": "tokens", "slots": 2, "overlap": 2, "rsa_layers": (1, LAYERS)},
    "memory": {"carry": "memory"},
    "short-memory": {"carry": "memory", "memory_length": 5, "overlap": 2},
    "blocks": {"carry": "blocks"},
    "short-memory-blocks": {"carry": "blocks", "memory_length": 5, "overlap": 2},
}


def takes(name, options) -> bool:
    if options.get("rsa"):
        return name in (*RSA_DECODERS, *RSA_ENCODERS)
    if name == BLOCKS:
        return options.get("carry") in ("blocks", "none")
    if options.get("carry") == "blocks":
        return False
    return options.get("carry") != "memory" or BACKBONES[name].takes_memory


# The set of combinations. The product of rows, options and laws is thousands of tests, most of which
# differ in things that never meet. Options of REACHING change what is done inside a backbone, so they
# are tried with every row under every law. The others choose what is made of hidden states after a
# window: they are tried under every law with the rows of WHOLE (one decoder, one bidirectional model,
# XLNet, and recurrent layers), and with each other row under every FOURTH law. So every row and option,
# every option and law, and every row and law still meet, which a test below makes sure of.
REACHING = ("all-layers", "batched-lower", "tokens-learned", "rsa-pooled", "rsa-tokens", "memory")
WHOLE = ("gpt2", "bert", "xlnet", BLOCKS)
FOURTH = 4
GRID = [
    (name, label) for name in ROWS for label, options in OPTIONS.items() if takes(name, options)
]
LAWS: list[list[tuple[str, str]]] = []


def law(rows=tuple(ROWS)):
    """A test of the combinations that are this law's turn."""
    number = len(LAWS)
    places = {name: place for place, name in enumerate((*ROWS, *OPTIONS))}
    LAWS.append(
        [
            (name, label)
            for name, label in GRID
            if name in rows
            and (
                name in WHOLE
                or label in REACHING
                or (places[name] + places[label] + number) % FOURTH == 0
            )
        ]
    )
    return combinations(LAWS[-1])


# The samples of `make quick`: every kind of state, with a few backbones.
QUICK_ROWS = ("gpt2", "llama", "bert", "xlnet", BLOCKS)
QUICK = ("pooled", "tokens-learned", "none", "rsa-pooled", "memory", "blocks")


def combinations(pairs):
    """Parametrize a test by (backbone, settings). Pairs of a FOURTH law run in `make nightly`."""
    named = []
    for name, label in pairs:
        quick = name in QUICK_ROWS and label in QUICK
        marks = [pytest.mark.quick] if quick else []
        if name not in WHOLE and label not in REACHING and not quick:
            marks = [pytest.mark.nightly]
        named.append(pytest.param(name, OPTIONS[label], id=f"{name}-{label}", marks=marks))
    return pytest.mark.parametrize(("name", "options"), named)
