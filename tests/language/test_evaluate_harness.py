"""The lm-evaluation-harness adapter: against brute force, holdover's own scoring, and the harness's
own model for plain transformers."""

import os
import subprocess
import sys

import datasets
import lm_eval
import numpy as np
import pytest
import torch
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from brute_force import brute_force
from evaluations import prose, subwords
from holdover.evaluation.scoring import score
from holdover.language.lm_eval import HoldoverLM
from holdover.runs.models import quietly
from holdover.tokenization.encoders import ByteEncoder
from lm_eval_cases import (
    CARRIES,
    CPU,
    WINDOW,
    adapter,
    byte_model,
    continuation,
    plain_pair,
    requests,
    tokens_of,
)
from tiny import attach, build

TEXTS = ["", "t", "tide", "tide wait", "time and tide wait for no man", "the year was late again"]


def rolling(texts):
    return requests("loglikelihood_rolling", *[(text,) for text in texts])


def sums_by_document(nll, tokens):
    return [np.nansum(part) for part in np.split(nll, tokens.bounds[1:-1])]


@pytest.mark.parametrize("overlap", [0, 2, WINDOW - 1])
@pytest.mark.parametrize("carry", CARRIES)
def test_rolling_is_brute_force_and_score(carry, overlap):
    model = byte_model(overlap=overlap, **CARRIES[carry])
    found = adapter(model).loglikelihood_rolling(rolling(TEXTS), disable_tqdm=True)
    tokens = tokens_of(TEXTS)
    alone = brute_force(model, tokens, WINDOW, overlap, 1 if carry == "plain" else None)
    assert found == pytest.approx([-total for total in sums_by_document(alone, tokens)], rel=1e-9)
    scores = score(model, tokens, rows=2, device=CPU)
    assert found == pytest.approx([-total for total in sums_by_document(scores.nll, tokens)])
    assert found[0] == 0 and scores.scored.sum() == sum(map(len, TEXTS))
    for rows in (1, 20):
        again = adapter(model, batch_size=rows).loglikelihood_rolling(rolling(TEXTS), True)
        assert again == pytest.approx(found, rel=1e-9)


def test_rolling_carries_the_state_and_can_forget_it():
    model, long = byte_model(), prose(30)
    carried = adapter(model).loglikelihood_rolling(rolling([long]), True)
    tokens = tokens_of([long])
    for every in (1, 2):
        expected = -np.nansum(brute_force(model, tokens, WINDOW, 0, every))
        forgot = adapter(model, carry=every).loglikelihood_rolling(rolling([long]), True)
        assert forgot == pytest.approx([expected], rel=1e-9) and forgot != pytest.approx(carried)


def test_windows_and_overlaps_of_ones_own():
    model, long = byte_model(), prose(30)
    before = model.settings
    lm = adapter(model, window=5, overlap=2)
    found = lm.loglikelihood_rolling(rolling([long]), True)
    assert model.settings is before
    with model.reading(window=5, overlap=2):
        scores = score(model, tokens_of([long]), rows=1, device=CPU)
    assert found == pytest.approx([-np.nansum(scores.nll)], rel=1e-12)
    assert found != pytest.approx(adapter(model).loglikelihood_rolling(rolling([long]), True))
    info = lm.get_model_info()
    assert (info["window"], info["overlap"], info["stride"]) == (5, 2, 3)
    assert (info["state"], info["state_carried_through"]) == ("pooled", "document")
    plain = adapter(byte_model(carry="none")).get_model_info()
    assert (plain["state"], plain["state_carried_through"]) == ("off", "nothing")


def test_a_plain_model_is_the_harnesss_own():
    theirs, ours, encoder = plain_pair()
    assert ours.prefix_token_id == theirs.prefix_token_id == encoder.tokenizer.eos_token_id
    ids = encoder.tokenizer.encode(prose(100))
    texts = [encoder.decode(ids[:length]).decode() for length in (1, 5, WINDOW, 3 * WINDOW)]
    assert [len(ours.tok_encode(text)) for text in texts] == [1, 5, WINDOW, 3 * WINDOW]
    expected = theirs.loglikelihood_rolling(rolling(texts), disable_tqdm=True)
    assert ours.loglikelihood_rolling(rolling(texts), True) == pytest.approx(expected, rel=1e-5)
    pairs = requests("loglikelihood", ("time and", " tide wait"), ("", "man"), ("no ", "man"))
    expected = theirs.loglikelihood(pairs, disable_tqdm=True)
    found = ours.loglikelihood(pairs, disable_tqdm=True)
    for (log_p, greedy), (their_log_p, their_greedy) in zip(found, expected, strict=True):
        assert log_p == pytest.approx(their_log_p, rel=1e-5) and greedy == their_greedy
    asked = requests("generate_until", ("time", {"max_gen_toks": 4, "until": ["zzz"]}))
    assert ours.generate_until(asked, True) == theirs.generate_until(asked, True)


def test_only_the_last_window_of_a_ragged_text_differs_from_the_harness():
    """The harness moves it back until it is full; here it begins where the one before ended."""
    theirs, ours, encoder = plain_pair()
    ids = encoder.tokenizer.encode(prose(100))
    whole, ragged = (encoder.decode(ids[:length]).decode() for length in (18, 21))
    both = [ours.loglikelihood_rolling(rolling([whole, ragged]), True)]
    both.append(theirs.loglikelihood_rolling(rolling([whole, ragged]), disable_tqdm=True))
    assert both[0][0] == pytest.approx(both[1][0], rel=1e-5)
    assert both[0][1] != pytest.approx(both[1][1], rel=1e-3)


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("carry", CARRIES)
def test_log_likelihoods_by_brute_force(carry, overlap):
    model = byte_model(overlap=overlap, **CARRIES[carry])
    every = 1 if carry == "plain" else None
    pairs = [("time and tide", " wait"), ("t", "i"), ("", "tide"), ("time and tide wait ", "for")]
    pairs += [(prose(6), prose(7, seed=1))]
    found = adapter(model).loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for (context, target), (log_p, greedy) in zip(pairs, found, strict=True):
        tokens = tokens_of([context + target], prefix=b"" if context else b"\n")
        # White space at a context's end belongs to the continuation, says the harness.
        scored = len(target) + len(context) - len(context.rstrip())
        losses = brute_force(model, tokens, WINDOW, overlap, every)[-scored:]
        assert log_p == pytest.approx(-losses.sum(), rel=1e-9) and not greedy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"overlap": WINDOW}, "must be smaller than window"),
        ({"window": 49}, "which has 48 positions"),
        ({"carry": "books"}, "carry='books'"),
        ({"carry": 0}, "carry=0"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"tokenizer": None}, "has no tokenizer"),
    ],
)
def test_arguments_that_do_not_fit(options, said):
    with pytest.raises(ValueError, match=said):
        adapter(**options)


def test_from_folders_and_an_argument_string(tmp_path):
    model = attach(build("gpt2", vocab_size=256), window=WINDOW)
    with quietly():
        model.save_pretrained(tmp_path / "holdover")
        build("gpt2", vocab_size=256).save_pretrained(tmp_path / "stock")
    for name in ("holdover", "stock"):
        ByteEncoder().save(tmp_path / name)
    made = get_model("holdover").create_from_arg_string(
        f"pretrained={tmp_path / 'holdover'},overlap=3,carry=document,dtype=float64",
        {"batch_size": "auto", "max_batch_size": None, "device": "cpu"},
    )
    assert made.model.dtype == torch.float64 and made.get_model_info()["overlap"] == 3
    expected = adapter(model.double(), overlap=3).loglikelihood_rolling(rolling(TEXTS), True)
    assert made.loglikelihood_rolling(rolling(TEXTS), True) == pytest.approx(expected, rel=1e-6)
    stock = HoldoverLM(str(tmp_path / "stock"), window=WINDOW, device="cpu")
    plain = adapter(byte_model(carry="none")).loglikelihood_rolling(rolling(TEXTS), True)
    assert stock.loglikelihood_rolling(rolling(TEXTS), True) == pytest.approx(plain, rel=1e-5)


def test_no_requests():
    lm = adapter()
    assert lm.loglikelihood_rolling([], True) == [] == lm.loglikelihood([], True)
    assert lm.generate_until([], True) == []
    assert lm.loglikelihood_rolling(rolling(["", ""]), True) == [0, 0]


def test_a_tokenizer_that_begins_texts_with_a_token():
    encoder = subwords()
    encoder.bos = 5
    model = attach(build("gpt2", vocab_size=encoder.vocabulary), window=WINDOW)
    lm = HoldoverLM(model, tokenizer=encoder, device="cpu", add_bos_token=True)
    plain = HoldoverLM(model, tokenizer=encoder, device="cpu")
    assert lm.tok_encode("tide") == [5, *plain.tok_encode("tide")]
    assert lm.tok_encode("tide", add_special_tokens=False) == plain.tok_encode("tide")
    # Before a whole text it stands once, not twice.
    assert lm.loglikelihood_rolling(rolling(["tide"]), True) == plain.loglikelihood_rolling(
        rolling(["tide"]), True
    )


def task(name, kind, documents, **settings):
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(documents)},
        "test_split": "test",
        "output_type": kind,
        **settings,
    }


def test_through_the_harness():
    """Tasks held in memory: rolling perplexity, multiple choice, generation."""
    model, texts = byte_model(overlap=2), [prose(20), prose(9, seed=1)]
    whole = continuation(model, b"time and", 6).decode(errors="replace")
    tasks = [
        task(
            "rolling",
            "loglikelihood_rolling",
            [{"text": text} for text in texts],
            doc_to_text="",
            doc_to_target="text",
            metric_list=[{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        ),
        task(
            "choice",
            "multiple_choice",
            [{"question": "time and", "choices": [" tide", " time"], "answer": 0}],
            doc_to_text="question",
            doc_to_target="answer",
            doc_to_choice="choices",
        ),
        task(
            "write",
            "generate_until",
            [{"question": "time and", "answer": whole}],
            doc_to_text="question",
            doc_to_target="answer",
            generation_kwargs={"until": ["\0\0"], "max_gen_toks": 6, "do_sample": False},
            metric_list=[{"metric": "exact_match"}],
        ),
    ]
    lm = adapter(model)
    found = lm_eval.simple_evaluate(
        model=lm, tasks=tasks, bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    results = found["results"]
    scores = score(model, tokens_of(texts), rows=1, device=CPU)
    nats, words = np.nansum(scores.nll), sum(len(text.split()) for text in texts)
    assert results["rolling"]["word_perplexity,none"] == pytest.approx(np.exp(nats / words))
    size = sum(len(text) for text in texts)
    assert results["rolling"]["bits_per_byte,none"] == pytest.approx(nats / np.log(2) / size)
    choices = requests("loglikelihood", ("time and", " tide"), ("time and", " time"))
    (right, _), (wrong, _) = lm.loglikelihood(choices, disable_tqdm=True)
    assert results["choice"]["acc,none"] == float(right > wrong)
    assert results["write"]["exact_match,none"] == 1
    assert found["config"]["stride"] == WINDOW - 2 and found["config"]["state"] == "pooled"


def run(code, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [sys.executable, *arguments, *([] if code is None else ["-c", code])]
    return subprocess.run(call, capture_output=True, text=True, env=environment)


def test_holdover_does_not_need_lm_eval():
    hidden = "import sys; sys.modules['lm_eval'] = None\n"
    code = hidden + (
        "import holdover, holdover.cli, holdover.evaluate\n"
        "try:\n    import holdover.language.lm_eval\n"
        "except ImportError as error:\n    print(error)"
    )
    done = run(code)
    assert done.returncode == 0 and "pip install 'holdover[harness]'" in done.stdout, done.stderr


@pytest.mark.nightly
def test_the_harnesss_command_line():
    done = run(None, "-m", "holdover.language.lm_eval", "run", "--help")
    assert done.returncode == 0 and "--model_args" in done.stdout, done.stderr
