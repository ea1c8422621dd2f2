"""Causal attention by times: a query at time t sees the tokens at times up to t.

Queries may lie between tokens, and tokens at the same time see each other.
"""

import torch

import pushforward as pf

torch.manual_seed(0)
model = pf.Transformer(4, depth=2, heads=2, hidden=16, block=pf.Block(mask=pf.Causal()))

with torch.no_grad():
    tokens = torch.randn(6, 4)
    whole = pf.Measure.from_tokens(tokens, times=torch.arange(6))
    out = model.push(whole).atoms

    # Each output depends on the past only, so it is the same for the prefix alone.
    for n in (1, 3, 6):
        prefix = pf.Measure.from_tokens(tokens[:n], times=torch.arange(n))
        gap = (model.push(prefix).atoms[-1] - out[n - 1]).abs().max()
        print(f"prefix of {n}: last output differs by {gap:.1e}")

    # A query at time 2.5 sees the tokens 0, 1 and 2.
    x, t = torch.zeros(1, 4), torch.tensor([2.5])
    early = pf.Measure.from_tokens(tokens[:3], times=torch.arange(3))
    later = (model(whole, x, t) - model(early, x, t)).abs().max()
    print(f"query at time 2.5: the later tokens change its output by {later:.1e}")

    # Tokens at the same time see each other, so their order does not matter.
    tied = pf.Measure.from_tokens(tokens, times=torch.zeros(6))
    p = torch.randperm(6)
    mixed = pf.Measure.from_tokens(tokens[p], times=torch.zeros(6))
    gap = (model.push(mixed).atoms - model.push(tied).atoms[p]).abs().max()
    print(f"tokens at one time, permuted: outputs differ by {gap:.1e}")
