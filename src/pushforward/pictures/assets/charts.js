// A chart of 340 by 212 units from plain data. Blue is measured, dashed grey is theory.
function chart(figure) {
  const W = 340, H = 212, left = 46, right = 14, top = 22, bottom = 38;
  const classes = ["a", "b", "c", "d"];
  const logs = { x: figure.log.includes("x"), y: figure.log.includes("y") };
  const good = (v, axis) => v !== null && (!logs[axis] || v > 0);
  const kept = figure.series.map(s => ({ ...s, points: s.x.map((x, i) => [x, s.y[i]])
    .filter(([x, y]) => good(x, "x") && good(y, "y")) }));
  const span = (axis, index) => {
    const f = v => logs[axis] ? Math.log10(v) : v;
    const values = kept.flatMap(s => s.points.map(p => f(p[index])));
    if (axis === "y" && !logs.y && kept.some(s => s.style === "stems" || s.style === "area")) values.push(0);
    let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    if (logs[axis]) { low = Math.floor(low + 1e-9); high = Math.ceil(high - 1e-9); }
    if (high - low < 1e-12) { low -= 0.5; high += 0.5; }
    const room = logs[axis] ? 0 : 0.04 * (high - low);
    return { f, low: low - room, high: high + room };
  };
  const ax = span("x", 0), ay = span("y", 1);
  const X = v => left + (ax.f(v) - ax.low) / (ax.high - ax.low) * (W - left - right);
  const Y = v => H - bottom - (ay.f(v) - ay.low) / (ay.high - ay.low) * (H - bottom - top);
  const foot = logs.y ? H - bottom : Y(0);
  const sup = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const power = e => "10" + String(e).replace(/\d/g, c => sup[c]).replace("-", "⁻");
  const number = v => String(+v.toPrecision(3)).replace("-", "−");
  const ticks = (a, log) => {
    const steps = [1, 2, 5].flatMap(m => [...Array(13).keys()].map(k => m * 10 ** (k - 6)));
    const step = log ? Math.max(1, Math.ceil((a.high - a.low) / 4))
      : steps.sort((p, q) => p - q).find(s => (a.high - a.low) / s <= 5) || (a.high - a.low);
    const found = [];
    for (let k = Math.ceil(a.low / step - 1e-9); k * step <= a.high + 1e-9; k++) found.push(k * step);
    return found.map(t => log ? [10 ** t, power(t)] : [t, number(t)]);
  };
  const text = (x, y, t, c = "") => `<text class="${c}" x="${x}" y="${y}">${t}</text>`;
  const escape = t => t.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
  const r = v => v.toFixed(1);
  let out = "";
  for (const [v, t] of ticks(ay, logs.y)) {
    out += `<path class="gr" d="M${left} ${r(Y(v))}H${W - right}"/>` + text(left - 6, r(Y(v) + 4), t, "e");
  }
  out += `<path class="ax" d="M${left} ${H - bottom + 0.5}H${W - right}"/>`;
  for (const [v, t] of ticks(ax, logs.x)) {
    out += `<path class="ax" d="M${r(X(v))} ${H - bottom}v4"/>` + text(r(X(v)), H - bottom + 16, t, "m");
  }
  out += text((left + W - right) / 2, H - 4, escape(figure.x), "m") + text(0, 11, escape(figure.y));
  let colour = 0;
  kept.forEach((s, k) => {
    const c = s.style === "dashed" ? "rf" : "l" + classes[colour % 4];
    const line = s.points.map(([x, y]) => `${r(X(x))} ${r(Y(y))}`).join("L");
    if (s.style === "stems") {
      for (const [x, y] of s.points) out += `<path class="${c}" d="M${r(X(x))} ${r(foot)}V${r(Y(y))}"/>`;
    } else if (s.style === "area") {
      out += `<path class="bd" d="M${line}V${r(foot)}H${r(X(s.points[0][0]))}Z"/><path class="${c}" d="M${line}"/>`;
    } else if (s.style !== "dots" && s.points.length) out += `<path class="${c}" d="M${line}"/>`;
    if (s.style !== "dashed" && s.style !== "area" && s.points.length <= 60) {
      for (const [x, y] of s.points) {
        out += `<circle class="p${classes[colour % 4]}" cx="${r(X(x))}" cy="${r(Y(y))}" r="2.6"><title>${number(x)}, ${number(y)}</title></circle>`;
      }
    } else if (s.style === "dots") {
      const d = s.points.map(([x, y]) => `M${r(X(x))} ${r(Y(y))}h0`).join("");
      out += `<path class="${c} f4" style="stroke-width:4;stroke-linecap:round" d="${d}"/>`;
    }
    if (s.name && kept.length > 1) {
      const shade = s.style === "dashed" ? "" : `style="fill:var(--${classes[colour % 4]})"`;
      out += `<text class="e" ${shade} x="${W - right}" y="${top - 8 + 13 * k}">${escape(s.name)}</text>`;
    }
    if (s.style !== "dashed") colour++;
  });
  const label = escape(`${figure.title}: ${figure.y} against ${figure.x}`);
  return `<svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${label}">${out}</svg>`;
}

// Figures are drawn when they come into view, or before the page is printed.
(() => {
  const draw = node => {
    if (node.dataset.figure) node.innerHTML = chart(JSON.parse(node.dataset.figure));
    delete node.dataset.figure;
  };
  const nodes = [...document.querySelectorAll("[data-figure]")];
  const seen = new IntersectionObserver(entries => {
    for (const e of entries) if (e.isIntersecting) { draw(e.target); seen.unobserve(e.target); }
  }, { rootMargin: "600px" });
  nodes.forEach(n => seen.observe(n));
  addEventListener("beforeprint", () => nodes.forEach(draw));
})();
