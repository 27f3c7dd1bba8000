"""How good and how varied generated texts are: ROUGE, Self-BLEU, distinct n-grams, repetition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

ROUGE = ("rouge1", "rouge2", "rougeL")
ORDER = 4
"""Longest n-gram of Self-BLEU and of the repetition rate."""


def words(text: str) -> list[str]:
    """Lower-case words and runs of punctuation (nltk's `wordpunct_tokenize`)."""
    from nltk.tokenize import wordpunct_tokenize

    return wordpunct_tokenize(text.lower())


def rouge(references: Sequence[str], texts: Sequence[str]) -> list[dict[str, float]]:
    """ROUGE-1, -2 and -L of each text, F1 with stemming (rouge_score)."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
    return [
        {name: score.fmeasure for name, score in scorer.score(reference, text).items()}
        for reference, text in zip(references, texts, strict=True)
    ]


def self_bleu(texts: Sequence[str]) -> float:
    """Mean BLEU-4 of each text against all the others (Zhu et al. 2018, Texygen).

    1 where all say the same, in 4 words or more.
    nltk's sentence BLEU, uniform weights over 1- to 4-grams, smoothing method 1 (a count of 0 becomes 0.1) as in
    the authors' code; tokens are those of `words`. Texts without words count as 0 and serve no other as reference.

    Returns:
        In [0, 1]; NaN where fewer than two texts have words.
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    tokens = [words(text) for text in texts]
    spoken = [i for i, token in enumerate(tokens) if token]
    if len(spoken) < 2:
        return float("nan")
    smooth = SmoothingFunction().method1
    total = sum(
        sentence_bleu([tokens[j] for j in spoken if j != i], tokens[i], smoothing_function=smooth) for i in spoken
    )
    return total / len(texts)


def distinct(texts: Sequence[str], n: int) -> float:
    """Share of different n-grams among all n-grams of the texts (Li et al. 2016); NaN where there are none."""
    counts = Counter(gram for text in texts for gram in _grams(words(text), n))
    return len(counts) / counts.total() if counts else float("nan")


def repetition(text: str) -> float:
    """Share of a text's 4-grams that occurred in it before; 0 where it is too short to have any."""
    counts = Counter(_grams(words(text), ORDER))
    return 1 - len(counts) / counts.total() if counts else 0.0


def _grams(tokens: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[i:] for i in range(n)), strict=False)
