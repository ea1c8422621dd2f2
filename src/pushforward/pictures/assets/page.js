// The colour scheme and the search of a page.
"use strict";

(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => root.classList.contains("dark")
    || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme:dark)").matches);
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
  const cards = [...document.querySelectorAll(".card")].map(c => [c, c.textContent.toLowerCase()]);
  const pressed = () => buttons.filter(b => b.ariaPressed === "true").map(b => b.dataset.f);
  function filter() {
    const words = query.value.trim().toLowerCase().split(/\s+/), kinds = pressed();
    let shown = 0;
    for (const [card, text] of cards) {
      const fits = (!kinds.length || kinds.includes(card.dataset.s)) && words.every(w => text.includes(w));
      card.hidden = !fits;
      shown += fits;
    }
    for (const s of document.querySelectorAll("[data-sec]")) s.hidden = !s.querySelector(".card:not([hidden])");
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
