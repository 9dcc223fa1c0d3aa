"""Mutants of the theory of graph tokens."""

from . import Mutant

GRAPH = "theories.graph_tokens"
MUTANTS = (
    # Patterns and their sums.
    Mutant(
        f"{GRAPH}.patterns.Pattern.keys_per_query",
        "n - taken",
        "n - taken + 1",
        "wrong factor",
        "a number of keys that repeats a node",
    ),
    Mutant(
        f"{GRAPH}.patterns.Pattern.matrix",
        "== (self.labels[a] == self.labels[b])",
        ">= (self.labels[a] == self.labels[b])",
        "swapped function",
        "patterns that allow further equalities: a basis as well, but no longer disjoint",
    ),
    Mutant(
        f"{GRAPH}.patterns.pattern_sums",
        "+ edges + back",
        "+ edges",
        "missing term",
        "edges apart from (u, v) without adding (v, u) again",
    ),
    Mutant(
        f"{GRAPH}.patterns.pattern_sums",
        "rows[v] - back",
        "rows[v] - edges",
        "swapped function",
        "keys (v, w) that leave out (u, v)",
    ),
    Mutant(
        f"{GRAPH}.patterns.pattern_sums",
        "all_edges - rows - cols",
        "all_edges - 2 * rows",
        "swapped function",
        "edges without u by rows",
    ),
    # Heads.
    Mutant(
        f"{GRAPH}.patterns.Pattern.signs",
        "else -1.0",
        "else 0.0",
        "missing term",
        "heads that do not avoid nodes",
    ),
    Mutant(
        f"{GRAPH}.heads.head_scores",
        "+ 2 * prefers_nodes",
        "- 2 * prefers_nodes",
        "flipped sign",
        "heads that prefer keys of the wrong type",
    ),
    Mutant(
        f"{GRAPH}.heads.head_scores",
        "+ 2 * prefers_nodes",
        "+ 0.25 * prefers_nodes",
        "wrong factor",
        "an eighth of the type term",
    ),
    Mutant(
        f"{GRAPH}.heads.pattern_head",
        "pattern.signs.mT.contiguous()",
        "pattern.signs.contiguous()",
        "swapped function",
        "the head's matrix with the places of key and query exchanged",
    ),
    Mutant(
        f"{GRAPH}.heads.head_scores",
        "heads.to(z.dtype).mT",
        "heads.to(z.dtype)",
        "swapped function",
        "scores with the roles of key and query exchanged",
    ),
    Mutant(
        f"{GRAPH}.heads.attention_maps",
        "(scale * scores)",
        "(scale / 2 * scores)",
        "dropped factor",
        "half of the attention scale",
    ),
    Mutant(
        f"{GRAPH}.heads.attention_maps",
        "TIE * torch.finfo(scores.dtype).eps",
        "1.5",
        "wrong factor",
        "hard-max that takes scores within 1.5 for equal",
    ),
    # Identifiers and tokens.
    Mutant(
        f"{GRAPH}.identifiers.RandomUnit.__call__",
        "rows / rows.norm(dim=1, keepdim=True)",
        "torch.linalg.qr(rows.mT).Q.mT if width >= len(graph) else rows",
        "swapped function",
        "random identifiers that are orthogonalised",
    ),
    Mutant(
        f"{GRAPH}.identifiers.Simplex.__call__",
        "Q[:, 1:]",
        "Q[:, :-1]",
        "swapped function",
        "a simplex without its last direction",
    ),
    Mutant(
        f"{GRAPH}.identifiers.Simplex.__call__",
        " / math.sqrt(1 - 1 / n)",
        " / 2",
        "wrong factor",
        "a simplex of the wrong length",
    ),
    Mutant(
        f"{GRAPH}.identifiers.Laplacian.__call__",
        "vectors * signs",
        "vectors.abs() * signs",
        "swapped function",
        "absolute eigenvectors",
    ),
    Mutant(
        f"{GRAPH}.baselines.GraphAttention.__call__",
        "(matrix + torch.eye",
        "(matrix.triu() + torch.eye",
        "swapped function",
        "graph attention to neighbours of larger number only",
    ),
    # Layers and networks.
    Mutant(
        f"{GRAPH}.layers.by_heads",
        "counts[:, None, None] * attended",
        "attended",
        "dropped factor",
        "heads without the number of keys",
    ),
    Mutant(
        f"{GRAPH}.layers.gate",
        "(1 - open)",
        "open",
        "flipped sign",
        "a gate that lets the wrong queries through",
    ),
    Mutant(
        f"{GRAPH}.layers.gate",
        " - torch.relu(-values - closed)",
        "",
        "missing term",
        "a gate that loses negative values",
    ),
    Mutant(
        f"{GRAPH}.layers._bias",
        "(1 - eye) * layer.bias[1]",
        "layer.bias[1]",
        "missing projection",
        "the bias of edges on nodes as well",
    ),
    Mutant(
        f"{GRAPH}.layers.Network.__call__",
        "tensor.sum((0, 1)) - nodes",
        "tensor[0].sum(0)",
        "swapped function",
        "a read-out of the first row",
    ),
    # Tests and baselines.
    Mutant(
        f"{GRAPH}.refinement.weisfeiler_leman",
        "np.sort(colour[around])",
        "np.sort(around)",
        "swapped function",
        "neighbours by their number",
    ),
    Mutant(
        f"{GRAPH}.refinement.folklore_weisfeiler_leman",
        "colour[:, None, :] * base + colour.T[None]",
        "colour[:, None, :] * base + 0 * colour.T[None]",
        "dropped factor",
        "the folklore test that sees one of the two colours",
    ),
    Mutant(
        f"{GRAPH}.baselines.MessagePassing.__call__",
        "matrix @ h @ others",
        "matrix.cumsum(0) @ h @ others",
        "swapped function",
        "messages from the neighbours of all earlier nodes",
    ),
)
