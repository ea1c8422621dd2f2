r"""The forward pass for wide points, whose dot products run on tensor cores.

Points in half precision are multiplied as they are. A float32 number is split into two float16
halves, $x=2^{-e}(x_h+x_l)$ to about 23 bits, and a product into three:
$x_hy_h+x_hy_l+x_ly_h$ (`SPLIT` 2). With `SPLIT` 1 only the first of these is formed. Tensor cores
cut off their float32 sums instead of rounding them, which adds up over long chains. So products of
values begin a new sum in each block if they must be accurate.
"""

import triton
import triton.language as tl

from .parts import (
    LATEST,
    LN2,
    LOG2E,
    block,
    end_of_keys,
    finite,
    hidden,
    in_range,
    numbers,
    placed,
    problem,
    product,
    rows_with_nan,
    scale_of_halves,
    share,
)


@triton.jit
def _step(
    m, s, mean, qs, qs_low, k, k_low, v, v_low, b, told, seen, shift, factor, one, j0, last,
    sk, sv, sb, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BN: tl.constexpr, TIMED: tl.constexpr, MODE: tl.constexpr, SPLIT: tl.constexpr,
    CLEAN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One block of keys: scores, the new largest score, weights, and their sums of values."""
    ks = block(k, j0, last, sk, D, D_PAD, BN, MASKED)
    ks_low = ks
    if SPLIT:
        ks_low = block(k_low, j0, last, sk, D, D_PAD, BN, MASKED)
    # Values are asked for before the scores are needed: one tenth of the time.
    if E > 0:
        vs = block(v, j0, last, sv, E, E_PAD, BN, MASKED)
        vs_low = vs
        if SPLIT:
            vs_low = block(v_low, j0, last, sv, E, E_PAD, BN, MASKED)
    bias = numbers(b, j0, last, sb[2], -float("inf"), BN, MASKED) * LOG2E - shift
    if CLEAN:
        dead = (bias == -float("inf"))[:, None]
        ks = tl.where(dead, 0.0, ks)
        ks_low = ks
        if E > 0:
            vs = tl.where(dead, 0.0, vs)
    t = product(qs, qs_low, ks.T, ks_low.T, SPLIT, False) * factor + bias[None, :]
    if TIMED:
        t = hidden(t, seen[:, None], numbers(told, j0, last, 1, LATEST, BN, MASKED)[None, :])
    old = one
    if MODE != 1:
        top = tl.maximum(m, tl.max(t, 1))
        base = finite(top)
        scale = tl.exp2(m - base)
        old = scale[:, None]
        t, s, m = t - base[:, None], s * scale, top
    # Weights of up to 2^12 have low halves that float16 holds.
    p = tl.exp2(t + 12.0) if SPLIT and E > 0 else tl.exp2(t)
    s += tl.sum(p, 1)
    if E > 0:
        high = p.to(vs.dtype)
        if SPLIT:
            low = (p - high.to(tl.float32)).to(vs.dtype)
            mean = mean * old + product(high, low, vs, vs_low, SPLIT, False)
        else:
            if MODE != 1:
                mean *= old
            mean = tl.dot(high, vs, mean)
    return m, s, mean


@triton.jit
def forward(
    q, k, v, b, q_low, k_low, v_low, times, ends, survey, out, peak, total, log_z,
    M, N, H, factor, one, sq, sk, sv, sb,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ENDS: tl.constexpr,
    MODE: tl.constexpr, SPLIT: tl.constexpr, GUARD: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    r"""The average, a shift of the scores in base 2, and the sum of weights relative to it.

    `ENDS` is 1 if each problem has a last key of its own, and 2 if each block of queries has, for
    times. The shift is the largest score, in `MODE` 0. In `MODE` 1 it is the largest score of a
    block of queries and the first keys, so nothing is compared any more. Where a sum of weights
    then leaves 2^-60 to 2^60, `MODE` 2 repeats the block as `MODE` 0 does. With `GUARD`, keys and
    values without mass may be NaN or infinite. `MODE` 1 computes with them, and what becomes NaN
    is repeated by `MODE` 2 with zeros in their place.
    `EVEN` says that blocks divide the keys, so nothing needs a mask; a second loop for the last
    block would keep the compiler from running products of tensor cores together.
    The log-integral follows if one program sees all keys (`WHOLE`). `one` is 1, which the compiler
    must not know: it would join the sums of all blocks to one chain.
    """
    z, place, blocks = placed(M, BM)
    part = tl.program_id(1)
    i0 = place * BM
    i = i0 + tl.arange(0, BM)
    rows = i < M
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * M + i
    if MODE == 2:
        if in_range(tl.load(total + row, mask=rows, other=1.0)):
            return
    factor *= LOG2E
    if SPLIT:
        factor *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    last = end_of_keys(ends, z, N, ENDS)
    if EVEN:
        last = tl.cdiv(last, BN) * BN
    first, _, last = share(0, last, part, tl.num_programs(1), BN)
    qs = block(problem(q, z, H, sq), i0, M, sq, D, D_PAD, BM, True)
    qs_low = qs
    if SPLIT:
        qs_low = block(problem(q_low, z, H, sq), i0, M, sq, D, D_PAD, BM, True)
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    k_low, v_low = problem(k_low, z, H, sk), problem(v_low, z, H, sv)
    seen, told = 0, b
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen, told = tl.load(times + i, mask=rows, other=-1), times + M
    shift = 0.0
    if MODE == 1:
        ks = block(k, first, last, sk, D, D_PAD, BN, True)
        ks_low = ks
        if SPLIT:
            ks_low = block(k_low, first, last, sk, D, D_PAD, BN, True)
        bias = numbers(b, first, last, sb[2], -float("inf"), BN, True) * LOG2E
        t = product(qs, qs_low, ks.T, ks_low.T, SPLIT, False) * factor + bias[None, :]
        shift = finite(tl.max(tl.max(t, 1), 0))
    m = tl.full([BM], -float("inf"), tl.float32)
    s = tl.zeros([BM], tl.float32)
    mean = tl.zeros([BM, E_PAD], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        m, s, mean = _step(
            m, s, mean, qs, qs_low, k, k_low, v, v_low, b, told, seen, shift, factor, one,
            j0, last, sk, sv, sb, D, E, D_PAD, E_PAD, BN, ENDS == 2, MODE, SPLIT,
            GUARD and MODE == 2, not EVEN,
        )  # fmt: skip
    if MODE == 1:
        m = tl.zeros([BM], tl.float32) + shift
    if GUARD and MODE == 1 and E > 0:
        s = tl.where(rows_with_nan(mean), float("nan"), s)
    count = tl.where(s == 0.0, 1.0, s)
    if E > 0:
        mean = mean / count[:, None]
        if SPLIT:
            mean *= scale_of_halves(survey, z, 2)
            s *= 0.000244140625  # 2^-12, see `_step`
        e = tl.arange(0, E_PAD)
        at = out + row[:, None] * E + e[None, :]
        tl.store(at, mean.to(out.dtype.element_ty), mask=rows[:, None] & (e < E)[None, :])
    m = tl.where(s == 0.0, -float("inf"), m)
    tl.store(peak + row, m, mask=rows)
    tl.store(total + row, s, mask=rows)
    if WHOLE:
        tl.store(log_z + row, (m + tl.log2(s)) * LN2, mask=rows)
