"""Time series: train a forecaster, score it, forecast beyond the end of a file, plot.

train_forecaster(ForecastOptions.of(model="dlinear", data="power.csv"))
record = evaluate_forecaster(ForecastEvalOptions.of(model="runs/forecast"))
prediction = predict(PredictOptions.of(model="runs/forecast", data="power.csv"))
"""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".eval_options": "ForecastEvalOptions PredictOptions",
        ".evaluation": "evaluate_forecaster",
        ".folder": "SavedForecaster open_forecaster",
        ".options": "ForecastOptions",
        ".plotting": "plot_forecasts",
        ".prediction": "Prediction forecast_beyond predict",
        ".training": "train_forecaster",
    },
)
