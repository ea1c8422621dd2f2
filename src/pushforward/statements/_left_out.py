"""What the papers use and no experiment here could refute: left out, with the reason."""

LEFT_OUT: dict[str, str] = {
    "A.prokhorov": "Measures on a compact set have convergent subsequences (Prokhorov). Every "
    "finite experiment agrees with that; what it means for growing prompts is `A.A3.18`.",
    "A.stone-weierstrass": "An algebra of continuous functions that separates points is dense "
    "(Stone and Weierstrass). The proof of universality uses it, and gives no construction whose "
    "error could be measured.",
    "A.universality": "Transformers approximate every continuous in-context map on a compact set, "
    "uniformly over all measures. It is quoted, in `A.cor1.size`: a supremum over all measures "
    "cannot be sampled. What can be built or trained is in `A.cor1.*`.",
    "A.measurability": "The maps between measures are measurable. Nothing that a program computes "
    "could show the opposite.",
    "A.lavenant-savare": "A Lipschitz map between measures that preserves supports has a "
    "Lipschitz in-context map, in general spaces. The inequality itself is in `A.fact.lip`.",
    "C.universality": "Masked transformers approximate every causal and identifiable map of a "
    "class. It is quoted, in `C.mean`; the hypotheses of the class are in `C.class`.",
}
"""By identifier, what is said and why there is no experiment."""
