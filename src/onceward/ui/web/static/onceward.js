// The page kept true while it is looked at, and its keys.
"use strict";
(() => {
  const body = document.body;
  const line = document.getElementById("line");
  const live = () => document.getElementById("live");
  let position = Number(document.querySelector('meta[name="onceward"]').dataset.position) || 0;
  let source = null, due = null, last = 0;

  function refresh() {
    // Who has chosen some text is not disturbed.
    if (document.hidden || String(getSelection()).trim()) return;
    last = Date.now();
    body.dispatchEvent(new CustomEvent("onceward"));
  }

  function soon() {
    if (due) return;
    due = setTimeout(() => { due = null; refresh(); }, Math.max(150, 900 - (Date.now() - last)));
  }

  function heard(event) {
    position = Number(event.lastEventId) || position;
    const subject = live()?.dataset.subject;
    if (!subject || event.data.includes(subject)) soon();
  }

  function say(text, tone) {
    line.textContent = text;
    line.dataset.tone = tone;
  }

  // A page that nobody looks at holds no line: browsers have few of them for one server.
  function listen() {
    if (source || document.hidden) return;
    source = new EventSource(`/api/v1/events?after=${position}`);
    source.onopen = () => say("live", "good");
    source.onerror = () => {
      say("not connected", "wait");
      if (source?.readyState === EventSource.CLOSED) { leave(); setTimeout(listen, 3000); asks(); }
    };
    source.onmessage = heard;
  }

  // Refused rather than broken: perhaps the session is over.
  async function asks() {
    const answer = await fetch("/api/v1/whoami").catch(() => null);
    if (answer?.status === 401) location.reload();
  }

  function leave() {
    source?.close();
    source = null;
    say("not connected", "calm");
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) leave();
    else { listen(); refresh(); }
  });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", listen);
  setInterval(() => { if (live()?.dataset.running && Date.now() - last > 1500) refresh(); }, 1000);

  document.addEventListener("htmx:after:swap", () => Pictures.draw());
  document.addEventListener("htmx:response:error", (event) => {
    if (event.detail?.ctx?.response?.status === 401) location.reload();
  });

  function theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("onceward-theme", root.dataset.theme); } catch { /* a browser that keeps nothing */ }
    Pictures.draw();
  }
  document.getElementById("theme").addEventListener("click", theme);

  const GOES = { o: "/", b: "/builds", c: "/changes", s: "/sagas", l: "/locks", p: "/spend", e: "/evidence", d: "/do" };
  let going = 0;
  function step(by) {
    const rows = [...document.querySelectorAll(".row a.name, .row a.id")].filter((one) => one.offsetParent);
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(Math.max(at + by, 0), rows.length - 1)].focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog[open]")) return;
    if (Date.now() - going < 1200 && GOES[event.key]) { location.assign(GOES[event.key]); return; }
    going = 0;
    const keys = {
      "/": () => document.getElementById("find").focus(),
      "?": () => document.getElementById("help").showModal(),
      j: () => step(1), k: () => step(-1), t: theme, g: () => { going = Date.now(); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  const here = document.querySelector("nav [aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - 60;
  Pictures.draw();
  listen();
})();
