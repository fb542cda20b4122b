"""lm-evaluation-harness: holdover's models, registered there under the name `holdover`.

* Only this module imports lm_eval. The harness up to 0.4.13 finds models of other packages only after
  they are imported, so its command line is started from here:
  `python -m holdover.language.lm_eval run --model holdover --model_args pretrained=runs/train ...`
* Texts are read as in `holdover eval`: the state is carried through a whole text, every token is scored
  once, and no context is truncated. The harness itself moves the last window of a rolling text back
  until it is full. Here it stays short, and the past is in the state (for a plain model only in the
  overlap).
* Byte models have no token for the beginning of a text: a newline is put before it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..evaluation.scoring import Measure, score, segments_to_score
from ..generation.cursor import Cursor
from ..recurrent.checks import check_vocabulary
from ..recurrent.model import RecurrentModel
from ..runs.models import model_folder
from ..runs.provenance import choose_device
from ..text.tokens import Encoder, Tokens
from ..tokenization.document import Document
from ..tokenization.encoders import HFEncoder, open_encoder
from .evaluation import open_to_read

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm
except ImportError as error:
    raise ImportError(
        "holdover.language.lm_eval needs the lm-evaluation-harness: pip install 'holdover[harness]'."
    ) from error

# Rows for batch_size=auto.
AUTO_ROWS = 16
# The harness's names for the number of generated tokens; the first one that is given counts.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# Settings of sampling that do not affect greedy decoding.
WITHOUT_EFFECT = {"top_k", "top_p", "min_p", "seed", "temperature", "do_sample"}
# (context, continuation) as text, and the ids of both.
Request = tuple[Any, list[int], list[int]]


@register_model("holdover")
class HoldoverLM(TemplateLM):
    """pretrained: a holdover folder, a run, or the name of a stock model (or a RecurrentModel).

    window, overlap: the values of the training by default. carry: how far the state is carried, the
    word document or a number of windows. batch_size: texts in a batch. tokenizer: the model's own by
    default. add_bos_token: as the tokenizer does by default.
    """

    def __init__(
        self,
        pretrained: str | RecurrentModel,
        *,
        tokenizer: str | Encoder | None = None,
        gguf_file: str | None = None,
        trust_remote_code: bool = False,
        window: int | None = None,
        overlap: int | None = None,
        carry: int | str = "document",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        if isinstance(pretrained, RecurrentModel):
            if tokenizer is None:
                raise ValueError("A model without a folder has no tokenizer: give tokenizer too.")
            self.model: RecurrentModel = pretrained
        else:
            trust: dict[str, Any] = {"trust_remote_code": bool(trust_remote_code)}
            self.model = open_to_read(pretrained, window, gguf_file, **trust)
            tokenizer = tokenizer or open_encoder(model_folder(pretrained), gguf_file, **trust)
        if isinstance(tokenizer, str):
            tokenizer = open_encoder(tokenizer, trust_remote_code=bool(trust_remote_code))
        self.encoder: Encoder = tokenizer
        check_vocabulary(self.model, self.encoder)
        # The harness expects a tokenizer of transformers under this name.
        self.tokenizer = self.encoder.tokenizer if isinstance(self.encoder, HFEncoder) else None
        self._window = window or self.model.settings.window
        self._overlap = self.model.settings.overlap if overlap is None else overlap
        with self._reading():
            pass  # refuses windows that do not fit the model
        self.carry = carry
        self._reset_every = _reset_every(carry)
        self.batch_size = AUTO_ROWS if batch_size == "auto" else int(batch_size)
        self.max_gen_toks = max_gen_toks
        self._device = _device(device)
        torch.nn.Module.to(self.model, device=self._device, dtype=_dtype(dtype))
        self.model.eval()
        self._prefix = prefix_token_id
        self._adds_bos = _adds_bos(self.tokenizer) if add_bos_token is None else add_bos_token
        self._special = frozenset(self.tokenizer.all_special_ids if self.tokenizer else ())

    @property
    def eot_token_id(self) -> Any:
        """None for byte models: they write until a limit stops them."""
        return None if self.tokenizer is None else self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        if self._prefix is not None:
            return self._prefix
        for token in (self.encoder.bos, self.eot_token_id):
            if token is not None:
                return token
        return self._ids("\n")[0]

    @property
    def max_length(self) -> int:
        return self._window

    @property
    def tokenizer_name(self) -> str:
        return self.encoder.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Facts for the harness's record."""
        recurrent = self.model.settings.carry != "none"
        return {
            "model_num_parameters": self.model.parameter_counts()["all"],
            "model_dtype": str(self.model.dtype).removeprefix("torch."),
            "window": self._window,
            "overlap": self._overlap,
            "stride": self._window - self._overlap,
            "state": self.model.settings.carry if recurrent else "off",
            "state_carried_through": self.carry if recurrent else "nothing",
        }

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        if self.tokenizer is None:
            raise ValueError("Byte models have no chat template: leave --apply_chat_template out.")
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        ids, bos = self._ids(string), self.encoder.bos
        add_bos = self._adds_bos if add_special_tokens is None else add_special_tokens
        return [bos, *ids] if add_bos and bos is not None and ids[:1] != [bos] else ids

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of whole texts; the first token is predicted from a token put before every text."""
        documents = [[self.prefix_token_id, *self._ids(request.args[0])] for request in requests]
        nll = self._score(_stream(documents, None, self.encoder), None, disable_tqdm)
        answers = [0.0 - float(np.nansum(part)) for part in _split(nll, documents)]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        documents = [context + continuation for _, context, continuation in requests]
        lengths = [len(ids) for _, *pair in requests for ids in pair]
        scored = np.repeat(np.arange(len(lengths)) % 2 == 1, np.array(lengths, np.int64))
        tokens = _stream(documents, scored, self.encoder)
        likeliest = np.ones(len(tokens), bool)

        def compare(logits: Tensor, targets: Tensor, places: np.ndarray) -> None:
            likeliest[places] = (logits.argmax(-1) == targets).cpu().numpy()

        nll = self._score(tokens, compare, disable_tqdm)
        parts = zip(_split(nll, documents), _split(likeliest, documents), strict=True)
        answers = [(0.0 - float(np.nansum(losses)), bool(right.all())) for losses, right in parts]
        for (strings, _, _), answer in zip(requests, answers, strict=True):
            if strings is not None:
                self.cache_hook.add_partial("loglikelihood", strings, answer)
        return answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy decoding, one text after another."""
        limits = [(request, *self._limits(request.args[1])) for request in requests]
        texts = []
        for request, until, most in tqdm(limits, desc="Writing", disable=disable_tqdm):
            ids = self.tok_encode(request.args[0]) or [self.prefix_token_id]
            with self._reading():
                text = self._write(ids, until, most)
            self.cache_hook.add_partial("generate_until", request.args, text)
            texts.append(text)
        return texts

    def _limits(self, options: dict[str, Any]) -> tuple[list[str], int]:
        """Where to stop: texts, and a number of tokens. Refuses sampling and beams."""
        options = dict(options)
        until = options.pop("until", None) or []
        given = [options.pop(name, None) for name in LENGTHS]
        most = next((int(length) for length in given if length is not None), self.max_gen_toks)
        sampled = options.get("do_sample")
        if sampled or (sampled is None and float(options.get("temperature") or 0) > 0):
            raise ValueError(
                "Sampling was asked for (do_sample or a temperature), but this model decodes greedily: "
                "give do_sample=False."
            )
        if options.pop("num_beams", 1) != 1:
            raise ValueError(
                "Beams were asked for, but this model decodes greedily: give num_beams=1."
            )
        if unknown := sorted(set(options) - WITHOUT_EFFECT):
            raise ValueError(f"{', '.join(unknown)}: not supported; leave it out of gen_kwargs.")
        return [until] if isinstance(until, str) else list(until), most

    @torch.no_grad()
    def _write(self, ids: list[int], until: Sequence[str], most: int) -> str:
        reset_every = self._reset_every if self.model.recurrence.carries_state else 1
        cursor = Cursor(self.model, reset_every=reset_every)
        stops = [stop for stop in until if stop]
        written: list[int] = []
        text = ""
        while len(written) < most and not any(stop in text for stop in stops):
            logits = cursor.advance(torch.tensor([ids], device=self.model.device))
            assert logits is not None
            token = int(logits.argmax())
            if token == self.eot_token_id:
                break
            ids = [token]
            written += ids
            shown = [number for number in written if number not in self._special]
            text = self.encoder.decode(shown).decode(errors="replace")
        return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]

    def _score(self, tokens: Tokens, measure: Measure | None, quiet: bool) -> np.ndarray:
        """[N] -log p, NaN for tokens that are not predicted."""
        with self._reading():
            segments = segments_to_score(tokens, self.model.settings, self._reset_every)
            if not segments or (tokens.scored is not None and not tokens.scored.any()):
                return np.full(len(tokens), np.nan)
            with tqdm(desc="Windows", disable=quiet) as bar:
                scores = score(
                    self.model,
                    tokens,
                    rows=self.batch_size,
                    device=torch.device(self._device),
                    reset_every=self._reset_every,
                    measure=measure,
                    advance=bar.update,
                )
        return scores.nll

    def _reading(self) -> AbstractContextManager[None]:
        return self.model.reading(window=self._window, overlap=self._overlap)

    def _ids(self, string: str) -> list[int]:
        document = Document("a request", lambda: iter((string.encode(),)))
        return [
            number
            for ids, _, _ in self.encoder.encode_document(document)
            for number in ids.tolist()
        ]


def _stream(
    documents: Sequence[Sequence[int]], scored: np.ndarray | None, encoder: Encoder
) -> Tokens:
    ids = np.fromiter((number for ids in documents for number in ids), np.int64)
    bounds = np.cumsum([0, *map(len, documents)])
    return Tokens(ids, bounds, {}, encoder, scored)


def _split(values: np.ndarray, documents: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return np.split(values, np.cumsum([len(ids) for ids in documents])[:-1]) if documents else []


def _reset_every(carry: int | str) -> int | None:
    if carry == "document":
        return None
    if isinstance(carry, int) and carry >= 1:
        return carry
    raise ValueError(f"carry={carry!r} must be the word document or at least 1 window.")


def _device(given: str | torch.device | None) -> torch.device:
    """The harness asks for a GPU by default: without one, the CPU."""
    if given in (None, "auto") or (str(given)[:4] == "cuda" and not torch.cuda.is_available()):
        return choose_device("auto")
    return torch.device(given)


def _dtype(given: str | torch.dtype | None) -> torch.dtype | None:
    """None: the model's own, which is float32 when it is opened from a folder."""
    if given in (None, "auto") or isinstance(given, torch.dtype):
        return None if given == "auto" else given
    dtype = getattr(torch, str(given), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype={given!r} is not known: give float32, bfloat16 or float16.")
    return dtype


def _adds_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer of transformers puts a bos token before a text."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return False
    return tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]


def main() -> None:
    """The harness's own command line, with the model `holdover` registered."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
