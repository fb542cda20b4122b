"""The demo's third stage: the model continues a novel, far past the last position of the stock model."""

import codecs
import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor

from ..generation.writer import Sampler, Writer
from ..recurrent.model import RecurrentModel

SAMPLE_EVERY = 100  # tokens between two memory measurements
SHOWN_OF_PROMPT = 400  # characters
# A stock model with more positions than this is not tried.
MOST_TRIED = 4096


def write_on(
    model: RecurrentModel,
    stock: Any,
    encoder: Any,
    prompt_ids: Sequence[int] | Tensor,
    *,
    tokens: int = 2000,
    temperature: float = 0.8,
    top_k: int | None = 40,
    seed: int = 0,
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Continue a text [N] with the model and show each piece; the stock model tries first.

    encoder: bytes or a byte-level tokenizer, whose tokens can be decoded one by one.
    windows, seconds in the record: for the writing alone, without reading the prompt.
    """
    prompt = torch.as_tensor(prompt_ids, dtype=torch.long)[None]
    positions = model.spec.positions(stock.config)
    failure = None
    if positions is not None and positions <= MOST_TRIED:
        failure = read_past(stock, prompt, positions)
    generator = torch.Generator().manual_seed(seed)
    writer = Writer(model, sampler=Sampler(temperature, top_k, generator=generator))
    writer.read(prompt)
    # Tokens may cut characters: bytes wait here until a character is complete.
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[str] = []
    memory = [[0, memory_in_use(model.device)]]
    windows, started = writer.windows, time.perf_counter()
    for count in range(1, tokens + 1):
        piece = characters.decode(encoder.decode([writer.next_token()]), final=count == tokens)
        if piece:
            pieces.append(piece)
            show(piece)
        if count % SAMPLE_EVERY == 0 or count == tokens:
            memory.append([count, memory_in_use(model.device)])
    seconds = time.perf_counter() - started
    windows = writer.windows - windows
    state = writer.close()
    assert state is not None
    return {
        "prompt": encoder.decode(prompt[0].tolist()).decode(errors="replace")[-SHOWN_OF_PROMPT:],
        "text": "".join(pieces),
        "tokens": tokens,
        "windows": windows,
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1),
        "memory": memory,
        "stock_error": failure,
        "stock_tokens": positions,
        "state_bytes": state.nbytes,
    }


@torch.no_grad()
def read_past(stock: Any, ids: Tensor, positions: int) -> str | None:
    """The error of the stock model when it reads one token past its last position; None without one."""
    if stock.device.type != "cpu":
        # On a GPU an invalid position makes the device unusable for the whole process.
        stock = copy.deepcopy(stock).cpu()
    enough = ids.repeat(1, positions // ids.shape[1] + 1)
    read = stock(enough[:, :positions], use_cache=True)
    try:
        stock(enough[:, positions : positions + 1], past_key_values=read.past_key_values)
    except (IndexError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None


def memory_in_use(device: torch.device) -> int:
    """Bytes on the GPU if the model is on one, otherwise of the process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss
