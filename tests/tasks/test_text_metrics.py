"""Metrics of generated texts, against arithmetic by hand."""

import math

import pytest

from h2o_lab.tasks.text_metrics import distinct, repetition, rouge, self_bleu, words


def test_words():
    assert words("Don't stop -- 3.5%!") == ["don", "'", "t", "stop", "--", "3", ".", "5", "%!"]
    assert words(" \n") == []


@pytest.mark.parametrize(
    ("reference", "text", "expected"),
    [
        ("The cat sat on the mat.", "the cat sat on the mat", (1, 1, 1)),
        ("the cat sat", "my dog ran", (0, 0, 0)),
        # 2 of 3 words and of 6, 1 of 2 bigrams and of 5
        ("the cat sat on the mat", "the cat lay", (4 / 9, 2 / 7, 4 / 9)),
        # all words, 2 of 3 bigrams, and two in a row at most
        ("one two three four", "three four one two", (1, 2 / 3, 1 / 2)),
        # a word counts no more often than the reference has it: 1 of 3 and of 2
        ("the cat", "the the the", (2 / 5, 0, 2 / 5)),
        ("he was running to the houses", "he was run to the house", (1, 1, 1)),
        ("he was running", "he was", (4 / 5, 2 / 3, 4 / 5)),
        ("the cat sat", "", (0, 0, 0)),
    ],
)
def test_rouge(reference, text, expected):
    (found,) = rouge([reference], [text])
    assert list(found) == ["rouge1", "rouge2", "rougeL"]
    assert tuple(found.values()) == pytest.approx(expected)


def test_rouge_takes_pairs_in_order():
    found = rouge(["one two", "three four"], ["one two", "one two"])
    assert [score["rouge2"] for score in found] == [1, 0]
    with pytest.raises(ValueError, match="longer"):
        rouge(["one"], ["one", "two"])


ONE, OTHER = "a b c d e", "a b c d f"
CLOSE = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
"""BLEU of one against the other: 4 of 5 words, 3 of 4 bigrams, 2 of 3, 1 of 2, and the same length."""


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([ONE, ONE], 1),
        (["The cat sat down."] * 5, 1),
        ([ONE, "v w x y z"], 0),
        ([ONE, OTHER], CLOSE),
        (["A B c, d", "a b C , d"], 1),
        # no trigram and no 4-gram in common: 0.1 of each counts
        (["a b c d", "a b x y"], (2 / 4 * 1 / 3 * 0.1 / 2 * 0.1 / 1) ** (1 / 4)),
        # the shorter one is right throughout and pays for its length, exp(1 - 6/5)
        (["a b c d e f", ONE], ((5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** (1 / 4) + math.exp(-1 / 5)) / 2),
        # two are the same; the third finds its n-grams in either
        ([ONE, ONE, OTHER], (1 + 1 + CLOSE) / 3),
        # references count together: the first text has a, b, c of the second and d of the third
        (
            [OTHER, "a b c q r", "s d e t u"],
            (
                (4 / 5 * 2 / 4 * 1 / 3 * 0.1 / 2) ** (1 / 4)
                + (3 / 5 * 2 / 4 * 1 / 3 * 0.1 / 2) ** (1 / 4)
                + (1 / 5 * 0.1 / 4 * 0.1 / 3 * 0.1 / 2) ** (1 / 4)
            )
            / 3,
        ),
        # a text without words counts 0 and helps no other
        ([ONE, OTHER, " "], 2 * CLOSE / 3),
        ([ONE, "", ONE, ""], 1 / 2),
    ],
)
def test_self_bleu(texts, expected):
    assert self_bleu(texts) == pytest.approx(expected)
    assert self_bleu(texts[::-1]) == pytest.approx(expected)


@pytest.mark.parametrize("texts", [[], [ONE], ["", " "], [ONE, "", " "]])
def test_self_bleu_needs_two_texts_with_words(texts):
    assert math.isnan(self_bleu(texts))


def test_distinct():
    assert distinct(["a b A", "b c"], 1) == 3 / 5
    assert distinct(["a b a b", "b c"], 2) == 3 / 4  # none across texts
    assert distinct(["a", "a"], 1) == 1 / 2
    assert distinct(["a b c", ""], 3) == 1
    for texts in ([], [""], ["a", "b"]):
        assert math.isnan(distinct(texts, 2))


def test_repetition():
    assert repetition("a b c d a b c d") == pytest.approx(1 / 5)
    assert repetition("go " * 13) == pytest.approx(9 / 10)
    assert repetition("a b c d e f g") == 0
    assert repetition("a a a") == repetition("") == 0
