"""Time series: CSVs and the papers' data sets, cut into windows to forecast from.

    table = open_series("ETTh1", data_dir=folder)
    prepared = prepare(table, SeriesOptions(past=48, ahead=24))
    for batch in prepared.train.shuffled(32, seed=0, epoch=0): ...
    errors = ForecastErrors(prepared.test, prepared.recipe)

* A `Table` has the series of a file, a `Recipe` what a forecaster must remember of them, `Windows` all
  that can be cut out of a part; `beyond` gives the rows in front of what is not in the file yet.
* Everything is read into memory: series are small beside texts.
"""

from .frequency import Frequency
from .future import Beyond, beyond
from .metrics import ForecastErrors
from .named import NAMED, open_series, open_table
from .options import SeriesOptions, TableOptions
from .prepare import Prepared, prepare
from .recipe import Recipe
from .scaler import Scaler
from .splits import Span, SplitRule
from .table import Series, Table
from .windows import ForecastBatch, ForecastWindow, Windows

__all__ = [
    "NAMED",
    "Beyond",
    "ForecastBatch",
    "ForecastErrors",
    "ForecastWindow",
    "Frequency",
    "Prepared",
    "Recipe",
    "Scaler",
    "Series",
    "SeriesOptions",
    "Span",
    "SplitRule",
    "Table",
    "TableOptions",
    "Windows",
    "beyond",
    "open_series",
    "open_table",
    "prepare",
]
