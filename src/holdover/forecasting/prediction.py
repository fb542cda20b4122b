"""holdover forecast predict: the rows after the end of a file, in its units, as CSV and plot."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from ..runs.provenance import choose_device, make_folder, shown_name
from ..storage import write_atomically
from .data.cells import import_pandas, shown_time
from .data.named import open_table
from .data.prepare import beyond
from .data.table import ID, Table
from .eval_options import PredictOptions, with_trained_data
from .figures import Drawn, drawn_columns, forecast_figure
from .folder import SavedForecaster, open_forecaster


@dataclass(frozen=True)
class Prediction:
    ids: tuple[str, ...]  # series; a wide file has one empty id
    columns: tuple[str, ...]
    times: np.ndarray  # [S, ahead] datetime64[us]
    values: np.ndarray  # [S, ahead, O] in the file's units


def predict(options: PredictOptions, console: Console | None = None) -> Prediction:
    """Forecast the rows after the end of a file; write them as CSV and plot."""
    console = console or Console(highlight=False)
    saved = open_forecaster(options.model)
    options = with_trained_data(options, saved)
    table = open_table(options)
    if options.output.exists() and Path(options.data).exists():
        _refuse_overwriting(options.output, options.data)
    make_folder(options.output.parent)
    # Refuse what cannot be drawn before anything is written.
    columns = drawn_columns(saved.recipe.outputs, options.columns)
    series = _drawn_series(table, options.series)
    prediction = forecast_beyond(saved, table, choose_device(options.device))
    time_column = options.time_column or ("ds" if table.form == "long" else "date")
    write_atomically(options.output, as_csv(prediction, time_column, table.form == "long").encode())
    console.print(f"Forecast: {options.output}", soft_wrap=True)
    if options.plot:
        history = options.history or saved.recipe.past
        drawn = [_drawn(prediction, table, series, column, history) for column in columns]
        title = f"{table.name} {prediction.ids[series]}".strip()
        title += f": {saved.recipe.ahead} rows ahead by {shown_name(options.model)}"
        paths = forecast_figure(options.output.with_suffix(""), title, drawn)
        console.print(f"Plot: {paths[0]}, {paths[1].name}", soft_wrap=True)
    return prediction


@torch.no_grad()
def forecast_beyond(
    saved: SavedForecaster, table: Table, device: torch.device | None = None
) -> Prediction:
    """The forecast of the rows that follow each series of a table."""
    ahead = beyond(table, saved.recipe)
    device = device or saved.model.device
    model = saved.model.to(device).eval()
    inputs = (ahead.values, ahead.marks, ahead.future_marks)
    forecast = model.forecast(*(tensor.to(device) for tensor in inputs))
    return Prediction(ahead.ids, saved.recipe.outputs, ahead.times, ahead.in_units(forecast))


def as_csv(prediction: Prediction, time_column: str, long: bool) -> str:
    """A table in the form of the file that was read: with ids if that had them."""
    rows = prediction.values.reshape(-1, len(prediction.columns))
    frame = import_pandas().DataFrame(rows, columns=list(prediction.columns))
    times = [shown_time(time) for time in prediction.times.ravel()]
    frame.insert(0, time_column, times, allow_duplicates=True)
    if long:
        frame.insert(0, ID, np.repeat(prediction.ids, prediction.times.shape[1]))
    # Forecasts are float32: nine digits write them exactly.
    return frame.to_csv(index=False, float_format="%.9g", lineterminator="\n")


def _refuse_overwriting(output: Path, data: str) -> None:
    if output.samefile(data):
        raise ValueError(f"--output {output} is the file of --data: give another file.")


def _drawn_series(table: Table, wanted: str | None) -> int:
    ids = [series.id for series in table.series]
    if wanted is None:
        return 0
    if wanted not in ids:
        known = ", ".join(filter(None, ids)) or "one series without a name"
        raise ValueError(f"--series {wanted} is not in {table.name}, which has {known}.")
    return ids.index(wanted)


def _drawn(prediction: Prediction, table: Table, number: int, column: str, history: int) -> Drawn:
    series, place = table.series[number], prediction.columns.index(column)
    return Drawn(
        column=column,
        times=series.times[-history:],
        observed=series.values[-history:, table.columns.index(column)],
        future=prediction.times[number],
        forecasts={"forecast": prediction.values[number, :, place]},
    )
