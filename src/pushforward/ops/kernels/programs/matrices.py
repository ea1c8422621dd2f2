r"""Kernels that scale many small matrices to doubly stochastic ones, several in a program.

A program has `B` matrices in registers, of a power of two of rows and columns, with zeros beyond
the true size `n`. A tile has the axes (matrix, column block, row block, column in block, row in
block). The first three are spread over threads, so that sums along the last two stay inside a
thread. Sums keep all axes, and those of rows, of columns and of whole matrices broadcast against a
tile.

`balance` takes Sinkhorn steps. `newton` goes on where these are slow, and `anneal` in float64
where that fails. Each writes down which matrices are left for the next, so that nobody waits to
count them. `support` then judges masks, and `gradient` is the gradient of all.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOG2E_LOW: tl.constexpr = tl.constexpr(1.925963033500912e-08)
"""What float32 rounds off `LOG2E`."""

LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
LIMIT: tl.constexpr = tl.constexpr(4.0)
"""The most that a Newton step moves a potential away from the average of its neighbours."""

START: tl.constexpr = tl.constexpr(8)
"""Sinkhorn steps before anything else is tried."""

FULL: tl.constexpr = tl.constexpr(6)
"""Full Newton steps. Later ones are damped, and always descend."""

COARSE: tl.constexpr = tl.constexpr(1e-3)
"""The error at which one temperature is left for the next."""


@triton.jit
def _sum_rows(x):
    return tl.sum(tl.sum(x, 3, keep_dims=True), 1, keep_dims=True)


@triton.jit
def _sum_columns(x):
    return tl.sum(tl.sum(x, 4, keep_dims=True), 2, keep_dims=True)


@triton.jit
def _max_rows(x):
    return tl.max(tl.max(x, 3, keep_dims=True), 1, keep_dims=True)


@triton.jit
def _max_columns(x):
    return tl.max(tl.max(x, 4, keep_dims=True), 2, keep_dims=True)


@triton.jit
def _most(x):
    return tl.max(tl.ravel(x), 0)


@triton.jit
def _any(x):
    """Whether anything in a tile is true, as a number."""
    return _most(x.to(tl.int32))


@triton.jit
def _row(x, k, row):
    """Row `k` of each matrix: one number per column."""
    return _sum_columns(tl.where(row == k, x, 0.0))


@triton.jit
def _column(x, k, column):
    """Column `k` of each matrix: one number per row."""
    return _sum_rows(tl.where(column == k, x, 0.0))


@triton.jit
def _indices(R: tl.constexpr, RT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr):
    """The row index and the column index of each entry of a tile."""
    row = tl.arange(0, RT)[None, None, :, None, None] * R
    column = tl.arange(0, CT)[None, :, None, None, None] * C
    row += tl.arange(0, R)[None, None, None, None, :]
    return row, column + tl.arange(0, C)[None, None, None, :, None]


@triton.jit
def _numbered(first, count, B: tl.constexpr):
    """The numbers of the `B` matrices of a program, and whether each is below `count`."""
    which = first + tl.arange(0, B)[:, None, None, None, None]
    return which, which < count


@triton.jit
def _places(which, exists, row, column, n, unit):
    """Where matrices and their entries are in memory, and which entries exist.

    The step `unit` between columns is 1, which the compiler must not know: else it would spread a
    tile over threads so that reads are joined, and sums would be slow.
    """
    inside = exists & (row < n) & (column < n)
    return which.to(tl.int64) * (n * n), row * n + column * unit, inside


@triton.jit
def _real(P, exists):
    """Matrices with NaN in place of those that do not exist, or failed: these take no steps."""
    return tl.where(exists, P, float("nan"))


@triton.jit
def _inverse(x):
    """One over a sum; an empty row has the sum 0, and stays zero."""
    tiny: tl.constexpr = 2.0**-126 if x.dtype == tl.float32 else 2.0**-1022
    return 1.0 / tl.maximum(x, tl.full([1, 1, 1, 1, 1], tiny, x.dtype))


@triton.jit
def _exp(x):
    """The exponential of numbers at most 0. In float32 rounding of `x log2(e)` is corrected."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    vanishes = x < -104.0
    x = tl.where(vanishes, 0.0, x)
    product = x * LOG2E
    rest = tl.fma(x, LOG2E, -product) + x * LOG2E_LOW
    return tl.where(vanishes, 0.0, tl.exp2(product) * (1.0 + rest * LN2))


@triton.jit
def _normalise_rows(P):
    return P * _inverse(_sum_rows(P))


@triton.jit
def _sinkhorn_step(P):
    """Normalise columns, then rows."""
    return _normalise_rows(P * _inverse(_sum_columns(P)))


@triton.jit
def _worst(error):
    """The largest error of each matrix; infinite if there is NaN."""
    error = tl.where(error == error, error, float("inf"))
    return _max_rows(_max_columns(error))


@triton.jit
def _column_error(sums, column, n):
    return _worst(tl.where(column < n, tl.abs(sums - 1.0), 0.0))


@triton.jit
def _live(error, goal):
    """Which matrices are not done, and have no NaN."""
    return (error > goal) & (error < float("inf"))


@triton.jit
def _residual(P, row, column, n):
    """The largest error of a row sum or column sum; NaN if there is any."""
    P = P.to(tl.float64)
    rows = _worst(tl.where(row < n, tl.abs(_sum_rows(P) - 1.0), 0.0))
    error = tl.maximum(rows, _column_error(_sum_columns(P), column, n))
    return tl.where(error == float("inf"), float("nan"), error)


@triton.jit
def _started(logits, DTYPE: tl.constexpr):
    """Logits less the largest of each row; logits are minus infinity where nothing exists."""
    largest = tl.maximum(_max_rows(logits), -3.4028234663852886e38)
    return (logits - largest).to(DTYPE)


@triton.jit
def _leave(which, left, where, counter):
    """Append the matrices that are left to the list of the next kernel."""
    counter += tl.zeros_like(which)
    slot = tl.atomic_add(counter, left.to(tl.int32), mask=left, sem="relaxed")
    tl.store(where + slot, which, mask=left)


@triton.jit(do_not_specialize=["count", "n", "unit"])
def balance(
    logits, out, residuals, lost, slow, hard, masked, counters, count, n, unit, goal, tol,
    R: tl.constexpr, RT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, B: tl.constexpr,
    MORE: tl.constexpr,
):  # fmt: skip
    """Take Sinkhorn steps while at most `MORE` further ones are expected to suffice.

    Each step multiplies the error of columns by about the same factor, which is that of the last
    step. No logarithms are needed: floating-point numbers of very different sizes are equally
    precise. Where the power of a logit vanishes nevertheless, the matrix is lost until it is
    annealed.
    """
    row, column = _indices(R, RT, C, CT)
    which, exists = _numbered(tl.program_id(0) * B, count, B)
    start, at, inside = _places(which, exists, row, column, n, unit)
    L = tl.load(logits + start + at, mask=inside, other=-float("inf"))
    hidden = _max_rows(_max_columns((inside & (L == -float("inf"))).to(tl.int32))) > 0
    L = _started(L, L.dtype)
    lowest: tl.constexpr = -87.0 if L.dtype == tl.float32 else -708.0
    vanished = _max_rows(_max_columns(((L < lowest) & (L > -float("inf"))).to(tl.int32))) > 0
    P = _normalise_rows(_exp(L))
    sums = _sum_columns(P)
    error = _column_error(sums, column, n)
    before = error
    step = 0
    going = 1
    while going > 0:
        ahead = tl.log2(error) + MORE * (tl.log2(error) - tl.log2(before))
        hopeful = _live(error, goal) & (
            (step < START) | (ahead <= tl.log2(goal + tl.zeros_like(error)))
        )
        going = _any(hopeful)
        if going > 0:
            P = tl.where(hopeful, _normalise_rows(P * _inverse(sums)), P)
            sums = _sum_columns(P)
            before = tl.where(hopeful, error, before)
            error = _column_error(sums, column, n)
            step += 1
    residual = _residual(P, row, column, n)
    tl.store(out + start + at, P, mask=inside)
    tl.store(residuals + which, residual.to(P.dtype), mask=exists)
    tl.store(lost + which, vanished.to(tl.int8), mask=exists)
    left = exists & (vanished == 0) & (_live(error, goal) | (residual > 0.7 * tol))
    _leave(which, left, slow, counters)
    _leave(which, exists & vanished, hard, counters + 1)
    _leave(which, exists & hidden, masked, counters + 2)


@triton.jit
def _gram(P, row, column, n):
    r"""The weights $P^\top P$, row by row."""
    W = tl.zeros_like(P)
    for k in tl.range(0, n):
        W = tl.where(row == k, _sum_columns(_column(P, k, column) * P), W)
    return W


@triton.jit
def _solve_laplacian(W, b, row, column, n, limit, eps):
    r"""The $x$ with $\sum_jW_{ij}(x_i-x_j)=b_i$ and $x_{n-1}=0$, by elimination.

    It eliminates without subtractions: the pivot of a Laplacian is the sum of the weights to the
    remaining columns. When column $k$ goes, $x_k=z_k+\sum_{l>k}s_{kl}x_l$ with shares that sum to
    one, and this is put into the equations of later columns and of earlier ones. Row $k$ of the
    tile has the weights to later columns, and before the diagonal the shares that earlier columns
    have in $k$. Column $k$ has the same weights below the diagonal. What a column adds of its own,
    $z_k$, is limited.
    """
    x = b
    for k in tl.range(0, n - 1):
        w = _row(W, k, row)
        weights = tl.where(column > k, w, 0.0)
        pivot = tl.maximum(_sum_rows(weights), eps)
        shares = weights / pivot
        later = tl.where(row > k, _column(W, k, column), 0.0) / pivot
        y = _sum_rows(tl.where(column == k, x, 0.0))
        z = tl.minimum(tl.maximum(y / pivot, -limit), limit).to(x.dtype)
        # With 1 - pivot in place of the diagonal, weights to column k become shares in it.
        W += tl.where(column == k, 1.0 - pivot, w) * later
        x = tl.where(column == k, z, x + tl.where(column < k, w * z, shares * y).to(x.dtype))
    return tl.where(column < n - 1, x, 0.0)


@triton.jit
def _newton(P, row, column, n, goal, most, eps):
    r"""Newton steps until column sums are within `goal` of one: the matrices, how many steps each.

    Matrices that are done stay as they are, so that none depends on its neighbours.

    If rows sum to one, the column factors $e^x$ sought minimise the convex function
    $h(x)=\sum_i\log\sum_jP_{ij}e^{x_j}-\sum_jx_j$. With column sums $c$, a Newton step solves
    $(\mathrm{diag}(c)-P^\top P)\,x=1-c$.
    """
    sums = _sum_columns(P)
    error = _column_error(sums, column, n)
    steps = tl.zeros_like(error).to(tl.int32)
    live = _live(error, goal) & (steps < most)
    going = _any(live)
    while going > 0:
        b = tl.where(column < n, 1.0 - sums, 0.0)
        x = _solve_laplacian(_gram(P, row, column, n), b, row, column, n, LIMIT, eps)
        highest = _max_rows(tl.where(column < n, x, -float("inf")))
        # Along x the dual h has |h'''| <= s h'', s the spread of x, and h'(0) <= -h''(0), so that
        # h'(t) <= h''(0) ((exp(st) - 1) / s - 1) <= 0 up to t = log(1 + s) / s.
        spread = highest + _max_rows(tl.where(column < n, -x, -float("inf")))
        damping = tl.where((steps >= FULL) & (spread > 0), tl.log(1.0 + spread) / spread, 1.0)
        factor = tl.where(column < n, _exp((x - highest) * damping), 0.0)
        # A Sinkhorn step after each Newton step is cheap and never increases h.
        P = tl.where(live, _sinkhorn_step(_normalise_rows(P * factor)), P)
        steps += live.to(tl.int32)
        sums = _sum_columns(P)
        error = _column_error(sums, column, n)
        live = _live(error, goal) & (steps < most)
        going = _any(live)
    return P, steps


@triton.jit(do_not_specialize=["n", "unit", "most"])
def newton(
    out, residuals, slow, hard, counters, n, unit, goal, tol, most, eps,
    R: tl.constexpr, RT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """At most `most` Newton steps for the matrices that `balance` left."""
    row, column = _indices(R, RT, C, CT)
    total = tl.load(counters)
    for first in tl.range(tl.program_id(0) * B, total, tl.num_programs(0) * B):
        slot, exists = _numbered(first, total, B)
        which = tl.load(slow + slot, mask=exists, other=0)
        start, at, inside = _places(which, exists, row, column, n, unit)
        P = _real(tl.load(out + start + at, mask=inside, other=0.0), exists)
        P, steps = _newton(P, row, column, n, goal, most, eps)
        residual = _residual(P, row, column, n)
        tl.store(out + start + at, P, mask=inside)
        tl.store(residuals + which, residual.to(P.dtype), mask=exists)
        tl.atomic_max(counters + 3, _most(steps))
        _leave(which, exists & (residual > 0.7 * tol), hard, counters + 1)


@triton.jit(do_not_specialize=["n", "unit", "before", "most", "each"])
def anneal(
    logits, out, residuals, lost, hard, counters, n, unit, goal, before, most, each,
    R: tl.constexpr, RT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Solve the matrices that are left in float64, from a high temperature down to 1.

    Halving the temperature squares the entries. Squares of a row or column that sums to one sum to
    at least 1/n, so each temperature starts near its solution, however large the logits are. Takes
    at most `each` Newton steps at a temperature and `most` together, after `before` others.
    """
    row, column = _indices(R, RT, C, CT)
    total = tl.load(counters + 1)
    for first in tl.range(tl.program_id(0) * B, total, tl.num_programs(0) * B):
        slot, exists = _numbered(first, total, B)
        which = tl.load(hard + slot, mask=exists, other=0)
        gone = tl.load(lost + which, mask=exists, other=1)
        start, at, inside = _places(which, exists, row, column, n, unit)
        L = tl.load(logits + start + at, mask=inside, other=-float("inf")).to(tl.float64)
        L = _started(L, tl.float64)
        spread = _max_rows(_max_columns(tl.where(L > -float("inf"), -L, 0.0)))
        halvings = tl.ceil(tl.log2(tl.maximum(spread, 8.0) / 8.0)).to(tl.int32)
        P = _normalise_rows(_exp(L * tl.exp2(-halvings.to(tl.float64))))
        for _ in tl.range(0, START):
            P = _sinkhorn_step(P)
        P, good = _real(P, exists), exists
        steps = tl.zeros_like(halvings)
        level = _most(halvings)
        while level >= 0:
            active = halvings >= level
            aim = tl.where(active, tl.where(level > 0, COARSE, goal), float("inf"))
            P, more = _newton(P, row, column, n, aim, tl.minimum(each, most - steps), 2.0**-52)
            steps += more
            good = good & (_residual(P, row, column, n) <= 2 * aim)
            P = _real(P, good)
            if level > 0:
                P = tl.where(active, _sinkhorn_step(_normalise_rows(P * P)), P)
            level = tl.where(_any(good) > 0, level - 1, -1)
        rounded = P.to(out.dtype.element_ty)
        residual = _residual(rounded, row, column, n).to(rounded.dtype)
        tl.store(out + start + at, rounded, mask=inside & good)
        tl.store(residuals + which, residual, mask=good)
        tl.store(lost + which, tl.zeros_like(which).to(tl.int8), mask=good)
        # Those that were lost took no other steps before.
        earlier = tl.where(gone != 0, 0, before)
        tl.atomic_max(counters + 3, _most(steps + earlier))


@triton.jit(do_not_specialize=["n", "unit"])
def support(
    logits, out, residuals, converged, masked, counters, n, unit, eps,
    R: tl.constexpr, RT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Take back `converged` where not all allowed entries lie on allowed diagonals.

    Entries larger than twice the error of all rows together do, and they contain such a diagonal.
    Consider the graph of rows and columns with edges from rows to columns along allowed entries,
    and back along those large entries. An entry is on a diagonal if and only if a path leads from
    its column to its row.
    """
    row, column = _indices(R, RT, C, CT)
    total = tl.load(counters + 2)
    for first in tl.range(tl.program_id(0) * B, total, tl.num_programs(0) * B):
        slot, exists = _numbered(first, total, B)
        which = tl.load(masked + slot, mask=exists, other=0)
        start, at, inside = _places(which, exists, row, column, n, unit)
        L = tl.load(logits + start + at, mask=inside, other=-float("inf"))
        P = tl.load(out + start + at, mask=inside, other=0.0)
        error = tl.load(residuals + which, mask=exists, other=0.0)
        border = tl.minimum(2 * n * tl.maximum(error, eps), 0.5 / (n * n))
        allowed = (L > -float("inf")).to(tl.float32)
        large = (P > border).to(tl.float32)
        # From row to row: along an allowed entry, and back along a large one of the same column.
        reach = tl.zeros_like(allowed)
        for k in tl.range(0, n):
            steps = _sum_rows(allowed * _row(large, k, row))
            reach = tl.where(column == k, tl.minimum(steps, 1.0), reach)
        reach = tl.where((row == column) & exists, 1.0, reach)
        for k in tl.range(0, n):
            reach = tl.maximum(reach, _column(reach, k, column) * _row(reach, k, row))
        path = tl.zeros_like(reach)
        for k in tl.range(0, n):
            back = _sum_columns(large * _column(reach, k, column))
            path = tl.where(row == k, tl.minimum(back, 1.0), path)
        wrong = _max_rows(_max_columns(tl.where(path < allowed, 1, 0))) > 0
        tl.store(converged + which, tl.zeros_like(which).to(tl.int8), mask=exists & wrong)


@triton.jit(do_not_specialize=["count", "n", "unit"])
def gradient(
    matrices, upstream, out, count, n, unit,
    R: tl.constexpr, RT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    r"""The gradient $P\odot(G-u1^\top-1v^\top)$ of logits for the gradient $G$ of the matrices.

    In float64, because blocks may be coupled weakly. With row sums $r$ and column sums $c$, the
    potentials solve $\mathrm{diag}(r)u+Pv=(P\odot G)1$ and $P^\top u+\mathrm{diag}(c)v=
    (P\odot G)^\top1$. Eliminating $u$ leaves a Laplacian with the weights
    $P^\top\mathrm{diag}(1/r)P$.
    """
    row, column = _indices(R, RT, C, CT)
    which, exists = _numbered(tl.program_id(0) * B, count, B)
    start, at, inside = _places(which, exists, row, column, n, unit)
    P = tl.load(matrices + start + at, mask=inside, other=0.0).to(tl.float64)
    # At masked entries the incoming gradient may be anything, such as the slope of log at zero.
    G = tl.where(P > 0, tl.load(upstream + start + at, mask=inside, other=0.0).to(tl.float64), 0.0)
    inverse = tl.sqrt(_inverse(_sum_rows(P)))
    Q = P * inverse
    rows = _sum_rows(Q * G)
    b = _sum_columns(P * G) - _sum_columns(Q * rows)
    v = _solve_laplacian(_gram(Q, row, column, n), b, row, column, n, float("inf"), 2.0**-52)
    u = (rows - _sum_rows(Q * v)) * inverse
    tl.store(out + start + at, (P * (G - u - v)).to(out.dtype.element_ty), mask=inside)
