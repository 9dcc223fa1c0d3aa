r"""Dynamic programming: longest increasing subsequence, edit distance, and membership in a context-free language.

The chain is the table of the dynamic program, cell by cell.

* **Longest increasing subsequence** of a_1 ... a_n: :math:`d_i = 1 + \max \{d_j : j < i,\ a_j < a_i\}`, the answer is :math:`\max_i d_i`.
* **Edit distance** of s and t, with 2 for a deletion or an insertion and 3 for a substitution: :math:`D_{ij} = \min(D_{i-1,j} + 2,\
  D_{i,j-1} + 2,\ D_{i-1,j-1} + 3\,[s_i \ne t_j])`, the answer is the last cell.
* **Membership** by the algorithm of Cocke, Younger and Kasami: the cell of a part of the word holds the nonterminals that derive it.

The maximum, and the search for a split, run over many cells. A symbol of the chain is nevertheless a function of few of them, those that
attain the maximum, and attention finds these.

Source: :cite:t:`feng2023towards`.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Generator

from ...core.validation import integers
from .arithmetic import BAR
from .tasks import Sample, Symbols, draw

SKIP, SUBSTITUTE = 2, 3  # costs of a deletion or insertion, and of a substitution
YES, NO = "yes", "no"


@dataclass(frozen=True)
class LIS:
    """Length of the longest strictly increasing subsequence of n uniformly drawn numbers; ``questions`` is exact.

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
        question = tuple(map(str, draw(generator, self.values, self.n)))
        chain = self.chain(question)
        return Sample(question, chain, self.answer(question, chain))

    def best(self, question: Symbols) -> tuple[list[int], list[int | None]]:
        """Returns d_i, and the place j that attains the maximum (the first; None if no smaller number precedes)."""
        a, d, chosen = list(map(int, question)), [], []
        for i, value in enumerate(a):
            smaller = [j for j in range(i) if a[j] < value]
            j = max(smaller, key=lambda j: (d[j], -j), default=None)
            chosen.append(j)
            d.append(1 if j is None else 1 + d[j])
        return d, chosen

    def chain(self, question: Symbols) -> Symbols:
        """Returns d_1 ... d_n."""
        return tuple(map(str, self.best(question)[0]))

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns the largest symbol."""
        return (max(chain, key=int),)

    def solve(self, question: Symbols) -> Symbols:
        """Patience sorting: each number goes onto the leftmost pile whose top is not smaller; the answer is the number of piles."""
        tops: list[int] = []
        for value in map(int, question):
            place = bisect_left(tops, value)
            tops[place : place + 1] = [value]
        return (str(len(tops)),)

    def reads(self, question: Symbols, chain: Symbols) -> list[tuple[int, ...]]:
        """d_i reads the d_j that attains the maximum; the first of an increasing sequence reads none."""
        return [() if j is None else (len(question) + 1 + j,) for j in self.best(question)[1]]

    def chain_length(self, question: Symbols) -> int:
        """Exactly n."""
        return self.n


@dataclass(frozen=True)
class EditDistance:
    """Edit distance of two words of n letters, with costs 2, 2 and 3; ``questions`` is exact.

    The second word is the first one with each letter replaced with probability 1/2, then rotated by 0, 1 or 2 places.

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
        return (*map(str, range(SUBSTITUTE * self.n + 1)), BAR, *(chr(ord("a") + i) for i in range(self.letters)))

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
        question = (*words[0], BAR, *words[1])
        chain = self.chain(question)
        return Sample(question, chain, self.answer(question, chain))

    def chain(self, question: Symbols) -> Symbols:
        """Returns the rows D_0 ... D_n of n + 1 cells, with bars between them."""
        n = self.n
        s, t = question[:n], question[n + 1 :]
        rows = [[SKIP * j for j in range(n + 1)]]
        for i in range(n):
            row = [SKIP * (i + 1)]
            for j in range(n):
                different = SUBSTITUTE * (s[i] != t[j])
                row.append(min(rows[-1][j + 1] + SKIP, row[-1] + SKIP, rows[-1][j] + different))
            rows.append(row)
        return tuple(symbol for i, row in enumerate(rows) for symbol in (*((BAR,) if i else ()), *map(str, row)))

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns the last cell."""
        return chain[-1:]

    def solve(self, question: Symbols) -> Symbols:
        """Dijkstra's algorithm: the shortest path from (0, 0) to (n, n) through the prefixes that are already rewritten."""
        n = self.n
        s, t = question[:n], question[n + 1 :]
        queue, done = [(0, 0, 0)], set()
        while True:
            cost, i, j = heapq.heappop(queue)
            if (i, j) == (n, n):
                return (str(cost),)
            if (i, j) in done:
                continue
            done.add((i, j))
            if i < n:
                heapq.heappush(queue, (cost + SKIP, i + 1, j))
            if j < n:
                heapq.heappush(queue, (cost + SKIP, i, j + 1))
            if i < n and j < n:
                heapq.heappush(queue, (cost + SUBSTITUTE * (s[i] != t[j]), i + 1, j + 1))

    def reads(self, question: Symbols, chain: Symbols) -> list[tuple[int, ...]]:
        """A cell reads three cells and two letters; at the border one cell; a bar the bar of the question."""
        n, found = self.n, []
        start, width = 2 * n + 2, n + 2  # place of the first cell; cells of a row and a bar

        def place(i: int, j: int) -> int:
            return start + i * width + j

        for i in range(n + 1):
            found += [(n,)] if i else []
            for j in range(n + 1):
                if i and j:
                    found.append((place(i - 1, j), place(i, j - 1), place(i - 1, j - 1), i - 1, n + j))
                else:
                    found.append((place(i - 1, 0),) if i else (place(0, j - 1),) if j else ())
        return found

    def chain_length(self, question: Symbols) -> int:
        """Exactly (n + 1)(n + 2) - 1: n + 1 rows of n + 1 cells, with bars between them."""
        return (self.n + 1) * (self.n + 2) - 1


Rules = tuple[tuple[str, str], ...]
BRACKETS: Rules = (("S", "SS"), ("S", "AT"), ("S", "AC"), ("T", "SC"), ("A", "<"), ("C", ">"))
"""Balanced brackets: words such as ``< < > > < >``."""


@dataclass(frozen=True)
class Membership:
    """Membership of words of n letters in a context-free language; ``questions`` is an upper bound, all words of n letters.

    Half of the words are derived from S, uniformly among derivations; the others are such words with their letters permuted. The answer is
    "yes" or "no". A cell is written as its nonterminals in brackets, such as ``{ST}``.

    Args:
        n: letters of a word.
        rules: rules in the normal form of Chomsky, pairs of a nonterminal (a capital letter) and two nonterminals or one letter.
    Raises:
        ValueError: a rule is not in this form, there are more than 6 nonterminals, or no word of n letters is derived from S.
    """

    n: int = 8
    rules: Rules = BRACKETS

    def __post_init__(self):
        integers(n=self.n)
        for left, right in self.rules:
            pair, letter = len(right) == 2 and right.isupper(), len(right) == 1 and not right.isupper()
            if not (len(left) == 1 and left.isupper() and (pair or letter)):
                raise ValueError(f"a rule must be a capital letter with two capital letters or one other symbol, got {left} -> {right}")
        if len(self.nonterminals) > 6:
            raise ValueError(f"rules must have at most 6 nonterminals, got {len(self.nonterminals)}; every set of them is a symbol")
        if not self.derivations()["S", self.n]:
            raise ValueError(f"n must be the length of a word of the language, got {self.n}; take another length")

    @property
    def nonterminals(self) -> str:
        """Nonterminals in alphabetical order, with S."""
        return "".join(sorted({"S", *(left for left, _ in self.rules), *(s for _, right in self.rules for s in right if s.isupper())}))

    @property
    def letters(self) -> Symbols:
        """Letters of the words."""
        return tuple(dict.fromkeys(right for _, right in self.rules if len(right) == 1))

    @property
    def symbols(self) -> Symbols:
        """Letters, sets of nonterminals, and the answers."""
        names = self.nonterminals
        sets = ("{" + "".join(each) + "}" for size in range(len(names) + 1) for each in combinations(names, size))
        return (*self.letters, *sets, YES, NO)

    @property
    def questions(self) -> int:
        """Number of words of n letters."""
        return len(self.letters) ** self.n

    def derivations(self) -> dict[tuple[str, int], int]:
        """Returns the number of derivation trees of words of each length up to n, by nonterminal and length."""
        counts = {(name, size): 0 for name in self.nonterminals for size in range(1, self.n + 1)}
        for size in range(1, self.n + 1):
            for left, right in self.rules:
                if len(right) == 1:
                    counts[left, size] += size == 1
                else:
                    counts[left, size] += sum(counts[right[0], k] * counts[right[1], size - k] for k in range(1, size))
        return counts

    def sample(self, generator: Generator) -> Sample:
        """Draws a derived word, or the same with permuted letters."""
        counts = self.derivations()

        def derived(name: str, size: int) -> Symbols:
            """Draws a derivation tree from ``name`` uniformly, and returns its word of ``size`` letters."""
            branches: list[tuple[int, str, int]] = []
            for left, right in self.rules:
                if left == name and len(right) == 1 and size == 1:
                    branches.append((1, right, 0))
                elif left == name and len(right) == 2:
                    branches += [(counts[right[0], k] * counts[right[1], size - k], right, k) for k in range(1, size)]
            ends = torch.tensor([weight for weight, _, _ in branches]).cumsum(0)
            _, right, k = branches[int(torch.searchsorted(ends, draw(generator, int(ends[-1]))[0], right=True))]
            return (right,) if k == 0 else derived(right[0], k) + derived(right[1], size - k)

        word = derived("S", self.n)
        if draw(generator, 2)[0]:
            word = tuple(word[i] for i in torch.randperm(self.n, generator=generator).tolist())
        chain = self.chain(word)
        return Sample(word, chain, self.answer(word, chain))

    def cells(self, question: Symbols) -> Iterator[tuple[int, int, dict[str, int]]]:
        """Yields start and length of every part, shorter ones first, with the nonterminals that derive it and the first split for each."""
        table: dict[tuple[int, int], dict[str, int]] = {}
        for size in range(1, self.n + 1):
            for start in range(self.n - size + 1):
                found: dict[str, int] = {}
                for left, right in self.rules:
                    if size == 1 and right == question[start]:
                        found.setdefault(left, 0)
                    for k in range(1, size) if len(right) == 2 else ():
                        if right[0] in table[start, k] and right[1] in table[start + k, size - k]:
                            found[left] = min(found.get(left, k), k)
                table[start, size] = found
                yield start, size, found

    def chain(self, question: Symbols) -> Symbols:
        """Returns the cells."""
        return tuple("{" + "".join(sorted(found)) + "}" for _, _, found in self.cells(question))

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns whether S is in the last cell, that of the whole word."""
        return (YES if "S" in chain[-1] else NO,)

    def solve(self, question: Symbols) -> Symbols:
        """Searches the leftmost derivations: forms that are not longer than the word and agree with it in their leading letters."""
        word, forms, seen = "".join(question), ["S"], set()
        while forms:
            form = forms.pop()
            place = next((i for i, symbol in enumerate(form) if symbol.isupper()), len(form))
            if place == len(word) == len(form) and form == word:
                return (YES,)
            if place == len(form) or len(form) > len(word) or form in seen or form[:place] != word[:place]:
                continue
            seen.add(form)
            forms += [form[:place] + right + form[place + 1 :] for left, right in self.rules if left == form[place]]
        return (NO,)

    def reads(self, question: Symbols, chain: Symbols) -> list[tuple[int, ...]]:
        """A cell reads the two parts of the first split for each of its nonterminals; a cell of one letter reads the letter."""
        places: dict[tuple[int, int], int] = {}
        found = []
        for number, (start, size, names) in enumerate(self.cells(question)):
            places[start, size] = len(question) + 1 + number
            splits = dict.fromkeys(names[name] for name in sorted(names))
            cells = [place for k in splits if k for place in (places[start, k], places[start + k, size - k])]
            found.append((start,) if size == 1 else tuple(cells))
        return found

    def chain_length(self, question: Symbols) -> int:
        """Exactly n (n + 1) / 2, the parts of the word."""
        return self.n * (self.n + 1) // 2
