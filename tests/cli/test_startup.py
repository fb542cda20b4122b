"""The command line starts at once: what it answers without importing torch."""

import json
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest
import torch

from holdover import Session
from holdover.cli.entry import GROUPS, VERBS
from holdover.cli.verb import OptionsVerb, TrainingVerb, named
from holdover.tokenization.encoders import ByteEncoder
from tiny import attach, build

SLOW = {
    *("torch", "transformers", "numpy", "accelerate", "matplotlib", "rich", "safetensors"),
    *("tokenizers", "submitit", "yaml"),
}
# Runs commands in one process; prints for each its exit code and the slow modules loaded so far.
RUN = f"""
import contextlib, io, json, sys
from holdover.cli.entry import main
for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([words, code, sorted({SLOW} & set(sys.modules)), out.getvalue()]))
"""


def answers(*commands, folder=None):
    """(words, exit code, output) of commands that must not import slow modules."""
    call = [sys.executable, "-c", RUN, json.dumps(commands)]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=folder)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(commands)
    for words, _, slow, _ in results:
        assert not slow, f"holdover {' '.join(words)} imports {', '.join(slow)}"
    return [(words, code, output) for words, code, _, output in results]


def test_help_of_every_verb_and_group():
    commands = [[], *([group] for group in GROUPS), *(verb.name.split() for verb in VERBS)]
    for words, code, output in answers(*([*words, "--help"] for words in commands)):
        assert code == 0 and output.startswith(f"usage: {' '.join(['holdover', *words[:-1]])}")
    ((_, code, output),) = answers(["--help"])
    for verb in VERBS:
        assert verb.name.split()[0] in output


def test_mistyped_verbs_and_flags():
    mistyped = [[f"{verb.name.split()[0]}x"] for verb in VERBS]
    mistyped += [[*verb.name.split(), "--outptu", "x"] for verb in VERBS if verb.name != "submit"]
    for words, code, output in answers(*mistyped):
        assert code == 2 and output.count("\n") == 1, (words, output)
        assert output.startswith("holdover: ") and output.endswith((".\n", "?\n"))


def test_version_and_jobs_without_a_submission(tmp_path):
    commands = (["--version"], ["jobs"], ["jobs", "--json"], ["jobs", "--cancel", "7"])
    version, jobs, as_json, cancel = answers(*commands, folder=tmp_path)
    assert version[1] == 0 and version[2].startswith("holdover ")
    assert jobs[1] == 0 and "No jobs were submitted" in jobs[2]
    assert as_json[1] == 0 and json.loads(as_json[2]) == []
    assert cancel[1] == 2 and "There is no job 7" in cancel[2]


def test_session_info(tmp_path):
    model = attach(build("gpt2", vocab_size=256), overlap=3).eval()
    session = Session(model, ByteEncoder(), model_name="a-model", temperature=0.5)
    session.read("It was late when K. arrived.")
    session.write(4)
    session.save(tmp_path / "s")
    damaged = bytearray((tmp_path / "s").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    info = ["session", "info"]
    commands = ([*info, "s", "--json"], [*info, "s"], [*info, "damaged"], [*info, "gone"])
    as_json, shown, changed, gone = answers(*commands, folder=tmp_path)
    content = json.loads(as_json[2])
    assert content["model"]["name"] == "a-model" and content["model"]["overlap"] == 3
    assert content["position"] == session.position and content["windows"] == session.windows
    assert content["sampling"] == {"temperature": 0.5, "top_k": None, "top_p": None}
    assert content["state"] == {"summary": "1x1x32 float32"}
    assert (
        content["random"] == f"{torch.Generator().get_state().numel()} bytes of torch's generator"
    )
    assert content["size"] == (tmp_path / "s").stat().st_size
    assert shown[1] == 0 and "name a-model" in shown[2]
    assert changed[1] == 2 and "was changed after it was saved" in changed[2]
    assert gone[1] == 2 and "There is no session file at gone" in gone[2]


def test_importing_options_is_quick():
    modules = sorted({verb.options.partition(":")[0] for verb in VERBS if has_options(verb)})
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(*sys.modules)"
    call = [sys.executable, "-c", code, *(f"holdover.{module}" for module in modules)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert not SLOW & set(done.stdout.split())


def has_options(verb) -> bool:
    return isinstance(verb, OptionsVerb)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_what_verbs_name_exists(verb):
    paths = [verb.run, verb.arguments]
    if has_options(verb):
        paths += [verb.options, verb.given_as]
    if isinstance(verb, TrainingVerb):
        paths += [verb.defaults]
    for path in filter(None, paths):
        assert callable(named(path)), path


def test_names_in_options_are_those_of_the_tables():
    from holdover.experiments import definition
    from holdover.experiments.options import SCALES, RunOptions
    from holdover.forecasting.models import registry
    from holdover.forecasting.options import FORECASTERS, WITH_DECODER

    assert tuple(registry.FORECASTERS) == FORECASTERS
    decoders = [name for name, cls in registry.FORECASTERS.items() if cls.decodes]
    assert tuple(decoders) == WITH_DECODER
    assert definition.SCALES == SCALES == get_args(get_type_hints(RunOptions)["scale"])
