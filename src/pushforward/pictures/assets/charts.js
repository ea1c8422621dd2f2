// Figures of 340 units from plain data. Blue is measured, dashed grey is theory, and a range never
// depends on the data where the quantity has one of its own.
const charts = (() => {
  const W = 340, HUES = "acdb", SUP = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const r = v => v.toFixed(1);
  const known = v => v !== null && v !== undefined;
  const sum = (list, f) => list.reduce((a, b) => a + f(b), 0);
  const escape = t => String(t).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
  const sup = e => String(e).replace(/\d/g, c => SUP[c]).replace("-", "⁻");
  const power = e => e === 0 || e === 1 ? String(10 ** e) : "10" + sup(e);

  // A number as people write it, shares with two digits.
  function number(v, percent, digits = 3) {
    if (!known(v)) return "–";
    if (percent && v && Math.abs(v) > 0.99e-5) return number(100 * v, false, 2) + "\u00a0%";
    const e = Math.floor(Math.log10(Math.abs(v)));
    if (v && (e < -3 || e > 4)) {
      const [m, k] = v.toExponential(1).split("e");
      return `${m.replace("-", "−").replace(".0", "")}\u00a0×\u00a010${sup(+k)}`;
    }
    const text = e >= 3 ? v.toFixed(0).replace(/(\d)(?=(\d{3})+$)/g, Math.abs(v) < 1e4 ? "$1" : "$1\u202f")
      : String(+v.toPrecision(digits));
    return text.replace("-", "−");
  }

  // Powers and indices, `m^-0.5` and `x_i`, are raised and lowered.
  const SHIFT = /([\^]|(?<=\b\p{L})_)(\{[^{}]*\}|[-−]?\d+(?:\.\d+)?(?:\/\d+)?|\p{L}+)/gu;
  const indexed = t => t.replace(/\bW1\b/g, "W₁");
  function rich(words) {
    const text = indexed(words);
    let out = "", at = 0, back = 0;
    for (const m of text.matchAll(SHIFT)) {
      const plain = text.slice(at, m.index), d = m[1] === "^" ? -4 : 3;
      out += `<tspan dy="${back}">${escape(plain)}</tspan>`
        + `<tspan dy="${d}" class="sm">${escape(m[2].replace(/[{}]/g, "").replace("-", "−"))}</tspan>`;
      at = m.index + m[0].length;
      back = -d;
    }
    const rest = escape(text.slice(at));
    return at ? out + (rest && `<tspan dy="${back}">${rest}</tspan>`) : rest;
  }
  const width = text => 6.4 * text.replace(/[\^_{}]/g, "").length;
  const label = (x, y, t, c = "", style = "") =>
    `<text class="${c}"${style && ` style="${style}"`} x="${r(x)}" y="${r(y)}">${rich(t)}</text>`;

  // The ends of an axis, in its own units: exponents of ten if it is logarithmic.
  function span(values, log, given, ticks, whole, level) {
    const f = v => log ? Math.log10(v) : v;
    const seen = values.filter(v => known(v) && (!log || v > 0)).map(f);
    const zero = log && values.some(v => v === 0);
    if (given) return { f, zero, low: f(given[0]), high: f(given[1]) };
    let [low, high] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, 1];
    if (log && ticks) return { f, zero, low: low - 0.07, high: high + 0.07 };
    if (log) {
      low = Math.floor(low + 1e-9);
      high = Math.ceil(high - 1e-9);
      return { f, zero, low: low === high ? low - 1 : low, high };
    }
    const size = Math.max(Math.abs(low), Math.abs(high));
    const ground = whole || (level && high - low < 0.2 * size);
    if (ground) { low = Math.min(low, 0); high = Math.max(high, 0); }
    if (high - low < 1e-12 * (size || 1)) { low -= size || 1; high += size || 1; }
    const room = 0.04 * (high - low);
    return { f, zero, low: low - (ground && low === 0 ? 0 : room), high: high + room };
  }

  // At most five ticks, four with powers of ten, which are on all of them or on none.
  function ticks(axis, log, percent, given) {
    const { low, high } = axis, found = [];
    if (given && !log && Number.isInteger((high - low) / 4)) {
      return [0, 1, 2, 3, 4].map(k => low + k * (high - low) / 4).map(v => [v, number(v, percent)]);
    }
    if (log) {
      const plain = low >= (percent ? -5 : -2) - 0.01 && high <= 3.01;
      const ends = [Math.ceil(low - 1e-9), Math.floor(high + 1e-9)];
      const step = Math.max(1, Math.ceil((ends[1] - ends[0]) / (plain ? 4 : 3)));
      for (let k = ends[1]; k >= ends[0]; k -= step) {
        found.unshift([10 ** k, plain ? number(10 ** k, percent) : power(k)]);
      }
      return found;
    }
    const size = 10 ** Math.floor(Math.log10(high - low));
    const step = [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5].map(m => m * size)
      .find(s => Math.floor(high / s + 1e-9) - Math.ceil(low / s - 1e-9) < 5);
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
      found.push([k * step, number(+(k * step).toPrecision(9), percent)]);
    }
    return found;
  }

  // Puts texts where there is room: the place whose box covers least of what is drawn.
  function placer(box, taken) {
    const marks = [];
    const inside = (b, x, y, edge) => x > b[0] - edge && x < b[2] + edge && y > b[1] - edge && y < b[3] + edge;
    const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
    const room = (x, y, w, c) => {
      const left = c === "e" ? x - w : c === "m" ? x - w / 2 : x;
      return [left, y - 9, left + w, y + 3];
    };
    return {
      mark(x, y, owner) { marks.push([x, y, owner]); },
      path(points, owner) {
        points.forEach(([x, y], i) => {
          const [u, v] = points[i + 1] || [x, y], n = Math.min(60, Math.ceil(Math.hypot(u - x, v - y) / 4));
          for (let k = 0; k <= n; k++) marks.push([x + (u - x) * k / (n || 1), y + (v - y) * k / (n || 1), owner]);
        });
      },
      put(text, places, owner, limit = Infinity) {
        let best = null;
        for (const [x, y, c, cost = 0] of places) {
          const b = room(x, y, width(text), c);
          if (b[0] < box[0] - 2 || b[2] > box[2] + 4 || b[1] < box[1] - 12 || b[3] > box[3]) continue;
          const score = cost + sum(marks, m => inside(b, m[0], m[1], 1) ? 3 : m[2] !== owner && inside(b, m[0], m[1], 8) ? 0.3 : 0)
            + 40 * taken.filter(t => overlap(b, t)).length;
          if (!best || score < best.score) best = { score, x, y, c, b };
        }
        if (!best || best.score > limit) return null;
        taken.push(best.b);
        return best;
      },
    };
  }

  const diamond = (x, y) => `<path class="bad" d="M${r(x)} ${r(y - 5)}l5 5-5 5-5-5z"/>`;

  function plot(f) {
    const rows = (f.rows || []).map(t => (t.length > 24 ? t.slice(0, 23) + "…" : t)), named = rows.length > 0;
    const log = { x: f.log.includes("x"), y: !named && f.log.includes("y") };
    const ok = v => (x, i) => known(x) && (!log[v] || x >= 0);
    const list = f.series.map(s => ({
      ...s, points: s.x.map((x, i) => [x, s.y[i], s.error && s.error[i], i])
        .map(p => ok("x")(p[0]) && ok("y")(p[1]) ? p : null),
    }));
    const all = list.flatMap(s => s.points.filter(Boolean));
    const guides = f.guides || [];
    const from = key => guides.filter(g => g.axis === key).map(g => g.at);
    const whole = list.some(s => ["stems", "area", "bars"].includes(s.style));
    const percent = { x: named && f.percent, y: !named && f.percent };
    const xs = [...all.map(p => p[0]), ...from("x")];
    const ys = [...all.flatMap(p => p[2] && !log.y ? [p[1] - p[2], p[1] + p[2]] : [p[1]]), ...from("y")];
    const ax = span([...xs, ...(f.ticks || []).map(t => t[0])], log.x, f.x_range, f.ticks, named && whole, false);
    const ay = named ? null : span(ys, log.y, f.y_range, null, whole, !f.square);
    if (f.square) { // the higher of the two is as wide as it is high
      const more = Math.max(0, ay.high - ay.low - ax.high + ax.low) / 2;
      ax.low -= more;
      ax.high += more;
    }

    // The frame.
    const longest = Math.max(0, ...rows.map(width));
    const left = named ? Math.min(160, longest + 14) : 46, right = 14, bottom = 38;
    const pitch = rows.length > 8 ? 15 : 26, single = list.filter(s => s.style !== "dashed").length === 1
      || list.every(s => ["dots", "bars", "refuted"].includes(s.style) && new Set(s.y).size === s.y.length)
      && new Set(all.map(p => p[1])).size === all.length;
    const heads = named && !single && list.length > 1 ? 16 : 0;
    let top = named ? (guides.length ? 22 : 6) + heads : 22, legend = [];
    const X0 = left + (ax.zero ? 28 : 0), X = v => v === 0 && log.x ? left + 7
      : X0 + (ax.f(v) - ax.low) / (ax.high - ax.low) * (W - right - X0);
    const tall = named ? pitch * rows.length : f.square
      ? Math.max(90, (W - right - left) * (ay.high - ay.low) / (ax.high - ax.low)) : 152;
    const build = () => {
      const base = top + tall, Y0 = base - (ay && ay.zero ? 24 : 0);
      const Y = named ? k => top + pitch * (k + 0.5) : v => v === 0 && log.y ? base - 5
        : Y0 - (ay.f(v) - ay.low) / (ay.high - ay.low) * (Y0 - top);
      const H = base + bottom;
      let out = "", later = "";
      for (const g of guides.filter(g => g.allowed)) {
        const [a, b] = g.axis === "x" ? (g.allowed === "below" ? [left, X(g.at)] : [X(g.at), W - right])
          : (g.allowed === "below" ? [Y(g.at), base] : [top, Y(g.at)]);
        out += g.axis === "x" ? `<rect class="ok" x="${r(a)}" y="${top}" width="${r(b - a)}" height="${tall}"/>`
          : `<rect class="ok" x="${left}" y="${r(a)}" width="${W - right - left}" height="${r(b - a)}"/>`;
      }
      if (named) {
        rows.forEach((name, k) => {
          out += `<path class="gr" d="M${left} ${r(Y(k))}H${W - right}"/>` + label(left - 8, Y(k) + 4, name, "e k");
          if (!all.some(p => p[1] === k)) {
            const x = (left + W - right) / 2;
            later += `<rect x="${r(x - 30)}" y="${r(Y(k) - 8)}" width="62" height="16" style="fill:var(--paper)"/>`
              + `<svg x="${r(x - 28)}" y="${r(Y(k) - 6)}" width="12" height="12" style="color:var(--untried)"><use href="#i-untried"/></svg>`
              + label(x - 12, Y(k) + 4, "not tried");
          }
        });
      } else {
        for (const [v, t] of ticks(ay, log.y, f.percent, f.y_range)) {
          out += `<path class="gr" d="M${left} ${r(Y(v))}H${W - right}"/>` + label(left - 6, Y(v) + 4, t, "e");
        }
        if (ay.zero) out += `<path class="ax" d="M${left - 4} ${r(Y0 + 6)}l8 -4m-8 6l8 -4"/>` + label(left - 6, base - 1, "0", "e");
        out += label(0, 11, f.y);
      }
      out += `<path class="ax" d="M${left} ${base + 0.5}H${W - right}"/>`;
      if (ax.zero) out += `<path class="ax" d="M${left + 15} ${base + 4}l4 -8m2 8l4 -8"/>` + label(left + 7, base + 16, "0", "m");
      let end = ax.zero ? left + 10 : -W;
      for (const [v, t] of f.ticks || ticks(ax, log.x, percent.x, f.x_range)) {
        const x = X(v), half = width(t) / 2, edge = x + half > W + 2 ? "e" : "m";
        out += `<path class="ax" d="M${r(x)} ${base}v4"/>`;
        if (x - half < end + 4) continue;
        out += label(edge === "e" ? W : x, base + 16, t, edge);
        end = x + half;
      }
      out += label(Math.min((left + W - right) / 2, W - width(f.x) / 2), H - 4, f.x, "m");

      const place = placer([left, top, W - right, base], [[0, 2, width(f.y), 14]]), at = p => [X(p[0]), Y(p[1])];
      list.forEach((s, k) => place.path(s.points.filter(Boolean).map(at), k));
      let hue = 0;
      const colours = list.map(s => s.style === "refuted" ? "refuted" : ["dashed", "paths"].includes(s.style) ? "ref" : HUES[hue++ % 4]);

      // Marks.
      if (named && !single) {
        rows.forEach((_, k) => {
          const own = all.filter(p => p[1] === k).map(p => X(p[0]));
          if (own.length > 1) out += `<path class="ax f4" d="M${r(Math.min(...own))} ${r(Y(k))}H${r(Math.max(...own))}"/>`;
        });
      }
      list.forEach((s, k) => {
        const c = colours[k], dots = s.points.filter(Boolean), hint = p => named
          ? `${rows[p[1]]}: ${s.name} ${number(p[0], f.percent)}` : `${number(p[0])}, ${number(p[1], f.percent)}`;
        const pieces = [[]];
        for (const p of s.points) { // a zero on a logarithmic axis stands alone
          if (p && !(log.x && p[0] === 0) && !(log.y && p[1] === 0)) pieces[pieces.length - 1].push(p);
          else pieces.push([]);
        }
        const trace = ps => ps.length ? "M" + ps.map(p => at(p).map(r).join(" ")).join("L") : "";
        const path = pieces.map(trace).join("");
        const stroke = s.style === "dashed" ? "rf" : s.style === "refuted" ? "lbad" : s.style === "paths" ? "ax thin f4" : "l" + c;
        if (s.error && !named) {
          const ends = sign => dots.map(p => [p[0], log.y ? Math.max(p[1] + sign * p[2], 10 ** ay.low) : p[1] + sign * p[2]]);
          out += `<path class="bd" d="${trace([...ends(1), ...ends(-1).reverse()])}Z"/>`;
        }
        if (s.style === "stems") for (const p of dots) out += `<path class="${stroke}" d="M${r(X(p[0]))} ${r(Y(0))}V${r(Y(p[1]))}"/>`;
        else if (s.style === "bars") {
          for (const p of dots) out += `<rect class="p${c}" x="${r(X0)}" y="${r(Y(p[1]) - pitch / 3)}" width="${r(X(p[0]) - X0)}" height="${r(pitch / 1.5)}"/>`;
        } else if (s.style === "area" && dots.length) {
          out += `<path class="bd" d="${trace(dots)}V${r(Y(0))}H${r(X(dots[0][0]))}Z"/><path class="${stroke}" d="${path}"/>`;
        } else if (!["dots", "extreme"].includes(s.style) && !named) out += `<path class="${stroke}" d="${path}"/>`;
        if (s.style === "refuted") later += dots.map(p => diamond(...at(p)).replace("/>", `><title>${escape(hint(p))}</title></path>`)).join("");
        else if (s.style === "extreme") {
          for (const p of dots) later += `<circle class="o${c}" cx="${r(X(p[0]))}" cy="${r(Y(p[1]))}" r="4.6"><title>${escape(hint(p))}</title></circle>`;
        } else if (["line", "dots", "stems"].includes(s.style) && dots.length <= (s.style === "dots" ? 60 : 30)) {
          const size = dots.length > 30 || rows.length > 8 ? 2.6 : 3.4;
          for (const p of dots) later += `<circle class="p${c}" cx="${r(X(p[0]))}" cy="${r(Y(p[1]))}" r="${size}"><title>${escape(hint(p))}</title></circle>`;
        } else if (s.style === "dots") {
          out += `<path class="${stroke} f4" style="stroke-width:5;stroke-linecap:round" d="${dots.map(p => "M" + at(p).map(r).join(" ") + "h0").join("")}"/>`;
        }
        if (named && single) for (const p of dots) {
          const text = number(p[0], f.percent), w = width(text), x = X(p[0]), beyond = x + 12 + w > W;
          const line = guides.map(g => X(g.at)).find(g => g > x && g < x + 12 + w); // not across a line
          const [to, c] = beyond ? [x - 9, "k e"] : [line && line + 8 + w < W ? line + 5 : x + 9, "k"];
          later += label(to, Y(p[1]) + 4, text, c, beyond && s.style === "bars" ? "fill:var(--card);stroke:none" : "");
        }
      });

      // Words: of the lines, then of the series, beside what they name.
      for (const g of guides) {
        if (g.axis === "x") {
          out += `<path class="rf" d="M${r(X(g.at))} ${top}V${base}"/>`;
          const c = X(g.at) + width(g.label) / 2 > W - 2 ? "e" : X(g.at) - width(g.label) / 2 < 2 ? "" : "m";
          out += label(c === "e" ? W : c ? X(g.at) : Math.max(2, X(g.at)), named ? 12 : top - 6, g.label, c);
        } else {
          const y = Y(g.at);
          out += `<path class="rf" d="M${left} ${r(y)}H${W - right}"/>`;
          const spot = place.put(g.label, [[W - right, y - 5, "e"], [left + 4, y - 5, ""], [W - right, y + 13, "e"], [left + 4, y + 13, ""]], -1);
          if (spot) later += label(spot.x, spot.y, g.label, spot.c);
        }
        if (g.axis === "y") place.path([[left, Y(g.at)], [W - right, Y(g.at)]], -1);
      }
      legend = [];
      const above = [];
      list.forEach((s, k) => {
        const words = s.style === "refuted" ? "fill:var(--refuted)" : s.style === "dashed" ? "" : `fill:var(--${colours[k]})`;
        const dots = s.points.filter(Boolean);
        if (!s.name || !dots.length || (list.length === 1 && s.style !== "extreme") || (named && single)) return;
        if (named) {
          const p = dots.reduce((a, b) => (a[1] <= b[1] ? a : b)), w = width(s.name);
          return void above.push({ name: s.name, words, w, x: X(p[0]) - w / 2 });
        }
        const picks = [...Array(13).keys()].map(i => dots[Math.round(i * (dots.length - 1) / 12)]);
        const ps = [...new Set(picks)].map(at);
        if (["line", "dashed", "area", "refuted"].includes(s.style)) {
          ps.push(...ps.slice(1).map(([x, y], i) => [(x + ps[i][0]) / 2, (y + ps[i][1]) / 2]));
        }
        if (["dots", "stems"].includes(s.style)) {
          const far = (i, sign) => dots.map(at).reduce((a, b) => (sign * (b[i] - a[i]) > 0 ? b : a));
          ps.push(far(0, 1), far(0, -1), far(1, 1), far(1, -1));
        }
        const spots = [...ps].reverse().flatMap(([x, y]) => [
          [x, y - 8, "e"], [x, y - 8, "m", 0.5], [x, y - 8, "", 0.5], [x, y + 16, "", 0.5], [x, y + 16, "e", 0.5], [x, y + 16, "m", 0.5],
          [x + 9, y + 4, "", 0.3], [x - 9, y + 4, "e", 0.3], [x, y - 20, "m", 2], [x, y + 28, "m", 2],
        ]);
        const spot = place.put(s.name, spots, k, s.style === "extreme" ? 60 : 18);
        if (spot) later += label(spot.x, spot.y, s.name, spot.c, words);
        else legend.push([s.name, words, colours[k]]);
      });
      // Names above the rows stand over their first marks, side by side.
      above.sort((a, b) => a.x - b.x);
      above.forEach((h, i) => { h.x = Math.max(h.x, i ? above[i - 1].x + above[i - 1].w + 8 : 0); });
      above.reduceRight((end, h) => (h.x = Math.min(h.x, end - h.w)) - 8, W);
      for (const h of above) later += label(h.x, top - 5, h.name, "", h.words);
      return { H, out: out + later };
    };
    let drawn = build();
    if (legend.length) { // no room beside the curves: lines above them
      const kept = legend;
      top += 14 * kept.length;
      drawn = build();
      kept.forEach(([name, words], k) => {
        if (legend.some(l => l[0] === name)) drawn.out += label(W - right, 14 * k + 22, name, "e", words);
      });
    }
    return svg(drawn.H, drawn.out, said(f));
  }

  const svg = (H, body, text) => `<svg viewBox="0 0 ${W} ${r(H)}" role="img" aria-label="${escape(text)}">${body}</svg>`;

  // What a figure shows, for those who do not see it.
  function said(f) {
    const one = s => {
      const ps = s.x.map((x, i) => [x, s.y[i]]).filter(p => known(p[0]) && known(p[1]));
      if (!ps.length) return `${s.name}: nothing`;
      if (f.rows && ps.length > 8) {
        const v = ps.map(p => p[0]);
        return `${s.name}: ${ps.length} rows between ${number(Math.min(...v), f.percent)} and ${number(Math.max(...v), f.percent)}`;
      }
      if (f.rows) return ps.map(p => `${f.rows[p[1]]}${f.series.length > 1 ? `, ${s.name}` : ""} ${number(p[0], f.percent)}`).join("; ");
      const y = v => number(v, f.percent), [a, b] = [ps[0], ps[ps.length - 1]];
      if (ps.length === 1) return `${s.name || f.y}: ${y(a[1])} at ${number(a[0])}`;
      if (s.style === "line" || s.style === "dashed" || s.style === "area" || s.style === "refuted") {
        return `${s.name || f.y} from ${y(a[1])} at ${number(a[0])} to ${y(b[1])} at ${number(b[0])}`;
      }
      const v = ps.map(p => p[1]);
      return `${s.name || f.y}: ${ps.length} points between ${y(Math.min(...v))} and ${y(Math.max(...v))}`;
    };
    const lines = (f.guides || []).map(g => `${g.label} at ${number(g.at, f.percent)}`);
    const missing = (f.rows || []).filter((_, k) => !f.series.some(s => s.y.includes(k))).map(n => `${n} not tried`);
    return `${f.title}. ${f.rows ? f.x : `${f.y} against ${f.x}`}. ${[...f.series.filter(s => s.name || f.series.length === 1).map(one), ...missing, ...lines].join("; ")}.`;
  }

  function heat(f, k = 0) {
    const cells = f.cells[k], columns = Math.max(...cells.map(row => row.length));
    const x0 = 20, y0 = 18, size = (W - 2 * x0) / columns, few = columns <= 8;
    const depth = v => v > 0 ? Math.max(-1, Math.min(1, Math.log2(v) / 3)) : -1;
    const shade = v => {
      const t = depth(v);
      return `fill:color-mix(in srgb,var(--${t < 0 ? "lo" : "hi"}) ${Math.round(100 * Math.abs(t))}%,var(--mid))`;
    };
    let out = label(x0, 11, `${f.y} ↓`) + label(W - x0, 11, `${f.x} →`, "e");
    cells.forEach((row, i) => row.forEach((v, j) => {
      if (!known(v)) return;
      const x = x0 + size * j, y = y0 + size * i;
      out += `<rect class="cell" x="${r(x)}" y="${r(y)}" width="${r(size)}" height="${r(size)}" style="${shade(v)}"/>`;
      if (few) out += label(x + size / 2, y + size / 2 + 4, number(+v.toPrecision(2)), "m k bare",
        Math.abs(depth(v)) > 0.6 ? "fill:var(--paper)" : "");
    }));
    const H = y0 + size * cells.length;
    for (let i = 0; i < 60; i++) {
      out += `<rect class="cell" x="${x0 + 5 * i}" y="${r(H + 14)}" width="5" height="11" style="${shade(2 ** ((i - 29.5) / 29.5 * 3))}"/>`;
    }
    ["≤ ⅛", "¼", "½", "1", "2", "4", "≥ 8"].forEach((t, i) => { out += label(x0 + 50 * i, H + 39, t, "m"); });
    const flat = cells.flat().filter(known);
    return svg(H + 44, out, `${f.title}, ${f.names[k]}: ${cells.length} rows, ${columns} columns, between `
      + `${number(Math.min(...flat))} and ${number(Math.max(...flat))} times the neutral value.`);
  }

  // The numbers of a figure as the rows of a table, its head first.
  function table(f, k = 0) {
    if (f.kind === "heat") {
      const columns = Math.max(...f.cells[k].map(row => row.length));
      return [[`${f.y} \\ ${f.x}`, ...Array(columns).keys()].map((v, i) => i ? v + 1 : v),
        ...f.cells[k].map((row, i) => [i + 1, ...row.map(v => number(v))])];
    }
    const y = v => number(v, f.percent && !f.rows), named = new Map((f.ticks || []).map(t => [t[0], t[1]]));
    const x = v => named.get(v) || number(v, f.percent && f.rows);
    if (f.rows) {
      return [["", ...f.series.map(s => s.name || f.x)],
        ...f.rows.map((name, i) => [name, ...f.series.map(s => s.y.includes(i) ? x(s.x[s.y.indexOf(i)]) : "")])]
        .map(row => row.slice(1).every(c => c === "") ? [row[0], "not tried"] : row);
    }
    const [first, ...others] = f.series;
    const same = s => s.x.length === first.x.length && s.x.every((v, i) => v === first.x[i]);
    if (first && others.every(same)) {
      const columns = f.series.flatMap(s => s.error ? [s.y, s.error] : [s.y]);
      const names = f.series.flatMap(s => s.error ? [s.name || f.y, "standard error"] : [s.name || f.y]);
      return [[f.x, ...names], ...first.x.map((v, i) => [x(v), ...columns.map(c => y(c[i]))])];
    }
    return [["", f.x, f.y], ...f.series.flatMap(s => s.x.map((v, i) => [s.name, x(v), y(s.y[i])]))
      .filter(row => row[1] !== "–" || row[2] !== "–")];
  }
  const raised = t => escape(indexed(t)).replace(SHIFT, (_, m, s) => {
    const tag = m === "^" ? "sup" : "sub";
    return `<${tag}>${s.replace(/[{}]/g, "").replace("-", "−")}</${tag}>`;
  });
  const html = ([head, ...rows]) => {
    const line = (cells, tag) => `<tr>${cells.map(c => `<${tag}>${raised(String(c))}</${tag}>`).join("")}</tr>`;
    return `<table class="num"><thead>${line(head, "th")}</thead><tbody>${rows.map(c => line(c, "td")).join("")}</tbody></table>`;
  };
  return { draw: (f, k) => f.kind === "heat" ? heat(f, k) : plot(f), numbers: (f, k) => html(table(f, k)) };
})();

// Figures are drawn when they come into view, or before the page is printed; their numbers when
// they are asked for.
(() => {
  const nodes = [...document.querySelectorAll("[data-figure]")];
  for (const node of nodes) {
    const frame = node.closest("figure"), choice = frame.querySelector("select");
    const numbers = frame.querySelector("details.numbers"), one = () => choice ? +choice.value : 0;
    let data = null;
    const get = () => data || (data = JSON.parse(node.dataset.figure));
    node.draw = () => { if (!node.firstChild && !node.hidden) node.innerHTML = charts.draw(get(), one()); };
    const fill = () => { if (numbers.open) numbers.querySelector(".wide").innerHTML = charts.numbers(get(), one()); };
    if (numbers) numbers.ontoggle = fill;
    if (choice) choice.onchange = () => { node.innerHTML = charts.draw(get(), one()); if (numbers) fill(); };
  }
  const seen = new IntersectionObserver(entries => {
    for (const e of entries) if (e.isIntersecting) { e.target.draw(); seen.unobserve(e.target); }
  }, { rootMargin: "600px" });
  nodes.forEach(n => seen.observe(n));
  addEventListener("beforeprint", () => nodes.forEach(n => n.draw()));
})();
