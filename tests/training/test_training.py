"""Training as users train: Trainer, LoRA, data-parallel processes, half precision, compilation."""

import copy
import subprocess
import sys

import pytest
import torch
from transformers import Trainer, TrainingArguments

import holdover
from holdover.recurrent.step import misread_when_compiled
from scripts import SUPPORT
from tiny import attach, build, tokens


class WindowedBatch(torch.utils.data.Dataset):
    def __init__(self, count: int = 8, columns: int = 30) -> None:
        self.ids = tokens(count, columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def arguments(folder, **changes):
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "report_to": "none",
        "save_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return TrainingArguments(output_dir=str(folder), **settings)


@pytest.mark.parametrize("options", [{}, {"carry": "tokens", "slots": 2}], ids=["pooled", "tokens"])
def test_trainer_trains_evaluates_predicts_and_resumes(options, tmp_path):
    model = attach(build("gpt2"), **options)
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(
        model, arguments(tmp_path), train_dataset=WindowedBatch(), eval_dataset=WindowedBatch(4)
    )
    trainer.train()
    moved = [
        key for key, value in model.state_dict().items() if not torch.equal(value, before[key])
    ]
    assert any(key.startswith("recurrence.") for key in moved)
    assert any(key.startswith("backbone.") for key in moved)
    assert trainer.evaluate()["eval_loss"] > 0
    predicted = trainer.predict(WindowedBatch(4))
    # The state is no prediction.
    assert not predicted.predictions
    assert predicted.metrics["test_loss"] > 0
    undisturbed = copy.deepcopy(model.state_dict())
    resumed = attach(build("gpt2", seed=5), seed=6, **options)
    Trainer(resumed, arguments(tmp_path), train_dataset=WindowedBatch()).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-2")
    )
    for key, value in resumed.state_dict().items():
        torch.testing.assert_close(value, undisturbed[key], rtol=1e-5, atol=1e-6)


def test_trainers_gradient_checkpointing_recomputes_windows(tmp_path):
    found = []
    for checkpointing in (False, True):
        model = attach(build("gpt2"))
        Trainer(
            model,
            arguments(
                tmp_path,
                gradient_checkpointing=checkpointing,
                save_strategy="no",
                optim="sgd",
                learning_rate=0.05,
            ),
            train_dataset=WindowedBatch(),
        ).train()
        assert model.is_gradient_checkpointing == checkpointing
        found.append(model.state_dict())
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-4, atol=1e-5)


def test_the_loss_honours_num_items_in_batch():
    model = attach(build("gpt2"))
    ids = tokens(2, 30)
    mean = model(ids, labels=ids).loss
    torch.testing.assert_close(model(ids, labels=ids, num_items_in_batch=29).loss, 2 * mean)
    whole = model(ids, labels=ids, num_items_in_batch=torch.tensor(58)).loss
    torch.testing.assert_close(whole, mean)
    assert model.accepts_loss_kwargs
    # Heads whose loss is a mean over rows leave the division to Trainer.
    assert not attach(build("bert", "sequence-classification")).accepts_loss_kwargs


def test_lora_trains_underneath():
    peft = pytest.importorskip("peft")
    for name, target in (("gpt2", "c_attn"), ("llama", "q_proj"), ("bert", "value")):
        base = build(name)
        lora = peft.LoraConfig(r=2, target_modules=[target], fan_in_fan_out=name == "gpt2")
        wrapped = peft.get_peft_model(base, lora)
        model = attach(wrapped)
        ids = tokens(2, 30)
        model(ids, labels=ids).loss.backward()
        for key, parameter in model.named_parameters():
            if "lora_" in key or key.startswith("recurrence."):
                assert parameter.grad is not None, key
            else:
                assert parameter.grad is None, key
        assert holdover.remove_recurrence(model) is wrapped


def test_prompt_learning_is_refused():
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="use an adapter inside the layers"):
        holdover.add_recurrence(peft.get_peft_model(build("gpt2"), config))


@pytest.mark.parametrize("recompute", ["none", "window"])
def test_bfloat16_and_autocast_train(recompute):
    ids = tokens(2, 30)
    exact = attach(build("gpt2"))(ids, labels=ids).loss.item()
    model = attach(build("gpt2")).to(torch.bfloat16)
    out = model(ids, labels=ids, recompute=recompute)
    out.loss.backward()
    assert out.state.tensors["summary"].dtype == torch.bfloat16
    assert out.loss.dtype == torch.float32
    assert abs(out.loss.item() - exact) < 0.1
    mixed = attach(build("gpt2"))
    with torch.autocast("cpu", torch.bfloat16):
        out = mixed(ids, labels=ids, recompute=recompute)
        again = mixed(ids, labels=ids, state=out.state.detach(), recompute=recompute)
    (out.loss + again.loss).backward()
    assert abs(out.loss.item() - exact) < 0.1
    assert all(p.grad.dtype == torch.float32 for p in mixed.parameters())


POOLED: dict = {}
TOKENS = {"carry": "tokens", "slots": 2}


# Dynamo warns of its own ways of tracing: instantiating autograd functions, looking at .grad.
@pytest.mark.filterwarnings("default")
# Every two of a model, a way of keeping and a state meet.
@pytest.mark.parametrize(
    ("name", "recompute", "options"),
    [
        ("gpt2", "none", POOLED),
        ("gpt2", "window", TOKENS),
        ("llama", "none", TOKENS),
        ("llama", "window", POOLED),
    ],
    ids=["gpt2-pooled", "gpt2-recomputed-tokens", "llama-tokens", "llama-recomputed-pooled"],
)
@pytest.mark.sampled(4)
def test_the_step_compiles_without_graph_breaks(name, recompute, options):
    torch._dynamo.reset()
    ids = tokens(2, 27)
    found = []
    for compiled in (False, True):
        model = attach(build(name), **options)
        if compiled:
            # fullgraph: a graph break would be an error.
            model.compile_step(backend="aot_eager")
        out = model(ids, labels=ids, recompute=recompute)
        out.loss.backward()
        found.append((out, [p.grad for p in model.parameters()]))
    (eager, eager_gradients), (fast, fast_gradients) = found
    torch.testing.assert_close(fast.loss, eager.loss)
    for mine, other in zip(fast_gradients, eager_gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
    for key, tensor in eager.state.tensors.items():
        torch.testing.assert_close(fast.state.tensors[key], tensor, rtol=1e-4, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs >= 1
    torch._dynamo.utils.counters.clear()


@pytest.mark.filterwarnings("default")
def test_a_compiled_step_takes_texts_of_any_length():
    torch._dynamo.reset()
    model = attach(build("gpt2"))
    eager = attach(build("gpt2"))
    model.compile_step(backend="aot_eager")
    for length in range(10, 40, 2):
        ids = tokens(1, length)
        torch.testing.assert_close(model(ids, labels=ids).loss, eager(ids, labels=ids).loss)


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        # Keys of the layers: 8 and 9; 8 and 16; 8 + 2 x 4; 9.
        ({"window": 8}, False),
        ({"window": 8, "slots": 8}, True),
        ({"window": 8, "carry": "tokens", "slots": 4}, True),
        ({"window": 9, "carry": "none"}, False),
    ],
    ids=["pooled", "slots", "tokens", "none"],
)
def test_masks_that_compiled_code_misreads_run_as_they_are(monkeypatch, options, runs):
    """Padded windows whose layers have a number of keys that is no multiple of 8, on a GPU."""
    compiled = []
    model = attach(build("gpt2"), **options)

    def step(*given):
        compiled.append(given)
        return model._step(*given)

    model._compiled.step = step
    monkeypatch.setattr("holdover.recurrent.compile.MISREAD_ON", ("cpu",))
    length = 2 * options["window"]
    ids = tokens(2, length)
    mask = torch.arange(length) < torch.tensor([[length], [length - 3]])
    model(ids, attention_mask=mask.long())
    assert bool(compiled) == runs
    compiled.clear()
    model(ids)
    assert compiled
    compiled.clear()
    monkeypatch.undo()
    model(ids, attention_mask=mask.long())
    assert compiled


def test_which_masks_compiled_code_misreads():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert misread_when_compiled(cuda, {300})
    assert misread_when_compiled(cuda, {304, 305})
    assert not misread_when_compiled(cuda, {304, 320})
    assert not misread_when_compiled(cpu, {300})


WORKER = """
import os, sys, torch, torch.distributed as dist
sys.path.insert(0, {tests!r})
from scripts import SUPPORT
from tiny import attach, build, tokens
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = attach(build("gpt2")).double()
wrapped = torch.nn.parallel.DistributedDataParallel(model)
whole = tokens(2, 30)
for columns, recompute in ((30, "none"), (30, "window"), (5, "none"), (30, "none")):
    ids = whole[rank : rank + 1, :columns]
    model.zero_grad()
    wrapped(ids, labels=ids, recompute=recompute).loss.backward()
    if rank == 0:
        alone = attach(build("gpt2")).double()
        both = whole[:, :columns]
        alone(both, labels=both, recompute=recompute).loss.backward()
        for (key, ours), theirs in zip(model.named_parameters(), alone.parameters()):
            wanted = torch.zeros_like(ours) if theirs.grad is None else theirs.grad
            torch.testing.assert_close(ours.grad, wanted, rtol=1e-9, atol=1e-12, msg=key)
dist.barrier()
dist.destroy_process_group()
print("agreed", rank, flush=True)
"""


def test_two_processes_see_each_parameter_once(tmp_path):
    """Also for texts of one window, whose state nobody reads."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(tests=str(SUPPORT)))
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*call, str(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("agreed") == 2
