"""
Can a transformer with fixed weights run any program?
=====================================================

A Turing machine is compiled into the weights of a transformer with hard attention, which then generates the
run of the machine, one step per token.

First a machine as text and its weights, then the four-state busy beaver, then the price of finite precision
and of softmax; last, what a transformer without positions cannot do.
"""

import torch

from transformer_theory import turing
from transformer_theory.core.plotting import axes, label_ends, line, shades
from transformer_theory.theories.turing.figures.trace import trace as trace_figure
from transformer_theory.theories.turing.invariance import random_network, softmax_weights

# %%
# A machine that doubles a unary number: for each a it writes one x behind the word.
machine = turing.TuringMachine.parse("""
start: take
accept: done
take a -> carry b R   ; b: an a that has been copied
take x -> done x R
take # -> done # R
take b -> take b R
carry a -> carry a R
carry b -> carry b R
carry x -> carry x R
carry # -> back x L
back a -> back a L
back x -> back x L
back b -> take b R
back # -> take # R
""")
transformer = turing.compile_machine(machine)
print(transformer["decoder.3.query"])
steps = transformer.machine.halting_time("aaa", 200)
trace = transformer.run("aaa", steps)  # exact rational arithmetic
print(
    f"{steps} steps: {machine.tape('aaa', 200)}; the same trace: "
    f"{trace == transformer.machine.run('aaa', steps)}"
)

# %%
# The busy beaver with four states runs 107 steps and leaves 13 ones. Left its tape, right the scores of the
# third layer.
beaver = trace_figure(machine="busy_beaver_4", word="")
result = beaver.run()
print(result.table.to_pandas()[["quantity", "value", "note"]])
figure = beaver.plot(result)

# %%
# Coarser arithmetic and softer attention lose the *latest* visit of a cell: the first error of zigzags of
# growing width.
figure, (left, right) = axes(1, 2, height=2.8)
widths = (1, 2, 5, 10, 20)
for width, tint in zip(widths, shades(len(widths))):
    transformer = turing.compile_machine(turing.machines.zigzag(width))
    reference = transformer.machine.run("", 300)
    for arithmetic in ("float64", "float32", "bfloat16"):
        first = transformer.run("", 300, arithmetic=arithmetic).first_difference(reference)
        print(
            f"zigzag of width {width}, {arithmetic}: "
            f"{'no error' if first is None else f'first error at step {first}'}"
        )
    soft = []
    for power in range(2, 13):
        settings = {"arithmetic": "float64", "score": "softmax", "inverse_temperature": 10.0**power}
        soft.append(transformer.run("", 300, **settings).first_difference(reference) or float("nan"))
    line(left, range(2, 13), soft, color=tint, label=f"{width}")
    path = reference.heads[:80]
    line(right, range(80), path, color=tint, label=f"{width}")
left.set(title="Softmax: step of the first error", xlabel="$\\log_{10}$ inverse temperature", yscale="log")
right.set(title="Path of the head", xlabel="time", ylabel="cell")
label_ends(left)
label_ends(right)

# %%
# Without positions only proportions count: ab and aabb, of which one has an even number of a, are the same
# word.
network = random_network(torch.Generator().manual_seed(0))
for ids in ([0, 1], [0, 0, 1, 1], [0, 1, 1]):
    output = network.output(torch.tensor(ids), pool=softmax_weights)
    print("".join("ab"[k] for k in ids), [f"{value:.6f}" for value in output[:3].tolist()])
