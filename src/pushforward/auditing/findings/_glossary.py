"""The technical terms of an audit, each in a sentence or two.

The text, the JSON and the page of an audit take their explanations from here.
"""

TERMS: dict[str, str] = {
    "token": "One row of your data, a list of numbers: a word, a cell, a row of a table.",
    "context": "The tokens that the model sees together in one call.",
    "size of the outputs": "How far entries of the outputs differ from their mean over the tokens, "
    "at most. Changes of the outputs are given as a share of it.",
    "rounding": "What the limited number of digits of a computer changes. An audit moves every "
    "number of the context by one unit of its last digit and sees how far the outputs move. A "
    "change up to fifty times as large counts as none.",
    "measure": "The tokens together with the share that each of them has of the whole. It does not "
    "know an order, and a list has the same measure as the same list twice.",
    "measure map": "A map that depends only on the measure of the tokens: on which tokens there "
    "are and on their shares, not on their order or number.",
    "in-context map": "A function of one token and of the measure of all tokens, G(μ, x). "
    "Attention is one. If a model is one, this function says everything that the model does.",
    "continuous": "Small changes of what goes in make small changes of what comes out. There are "
    "no jumps.",
    "(B1)": "The first of two conditions of a theorem of Furuya, de Hoop and Lassas: a map moves "
    "the mass of each token as a whole. It never splits the mass or changes its amount.",
    "(B2)": "The second of two conditions of a theorem of Furuya, de Hoop and Lassas: two small "
    "masses that are put at near points go to near points, evenly however small they are.",
    "W1": "The Wasserstein distance of two contexts: how far tokens have to move, on average and "
    "at least, to turn one context into the other. It has the units of your data.",
    "Lipschitz constant": "The largest ratio of a change of the outputs to the change of the "
    "context that causes it.",
    "exponent": "Of a power law y = c xᵖ, the number p. It is the slope of the line in a figure "
    "with two logarithmic axes.",
    "spread": "The standard deviation of the outputs over contexts that are drawn anew.",
    "standard error": "How far a fitted number may be off by chance. Most fits are off by less "
    "than twice as much.",
    "sequence model": "A model that reads the positions of its tokens, as models of language do. "
    "A model of sets does not.",
    "position embedding": "Numbers that a model adds to a token to tell it where it stands.",
    "class token": "A token with a role of its own, usually the first. It gathers what the model "
    "says about the whole set.",
    "causal": "The output for a token depends on this token and on earlier ones, not on later "
    "ones.",
    "padding": "Rows that only fill a batch of sets of unequal size. A mask tells the model to "
    "pass over them.",
    "mask": "An argument that tells a model which tokens are real.",
    "batch": "Several sets in one call.",
    "query": "A point that a model of a context and queries is asked about.",
    "weight": "The share of a token in its set. A token of weight two counts as much as two equal "
    "tokens.",
    "pooling": "Making one output of a whole set, for instance by a mean or a maximum.",
    "head": "A part of an attention layer. It gives every token a list of weights on all tokens, "
    "which add up to one.",
    "entropy of a head": "How evenly a head spreads its weights. It is 1 if all tokens get the "
    "same weight, and 0 if one token gets all of it.",
    "coupling": "A relation in which all tokens receive the same total weight. Softmax does not "
    "ask for that, Sinkhorn does.",
    "centred rank": "The rank of the logarithms of the weights of a head, after the mean of every "
    "row is subtracted. It is the smallest head dimension that can produce these weights.",
    "mean cosine": "The mean over all pairs of tokens of the cosine of their angle. It is 1 if all "
    "tokens point the same way.",
    "effective rank": "How many directions the tokens use. It is the exponential of the entropy of "
    "the singular values, scaled to add up to one.",
    "oversmoothing": "Tokens become more and more alike from layer to layer, until they cannot be "
    "told apart.",
    "residual path": "The part of a layer that passes its input on unchanged. The layer adds to "
    "it.",
}  # fmt: skip
"""What each term means. A finding names the terms that its sentences use."""
