"""What the harness's adapter writes: as if everything were read again for every token."""

import pytest
import torch

from lm_eval_cases import CARRIES, adapter, byte_model, continuation, plain_pair, requests


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("carry", CARRIES)
def test_what_would_be_written_is_greedy(carry, overlap):
    model = byte_model(overlap=overlap, **CARRIES[carry])
    context = b"time and tide"
    written = continuation(model, context, 8)
    changed = bytes([*written[:-1], (written[-1] + 1) % 256])
    asked = [(None, list(context), list(end)) for end in (written, changed, written[:1], b"")]
    found = adapter(model)._loglikelihood_tokens(asked, disable_tqdm=True)
    assert [greedy for _, greedy in found] == [True, False, True, True]
    assert found[-1] == (0, True) and found[0][0] < found[2][0] < 0


@pytest.mark.parametrize("reset_every", [None, 2])
@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("carry", CARRIES)
def test_writing_is_a_loop_that_reads_everything_again(carry, overlap, reset_every):
    model = byte_model(overlap=overlap, **CARRIES[carry])
    lm = adapter(model, carry=reset_every or "document")
    asked = requests(
        "generate_until",
        ("time and tide wait", {"max_gen_toks": 25}),
        ("t", {"max_gen_toks": 12, "until": []}),
        ("", {"max_new_tokens": 3}),
        ("t", {"max_gen_toks": 0}),
    )
    long, short, from_nothing, nothing = lm.generate_until(asked, disable_tqdm=True)

    def by_hand(text, length):
        return continuation(model, text, length, reset_every).decode(errors="replace")

    assert long == by_hand(b"time and tide wait", 25) and short == by_hand(b"t", 12)
    assert from_nothing == by_hand(b"\n", 3) and nothing == ""


def test_writing_stops():
    model = byte_model()
    lm = adapter(model)
    whole = continuation(model, b"time", 20).decode(errors="replace")
    stop, later = whole[6:8], whole[9]
    (found,) = lm.generate_until(
        requests("generate_until", ("time", {"until": [stop, later, ""], "max_gen_toks": 20})), True
    )
    assert found == whole[: min(whole.find(stop), whole.find(later))]
    (found,) = lm.generate_until(
        requests("generate_until", ("time", {"until": stop, "max_tokens": 20})), True
    )
    assert found == whole[: whole.find(stop)]


def test_writing_ends_with_the_end_of_text():
    _, ours, encoder = plain_pair()
    eos = encoder.tokenizer.eos_token_id
    asked = requests("generate_until", ("time", {"max_gen_toks": 30}))
    assert ours.generate_until(asked, True)[0] != ""
    with torch.no_grad():  # the logits of the end are the largest everywhere
        ours.model.backbone.lm_head.weight[eos] = 0
        ours.model.backbone.transformer.ln_f.weight.zero_()
        ours.model.backbone.transformer.ln_f.bias.fill_(1.0)
        ours.model.backbone.lm_head.weight[eos] = 100.0
    assert ours.generate_until(asked, True) == [""]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"do_sample": True}, "Sampling was asked for"),
        ({"temperature": 0.7}, "Sampling was asked for"),
        ({"num_beams": 4}, "Beams"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ],
)
def test_what_is_not_done_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        adapter().generate_until(requests("generate_until", ("time", options)), True)


def test_settings_of_greedy_writing_are_taken():
    options = {"do_sample": False, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 2}
    assert len(adapter().generate_until(requests("generate_until", ("time", options)), True)) == 1
