// The colour scheme and the search of a page.
"use strict";

(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => root.classList.contains("dark")
    || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme:dark)").matches);
  if (!button) return;
  const label = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} colour scheme`);
  };
  button.onclick = () => {
    const now = dark();
    root.classList.toggle("dark", !now);
    root.classList.toggle("light", now);
    label();
  };
  label();
})();

(() => {
  const query = document.getElementById("q");
  if (!query) return;
  const status = document.getElementById("n"), none = document.getElementById("none");
  const buttons = [...document.querySelectorAll("[data-f]")];
  const texts = s => [...document.querySelectorAll(s)].map(c => [c, c.textContent.toLowerCase()]);
  const cards = texts(".card"), beside = texts(".caveat");  // what is beside the cards is not counted
  const pressed = () => buttons.filter(b => b.ariaPressed === "true").map(b => b.dataset.f);
  function filter() {
    const words = query.value.trim().toLowerCase().split(/\s+/), kinds = pressed();
    let shown = 0;
    for (const [card, text] of [...cards, ...beside]) {
      const fits = (!kinds.length || card.dataset.s.split(" ").some(s => kinds.includes(s)))
        && words.every(w => text.includes(w));
      card.hidden = !fits;
      shown += fits && card.className === "card";
    }
    for (const s of document.querySelectorAll("[data-sec]")) s.hidden = !s.querySelector("article:not([hidden])");
    none.hidden = shown > 0;
    status.textContent = shown === cards.length ? `All ${shown} shown` : `${shown} of ${cards.length} shown`;
    const state = new URLSearchParams();
    if (query.value) state.set("q", query.value);
    if (kinds.length) state.set("status", kinds.join(","));
    if (String(state) || location.search) {
      try { history.replaceState(null, "", "?" + state + location.hash); } catch { /* a local file */ }
    }
  }
  for (const b of buttons) b.onclick = () => { b.ariaPressed = String(b.ariaPressed !== "true"); filter(); };
  query.oninput = filter;
  document.getElementById("clear").onclick = () => {
    query.value = "";
    for (const b of buttons) b.ariaPressed = "false";
    filter();
  };
  addEventListener("keydown", e => {
    if (e.key === "/" && e.target !== query) { e.preventDefault(); query.focus(); }
    if (e.key === "Escape" && e.target === query) { query.value = ""; filter(); }
  });
  const given = new URLSearchParams(location.search);
  query.value = given.get("q") || "";
  for (const b of buttons) if ((given.get("status") || "").split(",").includes(b.dataset.f)) b.ariaPressed = "true";
  filter();
})();

// A link to a statement that the search has hidden shows it again.
addEventListener("hashchange", () => {
  const goal = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (goal && goal.closest("[hidden]")) {
    document.getElementById("clear").click();
    goal.scrollIntoView();
  }
});

// Figures and sources lie packed at the end of the page. A figure is hidden until its data are there.
(async () => {
  const packed = document.getElementById("packed");
  if (!packed) return;
  const bytes = Uint8Array.from(atob(packed.textContent), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { figures, sources } = await new Response(stream).json();
  for (const node of document.querySelectorAll("[data-figure]")) {
    node.dataset.figure = figures[node.dataset.figure];
    node.hidden = false;
  }
  for (const node of document.querySelectorAll("[data-source]")) {
    node.ontoggle = () => {
      if (node.querySelector("pre")) return;
      const box = document.createElement("pre");
      box.tabIndex = 0;
      box.textContent = sources[node.dataset.source];
      node.append(box);
    };
  }
})();
