"""What a record says of the code that made it."""

import subprocess

import pytest

from holdover.runs import provenance as results


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one commit, which holds the package, a record and a page."""
    files = ("src/holdover/results.py", "results/run.json", "docs/page.md", "experiments/one.py")
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(results, "__file__", str(tmp_path / files[0]))
    monkeypatch.delenv("HOLDOVER_COMMIT", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [
        (None, False),
        ("results/run.json", False),
        ("docs/page.md", False),
        ("experiments/one.py", True),
        ("src/holdover/results.py", True),
    ],
)
def test_a_commit_is_dirty_by_what_runs_alone(checkout, changed, dirty):
    """Not by the record that a run replaces."""
    if changed:
        (checkout / changed).write_text("after")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
    ).stdout
    assert results.provenance()["commit"] == head[:12] + "-dirty" * dirty


def test_a_tree_without_its_history_is_told_its_commit(checkout, monkeypatch):
    monkeypatch.setenv("HOLDOVER_COMMIT", "abc")
    assert results.provenance()["commit"] == "abc"
    monkeypatch.delenv("HOLDOVER_COMMIT")
    monkeypatch.setattr(results, "__file__", str(checkout.parent / "nowhere" / "results.py"))
    assert results.provenance()["commit"] is None
