"""Settings: where a value comes from, and what is said of one that cannot be."""

import argparse
import json
import re
from pathlib import Path

import pytest

from holdover.cli import entry as cli
from holdover.language.eval_options import EvalOptions
from holdover.language.options import TrainOptions
from holdover.runs.settings import (
    add_flags,
    as_dict,
    build,
    given_settings,
    named_as_typed,
    parse_words,
    settings_of,
)
from holdover.training.options import ALIASES
from runs import command, refusal

NEEDED = {"model": "gpt2", "data": "novel.txt"}


def parsed(*arguments: str, options: type = TrainOptions) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, options)
    return parser.parse_args(arguments)


def read(*arguments: str) -> TrainOptions:
    needed = [f"--{key}={value}" for key, value in NEEDED.items()]
    return build(TrainOptions, given_settings(TrainOptions, parsed(*needed, *arguments)))


def write(path: Path, settings: dict) -> str:
    """As JSON or YAML, by the name's end."""
    import yaml

    path.write_text(
        json.dumps(settings, indent="\t") if path.suffix == ".json" else yaml.safe_dump(settings)
    )
    return str(path)


@pytest.mark.parametrize("name", ["settings.yaml", "settings.yml", "settings.json"])
def test_words_win_over_flags_and_flags_over_the_file(name, tmp_path):
    file = write(tmp_path / name, {"rows": 2, "windows": 3, "accumulate": 4, "bf16": True})
    found = read("--config", file, "--windows", "30", "--accumulate", "40", "accumulate=400")
    assert (found.rows, found.windows, found.accumulate, found.bf16) == (2, 30, 400, True)
    assert found.keep == TrainOptions(**NEEDED).keep


@pytest.mark.parametrize("name", ["settings.yaml", "settings.json"])
@pytest.mark.parametrize(
    "settings",
    [
        {"recurrence": {"window": 9, "overlap": 2, "carry": "tokens"}},
        {"recurrence.window": 9, "recurrence.overlap": 2, "recurrence.carry": "tokens"},
        {"window": 9, "overlap": 2, "recurrence": "tokens"},
    ],
    ids=["section", "dotted", "aliases"],
)
def test_sections_dots_and_aliases_are_the_same(name, settings, tmp_path):
    found = read("--config", write(tmp_path / name, settings)).recurrence
    assert (found.window, found.overlap, found.carry) == (9, 2, "tokens")


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["--window", "9"], "window", 9),
        (["--recurrence.window", "9"], "window", 9),
        (["window=9"], "window", 9),
        (["recurrence.window=9"], "window", 9),
        (["--overlap", "3"], "overlap", 3),
        (["--recurrence", "none"], "carry", "none"),
        (["recurrence=none"], "carry", "none"),
        (["--recurrence.map-hidden", "8,4"], "map_hidden", (8, 4)),
        (["recurrence.map-hidden=8"], "map_hidden", (8,)),
        (["recurrence.map_hidden="], "map_hidden", ()),
        (["recurrence.insert_layer=all"], "insert_layer", "all"),
        (["--recurrence.insert-layer", "1"], "insert_layer", 1),
        (["--recurrence.detach-state"], "detach_state", True),
    ],
)
def test_the_recurrence_by_all_its_names(arguments, key, value):
    assert getattr(read(*arguments).recurrence, key) == value


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("lr=1e-3", "learning_rate", 1e-3),
        ("learning-rate=5e-5", "learning_rate", 5e-5),
        ("max_tokens=1e6", "max_tokens", 1_000_000),
        ("validate_every=2_000", "validate_every", 2000),
        ("seed=4294967295", "seed", 2**32 - 1),
        ("max_steps=none", "max_steps", None),
        ("clip=none", "clip", None),
        ("tokenizer=none", "tokenizer", None),
        ("gguf_file=none", "gguf_file", None),
        ("cache_dir=none", "cache_dir", None),
        ("new_document=null", "new_document", None),
        ("betas=0.8,0.95", "betas", (0.8, 0.95)),
        ("report_to=tensorboard,wandb", "report_to", ("tensorboard", "wandb")),
        ("output=~/here", "output", Path.home() / "here"),
        ("new_document=^a=b", "new_document", "^a=b"),
        ("compile=true", "compile", True),
        ("compile=no", "compile", False),
    ],
)
def test_words_become_values(word, key, value):
    assert getattr(read(word), key) == value


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("tokenizer", None, None),
        ("clip", None, None),
        ("learning_rate", "5e-5", 5e-5),
        ("max_steps", 7.0, 7),
        ("betas", [0.5, 0.9], (0.5, 0.9)),
        ("report_to", "tensorboard", ("tensorboard",)),
        ("text_field", 5, "5"),
        ("shape", {"n_layer": 2}, {"n_layer": 2}),
    ],
)
def test_values_of_a_file(key, given, value, tmp_path):
    settings = {key: given, "from_scratch": True}
    assert getattr(read("--config", write(tmp_path / "a.yaml", settings)), key) == value


def test_shapes():
    found = read(
        "--from-scratch", "--shape", "n_layer=2, layer_norm_epsilon=1e-5,tie=false,act=gelu"
    )
    assert found.shape == {"n_layer": 2, "layer_norm_epsilon": 1e-5, "tie": False, "act": "gelu"}


def test_large_numbers_are_not_rounded():
    assert build(EvalOptions, NEEDED, {"seed": str(2**60 + 1)}).seed == 2**60 + 1


def test_defaults_come_before_the_file(tmp_path):
    file = write(tmp_path / "a.yaml", {"rows": 3})
    needed = [f"--{key}={value}" for key, value in NEEDED.items()]
    given = parsed(*needed, "--config", file, "--overlap", "1")
    defaults = {"rows": 1, "windows": 5, "recurrence": {"window": 6, "overlap": 2}}
    found = build(TrainOptions, defaults, given_settings(TrainOptions, given))
    assert (found.rows, found.windows) == (3, 5)
    assert (found.recurrence.window, found.recurrence.overlap) == (6, 1)


def test_as_dict_can_be_read_back(tmp_path):
    options = read("--window", "9", "betas=0.8,0.9", "--from-scratch", "--shape", "n_layer=2")
    file = write(tmp_path / "a.json", as_dict(options))
    given = given_settings(TrainOptions, parsed("--config", file))
    assert build(TrainOptions, given) == options


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("learning_rat", "learning_rate"),
        ("recurrence.slot", "recurrence.slots"),
        ("slots", "recurrence.slots"),
        ("windw", "window"),
        ("acumulate", "accumulate"),
    ],
)
def test_unknown_keys_name_their_neighbours(key, near, tmp_path, capsys):
    in_word = refusal(capsys, command(tmp_path, f"{key}=1"))
    file = write(tmp_path / "a.yaml", {key: 1})
    in_file = refusal(capsys, command(tmp_path, config=file))
    for said in (in_word, in_file):
        assert repr(key) in said and near in said.partition("did you mean")[2]
    if "." not in key and key != "slots":
        flag = f"--{key.replace('_', '-')}"
        said = refusal(capsys, command(tmp_path, f"{flag}=1"))
        assert said.startswith(f"holdover: {flag} is not a flag")
        assert f"--{near.replace('_', '-')}" in said


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("rows=many", "a whole number"),
        ("rows=2.5", "a whole number"),
        ("rows=none", "a whole number"),
        ("max_steps=soon", "a whole number or none"),
        ("lr=fast", "a number"),
        ("clip=nothing", "a number or none"),
        ("bf16=maybe", "true or false"),
        ("schedule=square", "'constant' or 'linear' or 'cosine'"),
        ("device=tpu", "'auto'"),
        ("recurrence.map_hidden=8,wide", "a whole number or several with commas"),
        ("recurrence.insert_layer=first", "a whole number or 'all'"),
        ("recurrence.pooling=sum", "'attention'"),
        ("shape=n_layer", "KEY=VALUE with commas"),
        ("shape=n_layer=[2", "KEY=VALUE with commas"),
    ],
)
def test_wrong_values_say_what_was_expected(word, expected, tmp_path, capsys):
    key = word.partition("=")[0]
    said = refusal(capsys, command(tmp_path, word))
    assert said.startswith(f"holdover: {key}=") and expected in said


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rows": True}, "a whole number"),
        ({"rows": [2]}, "a whole number"),
        ({"data": ["a.txt", "b.txt"]}, "a name"),
        ({"data": True}, "a name"),
        ({"data": None}, "a name"),
        ({"output": 5}, "a path"),
        ({"lr": True}, "a number"),
        ({"bf16": 1}, "true or false"),
        ({"shape": ["n_layer"]}, "KEY=VALUE"),
    ],
)
def test_wrong_values_in_a_file(settings, expected, tmp_path, capsys):
    key = next(iter(settings))
    file = write(tmp_path / "a.yaml", settings)
    said = refusal(capsys, command(tmp_path, config=file))
    # A flag of the same name comes after the file and wins.
    assert said.startswith(f"holdover: {key}=") and expected in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"overlap": 8}, "--overlap 8 must be smaller than --window 8"),
        ({"window": 0}, "--window 0"),
        ({"rows": 0}, "--rows 0 must be at least 1"),
        ({"lr": 0}, "--lr 0.0 must be greater than 0"),
        ({"lr": "nan"}, "--lr nan must be greater than 0"),
        ({"weight_decay": -1}, "--weight-decay -1.0"),
        ({"betas": "0.9"}, "--betas (0.9,) must be two"),
        ({"betas": "0.9,1"}, "--betas (0.9, 1.0) must be two"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 10**20}, "--seed 1"),
        ({"held_out": 1}, "--held-out 1.0 must be a share"),
        ({"report_to": "paper"}, "'paper' is no tracker"),
        ({"patience": 0}, "--patience 0"),
        ({"max_time": 0}, "--max-time 0"),
        ({"recurrence": "dreams"}, "'dreams'"),
    ],
)
def test_values_out_of_range(settings, said, tmp_path, capsys):
    assert said in refusal(capsys, command(tmp_path, **settings))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.yaml", None, "no settings file"),
        ("a.yaml", "rows: [1", "not valid YAML or JSON"),
        ("a.json", "{", "not valid YAML or JSON"),
        ("a.yaml", "", "KEY: VALUE"),
        ("a.yaml", "- rows", "KEY: VALUE"),
        ("a.yaml", b"\xff\xfe\xfa", "not valid YAML or JSON"),
    ],
)
def test_files_that_hold_no_settings(name, content, said, tmp_path, capsys):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    sentence = refusal(capsys, command(tmp_path, config=path))
    assert said in sentence and name in sentence


def test_words_that_are_no_settings(tmp_path, capsys):
    assert "neither a flag nor KEY=VALUE" in refusal(capsys, command(tmp_path, "rows"))
    # Words may stand anywhere among the flags.
    apart = ["train", "rows=1", "--lr", "1", "windows=0", "--model", "gpt2", "--data", "a.txt"]
    assert "windows=0 must be at least 1" in refusal(capsys, apart)


@pytest.mark.parametrize("options", [TrainOptions, EvalOptions])
def test_every_setting_has_a_help_text(options):
    found = settings_of(options)
    assert len(found) > 20
    assert not [key for key, setting in found.items() if not setting.help]


@pytest.mark.parametrize(("verb", "options"), [("train", TrainOptions), ("eval", EvalOptions)])
def test_help_mentions_every_key(verb, options, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([verb, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for key in settings_of(options):
        assert f"--{key.replace('_', '-')}" in shown
    aliases = ALIASES if options is TrainOptions else {}
    for name in ("config", *aliases):
        assert re.search(rf"--{name.replace('_', '-')}[ ,]", shown)
    assert "KEY=VALUE" in shown


@pytest.mark.parametrize("verb", ["train", "eval"])
def test_flags_are_never_abbreviated(verb, capsys):
    assert "--mod is not a flag" in refusal(capsys, [verb, "--mod=gpt2"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-steps", "0"], "holdover: --max-steps 0 must be at least 1."),
        (["--max-steps=0"], "holdover: --max-steps 0 must be at least 1."),
        (["max_steps=0"], "holdover: max_steps=0 must be at least 1."),
        (["max-steps=0"], "holdover: max-steps=0 must be at least 1."),
        (["--learning-rate", "0"], "holdover: --learning-rate 0.0 must be greater than 0."),
        (["learning_rate=0"], "holdover: learning_rate=0.0 must be greater than 0."),
        (["--recurrence.slots", "0"], "holdover: --recurrence.slots 0 must be a whole number"),
        (["recurrence.slots=0"], "holdover: recurrence.slots=0 must be a whole number"),
        (["overlap=9"], "holdover: overlap=9 must be smaller than --window 8"),
        (["--rows", "many"], "holdover: --rows 'many' is not valid: expected a whole number."),
        (["--no-from-scratch"], "holdover: --shape: only random models can change it"),
        (["--report-to", "x"], "holdover: --report-to 'x' is no tracker"),
    ],
)
def test_messages_name_settings_as_they_were_typed(words, said, tmp_path, capsys):
    taken = {"--max-steps": "max_steps", "--learning-rate": "lr", "--rows": "rows"}
    left_out = {name: None for flag, name in taken.items() if words[0].startswith(flag)}
    if words[0] == "learning_rate=0":
        left_out = {"lr": None}
    assert refusal(capsys, command(tmp_path, *words, **left_out)).startswith(said)


def test_messages_name_the_keys_of_a_file(tmp_path, capsys):
    file = write(tmp_path / "a.yaml", {"recurrence": {"slots": 0}, "rows": 2})
    said = refusal(capsys, command(tmp_path, config=file, rows=None))
    assert said.startswith("holdover: recurrence.slots=0 must be")
    file = write(tmp_path / "a.yaml", {"rows": 0})
    said = refusal(capsys, command(tmp_path, config=file, rows=None))
    assert said.startswith("holdover: rows=0 must be")


def test_messages_in_python_name_fields():
    with pytest.raises(ValueError, match=r"^max_steps=0 must be at least 1\.$"):
        TrainOptions.of(**NEEDED, max_steps=0)


@pytest.mark.parametrize(
    ("message", "renamed"),
    [
        ("bf16=True is not for CPUs; metrics=False neither.", None),
        ("compile=True fails.", "--compile fails."),
        ("compile=False fails.", "--no-compile fails."),
        ("time runs/rows=3/x and 'rows=3' and f(rows=3) stay", None),
        ("(rows=3) is renamed", "(--rows 3) is renamed"),
        (
            "rows is an English word, max_steps is not.",
            "rows is an English word, --max-steps is not.",
        ),
        ("rows: too few.", "--rows: too few."),
        ("my_max_steps=3 and max_steps_x stay", None),
    ],
)
def test_only_names_of_settings_are_renamed(message, renamed):
    parser = argparse.ArgumentParser()
    for name in ("rows", "max_steps"):
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    given = parse_words(parser, [])
    with pytest.raises(ValueError, match=".") as raised, named_as_typed(given):
        raise ValueError(message)
    assert str(raised.value) == (renamed or message)
