"""Weighted sets: a row of weight four counts as four rows, and a batch changes nothing.

Prints the outputs for repeated and for weighted rows, and the difference between sets of unequal
sizes in one batch and one by one.
"""

import torch

import pushforward as pf

torch.manual_seed(0)
model = pf.Transformer(3, depth=3, heads=4, hidden=32, width=16, out_dim=1)

# Five rows of data. The third was observed four times: repeat it, or give it weight 4.
rows = torch.randn(5, 3)
counts = torch.tensor([1, 1, 4, 1, 1])
repeated = pf.Measure(rows.repeat_interleave(counts, dim=0))
weighted = pf.Measure(rows, weights=counts.float())

with torch.no_grad():
    queries = torch.randn(2, 3)
    print("repeated rows:", model(repeated, queries).flatten())
    print("weighted rows:", model(weighted, queries).flatten())
    print("unweighted   :", model(pf.Measure(rows), queries).flatten())

    # Sets of 5, 800 and 31 rows in one batch, and one by one.
    sets = [pf.Measure(torch.randn(n, 3)) for n in (5, 800, 31)]
    together = model.push(pf.Measure.stack(sets))
    for alone, one in zip(sets, together, strict=True):
        gap = (model.push(alone).atoms - one.atoms).abs().max()
        print(f"{alone.n:4d} rows: batch and single differ by {gap:.1e}")
