"""Pretrain GPT-2 small's own shape (124 million weights) until a given time.

    python experiments/pretraining.py train --texts FOLDER --output RUN --seconds 1400
    python experiments/pretraining.py join --pieces RUN/final --tokenizer FOLDER/tokenizer --output MODEL

GPT-2's own weights are in no registry. FOLDER is what pretraining_texts.py wrote. `train` runs on the
GPU machine and needs nothing of holdover; `join` makes an ordinary GPT2LMHeadModel folder of what came
back, which `open_model` reads.

* The learning rate follows the clock: a short warm-up, then a cosine that ends at 0 when the time is up.
* With --wait, the model is compiled first and training begins when that file appears, so that the texts
  can arrive meanwhile. The file holds the time at which training ends, in seconds since 1970.
* Texts are read as GPT-2 did: documents end to end, cut into rows of 1,024 tokens. Every epoch cuts at
  another place and draws a new order of rows.
* Weights are saved in bfloat16, once half way and once at the end, in pieces of less than 16 MiB: the
  low bytes as they are, the high bytes (signs and exponents) compressed.
"""

import argparse
import hashlib
import json
import lzma
import math
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

VOCABULARY = 50257
# Matrix products are slow with an odd number of columns.
PADDED = 50304
SETTINGS: dict[str, Any] = {
    "layers": 12,
    "width": 768,
    "heads": 12,
    "positions": 1024,
    "dropout": 0.1,
    "rows": 64,
    "learning_rate": 1e-3,
    "warm_up": 0.02,  # of the time
    "betas": (0.9, 0.95),
    "weight_decay": 0.3,
    "clip": 1.0,
    "seed": 0,
    "validate_every": 60.0,  # seconds
    "valid_rows": 128,  # of each text, at every validation but the last
    "copies": (0.55,),  # of the time, when a copy is saved
}
TOY = {"layers": 2, "width": 64, "heads": 2, "positions": 64, "rows": 4, "valid_rows": 8}
TOY |= {"validate_every": 5.0}
PIECE = 16_600_000


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.ln_1(x)))
        inner = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.drop(self.mlp["c_proj"](inner))

    def attend(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.attn["c_attn"](x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        return self.attn["c_proj"](mixed.transpose(1, 2).reshape(rows, length, width))

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class GPT2(nn.Module):
    """GPT-2, with the names of transformers' GPT2LMHeadModel and ordinary linear layers."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        width, layers = settings["width"], settings["layers"]
        self.dropout = settings["dropout"]
        self.wte = nn.Embedding(PADDED, width)
        self.wpe = nn.Embedding(settings["positions"], width)
        self.h = nn.ModuleList(Block(width, settings["heads"], self.dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = (2 * layers) ** -0.5 if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(weight, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def logits(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = F.dropout(self.wte(ids) + self.wpe(places), self.dropout, self.training)
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(ids)
        return F.cross_entropy(logits.view(-1, PADDED).float(), targets.reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("--texts", type=Path, required=True, metavar="FOLDER")
    training.add_argument("--output", type=Path, required=True, metavar="RUN")
    training.add_argument("--seconds", type=float, help="how long to train")
    training.add_argument("--wait", type=Path, metavar="FILE", help="holds the time of the end")
    training.add_argument("--toy", action="store_true", help="a tiny shape, to try it on a CPU")
    joining = verbs.add_parser("join")
    joining.add_argument("--pieces", type=Path, required=True, metavar="FOLDER")
    joining.add_argument("--tokenizer", type=Path, required=True, metavar="FOLDER")
    joining.add_argument("--output", type=Path, required=True, metavar="MODEL")
    options = parser.parse_args()
    if options.verb == "join":
        join(options.pieces, options.tokenizer, options.output)
    else:
        train(options, SETTINGS | (TOY if options.toy else {}))


def train(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    options.output.mkdir(parents=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(settings["seed"])
    model = GPT2(settings).to(device)
    step_of = prepared(model, settings, device, compiled=cuda)
    if options.wait is not None:
        say("compiled; waiting for the texts")
        while not options.wait.exists():
            time.sleep(0.2)
        end = float(options.wait.read_text())
    else:
        end = time.time() + options.seconds
    texts = read_texts(options.texts, device)
    say({name: len(ids) for name, ids in texts.items()})
    probes = probes_of(texts, settings)
    run = {"settings": settings, "texts": json.loads((options.texts / "texts.json").read_text())}
    run |= {"versions": versions(device), "command": " ".join(["pretraining.py", *sys.argv[1:]])}
    run |= {"script_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}
    optimizer = optimizer_of(model, settings, cuda)
    curve: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    copies = list(settings["copies"])
    torch.manual_seed(settings["seed"])
    begun = time.time()
    step, tokens, since, losses = 0, 0, begun, []
    validated = begun
    epochs = 0.0
    for epoch, ids, targets in batches(texts["train"], settings, device):
        done = (time.time() - begun) / (end - begun)
        if done >= 1:
            break
        rate = settings["learning_rate"] * rate_at(done, settings["warm_up"])
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = step_of(ids, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens, epochs = step + 1, tokens + ids.numel(), epoch
        losses.append(loss.detach())
        if step % 25 == 0:
            # Reading them waits for the GPU, so that the clock is the GPU's too.
            mean, now = torch.stack(losses).mean().item(), time.time()
            losses = []
            if step % 100 == 0:
                row = {"step": step, "tokens": tokens, "epochs": round(epochs, 3), "loss": mean}
                row |= {"rate": rate, "norm": norm.item(), "seconds": round(now - begun, 1)}
                row |= {"tokens_per_second": round(100 * ids.numel() / (now - since))}
                since = now
                steps.append(row)
                say(row)
            if now - validated > settings["validate_every"]:
                found = validate(model, probes, settings, device)
                curve.append(
                    {"step": step, "tokens": tokens, "seconds": round(now - begun)} | found
                )
                say(curve[-1])
                validated = time.time()
                since += validated - now
            if copies and done >= copies[0]:
                copies.pop(0)
                about = {"step": step, "tokens": tokens, "validation": curve[-1:]}
                now = time.time()
                save(model, settings, options.output / "copy", run | about)
                since += time.time() - now
    seconds = time.time() - begun
    say(f"trained: {step} steps, {tokens} tokens, {seconds:.1f} s")
    found = validate(model, probes, settings, device)
    curve.append({"step": step, "tokens": tokens, "seconds": round(seconds)} | found)
    whole = {
        name: loss_on(model, rows_of(ids, settings["positions"]), settings, device)
        for name, ids in texts.items()
        if name != "train"
    }
    run |= {
        "steps": step,
        "tokens": tokens,
        "epochs": round(epochs, 3),
        "seconds": round(seconds, 1),
    }
    run |= {"tokens_per_second": round(tokens / seconds), "final": whole}
    run |= {"validation": curve, "training": steps}
    if cuda:
        run["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    save(model, settings, options.output / "final", run)
    say({"final": whole, "tokens_per_second": run["tokens_per_second"]})
    (options.output / "done").touch()


def say(what: Any) -> None:
    print(json.dumps(what) if isinstance(what, dict) else what, flush=True)


def prepared(model: GPT2, settings: dict[str, Any], device: torch.device, *, compiled: bool) -> Any:
    """The loss of a batch; compiled, it is tried and compared with the one as it is written."""

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return called(ids, targets)

    called: Any = model
    if not compiled:
        return loss_of
    shape = settings["rows"], settings["positions"]
    ids = torch.randint(VOCABULARY, shape, device=device)
    called = torch.compile(model)
    try:
        for _ in range(2):
            loss_of(ids, ids).backward()
    except Exception as error:
        say(f"not compiled: {error!r}")
        called = model
    begun = None
    for number in range(8):
        if number == 3:
            wait_for(device)
            begun = time.time()
        loss_of(ids, ids).backward()
    wait_for(device)
    assert begun is not None
    say(f"about {5 * ids.numel() / (time.time() - begun):,.0f} tokens/s without the optimiser")
    compare(model, loss_of, ids[: settings["rows"] // 4])
    model.zero_grad(set_to_none=True)
    return loss_of


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def compare(model: GPT2, loss_of: Any, ids: Tensor) -> None:
    """Print the cosine of compiled gradients with those of the step as it is written. Each draws its own
    dropout, which keeps it a little below 1."""
    model.zero_grad(set_to_none=True)
    compiled = loss_of(ids.repeat(4, 1), ids.repeat(4, 1))
    compiled.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}  # pyright: ignore
    model.zero_grad(set_to_none=True)
    with torch.autocast(ids.device.type, torch.bfloat16):
        written = model(ids, ids)
    written.backward()
    cosines = {
        name: F.cosine_similarity(found[name].flatten(), weight.grad.flatten(), dim=0).item()  # pyright: ignore
        for name, weight in model.named_parameters()
    }
    least = min(cosines, key=lambda name: cosines[name])
    say({"compiled": compiled.item(), "written": written.item(), least: cosines[least]})
    say({"mean cosine of gradients": sum(cosines.values()) / len(cosines)})
    torch.cuda.empty_cache()


def optimizer_of(model: GPT2, settings: dict[str, Any], cuda: bool) -> torch.optim.Optimizer:
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() == 2], "weight_decay": settings["weight_decay"]},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    rate, betas = settings["learning_rate"], settings["betas"]
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=cuda)


def rate_at(done: float, warm_up: float) -> float:
    """The learning rate as a share of its largest, when this share of the time is over."""
    if done < warm_up:
        return max(done / warm_up, 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up)))


def batches(
    ids: Tensor, settings: dict[str, Any], device: torch.device
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Rows of all epochs, with how many epochs are over."""
    length, rows = settings["positions"], settings["rows"]
    random = torch.Generator().manual_seed(settings["seed"])
    inside = torch.arange(length + 1, device=device)
    epoch = 0
    while True:
        first = int(torch.randint(length, (), generator=random))
        count = (len(ids) - first - 1) // length
        order = torch.randperm(count, generator=random).to(device) * length + first
        for at in range(0, count - rows + 1, rows):
            found = ids[order[at : at + rows, None] + inside].long()
            yield epoch + at / count, found[:, :-1].contiguous(), found[:, 1:].contiguous()
        epoch += 1


def read_texts(folder: Path, device: torch.device) -> dict[str, Tensor]:
    about = json.loads((folder / "texts.json").read_text())

    def read(name: str) -> np.ndarray:
        raw = lzma.decompress((folder / name).read_bytes())
        if hashlib.sha256(raw).hexdigest() != about["files"][name]["sha256"]:
            raise ValueError(f"{name} is damaged: its sha256 is not the one in texts.json.")
        return np.frombuffer(raw, dtype="<u2").astype(np.int32)

    names = sorted(about["files"])
    with ThreadPoolExecutor() as pool:
        found = dict(zip(names, pool.map(read, names), strict=True))
    parts = [found[name] for name in names if name.startswith("train-")]
    texts = {"train": np.concatenate(parts)}
    texts |= {name[: -len(".xz")]: ids for name, ids in found.items() if name.startswith("valid-")}
    return {name: torch.from_numpy(ids).to(device) for name, ids in texts.items()}


def rows_of(ids: Tensor, length: int, most: int | None = None) -> Tensor:
    """Rows with the token that follows each, evenly spread over a text."""
    count = (len(ids) - 1) // length
    chosen = torch.arange(count)
    if most is not None and most < count:
        chosen = torch.linspace(0, count - 1, most).long()
    starts = chosen.to(ids.device) * length
    return ids[starts[:, None] + torch.arange(length + 1, device=ids.device)]


def probes_of(texts: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Tensor]:
    """What every validation reads, of the training text too: there without dropout."""
    return {
        name: rows_of(ids, settings["positions"], settings["valid_rows"])
        for name, ids in texts.items()
    }


def validate(
    model: GPT2, probes: dict[str, Tensor], settings: dict[str, Any], device: torch.device
) -> dict[str, float]:
    return {name: loss_on(model, rows, settings, device)["loss"] for name, rows in probes.items()}


@torch.no_grad()
def loss_on(
    model: GPT2, rows: Tensor, settings: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """Mean loss in nats a token, every row read alone; as it is written, not compiled."""
    model.eval()
    total = 0.0
    for at in range(0, len(rows), settings["rows"] // 2):
        part = rows[at : at + settings["rows"] // 2].long()
        with torch.autocast(device.type, torch.bfloat16):
            logits = model.logits(part[:, :-1])[..., :VOCABULARY]
        targets = part[:, 1:].reshape(-1)
        total += F.cross_entropy(
            logits.reshape(-1, VOCABULARY).float(), targets, reduction="sum"
        ).item()
    model.train()
    count = len(rows) * (rows.shape[1] - 1)
    return {"loss": total / count, "tokens": count}


def save(model: GPT2, settings: dict[str, Any], folder: Path, about: dict[str, Any]) -> None:
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    weights["wte.weight"] = weights["wte.weight"][:VOCABULARY]
    for name, tensor in weights.items():
        # transformers' GPT-2 has these transposed.
        turned = tensor.t() if ".c_" in name and tensor.dim() == 2 else tensor
        weights[name] = turned.to(torch.bfloat16).cpu().contiguous()
    named = {f"transformer.{name}": tensor for name, tensor in weights.items()}
    raw = to_bytes(named, metadata={"format": "pt"})
    folder.mkdir(parents=True, exist_ok=True)
    about = about | {"weights": pack(raw, folder), "config": configuration(settings)}
    (folder / "record.json").write_text(json.dumps(about, indent=1))


def pack(raw: bytes, folder: Path) -> dict[str, Any]:
    """Cut a file of 16-bit numbers into pieces, its high bytes compressed."""
    low, high = raw[0::2], raw[1::2]
    size = max(1, -(-len(high) // 32))
    parts = [high[at : at + size] for at in range(0, len(high), size)]
    with ThreadPoolExecutor() as pool:
        packed = low + b"".join(pool.map(lambda part: lzma.compress(part, preset=1), parts))
    names = []
    for number, at in enumerate(range(0, len(packed), PIECE)):
        names.append(f"weights.{number:03}")
        (folder / names[-1]).write_bytes(packed[at : at + PIECE])
    return {
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "low_bytes": len(low),
        "pieces": names,
        "packed_sha256": hashlib.sha256(packed).hexdigest(),
    }


def unpack(about: dict[str, Any], folder: Path) -> bytes:
    packed = b"".join((folder / name).read_bytes() for name in about["pieces"])
    low = packed[: about["low_bytes"]]
    high = lzma.decompress(packed[about["low_bytes"] :])
    raw = np.empty(len(low) + len(high), dtype=np.uint8)
    raw[0::2], raw[1::2] = np.frombuffer(low, np.uint8), np.frombuffer(high, np.uint8)
    if hashlib.sha256(raw.tobytes()).hexdigest() != about["sha256"]:
        raise ValueError("The weights are damaged: their sha256 is not the record's.")
    return raw.tobytes()


def configuration(settings: dict[str, Any]) -> dict[str, Any]:
    """config.json of transformers."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_positions": settings["positions"],
        "n_embd": settings["width"],
        "n_layer": settings["layers"],
        "n_head": settings["heads"],
        "activation_function": "gelu_new",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), settings["dropout"]),
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "bos_token_id": VOCABULARY - 1,
        "eos_token_id": VOCABULARY - 1,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def join(pieces: Path, tokenizer: Path, output: Path) -> None:
    about = json.loads((pieces / "record.json").read_text())
    raw = unpack(about["weights"], pieces)
    output.mkdir(parents=True, exist_ok=True)
    (output / "model.safetensors").write_bytes(raw)
    (output / "config.json").write_text(json.dumps(about["config"], indent=1))
    for path in tokenizer.iterdir():
        (output / path.name).write_bytes(path.read_bytes())


def versions(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return {"python": platform.python_version(), "torch": torch.__version__, "device": name}


if __name__ == "__main__":
    main()
