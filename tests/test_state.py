"""State is a value: what its methods return, and what its file refuses."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import holdover
from tiny import attach, build, tokens

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def model():
    return attach(build("gpt2"), slots=2, overlap=3)


@pytest.fixture
def state(model):
    return model(tokens(3, 20)).state


def test_a_state_cannot_be_changed(state):
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.present = None
    before = state.tensors["summary"].clone()
    state.reset(torch.tensor([True, True, True]))
    state.detach()
    state.rows([2, 0])
    assert torch.equal(state.tensors["summary"], before)


def test_detach_cuts_the_graph(state):
    assert state.tensors["summary"].requires_grad
    assert not state.detach().tensors["summary"].requires_grad


def test_rows_select_and_reorder(model, state):
    chosen = state.rows([2, 2, 0])
    assert chosen.batch_size == 3
    assert torch.equal(chosen.tensors["summary"][1], state.tensors["summary"][2])
    assert torch.equal(chosen.tail[2], state.tail[0])
    assert state.rows(1).batch_size == 1
    ids = tokens(3, 15, 5)
    both = model(ids, state=state).logits
    torch.testing.assert_close(model(ids[1:2], state=state.rows(1)).logits, both[1:2])


def test_reset_forgets_rows_even_where_they_are_not_finite(state):
    broken = dataclasses.replace(
        state, tensors={"summary": state.tensors["summary"] * float("nan")}
    )
    wiped = broken.reset(torch.tensor([True, False, True]))
    assert wiped.present.tolist() == [False, True, False]
    assert wiped.tensors["summary"][0].abs().sum() == 0
    with pytest.raises(ValueError, match="one flag per row"):
        state.reset(torch.tensor([True]))


def test_concat_puts_documents_together(model, state):
    parts = [state.rows([0]), state.rows([1, 2])]
    together = holdover.State.concat(parts)
    assert torch.equal(together.tensors["summary"], state.tensors["summary"])
    half = holdover.State.concat([parts[0].reset(torch.tensor([True])), parts[1]])
    assert half.present.tolist() == [False, True, True]


def test_concat_takes_states_with_and_without_a_tail(model, state):
    """A row without a tail has no tokens to read again."""
    one, two = dataclasses.replace(state.rows([0]), tail=None), state.rows([1, 2])
    for parts in ([one, two], [two, one]):
        together = holdover.State.concat(parts)
        assert together.tail.shape == (3, 3)
        read = model(tokens(3, 15, 5)[:1].expand(3, -1), state=together).logits
        alone = [model(tokens(3, 15, 5)[:1].expand(n.batch_size, -1), state=n) for n in parts]
        torch.testing.assert_close(read, torch.cat([out.logits for out in alone]))
    shorter = dataclasses.replace(two, tail=two.tail[:, 1:])
    assert holdover.State.concat([shorter, two]).tail[0].tolist() == [-1, *shorter.tail[0].tolist()]


def test_concat_refuses_states_that_do_not_fit_together(state):
    named = dataclasses.replace(state, tensors={"other": state.tensors["summary"]})
    with pytest.raises(ValueError, match="state 2 has the tensors other, the first state summary"):
        holdover.State.concat([state, named])
    wide = dataclasses.replace(state, tensors={"summary": state.tensors["summary"][:, :1]})
    with pytest.raises(ValueError, match=r"summary has the shape \(1, 32\) per row in state 2"):
        holdover.State.concat([state, wide])
    for name, value in (("tail", state.tail[:2]), ("present", torch.ones(2, dtype=torch.bool))):
        short = dataclasses.replace(state, **{name: value})
        with pytest.raises(ValueError, match=rf"different numbers of rows.*state\.{name}: 2"):
            holdover.State.concat([short, state])


def test_a_file_whose_rows_disagree_is_refused(state, tmp_path):
    dataclasses.replace(state, tail=state.tail[:2]).save(tmp_path / "book.state")
    with pytest.raises(ValueError, match="different numbers of rows"):
        holdover.State.load(tmp_path / "book.state")


def test_to_keeps_ids_and_masks(state):
    moved = state.reset(torch.tensor([True, False, False])).to(torch.bfloat16)
    assert moved.tensors["summary"].dtype == torch.bfloat16
    assert moved.tail.dtype == torch.long
    assert moved.present.dtype == torch.bool


def test_counts_keep_their_precision():
    memory = attach(build("xlnet"), carry="memory")(tokens(1, 20)).state
    assert memory.to(torch.bfloat16).tensors["filled"].dtype == torch.long


def test_size_in_bytes(state):
    assert state.nbytes == 3 * 2 * 32 * 4 + 3 * 3 * 8


def test_a_file_gives_back_the_state(model, state, tmp_path):
    path = tmp_path / "book.state"
    state.save(path)
    assert list(tmp_path.iterdir()) == [path]
    loaded = holdover.State.load(path)
    ids = tokens(3, 15, 5)
    assert torch.equal(model(ids, state=loaded).logits, model(ids, state=state).logits)
    assert path.stat().st_size < 4096


def test_a_state_of_another_model_is_refused_with_what_differs(state):
    ids = tokens(3, 15, 5)
    other = attach(build("gpt2"), slots=1, overlap=3)
    with pytest.raises(ValueError, match="slots is 2 in the state and 1 in this model"):
        other(ids, state=state)
    llama = attach(build("llama"), slots=2, overlap=3)
    with pytest.raises(ValueError, match="model_type is 'gpt2' in the state and 'llama'"):
        llama(ids, state=state)


def test_a_state_of_other_weights_is_refused_and_can_be_adopted(state, tmp_path):
    twin = attach(build("gpt2"), seed=9, slots=2, overlap=3)
    ids = tokens(3, 15, 5)
    with pytest.raises(ValueError, match="weights is .* model.adopt"):
        twin(ids, state=state)
    twin(ids, state=twin.adopt(state))
    # The same added weights on another base.
    with pytest.raises(ValueError, match="weights is"):
        attach(build("gpt2", seed=4), slots=2, overlap=3)(ids, state=state)
    with pytest.raises(ValueError, match="cannot be adopted"):
        attach(build("gpt2"), slots=1).adopt(state)


def test_weights_of_another_precision_are_the_same_weights(model, state):
    import copy

    half = copy.deepcopy(model).to(torch.bfloat16)
    with pytest.raises(ValueError, match="convert it with state.to"):
        half(tokens(3, 15, 5), state=state)
    half(tokens(3, 15, 5), state=state.to(torch.bfloat16))


def test_damaged_and_foreign_files_are_refused(state, tmp_path):
    path = tmp_path / "book.state"
    state.save(path)
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[:-7], b"not a state at all" * 9):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a readable state file"):
            holdover.State.load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="not a holdover state"):
        holdover.State.load(path)
    with pytest.raises(FileNotFoundError, match="no state file"):
        holdover.State.load(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        state.save(tmp_path / "missing" / "book.state")
    for folder in (tmp_path, ""):
        with pytest.raises(IsADirectoryError, match=r"Cannot write .*: it is a folder; give"):
            state.save(folder)


def test_a_state_of_a_newer_holdover_is_refused(state, tmp_path):
    path = tmp_path / "book.state"
    save_file({"carry.summary": torch.zeros(1)}, path, metadata={"format": "holdover.state.v2"})
    with pytest.raises(
        ValueError,
        match=r"written by a newer holdover \(format 2; this one reads up to 1\): upgrade holdover",
    ):
        holdover.State.load(path)


def test_the_header_says_whose_state_it_is(state, tmp_path):
    from safetensors import safe_open

    state.save(tmp_path / "book.state")
    with safe_open(tmp_path / "book.state", framework="pt") as file:
        owner = json.loads(file.metadata()["owner"])
    assert owner["model_type"] == "gpt2"
    assert owner["window"] == 9
    assert set(load_file(tmp_path / "book.state")) == {"carry.summary", "state.tail"}


def test_an_interrupted_save_leaves_the_old_file(state, tmp_path, monkeypatch):
    path = tmp_path / "book.state"
    state.save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        state.rows([0]).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
