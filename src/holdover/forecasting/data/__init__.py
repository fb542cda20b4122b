"""Series from CSV files and the papers' data sets, cut into windows to forecast from.

table = open_series("ETTh1", data_dir=folder)
prepared = prepare(table, SeriesOptions(past=48, ahead=24))
for batch in prepared.train.shuffled(32, seed=0, epoch=0): ...
errors = ForecastErrors(prepared.test, prepared.recipe)
"""
