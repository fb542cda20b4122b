#!/usr/bin/env bash
# Byte-level twins of a small GPT-2, trained from scratch on 400 PG-19 books, and their evaluation.
# The records of results/evaluation come from this script, on an H200 (about seven minutes, the three
# twins side by side on one card).
#
#   HOLDOVER_DATA=... benchmarks/pg19_twins.sh runs/pg19-bytes
set -euo pipefail
out=$1
shape=n_layer=6,n_embd=256,n_head=8,n_positions=512,resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0
train=(--model gpt2 --from-scratch --shape "$shape" --tokenizer bytes --data pg19
    --window 300 --windows 10 --rows 64 --epochs 10 --max-steps 800
    --lr 1e-3 --added-learning-rate 1e-3 --schedule cosine --warm-up 100 --bf16
    --validate-every 20000000 --validation-tokens 20000 --patience none --save-every 100000)

twin() {
    local name=$1 overlaps=$2
    shift 2
    python -m holdover train "${train[@]}" --output "$out/$name" "$@"
    python -m holdover eval --model "$out/$name" --data pg19 --document-tokens 100000 --rows 32 \
        --overlap "$overlaps" --output "$out/$name-eval"
}

twin plain 0,50,100,150 --recurrence none &
twin pooled 0 &
twin tokens 0 --recurrence tokens --recurrence.slots 8 --recurrence.map-hidden= &
wait
