"""Trains the drafter on what the target writes greedily, as far as that is the reference, and measures acceptance.

    python3 train_drafter.py TARGET.gguf --out DIR [--tests FILE]
"""

import argparse
import json
import pickle
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import gguf
from batches import Shape, stream
from digests import digests
from drafter import DraftConfig, blocks, draft, initial
from evaluate import answers, batches, examples, forward, load_gguf
from export_gguf import tokenizer_keys
from gguf import I32, U32
from model import Config, Model
from optimizer import Optimizer
from ranks import processors
from text.bpe import Tokenizer
from text.corpus import LONG, TESTS
from train import rate

STAGES = [(2000, Shape(32, 2048, 1400, 0.2, "hard")), (200, Shape(4, 16384, 15400, 0.4, "hard"))]
PEAK_RATE = 2e-3
ANCHORS = {2048: 64, 16384: 128}  # blocks of a row
GAMMA = {8: 4.0, 16: 7.0}  # how fast the loss forgets later slots


def written_by(target: dict, hidden: torch.Tensor, ids: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
    """Which tokens the target would write greedily: those of an answer up to the first that is not its likeliest one."""
    answer, right = torch.zeros_like(learned), torch.zeros_like(learned)
    answer[:, 1:] = learned[:, :-1]  # learned[j]: token j + 1 is the assistant's
    for part in range(0, len(ids), 4):
        guess = F.linear(hidden[part:part + 4].bfloat16(), target["output.weight"].bfloat16()).argmax(-1)
        right[part:part + 4, 1:] = guess[:, :-1] == ids[part:part + 4, 1:]
    wrong = (answer & ~right).long()
    begins = answer & ~F.pad(answer, (1, 0))[:, :-1]
    so_far = wrong.cumsum(1)
    before = torch.where(begins, so_far - wrong, 0).cummax(1).values
    return answer & (so_far == before)


def loss_of(model: Model, target: dict, w: dict, c: DraftConfig, batch: torch.Tensor, size: int, mask_id: int) -> tuple:
    ids, learned, starts = batch[0].long(), batch[1].bool(), batch[2].bool()
    rows, length = ids.shape
    with torch.no_grad():
        hidden, _, outputs, _ = model.hidden(target, ids, starts, torch.bfloat16, keep=True)
        features = torch.cat([outputs[i] for i in c.captures], -1)
        own = written_by(target, hidden, ids, learned)
        weights = (own[:, :-1] & own[:, 1:]).float() + 1e-6
        count = ANCHORS[length]
        anchors = torch.multinomial(weights, count)
        t = torch.arange(length, device=ids.device)
        place = t - torch.cummax(torch.where(starts, t, 0), 1).values
        document = starts.cumsum(1)
        block_ids, block_place, mask = blocks(ids, place, document, anchors, size, mask_id)
        slots = anchors[..., None] + torch.arange(size, device=ids.device)
        inside = slots < length
        slots = slots.clamp(max=length - 1)
        labels = ids.gather(1, slots.flatten(1)).view(slots.shape)
        valid = (own.gather(1, slots.flatten(1)).view(slots.shape) & inside).long()
        valid[..., 0] = own.gather(1, anchors).long()
        valid = valid.cumprod(-1)[..., 1:].bool()
        embedding = F.embedding(block_ids, target["token_embd.weight"])
    out = draft(w, c, features, place, embedding, block_place, mask, torch.bfloat16)
    out = out.view(rows, count, size, -1)[:, :, 1:][valid]
    logits = F.linear(out.bfloat16(), target["output.weight"].bfloat16()).float()
    decay = torch.exp(-torch.arange(size - 1, device=ids.device) / GAMMA[size]).expand(rows, count, -1)[valid]
    losses = F.cross_entropy(logits, labels[:, :, 1:][valid], reduction="none")
    right = (logits.argmax(-1) == labels[:, :, 1:][valid]).float()
    return (losses * decay).sum() / decay.sum(), right.mean()


@torch.no_grad()
def acceptance(model: Model, target: dict, w: dict, c: DraftConfig, sequences: list, size: int, mask_id: int) -> tuple:
    """Tokens written and steps taken when each answer that the target writes by itself is drafted in blocks."""
    written = steps = 0
    for chosen, ids in batches(sequences):
        hidden, _, outputs, _ = forward(model, target, ids, keep=True)
        features = torch.cat([outputs[i] for i in c.captures], -1)
        guess = torch.stack([F.linear(h, target["output.weight"]).argmax(-1) for h in hidden])
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        at = [sequences[i][1] for i in chosen]
        ends = [len(sequences[i][0]) for i in chosen]
        live = [bool((guess[r, a - 1:e - 1] == ids[r, a:e]).all()) for r, (a, e) in enumerate(zip(at, ends))]
        while any(live):
            rows = [r for r, on in enumerate(live) if on]
            index = torch.tensor(rows, device=ids.device)
            anchors = torch.tensor([[at[r]] for r in rows], device=ids.device)
            block_ids, block_place, mask = blocks(ids[index], place[index], torch.zeros_like(ids[index]), anchors, size, mask_id)
            out = draft(w, c, features[index], place[index], F.embedding(block_ids, target["token_embd.weight"]), block_place, mask,
                        torch.float32)
            tokens = F.linear(out, target["output.weight"]).argmax(-1).cpu()
            for n, r in enumerate(rows):
                truth = ids[r, at[r] + 1:min(at[r] + size, ends[r])].cpu()
                same = (tokens[n, 1:1 + len(truth)] == truth).long().cumprod(0).sum().item()
                # The pending token and the drafts that agree; the target's next token becomes pending.
                written, steps = written + 1 + same, steps + 1
                at[r] += 1 + same
                live[r] = at[r] < ends[r]
    return written, steps


def metadata(c: DraftConfig, tokenizer: Tokenizer) -> dict:
    a = "dflash."
    keys = {"general.architecture": "dflash", "general.type": "model", "general.name": "Tessera Mini drafter",
            "general.file_type": U32(7), "general.quantization_version": U32(2)}
    numbers = {"block_count": c.layers, "context_length": c.context, "embedding_length": c.width, "feed_forward_length": c.ffn,
               "attention.head_count": c.heads, "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_dim,
               "attention.value_length": c.head_dim, "block_size": c.block}
    keys |= {a + key: U32(value) for key, value in numbers.items()}
    keys |= {a + "rope.freq_base": c.rope_base, a + "attention.layer_norm_rms_epsilon": c.eps,
             a + "target_layers": [U32(i + 1) for i in c.captures],  # this dialect counts from the layer's input
             a + "rope.dimension_sections": [I32(x) for x in (c.head_dim // 2, 0, 0, 0)]}
    keys |= tokenizer_keys(tokenizer)
    keys["tokenizer.ggml.mask_token_id"] = U32(tokenizer.ids["<|mask|>"])
    return keys


def export(w: dict, c: DraftConfig, tokenizer: Tokenizer, path: Path) -> dict:
    """Writes the file and returns its weights as a reader sees them."""
    tensors = {name: ("F32" if u.ndim == 1 else "Q8_0", u.detach().cpu().numpy()) for name, u in w.items()}
    gguf.write(path, metadata(c, tokenizer), tensors)
    return {name: torch.from_numpy(np.ascontiguousarray(u)).cuda() for name, u in gguf.read(path)[1].items()}


def accepted(target: dict, shipped: dict, c: DraftConfig, tokenizer: Tokenizer, options: argparse.Namespace, begin: float) -> dict:
    """Mean acceptance lengths by task and block."""
    plain, mask_id = Model(Config(), compiled=False), tokenizer.ids["<|mask|>"]
    torch.backends.cuda.matmul.allow_tf32 = False
    cached = pickle.loads(options.tests.read_bytes())["sets"] if options.tests else {}
    report: dict = {}
    for name in TESTS:
        count = options.count if name not in LONG else options.count // 3 if name != "recall_16k" else options.count // 10
        sequences = answers(cached[name][:count] if cached else examples(tokenizer, name, count))
        for size in (8, 16):
            written, steps = acceptance(plain, target, shipped, c, sequences, size, mask_id)
            report.setdefault(name, {})[str(size)] = round(written / max(steps, 1), 3)
        print(name, report[name], f"{time.time() - begin:.0f} s", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--out", required=True)
    parser.add_argument("--drafter", help="a file to measure with this target; nothing is trained")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps, for a trial")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tests", type=Path, help="the cache that evaluate.py wrote")
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches; default: one a core")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(2)
    c, tokenizer = DraftConfig(), Tokenizer.of(gguf.read(options.target)[0])
    mask_id = tokenizer.ids["<|mask|>"]
    target = load_gguf(options.target)
    if options.drafter:
        report = {"sha256": digests(options.target, options.drafter)}
        report |= accepted(target, load_gguf(options.drafter), c, tokenizer, options, time.time())
        (out / "acceptance.json").write_text(json.dumps(report, indent=1) + "\n")
        return
    model = Model(Config())
    w = {name: u.cuda().requires_grad_() for name, u in initial(c, 3).items()}
    optimizer = Optimizer(w)
    begin = time.time()
    shapes = [shape for steps, shape in STAGES for _ in range(max(3, int(steps * options.scale)))]
    log = open(out / "drafter_log.jsonl", "w")
    for step, batch in enumerate(stream(tokenizer, "drafter/1", shapes, options.workers or processors())):
        batch = torch.from_numpy(batch.astype(np.int32)).cuda(non_blocking=True)
        loss, accuracy = loss_of(model, target, w, c, batch, 16 if step % 3 else 8, mask_id)
        loss.backward()
        optimizer.step(torch.tensor(rate(step, len(shapes), PEAK_RATE, 100, 0.6)))
        if step % 50 == 0 or step == len(shapes) - 1:
            log.write(json.dumps({"step": step, "loss": round(loss.item(), 5), "accuracy": round(accuracy.item(), 5),
                                  "seconds": round(time.time() - begin, 1)}) + "\n")
            log.flush()
    shipped = export(w, c, tokenizer, out / "tessera-mini-dflash.gguf")
    report = {"steps": len(shapes), "seconds": round(time.time() - begin),
              "sha256": digests(options.target, out / "tessera-mini-dflash.gguf")}
    report |= accepted(target, shipped, c, tokenizer, options, begin)
    (out / "acceptance.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
