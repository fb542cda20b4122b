"""The house is as it is drawn: import directions, public names, README and design run and match."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdover
from holdover.bundled import PLAIN, RECURRENT, bundled_model, scores_on_books
from scripts import script

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdover"
CORE = {
    *("config", "state", "storage", "windows", "unrolling", "loss", "lazy_exports"),
    *("deprecated_modules", "carries", "ops", "backbones", "models", "recurrent", "generation"),
    *("tokenization", "__init__"),
}
APPLICATIONS = {"language", "questions", "forecasting"}
# Below the core: a room may import from its own level and from the levels above it here.
LEVELS = [
    {"bundled", "runs"},
    {"text"},
    {"evaluation"},
    {"training", "pages"},
    APPLICATIONS,
    {"demo", "planning", "experiments"},
    {"slurm"},
    {"cli", "__main__"},
]
# Rooms that may know transformers' classes.
KNOW_TRANSFORMERS = {"backbones", "models", "recurrent", "generation"}
# Further modules that may: tokenizers, loading by name, registration of forecasters.
MODULES_THAT_KNOW = {
    "testing.py",
    "tokenization/encoders.py",
    "runs/models.py",
    "planning/model_profile.py",
    *(
        f"forecasting/models/{name}.py"
        for name in ("base", "baselines", "informer_config", "registry")
    ),
}


def imported_rooms(path: Path) -> set[str]:
    """Top-level rooms and modules of holdover that a file imports."""
    here = path.relative_to(SOURCE).parts[:-1]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            full = (*base, *(node.module or "").split(".")) if node.module else base
            rooms |= {full[0]} if full else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdover."):
            rooms.add(node.module.split(".")[1])
    return rooms - {"__version__"}


def level(room: str) -> int:
    for number, rooms in enumerate(LEVELS):
        if room in rooms:
            return number
    raise AssertionError(f"{room} has no level: give it one in docs/design.md and here")


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
@pytest.mark.quick
def test_imports_follow_the_laws(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imported_rooms(path) - {own}:
        if own in CORE:
            assert other in CORE, f"the core's {own} imports {other}"
        elif other not in CORE:
            assert level(other) <= level(own), f"{own} imports {other}"
            if own in APPLICATIONS:
                assert other not in APPLICATIONS, f"application {own} imports application {other}"


@pytest.mark.quick
def test_importing_holdover_loads_only_names():
    """The root package loads a name's module when the name is first used."""
    code = "import sys, holdover; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.split(".")[0] == "holdover"} == {
        "holdover",
        "holdover.deprecated_modules",
        "holdover.lazy_exports",
    }
    assert not loaded & {"torch", "transformers", "numpy"}


def test_attaching_loads_nothing_below_the_core():
    code = "import sys, holdover; holdover.add_recurrence; holdover.State; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    rooms = {name.split(".")[1] for name in loaded if name.startswith("holdover.")}
    assert rooms <= CORE, rooms - CORE
    # transformers itself loads some of these where they are installed.
    code = "import sys, torch; from transformers import PreTrainedModel, AutoModel, GenerationMixin"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    more = loaded - set(done.stdout.split())
    assert not more & {"accelerate", "rich", "jinja2", "scipy", "matplotlib", "pandas", "yaml"}


@pytest.mark.quick
def test_only_some_rooms_know_transformers():
    for path in FILES:
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in KNOW_TRANSFORMERS or str(relative) in MODULES_THAT_KNOW:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert "transformers" not in {name.split(".")[0] for name in names}, relative


@pytest.mark.quick
def test_public_names_are_these():
    assert sorted(holdover.__all__) == [
        "BACKBONES",
        "CARRIES",
        "Carry",
        "CarryInputs",
        "OutputRequest",
        "Recompute",
        "RecurrenceConfig",
        "RecurrentModel",
        "RecurrentModelConfig",
        "RecurrentOutput",
        "Session",
        "State",
        "StepTrace",
        "Window",
        "add_recurrence",
        "cut",
        "lens",
        "register_carry",
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
        assert len(path.read_text().splitlines()) <= 400, path
        assert path.stem not in {"utils", "common", "helpers", "misc"}


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
    from holdover.language.eval_report import markdown

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
