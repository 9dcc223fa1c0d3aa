"""Text: the words against the published rules, the vocabulary against sorting by hand, streams and windows
against slices.
"""

import re
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data.text import SHIPPED, Text, Vocabulary, basic_english, read_words, unit_vectors

# the rules one after the other, as regular expressions: another route to the same words
PATTERNS = [
    (r"\'", " ' "),
    (r"\"", ""),
    (r"\.", " . "),
    (r"<br \/>", " "),
    (r",", " , "),
    (r"\(", " ( "),
    (r"\)", " ) "),
]
PATTERNS += [(r"\!", " ! "), (r"\?", " ? "), (r"\;", " "), (r"\:", " "), (r"\s+", " ")]


def text(count: int = 100, *, size: int = 50) -> Text:
    words = [f"w{i * i % 37:02d}" for i in range(count)]
    vocabulary = Vocabulary.of(words, size=size)
    return Text(vocabulary.numbers(words), vocabulary)


@given(st.text(alphabet="aB'\".,()!?;:<>br/ \n\té-", max_size=40))
def test_words_follow_the_rules(line):
    expected = line.lower()
    for pattern, replacement in PATTERNS:
        expected = re.sub(pattern, replacement, expected)
    assert basic_english(line) == expected.split()


def test_a_break_and_capitals():
    assert basic_english("One<BR />two; three:four") == ["one", "two", "three", "four"]


def test_the_vocabulary_keeps_the_most_frequent_words():
    words = ["b", "a", "c", "b", "a", "b", *["<unk>"] * 4, "d"]
    # c before d: as frequent, earlier in the alphabet
    assert Vocabulary.of(words, size=4).words == ("<unk>", "b", "a", "c")
    assert Vocabulary.of(words, size=100).words == ("<unk>", "b", "a", "c", "d")
    assert Vocabulary.of(words, size=3).numbers(["a", "d", "<unk>", "b"]).tolist() == [2, 0, 0, 1]


def test_streams_are_pieces_of_the_text():
    piece = text(103)
    streams = piece.ids[:100].view(4, 25)
    batches = list(islice(piece.batches(batch=4, length=10), 6))
    assert [tuple(batch.shape) for batch in batches] == [(4, 11), (4, 11), (4, 5)] * 2
    assert torch.equal(batches[0], streams[:, :11])
    assert torch.equal(batches[2], streams[:, 20:])
    assert torch.equal(torch.cat([batch[:, 1:] for batch in batches[:3]], 1), streams[:, 1:]), (
        "every word but the first is a target once"
    )
    assert all(torch.equal(a, b) for a, b in zip(batches[:3], batches[3:]))


def test_windows_are_spread_over_the_text():
    piece = text(100)
    assert torch.equal(piece.windows(3, length=9), torch.stack([piece.ids[s : s + 10] for s in (0, 45, 90)]))
    assert torch.equal(piece.windows(1000, length=9), piece.ids.unfold(0, 10, 1)), "not more than there are"
    assert piece.windows(5, length=99).shape == (1, 100)


def test_parts_share_the_vocabulary():
    first, rest = text(100).split(0.7)
    assert (len(first), len(rest)) == (70, 30)
    assert torch.equal(torch.cat([first.ids, rest.ids]), text(100).ids)
    assert first.vocabulary is rest.vocabulary


def test_sequences_are_windows_with_vectors_and_labels():
    piece = text(400, size=30)
    sequences = piece.sequences(count=200, context=8, dim=16)
    windows = piece.windows(200, length=8)
    assert torch.equal(sequences.ids, windows[:, :-1])
    assert torch.equal(sequences.next_id, windows[:, -1])
    assert torch.equal(sequences.query, sequences.tokens[:, -1])
    assert sequences.vocab_size == len(piece.vocabulary)
    assert sequences[:5].words == piece.vocabulary.words
    vectors = {}
    for ids, tokens in zip(sequences.ids.tolist(), sequences.tokens):
        for number, vector in zip(ids, tokens):
            assert torch.equal(vectors.setdefault(number, vector), vector), "one word, one vector"
    assert len({tuple(vector.tolist()) for vector in vectors.values()}) == len(vectors)
    counts = torch.bincount(sequences.next_id)
    of_label = [set(sequences.next_id[sequences.labels == label].tolist()) for label in range(11)]
    assert all(len(words) == 1 for words in of_label[:10])
    assert not of_label[10] & set().union(*of_label[:10])
    assert [int(counts[next(iter(words))]) for words in of_label[:10]] == sorted(
        counts.tolist(), reverse=True
    )[:10]


def test_unit_vectors_are_nearly_orthogonal(generator):
    vectors = unit_vectors(50, 400, generator=generator)
    gram = vectors @ vectors.T
    assert torch.allclose(gram.diagonal(), torch.ones(50, dtype=torch.float64))
    assert (gram - torch.eye(50)).abs().max() < 5 / 20  # five standard deviations of 1 / sqrt(400)


def test_the_shipped_text_loads():
    sequences = data.load("text")
    assert tuple(sequences.tokens.shape) == (min(2000, len(Text.read(SHIPPED)) - 35), 35, 32)
    assert sequences.classes == 11
    assert torch.equal(data.load(SHIPPED).ids, sequences.ids)
    assert torch.equal(data.load(str(SHIPPED)).ids, sequences.ids)
    words = Text.read(SHIPPED).vocabulary.words
    assert words[1] == "the"
    assert "keeper" in words


def refused(call, match):
    with pytest.raises(ValueError, match=match) as error:
        call()
    assert "\n" not in str(error.value)


def test_files_that_are_not_text_are_refused(tmp_path):
    refused(
        lambda: data.load(tmp_path / "no.txt"),
        "no.txt must be a file of plain text, got no such file; check the path",
    )
    (tmp_path / "folder.txt").mkdir()
    refused(lambda: Text.read(tmp_path / "folder.txt"), "got a folder; check the path")
    refused(
        lambda: data.load(tmp_path / "folder.txt"),
        "must hold a folder of images for each of at least two classes, got none",
    )
    for name, content, words in (
        ("empty.txt", b"", "must hold at least two words, one to predict from, got 0; choose a longer text"),
        ("blank.txt", b" \n\t", "got 0"),
        ("one.txt", b"word", "got 1"),
        (
            "latin.txt",
            "caf\xe9 noir".encode("latin-1"),
            "must be text in UTF-8, got byte 0xe9 at 3; convert it",
        ),
        (
            "short.txt",
            b"two words",
            "short.txt: a text must hold at least 36 words, got 2; choose a longer one",
        ),
        ("same.txt", b"word " * 50, "two different words must follow its 15 windows, got only 'word'"),
        ("binary.txt", b"a\x00b c", "must be plain text, got a NUL byte; convert it"),
        (
            "page.md",
            b"some words",
            "must be an .npz of tokens, a .txt of plain text, a folder of images, an archive of CIFAR "
            "or graphs as .graphml, .edgelist or .edges, got '.md'",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        refused(lambda name=name: data.load(tmp_path / name), words)
    (tmp_path / "marks.txt").write_bytes("a byte-order mark".encode("utf-8-sig"))
    assert read_words(tmp_path / "marks.txt")[0] == "a"


@each_case(
    ("call", "words"),
    [
        (lambda: Vocabulary.of(["a"], size=1), "size must be at least 2"),
        (lambda: Vocabulary(("a", "b")), "words must start with '<unk>'"),
        (lambda: Vocabulary(("<unk>", "b", "b")), "be all different"),
        (
            lambda: text().split(0.0),
            "share must leave two words on both sides, got 0.0 of the 100 words of text",
        ),
        (lambda: text().split(1.0), "or a share inside"),
        (
            lambda: text().split(float("nan")),
            "share must leave two words on both sides, got nan of the 100 words of text",
        ),
        (lambda: text().split(float("inf")), "got inf of the 100 words"),
        (lambda: next(text().batches(batch=0)), "batch must be at least 1, got 0"),
        (
            lambda: next(text().batches(batch=51)),
            "51 streams of at least two words need 102 words, text has 100; lower batch",
        ),
        (lambda: text().windows(0), "count must be at least 1, got 0"),
        (lambda: text().windows(5, length=100), "text: a text must hold at least 101 words, got 100"),
        (lambda: text().sequences(dim=0), "dim must be at least 1"),
    ],
)
def test_bad_settings_are_named(call, words):
    refused(call, words)
