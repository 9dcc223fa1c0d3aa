"""
Which graphs can a transformer on node and edge tokens distinguish?
===================================================================

Fifteen attention heads compute every equivariant layer of order two, and such networks see no more than
colour refinement does.

First the heads and their error, then a layer by attention, then graphs that no network of order two
distinguishes, and what Laplacian identifiers change; last, a set of molecules' skeletons.
"""

import networkx
import torch

from transformer_theory import graph_tokens
from transformer_theory.core.result import Result
from transformer_theory.core.table import collect
from transformer_theory.data.graphs import Graphs
from transformer_theory.theories.graph_tokens.figures.maps import maps
from transformer_theory.theories.graph_tokens.figures.pairs import pairs
from transformer_theory.theories.graph_tokens.identifiers import adjacency
from transformer_theory.theories.graph_tokens.layers import relative_difference

generator = torch.Generator().manual_seed(0)

# %%
# A graph as tokens: one for each pair of nodes. The heads' attention tends to the fifteen patterns as the
# scale grows.
graph = networkx.cycle_graph(6)
for identifiers in (
    "orthonormal",
    "laplacian",
    graph_tokens.Simplex(),
    graph_tokens.RandomUnit(64),
    graph_tokens.Orthonormal(kept=4),
):
    tokens = graph_tokens.tokenize_graph(graph, identifiers, generator=generator)
    errors = [
        graph_tokens.worst_error(graph_tokens.attention_maps(tokens, scale=a), 6) for a in (1, 5, 10, 20)
    ]
    print(
        f"{identifiers}: worst error of an attention weight at a = 1, 5, 10, 20: "
        f"{', '.join(f'{error:.2g}' for error in errors)}"
    )

# %%
# The maps beside the patterns; with three dimensions fewer than nodes nothing of this is left. Heads that
# learn reach the same maps.
experiment = maps(nodes=5, steps=150)
figure = experiment.plot(experiment.run())

# %%
# A layer of order two: by fifteen heads, and by sums over rows and columns.
layer = graph_tokens.random_layer(4, 4, 20, generator=generator)
X = torch.randn(20, 20, 4, generator=generator, dtype=torch.float64)
tokens = graph_tokens.tokenize_graph(networkx.barabasi_albert_graph(20, 2, seed=0), generator=generator)
print(
    "layer by heads: relative error "
    f"{relative_difference(graph_tokens.by_sums(layer, X), graph_tokens.by_heads(layer, X, tokens)):.1e}"
)

# %%
# A hexagon and two triangles: equal for networks of order two, but not for the folklore test on pairs of
# nodes.
hexagon, triangles = graph_tokens.known_pairs()[1].first, graph_tokens.known_pairs()[1].second
network = graph_tokens.random_network(6, generator=generator)
outputs = [network(adjacency(graph)[..., None]) for graph in (hexagon, triangles)]
print(f"order two: relative difference {relative_difference(*outputs):.1e}")
for refine in (graph_tokens.weisfeiler_leman, graph_tokens.folklore_weisfeiler_leman):
    print(
        f"{refine.__name__}: "
        f"{'distinguished' if graph_tokens.distinguished(hexagon, triangles, refine) else 'equal'}"
    )
experiment = pairs()
figure = experiment.plot(experiment.run())

# %%
# Ten carbon atoms in two rings. Which of these skeletons can a network of order two not distinguish?
decalin = networkx.cycle_graph(10)
decalin.add_edge(0, 5)
graphs, names = [decalin], ["decalin"]
for size in (3, 4, 5):  # two rings with an edge between them
    rings = networkx.disjoint_union(networkx.cycle_graph(size), networkx.cycle_graph(10 - size))
    rings.add_edge(0, size)
    graphs.append(rings)
    names.append(f"rings of {size} and {10 - size}")
theory = graph_tokens.THEORY.on_data
table, arrays = collect(theory.measure(theory.read(Graphs(tuple(graphs), tuple(names))), generator, draws=19))
for row in table:
    print(f"{row.quantity}: {row.value if row.value is not None else row.reason}")
figure = theory.plot(Result("skeletons", table=table, arrays=arrays))
