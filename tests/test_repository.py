"""The house is as it is drawn: import directions, public names, README and design run and match."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import holdover
from holdover.bundled import PLAIN, RECURRENT, bundled_model, scores_on_books
from scripts import script

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdover"
STOREYS = [
    {"config", "state", "windows", "unroll", "loss", "results", "settings", "setting_kinds"}
    | {"processes", "launch", "compiling"},
    {"mechanisms", "data", "bundled"},
    {"models", "series", "questions"},
    {"backbones"},
    {"attach"},
    {"generate", "reader"},
    {"evaluate"},
    {"train", "page"},
    {"forecast", "plot", "demo", "qa", "plan"},
    {"experiment"},
    {"report", "submit"},
    {"cli", "cli_forecast", "cli_lens", "cli_plan", "cli_qa", "cli_run", "cli_submit", "cli_text"}
    | {"cli_training"}
    | {"__main__", "__init__"},
]


def storey(part: str) -> int:
    for number, parts in enumerate(STOREYS):
        if part in parts:
            return number
    raise AssertionError(f"{part} has no storey: give it one in docs/design.md and here")


def imported_parts(path: Path) -> set[str]:
    """Top-level parts of holdover that a file imports."""
    depth = len(path.relative_to(SOURCE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            # `from . import name` is the package itself, or one of its parts.
            names = [node.module] if node.module else [alias.name for alias in node.names]
            parts = {name.split(".")[0] for name in names}
            real = {part for part in parts if list(SOURCE.glob(f"{part}*"))}
            found |= real if real == parts else real | {"__init__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdover."):
            found.add(node.module.split(".")[1])
    return found


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_go_down(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imported_parts(path) - {own, "__version__"}:
        assert storey(other) <= storey(own), f"{own} imports {other}"
        if other in {"mechanisms", "data", "backbones", "attach", "generate", "evaluate", "train"}:
            assert storey(other) < storey(own)


def test_only_backbones_and_attach_know_transformers():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        inside = path.relative_to(SOURCE).parts[0] in {
            "backbones",
            "models",
            "attach",
            "generate",
        }
        # Tokenizers are the data's.
        inside = inside or str(path.relative_to(SOURCE)) == "data/encoders.py"
        if not inside:
            assert "transformers" not in {
                alias.name.split(".")[0]
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Import)
                for alias in node.names
            }, path
            assert not re.search(r"^from transformers", text, re.M), path


def test_public_names_are_these():
    assert sorted(holdover.__all__) == [
        "BACKBONES",
        "CARRIES",
        "Recompute",
        "RecurrenceConfig",
        "RecurrentModel",
        "RecurrentModelConfig",
        "RecurrentOutput",
        "Session",
        "State",
        "Wanted",
        "Window",
        "add_recurrence",
        "cut",
        "lens",
        "remove_recurrence",
        "unroll",
    ]


def test_the_tree_in_the_readme_is_the_tree():
    tree = (ROOT / "README.md").read_text().split("## The tree")[1].split("```")[1]
    named = set(re.findall(r"^    ((?:\w+(?:\.py|/) ?)+)", tree, re.M))
    parts = {part for line in named for part in line.split()}
    real = {
        path.name + ("/" if path.is_dir() else "")
        for path in SOURCE.iterdir()
        if not path.name.startswith("__")
    }
    assert parts == real
    for line in re.findall(r"^(\w[\w./]*)", tree, re.M):
        assert (ROOT / line).exists(), line


def test_files_stay_readable():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path
        assert path.stem not in {"utils", "common", "helpers", "misc"}


def test_the_readmes_example_runs(tmp_path, monkeypatch):
    """With a tiny random GPT-2 and a byte tokenizer in place of the hub's."""
    import transformers

    from tiny import build

    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    base = build("gpt2", n_positions=1024, vocab_size=256)

    class Bytes:
        def __call__(self, text, return_tensors):
            ids = torch.tensor([list(text.encode())])
            return type("Encoded", (), {"input_ids": ids})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name: base)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Bytes())
    found: dict = {}
    exec(block.group(1), found)
    assert found["base"] is base
    assert (tmp_path / "book.state").stat().st_size < 8192
    again = holdover.RecurrentModel.from_pretrained(tmp_path / "my-model")
    state = holdover.State.load(tmp_path / "book.state")
    again.adopt(state)
    shutil.rmtree(tmp_path / "my-model")


def shown_in_readme(name: str) -> str:
    return shown_in("README.md", name)


def shown_in(page: str, name: str) -> str:
    text = (ROOT / page).read_text()
    return re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.S)[1].strip()


@pytest.mark.parametrize("name", ["generation", "speed", "training"])
def test_the_readmes_tables_are_the_benchmarks_records(name):
    benchmark = script(f"benchmarks/{name}.py")
    assert shown_in_readme(name) == benchmark.report(ROOT / "results" / name)


@pytest.mark.parametrize("name", ["rsa", "transformer_xl", "block_recurrent", "compiled_gradients"])
def test_the_guides_tables_are_the_benchmarks_records(name):
    benchmark = script(f"benchmarks/{name}.py")
    assert shown_in("docs/training.md", name) == benchmark.report(ROOT / "results" / name)


def test_the_readmes_evaluations_are_the_records():
    from holdover.evaluate.show import markdown

    records = {
        path.stem.rpartition("-")[2]: json.loads(path.read_text())
        for path in sorted((ROOT / "results" / "evaluation").glob("*.json"))
    }
    assert shown_in_readme("evaluation") == markdown(records)


def test_the_readmes_demo_table_is_the_record():
    record = json.loads((ROOT / "results" / "demo" / "demo.json").read_text())
    lines = ["| twin | overlap | perplexity | MFLOPs | tokens/s |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        perplexity = f"{row['perplexity']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        cells = [row["twin"], str(row["overlap"]), perplexity]
        cells += [f"{row['flops_per_token'] / 1e6:.1f}", f"{row['tokens_per_second']:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    seconds = record["seconds"]
    stages = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    lines += [
        "",
        f"Stages, on {record['provenance']['device']}: {stages}; {sum(seconds.values()):.0f} s.",
    ]
    assert shown_in_readme("demo") == "\n".join(lines)


def test_the_readmes_table_of_states_is_the_record():
    shipping = script("experiments/bundled_shipping.py")
    record = json.loads((ROOT / "results" / "bundled_model" / "bundled_model.json").read_text())
    assert shown_in_readme("bundled") == shipping.table(record)
    for name in (PLAIN, RECURRENT):
        assert shipping.table(record) in (bundled_model(name) / "README.md").read_text()
    assert shipping.scores(record) == scores_on_books()


def test_no_machine_paths_or_hosts_are_committed():
    for path in [*SOURCE.rglob("*.py"), *(ROOT / "results").rglob("*.json"), *ROOT.glob("*.md")]:
        assert not re.search(r"/work/|/root/|/home/\w|site-packages", path.read_text()), path
