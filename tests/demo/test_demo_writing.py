"""The demo's writing: past the stock model's positions, shown as it comes, memory looked at."""

import copy

import pytest

import holdover
from holdover.demo.writing import write_on
from holdover.generation.writer import Writer
from holdover.tokenization.encoders import ByteEncoder
from tiny import attach, build

PROMPT = list(
    "It was at ten o\u2019clock to-day that the first of all Time Machines began.".encode()
)


class Kept(ByteEncoder):
    """Bytes that are remembered as they are decoded."""

    def __init__(self):
        super().__init__()
        self.decoded = []

    def decode(self, ids):
        self.decoded.append(list(ids))
        return super().decode(ids)


def twins(**options):
    base = build("gpt2", vocab_size=256, n_positions=64)
    plain = attach(copy.deepcopy(base), window=40, carry="none")
    return attach(base, window=40, **options), holdover.remove_recurrence(plain)


@pytest.mark.parametrize("options", [{}, {"carry": "tokens", "slots": 4}], ids=["pooled", "tokens"])
def test_a_text_is_written_where_the_stock_model_stops(options):
    model, stock = twins(**options)
    encoder, shown = Kept(), []
    record = write_on(model, stock, encoder, PROMPT, tokens=200, show=shown.append)
    assert record["stock_error"] == "IndexError: index out of range in self"
    assert record["stock_tokens"] == 64
    assert record["prompt"] == bytes(PROMPT).decode()
    written = [number for ids in encoder.decoded if len(ids) == 1 for number in ids]
    # Random bytes are full of cut characters: shown are whole ones, and signs for those that never were.
    assert record["text"] == "".join(shown) == bytes(written).decode(errors="replace")
    assert record["tokens"] == len(written) == 200
    # The last token written is not read: 71 bytes and 199 more, the first two windows are the prompt's.
    assert record["windows"] == -(-(len(PROMPT) + 199) // 40) - 2
    assert [count for count, _ in record["memory"]] == [0, 100, 200]
    assert all(size > 0 for _, size in record["memory"])
    assert record["tokens_per_second"] > 0 and record["seconds"] > 0
    assert record["state_bytes"] == 32 * 4 * options.get("slots", 1)
    assert set(record) == {
        "prompt",
        "text",
        "tokens",
        "windows",
        "seconds",
        "tokens_per_second",
        "memory",
        "stock_error",
        "stock_tokens",
        "state_bytes",
    }


def test_a_seed_writes_the_same_text():
    model, stock = twins()

    def text(seed):
        return write_on(
            model, stock, ByteEncoder(), PROMPT, tokens=50, seed=seed, show=lambda piece: None
        )["text"]

    assert text(1) == text(1) != text(2)


def test_characters_are_shown_whole():
    model, stock = twins()
    written = iter("Zeit — “time”".encode() + b"\xe2")
    shown = []

    class Told(Writer):
        def next_token(self):
            super().next_token()
            return next(written)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdover.demo.writing.Writer", Told)
        record = write_on(model, stock, ByteEncoder(), PROMPT, tokens=20, show=shown.append)
    assert record["text"] == "Zeit — “time”�"
    assert shown == list("Zeit — “time”�")


def test_a_stock_model_without_a_limit_does_not_fail():
    base = build("llama", vocab_size=256)
    model = attach(copy.deepcopy(base))
    record = write_on(model, base, ByteEncoder(), PROMPT, tokens=5, show=lambda piece: None)
    assert record["stock_error"] is None
