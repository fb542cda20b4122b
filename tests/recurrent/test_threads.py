"""Threads that share one model: every output is the one a single thread computes, to the bit."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import holdover
from carried_kinds import KeyValueTail
from tiny import BLOCKS, attach, build, tokens

RSA = {"rsa": True, "rem_counts": (1, 0, 0, 0, 1, 1), "rem_dilations": (2, 3)}
KINDS = {
    "pooled": ("gpt2", {}),
    "tokens": ("llama", {"carry": "tokens", "slots": 2}),
    "memory": ("xlnet", {"carry": "memory"}),
    "blocks": (BLOCKS, {"carry": "blocks"}),
    "attention": ("llama", {**RSA, "insert_layer": "all"}),
    "cache": ("llama", {"carry": "kv_threads", "tail": 4}),
    "lower-layers": ("gpt2", {"insert_layer": 3, "lower_layers": "batched"}),
}
CALLS = 1000
THREADS = 8
TEXTS = 10


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    holdover.register_carry("kv_threads", KeyValueTail)
    yield
    sys.setswitchinterval(before)
    from holdover.carries.kinds import KIND_SETTINGS

    del holdover.CARRIES["kv_threads"], KIND_SETTINGS["kv_threads"]


def side_by_side(call, count):
    """Results of call(0) ... call(count - 1) from threads that start together."""
    barrier = threading.Barrier(THREADS)

    def worker(first):
        barrier.wait()
        return [(n, call(n)) for n in range(first, count, THREADS)]

    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(worker, range(THREADS)))
    return dict(pair for part in parts for pair in part)


@pytest.mark.parametrize("label", KINDS)
def test_a_thousand_calls_are_those_of_one_thread(label):
    name, options = KINDS[label]
    model = attach(build(name), **options)
    texts = [tokens(2, 21, seed=seed) for seed in range(TEXTS)]
    with torch.no_grad():
        states = [model(ids).state for ids in texts]
    more = tokens(2, 12, seed=99)

    def call(number):
        with torch.no_grad():
            return model(more, state=states[number % TEXTS]).logits

    expected = [call(number) for number in range(TEXTS)]
    assert not torch.equal(expected[0], expected[1])
    for number, logits in side_by_side(call, CALLS).items():
        assert torch.equal(logits, expected[number % TEXTS]), number


def test_disabling_in_one_thread_changes_no_other():
    model = attach(build("gpt2"))
    ids = tokens(1, 30)
    with torch.no_grad():
        with model.disable_recurrence():
            stock = model(ids).logits
        recurrent = model(ids).logits

    def call(number):
        with torch.no_grad():
            if number % 2:
                return model(ids).logits
            with model.disable_recurrence():
                return model(ids).logits

    for number, logits in side_by_side(call, 200).items():
        assert torch.equal(logits, recurrent if number % 2 else stock), number


def test_reading_otherwise_in_one_thread_changes_no_other():
    model = attach(build("llama"))
    ids = tokens(1, 30)

    def call(number):
        with torch.no_grad():
            if number % 2:
                return model(ids).logits
            with model.reading(window=5, overlap=2):
                return model(ids).logits

    expected = [call(0), call(1)]
    for number, logits in side_by_side(call, 200).items():
        assert torch.equal(logits, expected[number % 2]), number


@pytest.mark.parametrize("label", ["pooled", "tokens", "blocks", "attention", "cache"])
def test_generating_in_threads_writes_the_same(label):
    name, options = KINDS[label]
    model = attach(build(name), **options)
    prompts = [tokens(1, 7 + seed, seed=seed) for seed in range(5)]

    def call(number):
        return model.generate(prompts[number % 5], max_new_tokens=14, do_sample=False)

    expected = [call(number) for number in range(5)]
    for number, ids in side_by_side(call, 40).items():
        assert torch.equal(ids, expected[number % 5]), number


def test_sessions_in_threads_write_the_same():
    model = attach(build("gpt2", vocab_size=256), window=20)

    def call(number):
        session = holdover.Session(model, "bytes", seed=number % 5)
        session.read(f"{number % 5} and so it went on, and on. ")
        return session.write(12)

    expected = [call(number) for number in range(5)]
    for number, text in side_by_side(call, 40).items():
        assert text == expected[number % 5], number


def test_training_in_threads_gives_the_same_gradients():
    """Recomputed windows run in autograd's threads."""
    model = attach(build("gpt2"))
    texts = [tokens(1, 30, seed=seed) for seed in range(4)]
    weight = model.recurrence.map[0].weight

    def call(number):
        ids = texts[number % 4]
        loss = model(ids, labels=ids, recompute="window").loss
        return torch.autograd.grad(loss, weight)[0]

    expected = [call(number) for number in range(4)]
    for number, gradient in side_by_side(call, 40).items():
        assert torch.equal(gradient, expected[number % 4]), number


def test_compiled_steps_in_threads_are_right():
    model = attach(build("gpt2"))
    texts = [tokens(1, 27, seed=seed) for seed in range(4)]
    with torch.no_grad():
        expected = [model(ids).logits for ids in texts]
    model.compile_step(backend="aot_eager")

    def call(number):
        with torch.no_grad():
            return model(texts[number % 4]).logits

    for number, logits in side_by_side(call, 40).items():
        torch.testing.assert_close(logits, expected[number % 4], rtol=1e-5, atol=1e-5)


def test_data_parallel_is_refused_where_it_copies():
    model = attach(build("gpt2"))
    with pytest.raises(RuntimeError, match="DistributedDataParallel"):
        model._replicate_for_data_parallel()
