"""What the files of version 0.1.0 give when they are opened: used to write them and to test them.

Each function works in a copy of the folder v0_1_0, the current folder, and returns plain values.
`write_files.py` records them with the 0.1.0 code; `test_v0_1_0.py` compares them with what the current
code returns. Only the command line and names that the README and the docs show are used.
"""

import contextlib
import io
import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import holdover

VOCABULARY = 61
NEW_TOKENS = 24
# Steps at which the training runs stop, and to which they are continued.
STOPPED, CONTINUED = 30, 36
SMALL = {"n_layer": 2, "n_head": 2, "initializer_range": 0.2}
GPT2 = {**SMALL, "n_embd": 8, "n_inner": 16, "n_positions": 32}
XL = {**SMALL, "d_model": 8, "d_head": 4, "d_inner": 16}
# One training run per kind of state. A run is continued by the command that began it.
RUNS: dict[str, dict[str, Any]] = {
    "pooled": {
        "model": "gpt2",
        "shape": GPT2,
        "overlap": 2,
        "recurrence.map-hidden": "8",
        "recurrence.insert-layer": "all",
    },
    "tokens": {
        "model": "gpt2",
        "shape": GPT2,
        "recurrence": "tokens",
        "recurrence.slots": 2,
        "recurrence.map-hidden": "8",
        "freeze-base": True,
    },
    "memory": {
        "model": "holdover_xl",
        "shape": {
            **XL,
            "attention": "rsa",
            "rem_counts": "[0,0,0,0,1,1]",
            "rem_dilations": "[2,3]",
        },
        "recurrence": "memory",
        "recurrence.memory-length": 6,
    },
    "blocks": {
        "model": "holdover_xl",
        "shape": {**XL, "recurrent_layers": "[1]", "state_vectors": 3},
        "recurrence": "blocks",
        "recurrence.horizon": 2,
    },
}
FORECASTERS: dict[str, dict[str, Any]] = {
    "informer": {
        "shape": "d_model=16,n_heads=8,d_ff=16,e_layers=1,d_layers=1,rsa=true",
        "max-steps": 5,
    },
    "dlinear": {"epochs": 1},
    "lstm": {"shape": "hidden_size=8", "epochs": 1},
    "seasonal": {},
}
# Words in the names of numbers that differ each time.
VARYING = re.compile("second|memory|time|date|cost|peak|bytes")


def verb(*words: Any) -> str:
    """Run `python -m holdover WORDS` in this process; returns what it wrote to standard output."""
    output, before = io.StringIO(), sys.argv
    sys.argv = ["holdover", *map(str, words)]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_module("holdover", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise AssertionError(
                f"holdover {' '.join(map(str, words))} ended with {end.code}"
            ) from end
    finally:
        sys.argv = before
    return output.getvalue()


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as they are typed on the command line."""
    typed = []
    for name, value in settings.items():
        if isinstance(value, dict):
            value = ",".join(f"{key}={inner}" for key, inner in value.items())
        typed += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return typed


def train_command(name: str, steps: int) -> list[str]:
    settings = {
        "tokenizer": "bytes",
        "data": "text.txt",
        "new-document": "^#",
        "window": 8,
        "windows": 2,
        "rows": 3,
        "warm-up": 2,
        "lr": 1e-2,
        "added-learning-rate": 1e-2,
        "validate-every": 200,
        "keep": 1,
        "device": "cpu",
        "cache-dir": "cache",
        "output": f"train/{name}",
        "max-steps": steps,
        **RUNS[name],
    }
    return ["train", "--from-scratch", *flags(settings)]


def qa_command(steps: int) -> list[str]:
    settings = {
        "model": "qa/encoder",
        "data": "qa/questions.json",
        "window": 14,
        "rows": 3,
        "lr": 1e-3,
        "added-learning-rate": 1e-3,
        "warm-up": 0,
        "recurrence.map-hidden": "8",
        "keep": 1,
        "device": "cpu",
        "output": "qa/run",
        "max-steps": steps,
    }
    return ["qa", "train", *flags(settings)]


def forecast_command(name: str, **changed: Any) -> list[str]:
    settings = {
        "model": name,
        "data": "forecast/power.csv",
        "past": 24,
        "ahead": 6,
        "lr": 1e-2,
        "rows": 16,
        "keep": 1,
        "device": "cpu",
        "output": f"forecast/{name}",
        **FORECASTERS[name],
        **changed,
    }
    return ["forecast", "train", *flags(settings)]


def read_states() -> dict[str, Any]:
    """Each state goes into its model, which reads on."""
    found: dict[str, Any] = {}
    for path in sorted(Path("states").glob("*.state")):
        model = holdover.RecurrentModel.from_pretrained(Path("models") / path.stem).eval()
        state = holdover.State.load(path)
        ids = token_ids(state.batch_size, 20, seed=5)
        with torch.no_grad():
            out, loss = model(ids, state=state), model(ids, labels=ids, state=state).loss
        found[path.stem] = {
            "rows": state.batch_size,
            "bytes": state.nbytes,
            "present": state.presence().tolist(),
            "tail": None if state.tail is None else state.tail.tolist(),
            "state": state_sums(state),
            "loss": loss.item(),
            "logits": sums(out.logits),
            "next tokens": out.logits.argmax(-1)[:, -4:].tolist(),
            "next state": state_sums(out.state),
        }
    return found


def read_sessions() -> dict[str, Any]:
    """Each session writes on, in Python and on the command line; one goes on reading its file."""
    found: dict[str, Any] = {}
    for path in sorted(Path("sessions").glob("*.hold")):
        name = path.stem.partition("-")[0]
        model = holdover.RecurrentModel.from_pretrained(f"train/{name}/best").eval()
        session = holdover.Session.load(path, model, "bytes")
        place = [session.position, session.windows, session.state_bytes]
        text = session.write(NEW_TOKENS)
        command = ["generate", "--session", path, "--model", f"train/{name}/best", "--no-save"]
        assert verb(*command, "--max-new-tokens", NEW_TOKENS) == text
        assert json.loads(verb("session", "info", path, "--json"))
        found[path.stem] = {
            "position, windows, bytes": place,
            "text": text,
            "greedy": session.write(NEW_TOKENS, temperature=0.0),
        }
    path = Path("sessions/pooled-reading.hold")
    verb("read", "text.txt", "--session", path, "--model", "train/pooled/best")
    model = holdover.RecurrentModel.from_pretrained("train/pooled/best").eval()
    session = holdover.Session.load(path, model, "bytes")
    assert [file.finished for file in session.files] == [True]
    found["read on"] = [session.position, session.windows, session.write(NEW_TOKENS)]
    return found


def read_bundled_session() -> dict[str, Any]:
    """This session names its model, which is in the package."""
    path = "sessions-of-bundled/books.hold"
    text = verb("generate", "--session", path, "--max-new-tokens", NEW_TOKENS, "--no-save")
    return {"text": text}


def continue_training(name: str) -> dict[str, Any]:
    """The losses of the steps and validations after the checkpoint; the token cache is used as it is."""
    cached = {path: path.stat().st_mtime_ns for path in Path("cache").rglob("*") if path.is_file()}
    verb(*train_command(name, CONTINUED), "--resume")
    for path, changed in cached.items():
        assert path.stat().st_mtime_ns == changed, f"{path} was written again"
    assert {path for path in Path("cache").rglob("*") if path.is_file()} == set(cached)
    return logged(Path("train") / name, STOPPED)


def read_model_of_run() -> dict[str, Any]:
    """An evaluation of a run, at the overlap of its training and another."""
    settings = {
        "model": "train/pooled",
        "data": "text.txt",
        "new-document": "^#",
        "split": "all",
        "overlap": "0,2",
        "draws": 100,
        "diagnose-windows": 20,
        "device": "cpu",
        "cache-dir": "cache",
        "output": "new-evaluation",
    }
    verb("eval", *flags(settings), "--no-plots")
    return numbers_of(json.loads(Path("new-evaluation/eval.json").read_text())["rows"])


def read_evaluations() -> dict[str, Any]:
    """The records of two evaluations are compared and plotted."""
    folders = ["evaluation/pooled", "evaluation/tokens"]
    shown = verb("compare", *folders)
    verb("plot", *folders, "train/pooled", "--output", "new-plots")
    assert list(Path("new-plots").glob("*.png"))
    return {"compared": decimals_in(shown)}


def read_adapters() -> dict[str, Any]:
    """What was saved with only_added=True finds its base; it also goes onto a base that is given."""
    import transformers

    found: dict[str, Any] = {}
    ids = token_ids(2, 20, seed=5)
    for name in ("added", "added-lora"):
        base = transformers.AutoModelForCausalLM.from_pretrained("adapter/base")
        folder = f"adapter/{name}"
        own = holdover.RecurrentModel.from_pretrained(folder).eval()
        given = holdover.RecurrentModel.from_pretrained(folder, base_model=base).eval()
        with torch.no_grad():
            out, other, loss = own(ids), given(ids), own(ids, labels=ids).loss
        assert torch.equal(out.logits, other.logits)
        found[name] = {"loss": loss.item(), "logits": sums(out.logits)}
        found[name]["state"] = state_sums(out.state)
    model = holdover.RecurrentModel.from_pretrained("adapter/whole-lora").eval()
    with torch.no_grad():
        found["whole-lora"] = sums(model(ids).logits)
    return found


def read_questions() -> dict[str, Any]:
    """A reader answers and is scored; its training goes on."""
    asked = ["--question", "what is it", "--context", "qa/context.txt", "--json", "--device", "cpu"]
    answer = json.loads(verb("qa", "ask", "--model", "qa/run", *asked))
    settings = {"model": "qa/run", "draws": 100, "device": "cpu", "output": "new-qa-evaluation"}
    verb("qa", "eval", *flags(settings))
    record = json.loads(Path("new-qa-evaluation/qa_eval.json").read_text())
    verb(*qa_command(CONTINUED), "--resume")
    return {
        "answer": {key: answer[key] for key in ("answer", "kind", "probability", "start", "stop")},
        "evaluation": numbers_of(record["rows"]),
        "training": logged(Path("qa/run"), STOPPED),
    }


def read_forecasters() -> dict[str, Any]:
    """Forecasters are scored and asked for the future; a training goes on."""
    names = sorted(FORECASTERS)
    found: dict[str, Any] = {"forecasts": {}}
    for name in names:
        path = Path(f"new-{name}.csv")
        model = ["--model", f"forecast/{name}", "--device", "cpu", "--output", path]
        verb("forecast", "predict", *model, "--no-plot")
        lines = path.read_text().splitlines()
        found["forecasts"][name] = [list(map(plain, line.split(","))) for line in lines]
    against = ",".join(f"forecast/{name}" for name in names if name != "informer")
    settings = {"against": against, "draws": 100, "device": "cpu", "output": "new-forecast-eval"}
    verb("forecast", "eval", "--model", "forecast/informer", *flags(settings), "--no-plots")
    record = json.loads(Path("new-forecast-eval/forecast_eval.json").read_text())
    found["errors"] = {row["name"]: row["scaled"]["mse"] for row in record["rows"]}
    steps = {"max-steps": 10}
    verb(*forecast_command("informer", **steps), "--resume")
    found["training"] = logged(Path("forecast/informer"), FORECASTERS["informer"]["max-steps"])
    return found


def read_experiment() -> dict[str, Any]:
    """Records of an experiment are found again, so that nothing is run, and are reported."""
    run = ["run", "experiment/small_experiment.py", "--scale", "small", "--device", "cpu"]
    run += ["--cache-dir", "cache-of-experiment"]
    verb(*run, "--results", "experiment/records", "--output", "new-runs")
    assert not list(Path("new-runs").rglob("measured")), "a run that has a record was run again"
    verb("report", "--results", "experiment/records", "--output", "new-report.html")
    return {"tables": table_numbers(Path("new-report.md").read_text(encoding="utf-8"))}


READERS: dict[str, Callable[[], dict[str, Any]]] = {
    "states": read_states,
    "sessions": read_sessions,
    "sessions-of-bundled": read_bundled_session,
    **{f"train/{name}": lambda name=name: continue_training(name) for name in RUNS},
    "evaluation": read_evaluations,
    "evaluation/new": read_model_of_run,
    "adapter": read_adapters,
    "qa": read_questions,
    "forecast": read_forecasters,
    "experiment": read_experiment,
}


def token_ids(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, columns), generator=generator)


def sums(tensor: torch.Tensor) -> list[float]:
    """The sums of the positive and of the negative values, in double precision: nothing cancels."""
    wide = tensor.detach().double()
    return [wide.clamp(min=0).sum().item(), wide.clamp(max=0).sum().item()]


def state_sums(state: holdover.State) -> list[float]:
    added = [0.0, 0.0]
    for tensor in state.tensors.values():
        added = [before + new for before, new in zip(added, sums(tensor), strict=True)]
    return added


def logged(run: Path, after: int) -> dict[str, Any]:
    """What a run's log says of the steps after one."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["step"] > after]
    return {
        "losses": [[line["step"], line["loss"]] for line in lines if "loss" in line],
        "validations": [
            [line["step"], line["valid_loss"]] for line in lines if "valid_loss" in line
        ],
    }


def numbers_of(value: Any) -> Any:
    """The numbers of a record: no words, no long lists, and nothing that differs each time."""
    if isinstance(value, dict):
        kept = {key: numbers_of(inner) for key, inner in value.items() if not VARYING.search(key)}
        return {key: inner for key, inner in kept.items() if inner not in (None, {}, [])}
    if isinstance(value, list):
        kept_items = [numbers_of(inner) for inner in value] if len(value) <= 12 else []
        return [inner for inner in kept_items if inner is not None]
    return None if isinstance(value, str) else value


def decimals_in(text: str) -> list[float]:
    """The numbers with decimal places in a text, in their order."""
    found = re.findall(r"[-+\u2212]?\d[\d,]*\.\d+", text)
    return [float(number.replace(",", "").replace("\u2212", "-")) for number in found]


def table_numbers(markdown: str) -> list[list[float]]:
    """The numbers with decimal places in each row of the tables."""
    rows = [decimals_in(line) for line in markdown.splitlines() if line.startswith("|")]
    return [row for row in rows if row]


def plain(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
