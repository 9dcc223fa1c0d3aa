"""Mutants of the construction that runs Turing machines."""

from . import Mutant

TURING = "theories.turing"
MUTANTS = (
    # The machine and its normal form.
    Mutant(
        f"{TURING}.machine.TuringMachine.normalise",
        "table[rewinding, symbol] = (rewinding, symbol, -1)",
        "table[rewinding, symbol] = (rewinding, symbol, 1)",
        "flipped sign",
        "a normal form that does not return to the start of the word",
    ),
    Mutant(
        f"{TURING}.machine.TuringMachine.normalise",
        "(returns[target], written, 1)",
        "(target, written, 1)",
        "missing term",
        "a move by 0 becomes a step right without the step back",
    ),
    Mutant(
        f"{TURING}.machine.TuringMachine.normalise",
        "= (self.start, self.blank, 1)",
        "= (reading, self.blank, 1)",
        "swapped function",
        "a normal form that reads the word again and again and never starts the machine",
    ),
    # The table.
    Mutant(
        f"{TURING}.construction._lookup",
        '"1": -1}',
        '"1": 0}',
        "missing term",
        "a unit of the table that fires if the state or the symbol fits",
    ),
    Mutant(
        f"{TURING}.construction._lookup",
        '{"x1": 1}, {"x3": 1, "x1": -1}',
        '{"x1": 1}, {"x1": -1}',
        "missing term",
        "a table that forgets the last move to the right",
    ),
    Mutant(
        f"{TURING}.construction._lookup",
        '{"x1": -1}, {"x3": -1, "x1": 1}',
        '{"x1": -1}, {"x3": 1, "x1": 1}',
        "flipped sign",
        "a last move to the left that counts as one to the right",
    ),
    # The head.
    Mutant(
        f"{TURING}.construction._head",
        '("x3", "x5"): 1',
        '("x2", "x5"): 1',
        "swapped function",
        "keys with the cell after the move, c^(i+1), instead of the cell of the symbol",
    ),
    Mutant(
        f"{TURING}.exact.attend",
        " / len(chosen)",
        "",
        "wrong normaliser",
        "hard-max attention that sums over ties",
    ),
    Mutant(
        f"{TURING}.exact.attend",
        "tuple(position for position, score in enumerate(scores) if score == best)",
        "(scores.index(best),)",
        "swapped function",
        "hard-max attention that takes the first of the best keys",
    ),
    Mutant(
        f"{TURING}.exact.attend",
        "-abs(",
        "(",
        "swapped function",
        "a score without the absolute value and its sign",
    ),
    # The retrieval.
    Mutant(
        f"{TURING}.construction._retrieval",
        "Fraction(1, 3)",
        "Fraction(2, 1)",
        "wrong factor",
        "a tie-break of 2/p^2, larger than the distance to a neighbouring cell",
    ),
    Mutant(
        f"{TURING}.construction._retrieval",
        "Fraction(1, 3)",
        "Fraction(1, 30)",
        "wrong factor",
        "a tie-break ten times too small: the latest visit is found with a tenth of the gap",
    ),
    Mutant(
        f"{TURING}.construction._retrieval",
        "Fraction(1, 3)",
        "Fraction(-1, 3)",
        "flipped sign",
        "a tie-break with the other sign",
        "The score is an absolute value, so it is that of the mirrored machine, whose left is right.",
    ),
    Mutant(
        f"{TURING}.construction._retrieval",
        '("x5", "b"): -1',
        '("x5", "b"): 1',
        "flipped sign",
        "the cell of the key with the wrong sign",
    ),
    Mutant(
        f"{TURING}.construction._retrieval",
        '("1", "x7"): -1',
        '("1", "x7"): 0',
        "missing term",
        "the time of a visit, one too late",
    ),
    Mutant(
        f"{TURING}.construction._halves",
        "Fraction(-1, 2)",
        "Fraction(-1, 1)",
        "wrong factor",
        "layers that remove the symbol of the word instead of half of it",
    ),
    # The output map.
    Mutant(
        f"{TURING}.construction._output_map",
        '"in word +", {"x6": 1, "p": -1, "1": 1}',
        '"in word +", {"x6": 1, "p": -1, "1": 2}',
        "wrong factor",
        "a word that seems to have one symbol more",
    ),
    Mutant(
        f"{TURING}.construction._output_map",
        "**in_word, **minus(visited)",
        "**in_word",
        "missing term",
        "the symbol of the word in a cell that was visited",
        "While the word is read, no cell is visited twice, and behind it the gate of the word is closed.",
    ),
    Mutant(
        f"{TURING}.construction._output_map",
        '{"1": 1, **minus(visited), **minus(in_word)}',
        '{"1": 1, **minus(visited)}',
        "missing term",
        "a blank in every cell that was not visited",
    ),
    # Floating point and softmax.
    Mutant(
        f"{TURING}.floating.pooled",
        "inverse_temperature * scores",
        "scores",
        "dropped factor",
        "softmax without inverse temperature",
    ),
    Mutant(
        f"{TURING}.floating.positions", "1 / p.square()", "1 / p", "wrong factor", "positions with 1/p twice"
    ),
    Mutant(
        f"{TURING}.floating.trace",
        "(moves / (i + 1))",
        "(moves / (i + 2))",
        "wrong normaliser",
        "a mean over one token too many",
    ),
    Mutant(
        f"{TURING}.claims.precision.sufficient_inverse_temperature",
        "0.75 * steps**5",
        "0.75 * steps**3",
        "wrong factor",
        "an inverse temperature that grows with the third power of the time",
    ),
    # Without positions.
    Mutant(
        f"{TURING}.invariance.hard_weights",
        " / best.sum(-1, keepdim=True)",
        "",
        "wrong normaliser",
        "hard-max that sums over ties",
    ),
    Mutant(
        f"{TURING}.invariance.softmax_weights",
        "scores.softmax(-1)",
        "scores.sigmoid()",
        "wrong normaliser",
        "attention that sums over the keys",
    ),
    Mutant(
        f"{TURING}.invariance.majority_network",
        "[-1.0, 0.0]",
        "[0.0, 0.0]",
        "wrong factor",
        "majority with the values 1 and 0",
    ),
)
