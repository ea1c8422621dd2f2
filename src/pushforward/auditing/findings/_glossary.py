"""The technical terms of an audit, each in a sentence or two.

The text, the JSON and the page of an audit take their explanations from here.
"""

from __future__ import annotations

import re

TERMS: dict[str, str] = {
    "token": "One row of your data, a list of numbers: a word, a cell, a row of a table.",
    "context": "The tokens that the model sees together in one call.",
    "size of the outputs": "The largest difference between an entry of the outputs and its mean "
    "over the tokens. Where there is one output for a whole set, it is its largest entry.",
    "rounding": "Computers keep a limited number of digits. An audit changes the last digit of "
    "every number of the context and sees how far the outputs move. A change of the outputs up to "
    "fifty times as large counts as none.",
    "measure": "The tokens together with the share that each of them has of the whole. It does "
    "not know an order, and a list has the same measure as the same list written twice.",
    "in-context map": "A function G(μ, x) of one token x and of the measure μ of all tokens. "
    "Attention is one. If a model is one, this function says everything that the model does.",
    "continuous": "Small changes of what goes in make small changes of what comes out. There are "
    "no jumps.",
    "(B1)": "The first of two conditions in a theorem of Furuya, de Hoop and Lassas. A map moves "
    "the mass of each token as a whole. It never splits the mass or changes its amount.",
    "(B2)": "The second of two conditions in a theorem of Furuya, de Hoop and Lassas. Two small "
    "masses that are put at near points go to near points, however small they are.",
    "W1": "The Wasserstein distance of two contexts. It says how far the tokens have to move on "
    "average, at least, to turn one context into the other. It has the units of your data.",
    "Lipschitz constant": "The largest ratio of a change of the outputs to the change of the "
    "context that causes it.",
    "exponent": "The number p of a power law y = c xᵖ. It is the slope of a line in a figure with "
    "two logarithmic axes.",
    "spread": "The standard deviation of the outputs over contexts that are drawn anew.",
    "standard error": "How far a fitted number may be off by chance. Most fits are off by less "
    "than twice as much.",
    "sequence model": "A model that reads the positions of its tokens, as models of language do. "
    "A model of sets does not.",
    "position embedding": "Numbers that a model adds to a token to tell it where it stands.",
    "class token": "A token with a role of its own, often the first. It gathers what the model "
    "says about all tokens.",
    "causal": "The output for a token depends on this token and on earlier ones, not on later "
    "ones.",
    "padding": "Rows that only fill up a batch of sets of unequal size. A mask tells the model "
    "to ignore them.",
    "mask": "An argument that tells a model which tokens are real.",
    "batch": "Several sets in one call.",
    "query": "A point that a model of a context and queries is asked about.",
    "weight of a token": "The share of a token in its set. A token of weight two counts as much "
    "as two equal tokens.",
    "pooling": "Making one output of a whole set, for instance by a mean or a maximum.",
    "head": "A part of an attention layer. For every token it has weights on all tokens, which "
    "add up to one.",
    "entropy": "How evenly a head spreads its weights. It is 1 if all tokens get the same weight, "
    "and 0 if one token gets all of it.",
    "coupling": "Weights in which every token receives the same total. Softmax does not ask for "
    "that, Sinkhorn does.",
    "centred rank": "The rank of the logarithms of the weights of a head, after the mean of "
    "every row is subtracted. It is the smallest head dimension that can produce these weights.",
    "mean cosine": "The mean cosine of the angle between two tokens. It is 1 if all tokens point "
    "the same way.",
    "effective rank": "How many directions the tokens use. It is the exponential of the entropy "
    "of their singular values, scaled to add up to one.",
    "residual path": "The part of a layer that passes its input on unchanged. What the layer "
    "computes is added to it.",
}
"""What each term means."""

SEEN_AS: dict[str, str] = {
    "token": r"\btokens?\b",
    "context": r"\bcontexts?\b",
    "size of the outputs": r"\bof (their|its) size\b",
    "continuous": r"\b(continuous|jumps?)\b",
    "exponent": r"\b(exponent|to the power)\b",
    "sequence model": r"\b(sequence models?|models? of sequences|\"sequence\")",
    "position embedding": r"\b(position embeddings?|reads the positions|leave the positions)\b",
    "query": r"\b(query|queries)\b",
    "weight of a token": r"\bweight (two|zero)|\bweights of (its|the) tokens",
    "pooling": r"\bpooling\b",
    "head": r"\bheads?\b",
    "mask": r"\bmasks?\b",
    "in-context map": r"\bin-context maps?\b",
    "coupling": r"\bcouplings?\b",
    "residual path": r"\bresidual paths?\b",
}
"""What a term looks like in a sentence, where that is not the term itself."""

PATTERNS = {
    name: re.compile(SEEN_AS.get(name, rf"(?<!\w){re.escape(name)}(?!\w)"), re.IGNORECASE)
    for name in TERMS
}


def terms_in(*sentences: str) -> tuple[str, ...]:
    """The terms that occur in some sentences, in the order of the glossary.

    Args:
        sentences: to look through.
    """
    text = " ".join(sentences)
    return tuple(name for name, seen in PATTERNS.items() if seen.search(text))
