"""What each test of an audit claims, what its result means, its likely cause, what to change."""

from __future__ import annotations

from dataclasses import dataclass

from ._finding import Finding, Status
from ._glossary import terms_in


@dataclass(frozen=True)
class Text:
    """The words of a finding that do not depend on its numbers.

    Args:
        claim: what is tested ("that ...") or measured ("how ...").
        fine: what it means if nothing is amiss.
        amiss: what it means otherwise.
        cause: the likely cause, if something is amiss.
        change: what to change then.
    """

    claim: str
    fine: str
    amiss: str = ""
    cause: str = ""
    change: str = ""


TEXTS: dict[str, Text] = {
    # symmetries
    "permutation": Text(
        "that the order of the tokens does not matter",
        "A set has no order, and the model treats its tokens so.",
        "The same set, written in another order, gets other outputs.",
        "Position embeddings, a recurrent layer, a causal mask, or a first token that is read as "
        "a summary. All of these are right for sequences and wrong for sets.",
        "Leave the positions out. If the order is meant to matter, say so with "
        '`pf.auditing.Model(model, mode="sequence")`, in a shell `--mode sequence`. If only the '
        "first token is special, say `class_token=0`, in a shell `--class-token 0`.",
    ),
    "duplication": Text(
        "that repeating all tokens changes nothing",
        "Only the shares of the tokens count for the model, not how many there are.",
        "The same tokens in the same shares get other outputs if the list is longer.",
        "Sums where means were meant, scores that are multiplied by log n, top-k, positions, the "
        "number of tokens as a feature, or a class token, which has a smaller share of a longer "
        "list.",
        "Use means instead of sums, or divide by the number of tokens. If the number is meant to "
        "matter, this finding is no fault.",
    ),
    "weights": Text(
        "that a token of weight two counts as two equal tokens",
        "Weights and repetitions mean the same to the model.",
        "Weights do not do what repeating a token does.",
        "Weights that do not reach every mean or softmax of the model, or are applied twice.",
        "Add the logarithm of each weight to the scores of every softmax. Use weighted means.",
    ),
    "equal tokens": Text(
        "that equal tokens have equal outputs",
        "The model does not tell equal tokens apart.",
        "Two tokens that agree in every number are told apart by where they stand.",
        "Position embeddings, a recurrent layer, a causal mask, or a first token with a role of "
        "its own.",
        "Leave the positions out, or say that they are meant with "
        '`pf.auditing.Model(model, mode="sequence")`, in a shell `--mode sequence`.',
    ),
    "padding": Text(
        "that padding changes nothing",
        "The model passes over tokens that are marked as padding.",
        "Rows that only fill a batch change the outputs of real tokens. The outputs then depend "
        "on which sets share a batch.",
        "A mask that is not read by every layer, or that is inverted. A mean over all rows "
        "instead of the real ones.",
        "Pass the mask to every attention layer, norm and mean. Check whether True means real or "
        "padding.",
    ),
    "neighbours": Text(
        "that the sets of a batch do not change each other's outputs",
        "Each set gets the outputs that it gets alone.",
        "What a set gets depends on which other sets are in the same call.",
        "Axes that are confused, such as a missing `batch_first=True`, or a BatchNorm in training "
        "mode.",
        "Check which axis the attention sees as the tokens. Call `eval()`, or use a LayerNorm.",
    ),
    "queries": Text(
        "that the queries of a call do not change each other's outputs",
        "Each query gets the output that it gets alone.",
        "What a query gets depends on which other queries are asked in the same call.",
        "Queries that attend to each other, because no mask keeps them apart.",
        "Let queries attend to the context only.",
    ),
    "class token": Text(
        "that the class token does not see the order of the others",
        "The output of the class token is one of the set of the other tokens.",
        "The output of the class token changes if the other tokens are shuffled.",
        "Position embeddings or a recurrent layer.",
        "Leave the positions out, or say that they are meant with "
        '`pf.auditing.Model(model, mode="sequence")`, in a shell `--mode sequence`.',
    ),
    "special token": Text(
        "whether one token has a role of its own",
        "This token is held in its place, and the audit asks what the others do.",
        "Shuffling all other tokens changes nothing, but this token acts as no other does. It was "
        "taken for a class token and held in its place, and the audit asks what the others do.",
        "A class token, or an output that is read from this place.",
        "Nothing, if it is meant: say so with `pf.auditing.Model(model, class_token=0)`, in a "
        'shell `--class-token 0`. If all tokens should be alike, say `mode="set"`, in a shell '
        "`--mode set`, and this counts as refuted.",
    ),
    "varied outputs": Text(
        "whether the outputs vary",
        "The outputs differ from token to token.",
        "The outputs are all the same, whatever the tokens. No test can find anything then.",
        "Weights that are zero, a saturated activation, or an output that is not the one meant.",
        "Check which output of the model is used, and that its weights are loaded.",
    ),
    "order": Text(
        "how much the order matters",
        "It was audited as a sequence model, for which that is as it should be.",
        "It was therefore audited as a sequence model, without the tests for sets.",
        "Position embeddings, a recurrent layer or a causal mask.",
        'Nothing, if the tokens are a sequence: `pf.auditing.Model(model, mode="sequence")`, in a '
        "shell `--mode sequence`, says so. If they are a set, this is a mistake: leave the "
        'positions out. With `mode="set"`, in a shell `--mode set`, it counts as refuted.',
    ),
    "later tokens": Text(
        "whether outputs depend on later tokens",
        "An output sees the tokens before it and after it.",
        "The model is causal: an output sees its own token and earlier ones, as in models that "
        "predict the next token.",
    ),
    "set checks": Text(
        "what the tests for sets would say",
        "A model that reads positions is expected to break these. They ask whether a model treats "
        "its tokens as a set.",
    ),
    # size
    "length": Text(
        "that the number of tokens itself does not matter",
        "A longer list of the same tokens in the same shares gets the same outputs.",
        "The same tokens in the same shares get other outputs as the list gets longer. What the "
        "model has learned at one length does not carry over to another.",
        "Sums where means were meant, scores that grow with log n, a class token, or positions "
        "that training never reached.",
        "Use means instead of sums, leave out factors that depend on n, or train with sets as "
        "large as those you will use.",
    ),
    "convergence": Text(
        "how fast outputs settle as sets grow",
        "A mean over m tokens varies like m to the power −0.5, and outputs of a smooth map of "
        "measures do so too.",
        "More tokens of the same kind hardly make the outputs more certain. For a smooth map of "
        "measures the power is −0.5.",
        "Attention that stays on a few tokens however many there are, a maximum, or sets that are "
        "still too small to show it.",
        "Look at the entropy of the heads. Raise `tokens=` to see larger sets.",
    ),
    # theorem
    "measure map": Text(
        "that it depends only on the measure of the tokens",
        "The model knows which tokens there are and their shares, and nothing else.",
        "Whether there is an in-context map is asked of maps of measures only, and this is none.",
        "See the findings on order and repetition.",
        "Look again when order and repetition no longer matter.",
    ),
    "in-context map": Text(
        "that it is a continuous in-context map",
        "One continuous function G(μ, x) of a token and of the set around it says everything that "
        "the model does. Transformers are such maps, and can approximate any of them.",
        "There is evidence against it, but not enough to refute it.",
        "Nearest neighbours, hard thresholds, ranks or medians, or slopes so steep that they look "
        "like jumps.",
        "Replace hard choices by soft ones if outputs should be stable. If the model computes in "
        "float32, float64 tells a jump from a slope.",
    ),
    "continuity in the measure": Text(
        "that it is continuous in the measure",
        "A small change of the set makes a small change of what the model does.",
        "An arbitrarily small change of the set, such as a token of tiny weight, makes a change "
        "that is not small.",
        "Max pooling, medians, ranks, or hard thresholds on statistics of the set.",
        "Use means or attention instead of maxima, and soft choices instead of thresholds.",
    ),
    "(B1)": Text(
        "that it moves each token as a whole (B1)",
        "The mass of a token goes to one place.",
        "The mass of a token is split between several places or changes its amount. No in-context "
        "map does that.",
        "A map that builds a new measure, for instance a mixture, a kernel density or a new "
        "weighting of the tokens.",
        "Nothing, if this is meant: it is a map between measures of another kind. Otherwise move "
        "the tokens and keep their weights.",
    ),
    "(B2)": Text(
        "that near points go to near points (B2)",
        "Where a small mass goes changes continuously with the point where it is put.",
        "Two points that are as near as one likes have images that are far apart.",
        "Nearest neighbours, hard thresholds, or a division by the mass of a part of the set.",
        "Replace hard choices by soft ones, for instance nearest neighbours by attention.",
    ),
    "continuity in the query": Text(
        "that the output is continuous in the query (B2)",
        "Near queries have near outputs.",
        "Two queries that are as near as one likes have outputs that are far apart.",
        "Nearest neighbours, hard thresholds, or decision trees.",
        "Replace hard choices by soft ones, for instance nearest neighbours by attention. Use "
        "float64 to tell a jump from a slope.",
    ),
    "recovery": Text(
        "that the unordered outputs tell what happens to each token",
        "Nothing else is hidden in the model: its outputs as a set already tell its in-context "
        "map.",
    ),
    # sensitivity
    "response": Text(
        "how strongly outputs respond to the other tokens",
        "Small changes of the context have small effects, in proportion.",
        "Small changes of the context have large effects: at half the change, far more than half "
        "of the effect is left.",
        "Square roots, hard thresholds, or very sharp attention.",
        "Soften thresholds, or lower the scale of the attention scores.",
    ),
    "context": Text(
        "how much of the outputs comes from the other tokens",
        "The outputs depend on the set and not only on the token itself.",
        "The outputs are almost those of each token alone. The model hardly uses the set.",
        "An untrained model, attention that the residual path drowns, or a model that works on "
        "each token alone.",
        "Check that trained weights are loaded. If each token should be seen alone, this is no "
        "fault.",
    ),
    "one token": Text(
        "that one token among many matters little",
        "The effect of one token fades as sets grow, as for every map that is continuous in the "
        "measure.",
        "However large the set, a single token can move the outputs as far as in a small one.",
        "Max pooling, sums, or attention so sharp that one token gets all the weight.",
        "Use a mean or attention instead of the maximum or sum. Lower the scale of the attention "
        "scores. If single tokens are meant to decide, this is no fault.",
    ),
    # depth
    "layers": Text(
        "how tokens change from layer to layer",
        "Tokens stay distinct through all layers.",
        "Tokens become alike from layer to layer. Later layers can hardly tell them apart.",
        "Too many layers, or layers without residual paths or norms. In short models some "
        "gathering is usual.",
        "Take fewer layers, keep residual paths, or choose a smaller scale of the attention "
        "scores.",
    ),
    # relations
    "heads": Text(
        "what the attention heads relate",
        "An entropy of 1 is an even look at all tokens, and an entropy of 0 is a look at one. The "
        "centred rank is the head dimension that the weights need.",
    ),
    "uniform heads": Text(
        "whether heads choose between tokens",
        "Every head gives some tokens more weight than others.",
        "These heads give all tokens the same weight. They do no more than a mean over the set.",
        "Random or very small weights of queries and keys, as before training.",
        "Check that trained weights are loaded. If the model is trained, these heads can be "
        "replaced by a mean.",
    ),
    # any section
    "section": Text(
        "what this section asks",
        "Nothing can be said about it.",
        "Nothing can be said about it.",
    ),
}
"""The words of all findings, by their names."""


UNABLE = "The test stopped there, so nothing can be said about this."
"""What it means if a test could not be tried."""


def found(
    section: str,
    name: str,
    status: Status,
    said: str,
    *,
    amiss: bool | None = None,
    effect: float | None = None,
    figure: int | None = None,
) -> Finding:
    """A finding with the words that belong to its name.

    Args:
        section: of the audit.
        name: a key of `TEXTS`.
        status: of the finding.
        said: what was seen, in a sentence.
        amiss: whether something should be looked at; by default, whether it is refuted.
        effect: how far outputs moved, as a share of their size.
        figure: which figure of the section shows it.
    """
    text = TEXTS[name]
    wrong = status == "refuted" if amiss is None else amiss
    meaning, cause, change = text.fine, "", ""
    if status == "unable":
        meaning = UNABLE
    elif wrong:
        meaning, cause, change = text.amiss, text.cause, text.change
    return Finding(
        section, name, status, text.claim, said, meaning, cause, change,
        terms_in(text.claim, said, meaning, cause, change), effect, figure,
    )  # fmt: skip
