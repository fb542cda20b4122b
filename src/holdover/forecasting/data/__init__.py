"""Series from CSV files and named data sets, cut into windows for forecasters.

table = open_series("ETTh1", data_dir=folder)
prepared = prepare(table, SeriesOptions(past=48, ahead=24))
for batch in prepared.train.shuffled(32, seed=0, epoch=0): ...
"""
