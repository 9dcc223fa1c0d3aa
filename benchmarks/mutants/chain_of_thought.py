"""Mutants of the theory of chains of thought."""

from . import Mutant

CHAIN = "theories.chain_of_thought"
MUTANTS = (
    # Arithmetic and equations.
    Mutant(
        f"{CHAIN}.arithmetic.operate",
        "a - b if",
        "b - a if",
        "flipped sign",
        "a subtraction with its operands exchanged",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.operate", "% modulus", "% (modulus + 1)", "wrong factor", "results modulo p + 1"
    ),
    Mutant(
        f"{CHAIN}.arithmetic.reducible",
        "PRECEDENCE.get(after, 3) <= binds",
        "PRECEDENCE.get(after, 3) < 3",
        "missing term",
        "a sum that is computed before a product on its right",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.reducible",
        "PRECEDENCE.get(before, 3) < binds",
        "PRECEDENCE.get(before, 3) <= binds",
        "swapped function",
        "operations after one of equal precedence",
        equivalent="of two operations that may be computed the leftmost is, and there is one in the operand "
        "on the left",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.Arithmetic.questions",
        " // (k + 1)",
        "",
        "wrong normaliser",
        "binomial in place of Catalan numbers",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.handle",
        "place - 1 + enclosed",
        "place - 1",
        "missing term",
        "a closing bracket that is left behind",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.Equations.steps",
        "(x - matrix[r][i] * y) % p",
        "(x + matrix[r][i] * y) % p",
        "flipped sign",
        "rows added instead of subtracted",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.Equations.steps",
        "x * inverse % p",
        "x % p",
        "dropped factor",
        "pivots that are not divided out",
    ),
    # Dynamic programming.
    Mutant(
        f"{CHAIN}.dynamic.LIS.chain",
        "longest[:value]",
        "longest[: value + 1]",
        "swapped function",
        "subsequences that may stay level",
    ),
    Mutant(
        f"{CHAIN}.dynamic.LIS.chain",
        "default=0) + 1",
        "default=1)",
        "missing term",
        "lengths that do not count the last number",
    ),
    Mutant(
        f"{CHAIN}.dynamic.EditDistance.chain",
        "before + SUBSTITUTE",
        "above + SUBSTITUTE",
        "swapped function",
        "a substitution that starts from the wrong cell",
    ),
    Mutant(
        f"{CHAIN}.dynamic.EditDistance.chain",
        "SUBSTITUTE * (letter != other)",
        "SKIP * (letter != other)",
        "wrong factor",
        "a substitution at the cost of a deletion",
    ),
    Mutant(
        f"{CHAIN}.dynamic.Membership.chain",
        "for k in range(1, size)",
        "for k in range(1, 2)",
        "missing term",
        "parts split at one place only",
    ),
    Mutant(
        f"{CHAIN}.dynamic.Membership.answer",
        "chain[-1]",
        "chain[0]",
        "swapped function",
        "an answer from the first cell",
    ),
    # Splits, ids, and the written decoder.
    Mutant(
        f"{CHAIN}.tasks.split",
        "samples[i] for i in order[test:]",
        "samples[i] for i in order[: -test or None]",
        "wrong normaliser",
        "a split that overlaps",
    ),
    Mutant(
        f"{CHAIN}.tasks.verify",
        "if expected != found",
        "if place > 0 and expected != found",
        "missing term",
        "a first symbol that is not checked",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.Arithmetic.following",
        "node = min(",
        "node = max(",
        "swapped function",
        "a rule that expects the last operation first",
    ),
    Mutant(
        f"{CHAIN}.arithmetic.Equations.following",
        "x + z[i] * u - y",
        "x - z[i] * u - y",
        "flipped sign",
        "a rule that expects rows to be added",
    ),
    Mutant(
        f"{CHAIN}.dynamic.LIS.following",
        "a[j] < a[i]",
        "a[j] <= a[i]",
        "swapped function",
        "a rule of level subsequences",
    ),
    Mutant(
        f"{CHAIN}.dynamic.EditDistance.following",
        "+ SKIP] if j",
        "] if j",
        "missing term",
        "a rule with insertions for nothing",
    ),
    Mutant(
        f"{CHAIN}.dynamic.EditDistance.chain_length",
        "(self.n + 2) - 1",
        "(self.n + 2)",
        "missing term",
        "a polynomial that counts one bar too many",
    ),
    Mutant(
        f"{CHAIN}.written.WrittenDecoder.forward",
        "(n, n + 1)",
        "(n, n)",
        "wrong factor",
        "keys with the number of the next place",
    ),
    Mutant(
        f"{CHAIN}.written.WrittenDecoder.forward",
        "+ in_chain - 1",
        "+ in_chain",
        "missing term",
        "a read-out that adds one after the colon too",
    ),
    Mutant(f"{CHAIN}.written.attention", ".tril()", "", "missing projection", "attention to later places"),
)
