"""The decoder of the page about trained networks: a small causal language model that forms induction heads.

``python docs/atlas/decoder.py OUT TEXT [TEXT ...]`` trains a tokenizer (byte-level BPE) and a
decoder of the Llama type on texts, files or folders of Python sources, and writes both in the layout of
``transformers`` to OUT, with the learning curve in OUT/curve.jsonl.

In half of the sequences a part is repeated: a block of 10 to half of the tokens is copied to a later place.
Text alone forms induction heads as well, but needs more tokens than a CPU reads in two hours. The curve
has the loss on held-out text, the loss on the first and the second copy of random ids, and the weight of the
best head on the token after the earlier copy of the present one.

Needs the packages transformers and tokenizers. Source: :cite:t:`olsson2022context`.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from transformer_theory.training.fitting import State, fit
from transformer_theory.training.optimisers import optimiser, warm_up_cosine
from transformer_theory.training.tasks import StreamTask

LENGTH, BATCH, WORDS = 128, 16, 2048  # tokens of a sequence, sequences of a step, size of the vocabulary
REPEATED, SHORTEST = 0.5, 10  # share of the sequences with a repeated part, and its smallest length
RATE, DECAY, WARM_UP, CLIP = 2e-3, 0.1, 0.02, 1.0
EVERY = 100  # steps between measurements
MAX_LETTERS = 24_000_000  # of the sources of folders
RANDOM = 40  # length of the block of random ids that is repeated


def texts_of(paths: list[Path]) -> tuple[list[str], list[str]]:
    """Returns the texts of files, and those of the Python sources of folders in a fixed random order."""
    files = [path.read_text(encoding="utf-8") for path in paths if path.is_file()]
    sources = sorted(source for path in paths if path.is_dir() for source in path.rglob("*.py"))
    random.Random(0).shuffle(sources)
    chosen, letters = [], 0
    for source in sources:
        text = source.read_text(encoding="utf-8", errors="ignore")
        if 2000 < len(text) < 60_000 and letters < MAX_LETTERS:
            chosen.append(text)
            letters += len(text)
    return files, chosen


def tokenizer_of(texts: list[str]) -> Any:
    """Trains a byte-level BPE on texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["<s>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="<s>", pad_token="<s>")


def decoder(width: int, layers: int) -> nn.Module:
    """Builds a decoder with random weights and eight heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden = 64 * round(8 * width / 3 / 64)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=width,
            intermediate_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def batches(parts: list[Tensor], generator: Generator) -> Iterator[Tensor]:
    """Yields ids, ``[sequences, tokens]``, from all parts alike; half of the sequences repeat a block."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    while True:
        rows = []
        for _ in range(BATCH):
            part = parts[below(len(parts))]
            start = below(len(part) - LENGTH)
            row = part[start : start + LENGTH].clone()
            if torch.rand((), generator=generator) < REPEATED:
                size = SHORTEST + below(LENGTH // 2 - SHORTEST + 1)
                first = below(LENGTH - 2 * size + 1)
                second = first + size + below(LENGTH - first - 2 * size + 1)
                row[second : second + size] = row[first : first + size].clone()
            rows.append(row)
        yield torch.stack(rows)


@torch.no_grad()
def measured(model: Any, held_out: Tensor) -> dict[str, float]:
    """Returns the losses and the best induction score of a decoder, in nats and as a share of the weight."""
    block = torch.randint(256, WORDS, (16, RANDOM), generator=Generator().manual_seed(0))
    ids = torch.cat([block, block], 1)
    model.set_attn_implementation("eager")
    found = model(input_ids=ids, output_attentions=True)
    model.set_attn_implementation("sdpa")
    logits = found.logits[:, :-1].float()
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(
        16, -1
    )
    on_next = [
        layer.diagonal(offset=1 - RANDOM, dim1=-2, dim2=-1).mean((0, 2)).max() for layer in found.attentions
    ]
    return {
        "held-out loss": float(model(input_ids=held_out, labels=held_out).loss),
        "loss on the first copy": float(losses[:, : RANDOM - 1].mean()),
        "loss on the second copy": float(losses[:, RANDOM:].mean()),
        "best induction score": float(max(on_next)),
    }


def main() -> None:
    """Trains the tokenizer and the decoder, and writes both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", type=Path, nargs="+", help="text files, and folders of Python sources")
    parser.add_argument("--minutes", type=float, default=62)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    files, sources = texts_of(options.texts)
    words = tokenizer_of([*files, *sources[:200]])
    parts = [torch.tensor(words.encode(text)) for text in files]
    parts = [part[: -len(part) // 20] for part in parts]
    held_out = torch.stack(
        [torch.tensor(words.encode(files[0]))[-LENGTH * n :][:LENGTH] for n in range(1, 17)]
    )
    if sources:
        parts.append(torch.cat([torch.tensor(words.encode(text)) for text in sources]))
    model = decoder(options.width, options.layers)
    count = sum(weight.numel() for weight in model.parameters())
    print(f"{count:,} parameters; {', '.join(f'{len(part):,}' for part in parts)} ids", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    curve = (options.out / "curve.jsonl").open("w", encoding="utf-8")

    def loss(network: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return network(input_ids=ids, labels=ids).loss

    def watch(state: State) -> None:
        if state.step % EVERY and state.done < 1:
            return
        state.model.eval()
        row = {"step": state.step, "seconds": round(state.seconds, 1), **measured(state.model, held_out)}
        state.model.train()
        curve.write(json.dumps(row) + "\n")
        curve.flush()
        print(row, flush=True)
        model.save_pretrained(options.out)
        words.save_pretrained(options.out)

    fit(
        model,
        StreamTask(loss, lambda generator: batches(parts, generator)),
        optimiser=optimiser(model, name="muon", learning_rate=RATE, weight_decay=DECAY),
        minutes=options.minutes,
        schedule=lambda state: warm_up_cosine(max(state.done, 1e-4), warm_up=WARM_UP, floor=0.02),
        callbacks=[watch],
        clip=CLIP,
    )
    watch(State(model.eval(), None, -1, None, done=1.0))  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
