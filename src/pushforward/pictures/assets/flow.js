// A film of particles: key frames of 16 bits, interpolated, drawn on a canvas.
"use strict";

(() => {
  document.title = document.querySelector("h1").textContent;
  const $ = id => document.getElementById(id);
  const film = JSON.parse($("film").textContent);
  const { kind, n, times, box, radius, periods } = film;
  const canvas = $("cloud"), slider = $("time"), keys = times.length;
  const begin = times[0], end = times[keys - 1], length = end - begin || 1;
  const forward = Math.sign(length);  // flows also run backwards
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const clamp = (v, low, high) => Math.max(low, Math.min(high, v));
  const minus = text => String(text).replace("-", "−");
  const number = (v, digits = 3) => minus(Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3)
    ? power(v, digits) : +v.toPrecision(digits));
  function power(v, digits) {
    const [head, e] = v.toExponential(digits - 1).split("e");
    return `${+head} × 10${[...String(+e)].map(c => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || "⁻").join("")}`;
  }

  // Positions. A segment lies between two key frames: a start and a step for each point, or, on a
  // sphere or circle, a start, a direction at a right angle to it, and an angle.
  const bits = text => new Uint16Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const masses = Float64Array.from(bits(film.masses), m => m * film.top / 65535);
  const size = kind === "sphere" ? 3 : box.length;
  const frames = unpack(bits(film.points));
  const from = new Float32Array(n * size), to = new Float32Array(n * size);
  const angle = radius === null ? null : new Float32Array(n);
  let segment = -1;
  let X = new Float32Array(n), Y = new Float32Array(n), Z = new Float32Array(n);

  function unpack(packed) {
    const stored = box.length, all = [];
    for (let k = 0; k < keys; k++) {
      const points = new Float32Array(n * size);
      for (let i = 0; i < n; i++) {
        const read = c => box[c][0] + (box[c][1] - box[c][0]) * packed[(k * stored + c) * n + i] / 65535;
        const j = size * i;
        if (kind !== "sphere") {
          for (let c = 0; c < stored; c++) points[j + c] = read(c);
          continue;
        }
        let a = read(0), b = read(1);
        const c = 1 - Math.abs(a) - Math.abs(b);
        if (c < 0) {
          const t = a;
          a = (1 - Math.abs(b)) * (a < 0 ? -1 : 1);
          b = (1 - Math.abs(t)) * (b < 0 ? -1 : 1);
        }
        const r = Math.hypot(a, b, c);
        points[j] = a / r;
        points[j + 1] = b / r;
        points[j + 2] = c / r;
      }
      all.push(points);
    }
    return all;
  }

  function enter(k) {
    if (segment === k) return;
    segment = k;
    const a = frames[k], b = frames[Math.min(k + 1, keys - 1)];
    from.set(a);
    if (angle === null) {
      for (let j = 0; j < n * size; j++) {
        const period = periods[j % size];
        to[j] = b[j] - a[j];
        if (period) to[j] -= period * Math.round(to[j] / period);
      }
      return;
    }
    for (let i = 0; i < n; i++) {
      const j = size * i;
      let dot = 0, aa = 0, side = 0;
      for (let c = 0; c < size; c++) { dot += a[j + c] * b[j + c]; aa += a[j + c] * a[j + c]; }
      for (let c = 0; c < size; c++) { to[j + c] = b[j + c] - dot / aa * a[j + c]; side += to[j + c] ** 2; }
      side = Math.sqrt(side);
      angle[i] = Math.atan2(side * Math.sqrt(aa), dot);
      for (let c = 0; c < size; c++) to[j + c] *= side > 1e-12 ? Math.sqrt(aa) / side : 0;
    }
  }

  function locate(t) {  // the segment of a time, and the share of it that has passed
    let k = 0;
    while (k < keys - 2 && forward * t >= forward * times[k + 1]) k++;
    const step = keys > 1 ? times[k + 1] - times[k] : 1;
    return [k, keys > 1 ? clamp((t - times[k]) / step, 0, 1) : 0];
  }

  // The picture of a given size in pixels: where its frame is, and where points are in it.
  let turn = film.view[0], height = film.view[1];
  function layout(width) {
    const small = width < 320;
    if (kind === "sphere") return { width, small, middle: width / 2, ball: width * 0.465 };
    const rect = small ? [3, 3, width - 3, width - 3] : [46, 10, width - 8, width - 40];
    const h = kind === "line" ? [Math.min(begin, end), Math.max(begin, end)] : box[0], v = kind === "line" ? box[0] : box[1];
    if (kind === "plane" && film.equal && !small) {  // the same unit on both axes
      const side = Math.min(rect[2] - rect[0], rect[3] - rect[1]);
      rect[2] = rect[0] + side;
      rect[3] = rect[1] + side;
    }
    const sx = (rect[2] - rect[0]) / (h[1] - h[0] || 1), sy = (rect[3] - rect[1]) / (v[1] - v[0]);
    return { width, small, rect, h, v, sx, sy };
  }

  function place(t, at) {
    const [k, u] = locate(t);
    enter(k);
    if (kind === "sphere") {
      const ct = Math.cos(turn), st = Math.sin(turn), ch = Math.cos(height), sh = Math.sin(height);
      for (let i = 0; i < n; i++) {
        const j = 3 * i, c = Math.cos(angle[i] * u), s = Math.sin(angle[i] * u);
        const a = from[j] * c + to[j] * s, b = from[j + 1] * c + to[j + 1] * s;
        const q = from[j + 2] * c + to[j + 2] * s, away = ct * b - st * a;
        X[i] = at.middle + at.ball * (ct * a + st * b);
        Y[i] = at.middle - at.ball * (ch * q + sh * away);
        Z[i] = sh * q - ch * away;
      }
      return;
    }
    const wrap = (x, c) => periods[c] ? x - periods[c] * Math.floor(x / periods[c]) : x;
    const value = (i, c) => {
      const j = size * i + c;
      if (angle !== null) return from[j] * Math.cos(angle[i] * u) + to[j] * Math.sin(angle[i] * u);
      return wrap(from[j] + to[j] * u, c);
    };
    const [l, , , b] = at.rect;
    for (let i = 0; i < n; i++) {
      X[i] = kind === "line" ? l + at.sx * (t - at.h[0]) : l + at.sx * (value(i, 0) - at.h[0]);
      Y[i] = b - at.sy * (value(i, size - 1) - at.v[0]);
      Z[i] = 1;
    }
  }

  // Colours, read from the page so that they follow its scheme.
  const colour = {};
  let table = null, fade = "";
  function colours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "soft", "line", "grid", "ref", "sunk", "a", "b", "c", "d", "sans"]) {
      colour[name] = style.getPropertyValue("--" + name).trim();
    }
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = colour.a;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
    table = Uint32Array.from({ length: 1024 }, (_, i) =>
      (255 * (1 - Math.exp(-i / 150)) << 24 | b << 16 | g << 8 | r) >>> 0);
    fade = "";
  }
  const shades = () => [colour.a, colour.b, colour.c, colour.d, colour.ref];

  // Ground: a ball with its circles, or a frame with its ticks.
  function ball(g, at) {
    const { middle: m, ball: R } = at;
    g.fillStyle = colour.sunk;
    g.strokeStyle = colour.line;
    g.lineWidth = 1;
    g.beginPath();
    g.arc(m, m, R, 0, 7);
    g.fill();
    g.stroke();
    const ct = Math.cos(turn), st = Math.sin(turn), ch = Math.cos(height), sh = Math.sin(height);
    for (const back of [true, false]) {
      g.globalAlpha = back ? 0.35 : 0.9;
      g.beginPath();
      const circle = point => {
        let on = false;
        for (let k = 0; k <= 72; k++) {
          const [a, b, q] = point(k * Math.PI / 36), away = ct * b - st * a;
          if ((sh * q - ch * away < 0) === back) {
            g[on ? "lineTo" : "moveTo"](m + R * (ct * a + st * b), m - R * (ch * q + sh * away));
            on = true;
          } else on = false;
        }
      };
      for (let k = 0; k < 6; k++) {
        const c = Math.cos(k * Math.PI / 6), s = Math.sin(k * Math.PI / 6);
        circle(t => [c * Math.cos(t), s * Math.cos(t), Math.sin(t)]);
      }
      for (const step of [-2, -1, 0, 1, 2]) {
        const r = Math.cos(step * Math.PI / 6), z = Math.sin(step * Math.PI / 6);
        circle(t => [r * Math.cos(t), r * Math.sin(t), z]);
      }
      g.stroke();
    }
    g.globalAlpha = 1;
    if (at.small) return;
    g.fillStyle = colour.soft;  // the ends of the axes that are in front
    g.font = `11.5px ${colour.sans}`;
    g.textAlign = "center";
    for (let c = 0; c < 3; c++) {
      const [a, b, q] = [0, 1, 2].map(k => k === c ? 1.06 : 0), away = ct * b - st * a;
      g.globalAlpha = sh * q - ch * away < 0 ? 0.4 : 1;
      g.fillText(film.axes[c], m + R * (ct * a + st * b), m - R * (ch * q + sh * away) + 4);
    }
    g.globalAlpha = 1;
  }

  function ticks(low, high, most = 5) {
    const raw = (high - low) / most, unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(m => m * unit).find(s => s >= raw);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + 1e-12; k++) found.push(k * step);
    return found;
  }
  function marks(c, low, high) {  // angles have ticks at fractions of a turn
    const period = c === null ? null : periods[c];
    if (!period) return ticks(low, high).map(v => [v, number(v)]);
    if (Math.abs(period - 2 * Math.PI) > 1e-6) return [0, 1, 2, 3, 4].map(k => [k * period / 4, number(k * period / 4)]);
    return ["0", "π/2", "π", "3π/2", "2π"].map((text, k) => [k * period / 4, text]);
  }

  function ground(g, at) {
    if (kind === "sphere") { ball(g, at); return; }
    const [l, t, r, b] = at.rect;
    g.lineWidth = 1;
    g.font = `11.5px ${colour.sans}`;
    if (!at.small) {
      const across = marks(kind === "line" ? null : 0, ...at.h), up = marks(size - 1, ...at.v);
      g.strokeStyle = colour.grid;
      g.beginPath();
      for (const [v] of across) { const x = l + at.sx * (v - at.h[0]); g.moveTo(x, t); g.lineTo(x, b); }
      for (const [v] of up) { const y = b - at.sy * (v - at.v[0]); g.moveTo(l, y); g.lineTo(r, y); }
      g.stroke();
      g.fillStyle = colour.soft;
      g.textAlign = "center";
      for (const [v, text] of across) g.fillText(text, l + at.sx * (v - at.h[0]), b + 16);
      g.fillText(kind === "line" ? "time" : film.axes[0], (l + r) / 2, b + 32);
      g.textAlign = "right";
      for (const [v, text] of up) g.fillText(text, l - 6, b - at.sy * (v - at.v[0]) + 4);
      g.save();
      g.translate(11, (t + b) / 2);
      g.rotate(-Math.PI / 2);
      g.textAlign = "center";
      g.fillText(film.axes[size - 1], 0, 0);
      g.restore();
    }
    g.strokeStyle = colour.line;
    g.strokeRect(l + 0.5, t + 0.5, r - l - 1, b - t - 1);
    if (kind === "plane" && radius !== null) {
      g.beginPath();
      g.arc(l - at.sx * at.h[0], b + at.sy * at.v[0], radius * at.sx, 0, 7);
      g.stroke();
    }
  }

  // All trajectories of a line, drawn once for a size and a scheme.
  const lines = document.createElement("canvas");
  function trajectories(g, at, ratio) {
    const wanted = [at.width, ratio, colour.a, colour.paper].join();
    if (fade !== wanted) {
      fade = wanted;
      lines.width = lines.height = Math.round(at.width * ratio);
      const q = lines.getContext("2d"), every = Math.ceil(n / 1000), count = Math.ceil(n / every);
      q.setTransform(ratio, 0, 0, ratio, 0, 0);
      q.globalAlpha = clamp(60 / count, 0.05, 0.45);
      q.lineWidth = 1;
      const [l, , , b] = at.rect, steps = 3 * (keys - 1);
      const tracks = Array.from({ length: steps + 1 }, (_, k) => {
        const t = begin + (end - begin) * k / steps;
        place(t, at);
        return [X[0], Y.slice()];
      });
      const jump = (at.rect[3] - at.rect[1]) / 2;
      for (let i = 0; i < n; i += every) {
        q.strokeStyle = film.labels ? shades()[Math.min(film.labels[i], 4)] : colour.a;
        q.beginPath();
        tracks.forEach(([x, y], k) => {
          const broken = !k || (periods[0] && Math.abs(y[i] - tracks[k - 1][1][i]) > jump);
          q[broken ? "moveTo" : "lineTo"](x, y[i]);
        });
        q.stroke();
      }
    }
    g.drawImage(lines, 0, 0, at.width, at.width);
  }

  // Density: every point adds its mass to a few pixels, and a table gives the colour of a sum.
  const sheet = document.createElement("canvas");
  let image = null, sums = null;
  function density(g, at, ratio) {
    const w = Math.round(at.width * ratio), r = ratio > 1 ? 2 : 1;
    if (sheet.width !== w || !image) {
      sheet.width = sheet.height = w;
      image = sheet.getContext("2d").createImageData(w, w);
      sums = new Float32Array(w * w);
    }
    sums.fill(0);
    const weight = 90 * Math.min(1, 10000 / n) * (at.small ? 0.35 : 1);
    const wide = kind === "line" ? 4 : 1;
    for (let i = 0; i < n; i++) {
      const x = X[i] * ratio | 0, y = Y[i] * ratio | 0;
      if (x < r * wide || y < r || x >= w - r * wide || y >= w - r) continue;
      const e = weight * masses[i] * n * (Z[i] < 0 ? 0.25 : 1);
      for (let k = -r; k <= r; k++) {
        const row = (y + k) * w + x;
        for (let c = -r * wide; c <= r * wide; c++) sums[row + c] += k && c ? e / 2 : e;
      }
    }
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) {
      const v = sums[i];
      pixels[i] = v === 0 ? 0 : table[v > 1023 ? 1023 : v | 0];
    }
    sheet.getContext("2d").putImageData(image, 0, 0);
    g.drawImage(sheet, 0, 0, at.width, at.width);
    heaps(g, at);
  }

  // Where much mass is in one place, a few pixels cannot show it: there the area is the mass.
  const cells = 200, heavy = 0.002;
  let grid = null;
  function heaps(g, at) {
    grid = grid || new Float32Array(2 * cells * cells);
    grid.fill(0);
    const unit = at.width / cells, found = [];
    for (let i = 0; i < n; i++) {
      const a = clamp(X[i] / unit | 0, 0, cells - 1), b = clamp(Y[i] / unit | 0, 0, cells - 1);
      grid[2 * (b * cells + a) + (Z[i] < 0 ? 1 : 0)] += masses[i];
    }
    for (let k = 0; k < grid.length; k++) if (grid[k] > heavy) found.push([k, grid[k]]);
    found.sort((p, q) => q[1] - p[1]);
    const places = [];
    for (const [k, m] of found) {
      const back = k % 2, a = (k >> 1) % cells, b = (k >> 1) / cells | 0;
      const same = places.find(p => p[3] === back && Math.abs(p[0] - a) < 2 && Math.abs(p[1] - b) < 2);
      if (same) same[2] += m; else places.push([a, b, m, back]);
    }
    g.fillStyle = colour.a;
    for (const [a, b, m, back] of places) {
      g.globalAlpha = back ? 0.15 : 0.5;
      g.beginPath();
      g.arc((a + 0.5) * unit, (b + 0.5) * unit, at.width * 0.0971 * Math.sqrt(m), 0, 6.2832);
      g.fill();
    }
    g.globalAlpha = 1;
  }

  // Discs: the area is the mass, and marks that coincide are one.
  function discs(g, t, at, trails) {
    const shade = shades(), group = i => film.labels ? Math.min(film.labels[i], 4) : 0;
    const scale = at.width * 0.0971, near = at.width * 0.004;
    if (trails && kind !== "line") {
      place(begin + Math.max(0, share(t) - 0.045) * (end - begin), at);
      const x0 = X.slice(), y0 = Y.slice();
      place(t, at);
      const far = at.width / 3;
      g.lineWidth = 1;
      g.globalAlpha = 0.35;
      for (let q = 0; q < 5; q++) {
        g.strokeStyle = shade[q];
        g.beginPath();
        for (let i = 0; i < n; i++) {
          const jump = Math.abs(X[i] - x0[i]) + Math.abs(Y[i] - y0[i]);
          if (group(i) === q && Z[i] > 0 && jump < far) { g.moveTo(x0[i], y0[i]); g.lineTo(X[i], Y[i]); }
        }
        g.stroke();
      }
    }
    place(t, at);
    g.lineWidth = 0.75;
    g.strokeStyle = colour.paper;
    for (const back of kind === "sphere" ? [true, false] : [false]) {
      g.globalAlpha = back ? 0.22 : 0.88;
      for (let q = 4; q >= 0; q--) {
        const found = [];
        for (let i = 0; i < n; i++) {
          if (group(i) !== q || (Z[i] < 0) !== back) continue;
          const same = found.find(p => Math.abs(p[0] - X[i]) < near && Math.abs(p[1] - Y[i]) < near);
          if (same) same[2] += masses[i]; else found.push([X[i], Y[i], masses[i]]);
        }
        g.fillStyle = shade[q];
        for (const [x, y, m] of found.sort((a, b) => b[2] - a[2])) {
          g.beginPath();
          g.arc(x, y, scale * Math.sqrt(m), 0, 6.2832);
          g.fill();
          if (!back) g.stroke();
        }
      }
    }
    g.globalAlpha = 1;
  }

  function paint(target, t, trails) {
    const ratio = target === canvas ? Math.min(2, devicePixelRatio || 1) : 1;
    const width = target === canvas ? canvas.getBoundingClientRect().width : target.width;
    if (width < 1) return;  // not laid out
    const g = target.getContext("2d", { willReadFrequently: true }), at = layout(width);
    if (target === canvas && target.width !== Math.round(width * ratio)) {
      target.width = target.height = Math.round(width * ratio);
    }
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, width);
    ground(g, at);
    if (kind === "line") trajectories(g, at, ratio);
    if (film.dense) { place(t, at); density(g, at, ratio); } else discs(g, t, at, trails);
  }

  // Curves, on the same time as the particles.
  const curves = [...document.querySelectorAll("[data-curve]")].map(node => curve(node, film.curves[node.dataset.curve]));
  function curve(node, { title, times: at, values, step }) {
    const L = 46, R = 330, T = 10, B = 140, f = v => step ? Math.log10(Math.max(v, 0.5)) : v;
    const finite = values.map(f);
    let low = Math.min(...finite), high = Math.max(...finite);
    if (step) { low = 0; high = Math.max(Math.ceil(high), 1); }
    if (high - low < 1e-9 * (Math.abs(high) + 1)) { low -= 0.5; high += 0.5; }
    const room = step ? 0 : 0.06 * (high - low);
    const x = t => L + (t - begin) / length * (R - L);
    const y = v => B - (f(v) - low + room) / (high - low + 2 * room) * (B - T);
    const levels = step ? Array.from({ length: high + 1 }, (_, k) => 10 ** k)
      .filter((_, k) => k % Math.ceil((high + 1) / 5) === 0) : ticks(low - room, high + room, 4);
    const digits = step ? 6 : 4, r = v => v.toFixed(1);
    let out = levels.map(v => `<path class="gr" d="M${L} ${r(y(v))}H${R}"/><text class="e" x="${L - 6}" y="${r(y(v) + 4)}">${number(v, digits)}</text>`).join("");
    out += `<path class="ax" d="M${L} ${B + 0.5}H${R}"/>`;
    for (const t of ticks(Math.min(begin, end), Math.max(begin, end))) {
      out += `<path class="ax" d="M${r(x(t))} ${B}v4"/><text class="m" x="${r(x(t))}" y="156">${number(t)}</text>`;
    }
    out += `<text class="m" x="${(L + R) / 2}" y="169">time</text>`;
    const path = at.map((t, k) => (k ? (step ? `H${r(x(t))}V` : "L") : "M") + (k && step ? "" : r(x(t)) + " ") + r(y(values[k]))).join("");
    out += `<path class="la" d="${path}"/><path class="ax head"/><circle class="pa" r="4"/><text class="k now"/>`;
    node.innerHTML = out;
    const reach = e => {
      const place = node.getBoundingClientRect();
      go(begin + clamp(((e.clientX - place.left) / place.width * 340 - L) / (R - L), 0, 1) * (end - begin));
    };
    node.onpointerdown = e => { stop(); node.setPointerCapture(e.pointerId); reach(e); };
    node.onpointermove = e => { if (e.buttons) reach(e); };
    const head = node.querySelector(".head"), dot = node.querySelector("circle"), now = node.querySelector(".now");
    return t => {
      let k = 0;
      while (k < at.length - 2 && forward * t >= forward * at[k + 1]) k++;
      const u = at.length > 1 ? clamp((t - at[k]) / (at[k + 1] - at[k]), 0, 1) : 0;
      const last = Math.min(k + 1, at.length - 1);
      const v = step ? values[u === 1 ? last : k] : values[k] + u * (values[last] - values[k]);
      const right = x(t) > 240, above = y(v) > 34;
      head.setAttribute("d", `M${r(x(t))} ${T - 4}V${B}`);
      dot.setAttribute("cx", r(x(t)));
      dot.setAttribute("cy", r(y(v)));
      now.setAttribute("x", r(x(t) + (right ? -8 : 8)));
      now.setAttribute("y", r(y(v) + (above ? -8 : 18)));
      now.setAttribute("class", right ? "k now e" : "k now");
      now.textContent = number(v, digits);
      node.setAttribute("aria-label", `${title} against time: ${now.textContent} at time ${number(t)}`);
    };
  }

  // Time: the slider, the readout, the curves and the particles move together.
  let time = begin, playing = false, last = 0;
  const share = t => (t - begin) / length;
  function go(t) {
    time = t;
    slider.value = share(t);
    $("now").textContent = `time ${clock(t)} of ${clock(end)}`;
    slider.setAttribute("aria-valuetext", $("now").textContent);
    for (const move of curves) move(t);
    paint(canvas, t, true);
  }
  function clock(t) {
    const decimals = clamp(2 - Math.floor(Math.log10(Math.abs(length))), 0, 8);
    return minus(t.toFixed(decimals));
  }
  function next(count) {  // to a key frame before or after
    const now = times.reduce((best, t, k) => Math.abs(t - time) < Math.abs(times[best] - time) ? k : best, 0);
    const here = Math.abs(times[now] - time) < 1e-9 * Math.abs(length);
    const ahead = Math.abs(times[now] - begin) > Math.abs(time - begin);
    const extra = here ? 0 : count > 0 ? (ahead ? -1 : 0) : (ahead ? 0 : 1);
    go(times[clamp(now + count + extra, 0, keys - 1)]);
  }
  function stop() {
    playing = false;
    $("play").textContent = "Play";
  }
  function tick(now) {
    if (!playing) return;
    const speed = +$("speed").value, passed = Math.min(100, now - last);
    if (still.matches) {  // no smooth motion: one frame after the other
      if (now - last > 600 / speed) { last = now; next(1); }
    } else {
      last = now;
      go(begin + clamp(share(time) + passed * speed / 9000, 0, 1) * (end - begin));
    }
    if (share(time) >= 1) stop(); else requestAnimationFrame(tick);
  }
  $("play").onclick = () => {
    if (playing) { stop(); return; }
    if (share(time) >= 1) go(begin);
    playing = true;
    $("play").textContent = "Pause";
    last = performance.now();
    requestAnimationFrame(tick);
  };
  slider.oninput = () => { stop(); go(begin + slider.value * (end - begin)); };
  slider.onkeydown = e => {
    const count = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -6, PageUp: 6, Home: -keys, End: keys }[e.key];
    if (e.key === " ") { e.preventDefault(); $("play").click(); }
    if (count) { e.preventDefault(); stop(); next(count); }
  };

  // The sphere turns.
  let grip = null;
  const tilt = (dt, dh) => { turn += dt; height = clamp(height + dh, -1.5, 1.5); paint(canvas, time, true); };
  canvas.onpointerdown = e => { if (kind === "sphere") { grip = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); } };
  canvas.onpointermove = e => {
    if (!grip) return;
    tilt(-(e.clientX - grip[0]) * 0.008, (e.clientY - grip[1]) * 0.008);
    grip = [e.clientX, e.clientY];
  };
  canvas.onpointerup = canvas.onpointercancel = () => { grip = null; };
  canvas.onkeydown = e => {
    if (e.key === " ") { e.preventDefault(); $("play").click(); }
    const by = { ArrowLeft: [0.12, 0], ArrowRight: [-0.12, 0], ArrowUp: [0, 0.12], ArrowDown: [0, -0.12] }[e.key];
    if (by && kind === "sphere") { e.preventDefault(); tilt(...by); }
  };

  // Moments, and what the area of a mark means.
  const moments = Array.from({ length: film.moments }, (_, k) => begin + (end - begin) * k / (film.moments - 1));
  for (const t of moments) {
    const button = document.createElement("button"), picture = document.createElement("canvas");
    picture.width = picture.height = 300;
    button.type = "button";
    button.append(picture, `time ${clock(t)}`);
    button.onclick = () => { stop(); go(t); canvas.scrollIntoView({ block: "nearest" }); };
    $("stills").append(button);
  }
  function legend() {
    const width = canvas.getBoundingClientRect().width, scale = width * 0.0971;
    const wanted = film.dense ? [0.01, 0.1] : [0.001, 0.01, 0.05], middle = scale * Math.sqrt(wanted.at(-1)) + 2;
    let x = 4, out = "";
    for (const m of wanted) {
      const r = scale * Math.sqrt(m);
      out += `<circle class="pr f4" cx="${(x + r).toFixed(1)}" cy="${middle.toFixed(1)}" r="${r.toFixed(1)}"/><text class="k" x="${(x + 2 * r + 6).toFixed(1)}" y="${(middle + 4).toFixed(1)}">${number(100 * m)} %</text>`;
      x += 2 * r + 66;
    }
    $("masses").innerHTML = `<p class="ft">Mass of a mark</p><svg width="300" height="${(2 * middle).toFixed(0)}" style="display:block;overflow:visible" role="img" aria-label="Areas of ${wanted.map(m => 100 * m).join(", ")} percent of the mass">${out}</svg>`;
  }
  function everything() {
    colours();
    [...$("stills").querySelectorAll("canvas")].forEach((picture, k) => paint(picture, moments[k], false));
    go(time);
  }
  new MutationObserver(everything).observe(document.documentElement, { attributeFilter: ["class"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
  matchMedia("print").addEventListener("change", everything);
  let scheme = null;  // a page is printed in light colours, whatever its scheme
  addEventListener("beforeprint", () => {
    const root = document.documentElement;
    scheme = root.className;
    root.classList.remove("dark");
    root.classList.add("light");
    everything();
  });
  addEventListener("afterprint", () => { document.documentElement.className = scheme; everything(); });
  addEventListener("resize", () => { legend(); paint(canvas, time, true); });
  legend();
  everything();

  // How long frames take, in ms: await film.frameTimes(240). The pixel that is read makes the
  // browser finish its drawing.
  window.film = {
    frameTimes: (count = 240) => new Promise(done => {
      const drawing = [], before = time, g = canvas.getContext("2d");
      const median = (v, p = 0.5) => v.slice().sort((a, b) => a - b)[Math.floor(p * (v.length - 1))];
      const run = () => {
        const start = performance.now();
        if (kind === "sphere") turn += 0.01;
        go(begin + drawing.length / (count - 1) * (end - begin));
        g.getImageData(0, 0, 1, 1);
        drawing.push(performance.now() - start);
        if (drawing.length < count) { requestAnimationFrame(run); return; }
        go(before);
        done({ points: n, pixels: canvas.width, median: median(drawing), most: median(drawing, 0.95) });
      };
      requestAnimationFrame(run);
    }),
    points: () => [Array.from(X), Array.from(Y)],
  };
})();
