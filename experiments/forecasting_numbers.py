"""Forecasting: lengths and layers of Informer's scripts, heads of the RSA paper, published errors."""

from typing import Any

# Artificial series of the scale smoke, which needs no files.
WAVES = "waves"
# past and label_len; factor and layers of encoder and decoder only if they differ from the defaults.
SCRIPTS: dict[str, dict[int, dict[str, int]]] = {
    "ETTh1": {
        24: {"past": 48, "label_len": 48, "factor": 3},
        48: {"past": 96, "label_len": 48},
        168: {"past": 168, "label_len": 168},
        336: {"past": 168, "label_len": 168},
    },
    "ETTh2": {
        24: {"past": 48, "label_len": 48},
        48: {"past": 96, "label_len": 96},
        168: {"past": 336, "label_len": 336, "e_layers": 3, "d_layers": 2},
        336: {"past": 336, "label_len": 168, "e_layers": 3, "d_layers": 2},
    },
    "ETTm1": {
        24: {"past": 672, "label_len": 96},
        48: {"past": 96, "label_len": 48},
        96: {"past": 384, "label_len": 384},
        288: {"past": 672, "label_len": 288},
    },
    "WTH": {
        24: {"past": 168, "label_len": 168, "e_layers": 3, "d_layers": 2},
        48: {"past": 96, "label_len": 96},
        168: {"past": 336, "label_len": 168, "e_layers": 3, "d_layers": 2},
        336: {"past": 720, "label_len": 168, "e_layers": 3, "d_layers": 2},
    },
    WAVES: {6: {"past": 24, "label_len": 12}, 12: {"past": 24, "label_len": 12}},
}
# Heads with a recurrence: regular, cos, sin, and the dilated three. A cell without a result folder has
# those of the cell before it.
HEADS: dict[str, dict[int, list[int]]] = {
    "ETTh1": {
        24: [0, 2, 2, 0, 2, 2],
        48: [0, 2, 2, 2, 1, 1],
        168: [0, 2, 2, 2, 1, 1],
        336: [4, 0, 0, 4, 0, 0],
    },
    "ETTh2": {
        24: [4, 2, 2, 0, 0, 0],
        48: [0, 2, 2, 0, 2, 2],
        168: [4, 2, 2, 0, 0, 0],
        336: [0, 2, 2, 0, 2, 2],
    },
    "ETTm1": {
        24: [0, 0, 0, 0, 4, 4],
        48: [0, 2, 2, 0, 2, 2],
        96: [0, 2, 2, 0, 2, 2],
        288: [0, 2, 2, 0, 2, 2],
    },
    "WTH": {
        24: [0, 0, 0, 0, 4, 4],
        48: [0, 2, 2, 0, 2, 2],
        168: [0, 2, 2, 0, 2, 2],
        336: [0, 2, 2, 0, 2, 2],
    },
    WAVES: {6: [0, 2, 2, 0, 2, 2], 12: [4, 0, 0, 4, 0, 0]},
}
# Published MSE and MAE: Informer and RSA-Informer in the RSA paper, then in its reproduction (which ran
# out of memory in four cells), then the original Informer.
PUBLISHED: dict[str, dict[int, tuple[Any, ...]]] = {
    "ETTh1": {
        24: ((0.762, 0.632), (0.414, 0.450), (0.679, 0.590), (0.632, 0.568), (0.577, 0.549)),
        48: ((1.006, 0.763), (0.467, 0.493), (0.935, 0.724), (0.908, 0.714), (0.685, 0.625)),
        168: ((1.141, 0.823), (0.753, 0.659), (1.464, 1.000), (1.265, 0.886), (0.931, 0.752)),
        336: ((1.416, 0.987), (0.895, 0.755), (1.645, 1.071), (1.902, 1.158), (1.128, 0.873)),
    },
    "ETTh2": {
        24: ((2.558, 1.253), (1.264, 0.879), (0.951, 0.777), (1.091, 0.840), (0.720, 0.665)),
        48: ((2.487, 1.268), (1.878, 1.067), (2.584, 1.300), (1.465, 0.970), (1.457, 1.001)),
        168: ((2.869, 1.324), (2.830, 1.301), (2.534, 1.259), (3.658, 1.559), (3.489, 1.515)),
        336: ((2.055, 1.113), (2.113, 1.124), (2.292, 1.195), (2.331, 1.222), (2.723, 1.340)),
    },
    "ETTm1": {
        24: ((0.536, 0.511), (0.534, 0.507), (0.695, 0.6114), (0.7411, 0.643), (0.323, 0.369)),
        48: ((0.781, 0.633), (0.644, 0.612), (0.782, 0.648), (0.747, 0.744), (0.494, 0.503)),
        96: ((0.823, 0.697), (0.732, 0.665), (1.088, 0.817), (1.313, 0.935), (0.678, 0.614)),
        288: ((1.371, 0.945), (0.835, 0.710), None, None, (1.056, 0.786)),
    },
    "WTH": {
        24: ((0.316, 0.371), (0.328, 0.380), (0.886, 0.720), (0.992, 0.765), (0.335, 0.381)),
        48: ((0.606, 0.566), (0.432, 0.464), (0.555, 0.546), (0.490, 0.502), (0.395, 0.459)),
        168: ((1.009, 0.771), (0.862, 0.702), (0.643, 0.598), (0.853, 0.699), (0.608, 0.567)),
        336: ((1.096, 0.801), (0.846, 0.697), None, None, (0.702, 0.620)),
    },
}
