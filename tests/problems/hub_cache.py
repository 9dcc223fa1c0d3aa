"""A cache of the Hugging Face hub, built by hand: ``models--org--name`` with ``refs``, ``snapshots`` and
``blobs``.
"""

import hashlib
from pathlib import Path

import torch
from torch import nn

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(cache: Path, name: str, files: Path, *, commit: str = COMMIT, revision: str = "main") -> Path:
    """Puts the files of a folder into a cache and returns the folder of the snapshot, in which each file is a
    link to its contents.
    """
    place = cache / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    for folder in (snapshot, place / "blobs", place / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (place / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
    (place / "refs" / revision).write_text(commit)
    for file in sorted(files.iterdir()):
        contents = file.read_bytes()
        blob = place / "blobs" / hashlib.sha256(contents).hexdigest()
        blob.write_bytes(contents)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def tiny_vit(seed: int = 0, *, side: int = 16, classes: int = 2) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = ViTConfig(**sizes, image_size=side, patch_size=4, num_labels=classes, initializer_range=0.5)
        return ViTForImageClassification(config).eval()


def tiny_bert(seed: int = 0) -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = BertConfig(**sizes, vocab_size=20, max_position_embeddings=24, initializer_range=0.5)
        return BertModel(config).eval()
