"""Opening series: a CSV by its path, or a data set of the papers by its name.

* Checksums cover the uncompressed content of the published files, so the original CSV and a packed copy
  both work. A file with other content is refused.
* ETT is split by months of 30 days (12/4/4) and the weather data by shares. Rows after the last month
  are not used.
* The 21-column weather has a repeated time and a gap. Its rows are taken as they are, as the papers do,
  and the record says where. Three of its column names were published with damaged units and are kept.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from ...text.corpora import data_directory
from .cells import content_sha256
from .options import Irregular, TableOptions
from .table import Table, read_table

PACKINGS = (".xz", ".gz", "")


@dataclass(frozen=True)
class NamedSeries:
    path: str  # in the data directory, without .xz
    sha256: str  # of the uncompressed content
    target: str
    split: str
    licence: str
    irregular: Irregular = "refuse"
    note: str | None = None  # for every record


def _ett(name: str, checksum: str) -> NamedSeries:
    licence = "CC BY-ND 4.0: pass on no modified copy"
    return NamedSeries(f"ett/{name}.csv", checksum, "OT", "12/4/4 months", licence)


NAMED: dict[str, NamedSeries] = {
    "ETTh1": _ett("ETTh1", "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
    "ETTh2": _ett("ETTh2", "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b"),
    "ETTm1": _ett("ETTm1", "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e"),
    "ETTm2": _ett("ETTm2", "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd"),
    "WTH": NamedSeries(
        "weather/WTH.csv",
        "153fead3ea2a83dc5c4127d3994af6b167322f6f5e292c99491f43a2caf14cd4",
        "WetBulbCelsius",
        "70/10/20",
        "none is stated with the file",
        note="Informer's weather: hourly, 12 columns",
    ),
    "weather": NamedSeries(
        "weather/weather.csv",
        "34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63",
        "OT",
        "70/10/20",
        "none is stated with the file",
        irregular="keep",
        note="Autoformer's weather: every 10 minutes, 21 columns",
    ),
}


def open_series(
    spec: str,
    *,
    data_dir: Path | None = None,
    time_column: str | None = None,
    date_format: str | None = None,
    encoding: str = "utf-8",
    irregular: Irregular = "refuse",
) -> Table:
    """A CSV, or a named data set; an existing path wins over a name."""
    path = Path(spec)
    if spec and path.is_dir():
        raise ValueError(f"{spec} is a folder: name one CSV in it.")
    if spec and path.exists():
        return read_table(
            path,
            time_column=time_column,
            date_format=date_format,
            encoding=encoding,
            irregular=irregular,
        )
    if spec in NAMED:
        if (time_column, date_format, encoding, irregular) != (None, None, "utf-8", "refuse"):
            raise ValueError(
                f"The format of {spec} is known: leave out --time-column, --date-format, --encoding and "
                "--irregular."
            )
        return _open_named(spec, data_directory(data_dir))
    near = get_close_matches(spec.lower(), [name.lower() for name in NAMED], n=1)
    meant = next((f"; did you mean {name}?" for name in NAMED if name.lower() in near), "")
    raise ValueError(
        f"{spec!r} is neither a file nor a named data set ({', '.join(NAMED)}{meant})."
    )


def open_table(options: TableOptions) -> Table:
    """The series that the settings name."""
    if not options.data:
        raise ValueError("--data is missing: give a CSV, as in --data series.csv.")
    return open_series(
        options.data,
        data_dir=options.data_dir,
        time_column=options.time_column,
        date_format=options.date_format,
        encoding=options.encoding,
        irregular=options.irregular,
    )


def _open_named(name: str, folder: Path | None) -> Table:
    known = NAMED[name]
    packed = f"{known.path}.xz"
    if folder is None:
        raise OSError(
            f"{name} was not found: put {packed} (or {known.path}) into a folder and name that folder "
            "with --data-dir or HOLDOVER_DATA."
        )
    paths = [folder / f"{known.path}{packing}" for packing in PACKINGS]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise OSError(
            f"{name} was not found: put {packed} (or {known.path}) into the data directory {folder}."
        )
    checksum = content_sha256(path)
    if checksum != known.sha256:
        raise ValueError(
            f"{path} is not the published {name}: the sha256 of its content is {checksum}, but "
            f"{known.sha256} was expected; fetch it again, or read the file as it is by its path."
        )
    table = read_table(path, irregular=known.irregular)
    notes = (*table.notes, *filter(None, [known.note]), f"licence: {known.licence}")
    return replace(table, name=name, target=known.target, split=known.split, notes=notes)
