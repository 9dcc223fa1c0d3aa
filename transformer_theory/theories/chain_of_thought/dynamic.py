r"""Dynamic programming: longest increasing subsequence, edit distance, and membership in a context-free
language.

The chain is the table of the dynamic program, cell by cell.

* **Longest increasing subsequence** of a_1 ... a_n: :math:`d_i = 1 + \max \{d_j : j < i,\ a_j < a_i\}`, the
  answer is :math:`\max_i d_i`.
* **Edit distance** of s and t, with 2 for a deletion or an insertion and 3 for a substitution: :math:`D_{ij}
  = \min(D_{i-1,j} + 2,\ D_{i,j-1} + 2,\ D_{i-1,j-1} + 3\,[s_i \ne t_j])`, the answer is the last cell.
* **Membership** by the algorithm of Cocke, Younger and Kasami: the cell of a part of the word holds the
  nonterminals that derive it.

The minimum of an edit distance is over three cells. The maximum, and the "or" over all splits, run over many
cells; one head of attention computes them.

Source: :cite:t:`feng2023towards`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, combinations, product

import torch
from torch import Generator

from ...core.validation import integers
from .arithmetic import BAR, as_rows
from .tasks import COMMON, Sample, Symbols, check_places, completed, draw

SKIP, SUBSTITUTE = 2, 3  # costs of a deletion or insertion, and of a substitution
YES, NO = "yes", "no"


@dataclass(frozen=True)
class LIS:
    """Length of the longest strictly increasing subsequence of n uniformly drawn numbers; ``questions`` is
    exact.

    Args:
        n: number of numbers.
        values: numbers are drawn from 0 to ``values - 1``.
    Raises:
        ValueError: there is no number, or there are fewer than two values.
    """

    n: int = 30
    values: int = 30

    def __post_init__(self):
        integers(n=self.n)
        integers(minimum=2, values=self.values)

    @property
    def symbols(self) -> Symbols:
        """Numbers, which are also the lengths."""
        return tuple(map(str, range(max(self.values, min(self.n, self.values) + 1))))

    @property
    def questions(self) -> int:
        """Number of sequences."""
        return self.values**self.n

    def sample(self, generator: Generator) -> Sample:
        """Draws independent uniform numbers."""
        return completed(self, tuple(map(str, draw(generator, self.values, self.n))))

    def check(self, question: Symbols) -> None:
        """Raises ValueError for another length, or for numbers that are not below ``values``."""
        check_places(self, question, [self.symbols[: self.values]] * self.n)

    def chain(self, question: Symbols) -> Symbols:
        """Returns d_1 ... d_n from the largest length that ends in each value so far."""
        self.check(question)
        longest, found = [0] * self.values, []
        for value in map(int, question):
            longest[value] = max(longest[:value], default=0) + 1
            found.append(str(longest[value]))
        return tuple(found)

    def following(self, question: Symbols, chain: Symbols) -> Iterator[str]:
        """d_i is one more than the largest d_j of the given chain with j < i and a_j < a_i."""
        a = list(map(int, question))
        for i in range(self.n):
            yield str(1 + max((int(chain[j]) for j in range(i) if a[j] < a[i]), default=0))

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns the largest symbol."""
        return (max(chain, key=int),)

    def solve(self, question: Symbols) -> Symbols:
        """Patience sorting: each number goes onto the leftmost pile whose top is not smaller; the answer is
        the number of piles.
        """
        tops: list[int] = []
        for value in map(int, question):
            place = bisect_left(tops, value)
            tops[place : place + 1] = [value]
        return (str(len(tops)),)

    def chain_length(self, question: Symbols) -> int:
        """Exactly n."""
        return self.n


@dataclass(frozen=True)
class EditDistance:
    """Edit distance of two words of n letters, with costs 2, 2 and 3; ``questions`` is exact.

    The second word is the first one with each letter replaced with probability 1/2, then rotated by 0, 1 or 2
    places.

    Args:
        n: letters of each word.
        letters: size of the alphabet, at most 26.
    Raises:
        ValueError: a word is empty, or the alphabet has fewer than 2 or more than 26 letters.
    """

    n: int = 6
    letters: int = 4

    def __post_init__(self):
        integers(n=self.n)
        integers(minimum=2, letters=self.letters)
        if self.letters > 26:
            raise ValueError(f"letters must be at most 26, got {self.letters}; take a smaller alphabet")

    @property
    def symbols(self) -> Symbols:
        """Numbers up to the largest cell, the bar between words and rows, and letters."""
        return (
            *map(str, range(SUBSTITUTE * self.n + 1)),
            BAR,
            *(chr(ord("a") + i) for i in range(self.letters)),
        )

    @property
    def questions(self) -> int:
        """Number of pairs of words."""
        return self.letters ** (2 * self.n)

    def sample(self, generator: Generator) -> Sample:
        """Draws a word and a changed copy of it."""
        first = torch.tensor(draw(generator, self.letters, self.n))
        other = torch.tensor(draw(generator, self.letters, self.n))
        kept = torch.tensor(draw(generator, 2, self.n), dtype=torch.bool)
        second = torch.where(kept, first, other).roll(draw(generator, 3)[0])
        words = [tuple(chr(ord("a") + letter) for letter in word.tolist()) for word in (first, second)]
        return completed(self, (*words[0], BAR, *words[1]))

    def check(self, question: Symbols) -> None:
        """Raises ValueError for words of other lengths or letters."""
        word = [self.symbols[-self.letters :]] * self.n
        check_places(self, question, [*word, (BAR,), *word])

    def chain(self, question: Symbols) -> Symbols:
        """Returns the rows D_0 ... D_n of n + 1 cells, with bars between them."""
        self.check(question)
        s, t, rows = question[: self.n], question[self.n + 1 :], [[SKIP * j for j in range(self.n + 1)]]
        for i, letter in enumerate(s):
            row = [SKIP * (i + 1)]
            for above, before, other in zip(rows[-1][1:], rows[-1], t):
                row.append(min(above + SKIP, row[-1] + SKIP, before + SUBSTITUTE * (letter != other)))
            rows.append(row)
        return as_rows(rows)

    def following(self, question: Symbols, chain: Symbols) -> Iterator[str]:
        """A cell is the minimum over the steps from the cells above, on the left and before both, as the
        given chain has them.
        """
        n, s, t = self.n, question[: self.n], question[self.n + 1 :]
        above = n + 2  # symbols between a cell and the one above it
        for i in range(n + 1):
            if i:
                yield BAR
            for j in range(n + 1):
                here = i * above + j
                costs = [int(chain[here - above]) + SKIP] if i else []
                costs += [int(chain[here - 1]) + SKIP] if j else []
                costs += (
                    [int(chain[here - above - 1]) + (SUBSTITUTE if s[i - 1] != t[j - 1] else 0)]
                    if i and j
                    else []
                )
                yield str(min(costs, default=0))

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns the last cell."""
        return chain[-1:]

    def solve(self, question: Symbols) -> Symbols:
        """Recursion from the ends of the words: the cost of rewriting what follows place i of s into what
        follows place j of t.
        """
        n, s, t = self.n, question[: self.n], question[self.n + 1 :]

        @cache
        def rest(i: int, j: int) -> int:
            if n in (i, j):
                return SKIP * (2 * n - i - j)
            return min(
                rest(i + 1, j) + SKIP, rest(i, j + 1) + SKIP, rest(i + 1, j + 1) + SUBSTITUTE * (s[i] != t[j])
            )

        return (str(rest(0, 0)),)

    def chain_length(self, question: Symbols) -> int:
        """Exactly (n + 1)(n + 2) - 1: n + 1 rows of n + 1 cells, with bars between them."""
        return (self.n + 1) * (self.n + 2) - 1


Rules = tuple[tuple[str, str], ...]
BRACKETS: Rules = (("S", "SS"), ("S", "AT"), ("S", "AC"), ("T", "SC"), ("A", "<"), ("C", ">"))
"""Balanced brackets: words such as ``< < > > < >``."""


@dataclass(frozen=True)
class Membership:
    """Membership of words of n letters in a context-free language; ``questions`` is an upper bound, all words
    of n letters.

    Half of the words are derived from S, uniformly among derivations; the others are such words with their
    letters permuted. The answer is "yes" or "no". A cell is written as its nonterminals in brackets, such as
    ``{ST}``.

    Args:
        n: letters of a word.
        rules: rules in the normal form of Chomsky, pairs of a nonterminal (a capital letter) and two
            nonterminals or one letter.
    Raises:
        ValueError: a rule is not in this form, there are more than 6 nonterminals, or no word of n letters is
            derived from S.
    """

    n: int = 8
    rules: Rules = BRACKETS

    def __post_init__(self):
        integers(n=self.n)
        for left, right in self.rules:
            pair, letter = (
                len(right) == 2 and right.isupper(),
                len(right) == 1 and not right.isupper() and right not in COMMON,
            )
            if not (len(left) == 1 and left.isupper() and (pair or letter)):
                message = (
                    "a rule must be a capital letter with two capital letters or one other symbol, got "
                    f"{left} -> {right}"
                )
                raise ValueError(f"{message}; symbols other than {' '.join(COMMON)} may be letters")
        if len(self.nonterminals) > 6:
            raise ValueError(
                f"rules must have at most 6 nonterminals, got {len(self.nonterminals)}; every set of them "
                "is a symbol"
            )
        if not self.derivations["S", self.n]:
            raise ValueError(
                f"n must be the length of a word of the language, got {self.n}; take another length"
            )

    @property
    def nonterminals(self) -> str:
        """Nonterminals in alphabetical order, with S."""
        return "".join(
            sorted(
                {
                    "S",
                    *(left for left, _ in self.rules),
                    *(s for _, right in self.rules for s in right if s.isupper()),
                }
            )
        )

    @property
    def letters(self) -> Symbols:
        """Letters of the words."""
        return tuple(dict.fromkeys(right for _, right in self.rules if len(right) == 1))

    @property
    def symbols(self) -> Symbols:
        """Letters, sets of nonterminals, and the answers."""
        names = self.nonterminals
        sets = (
            "{" + "".join(each) + "}" for size in range(len(names) + 1) for each in combinations(names, size)
        )
        return (*self.letters, *sets, YES, NO)

    @property
    def questions(self) -> int:
        """Number of words of n letters."""
        return len(self.letters) ** self.n

    @cached_property
    def derivations(self) -> dict[tuple[str, int], int]:
        """Returns the number of derivation trees of words of each length up to n, by nonterminal
        and length.
        """
        counts = {(name, size): 0 for name in self.nonterminals for size in range(1, self.n + 1)}
        for size in range(1, self.n + 1):
            for left, right in self.rules:
                if len(right) == 1:
                    counts[left, size] += size == 1
                else:
                    counts[left, size] += sum(
                        counts[right[0], k] * counts[right[1], size - k] for k in range(1, size)
                    )
        return counts

    def sample(self, generator: Generator) -> Sample:
        """Draws a derived word, or the same with permuted letters."""
        counts = self.derivations

        def derived(name: str, size: int) -> Symbols:
            """Draws a derivation tree from ``name`` uniformly, and returns its word of ``size`` letters."""
            branches: list[tuple[int, str, int]] = []
            for left, right in self.rules:
                if left == name and len(right) == 1 and size == 1:
                    branches.append((1, right, 0))
                elif left == name and len(right) == 2:
                    branches += [
                        (counts[right[0], k] * counts[right[1], size - k], right, k) for k in range(1, size)
                    ]
            total = counts[name, size]
            shares = torch.tensor([weight / total for weight, _, _ in branches], dtype=torch.float64)
            _, right, k = branches[int(shares.multinomial(1, generator=generator))]
            return (right,) if k == 0 else derived(right[0], k) + derived(right[1], size - k)

        word = derived("S", self.n)
        if draw(generator, 2)[0]:
            word = tuple(word[i] for i in torch.randperm(self.n, generator=generator).tolist())
        return completed(self, word)

    def check(self, question: Symbols) -> None:
        """Raises ValueError for another length or other letters."""
        check_places(self, question, [self.letters] * self.n)

    def chain(self, question: Symbols) -> Symbols:
        """Returns the cells, those of shorter parts first."""
        self.check(question)
        pairs = [rule for rule in self.rules if len(rule[1]) == 2]
        table = {
            (i, 1): {left for left, right in self.rules if right == letter}
            for i, letter in enumerate(question)
        }
        for size in range(2, self.n + 1):
            for start in range(self.n - size + 1):
                splits = [(table[start, k], table[start + k, size - k]) for k in range(1, size)]
                table[start, size] = {
                    left
                    for left, (a, b) in pairs
                    if any(a in first and b in second for first, second in splits)
                }
        return tuple(map(cell, table.values()))

    def following(self, question: Symbols, chain: Symbols) -> Iterator[str]:
        """A cell holds the left sides of the rules whose right side is the letter, or is made by two parts
        with the given cells.
        """
        n = self.n
        yield from (cell(left for left, right in self.rules if right == letter) for letter in question)
        first = [0, *accumulate(range(n, 0, -1))]  # number of the first cell of each length
        for size in range(2, n + 1):
            for start in range(n - size + 1):
                splits = [
                    (chain[first[k - 1] + start], chain[first[size - k - 1] + start + k])
                    for k in range(1, size)
                ]
                made = {a + b for left, right in splits for a, b in product(left, right)}
                yield cell(left for left, right in self.rules if right in made)

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns whether S is in the last cell, that of the whole word."""
        return (YES if "S" in chain[-1] else NO,)

    def solve(self, question: Symbols) -> Symbols:
        """Searches the leftmost derivations: forms that are not longer than the word and agree with it in
        their leading letters.
        """
        word, forms, seen = "".join(question), ["S"], set()
        while forms:
            form = forms.pop()
            place = next((i for i, symbol in enumerate(form) if symbol.isupper()), len(form))
            if place == len(word) == len(form) and form == word:
                return (YES,)
            if place == len(form) or len(form) > len(word) or form in seen or form[:place] != word[:place]:
                continue
            seen.add(form)
            forms += [
                form[:place] + right + form[place + 1 :] for left, right in self.rules if left == form[place]
            ]
        return (NO,)

    def chain_length(self, question: Symbols) -> int:
        """Exactly n (n + 1) / 2, the parts of the word."""
        return self.n * (self.n + 1) // 2


def cell(names: Iterable[str]) -> str:
    """Writes a set of nonterminals."""
    return "{" + "".join(sorted(set(names))) + "}"
