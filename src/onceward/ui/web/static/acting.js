// Whatever changes something: sent as JSON, with an id that was made with the form, so that it is done once.
"use strict";
const Acting = (() => {
  const csrf = localStorage.getItem("onceward-csrf") || "";
  // What is asked and not yet answered for good: asked again, it is the same request, whatever became of its form.
  const asked = new Map();
  const busy = new Set();
  const hex = (bytes) => Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
  const fresh = (count) => hex(crypto.getRandomValues(new Uint8Array(count)));

  async function sha256(text) {
    if (!crypto.subtle) throw new Error("Browsers allow this only over https or on the server's own machine.");
    return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))));
  }

  async function send(method, path, body) {
    const answer = await fetch(`/api/v1${path}`, {
      method,
      headers: { "Content-Type": "application/json", "X-Onceward-Csrf": csrf },
      body: JSON.stringify(body),
    });
    const said = await answer.json().catch(() => ({}));
    if (answer.status === 401) location.reload();
    if (!answer.ok) {
      const ways = (said.recovery || []).map((way) => way.command || way.action);
      const error = new Error([said.detail || `The server answered ${answer.status}.`, ...ways].join("\n"));
      error.final = answer.status < 500;
      throw error;
    }
    return said;
  }

  function value(field) {
    const text = field.value.trim();
    switch (field.dataset.kind) {
      case "flag": return field.type === "checkbox" ? field.checked : text === "yes";
      case "whole": return text === "" ? undefined : Number(text);
      case "lines": return text === "" ? undefined : text.split("\n").map((line) => line.trim()).filter(Boolean);
      case "pairs": return text === "" ? undefined : pairs(text);
      case "json":
        if (text === "") return undefined;
        try { return JSON.parse(text); } catch { throw new Error(`${field.name}: this is not JSON.`); }
      default: return text === "" ? undefined : text;
    }
  }

  function pairs(text) {
    return Object.fromEntries(text.split(/\n+/).filter((line) => line.trim()).map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`Write name=value, one per line: ${line}`);
      const said = line.slice(at + 1).trim();
      return [line.slice(0, at).trim(), /^-?\d{1,15}$/.test(said) ? Number(said) : said];
    }));
  }

  function read(form) {
    const body = {};
    for (const field of form.elements) {
      if (!field.name) continue;
      const said = value(field);
      if (said !== undefined) body[field.name] = said;
    }
    return body;
  }

  async function act(form) {
    const body = read(form);
    let path = form.dataset.path;
    path = path.replace(/\{(\w+)\}/g, (_, name) => {
      const said = body[name] ?? "";
      delete body[name];
      return encodeURIComponent(said);
    });
    const key = JSON.stringify([path, body]);
    if (busy.has(key)) return null;
    if (!asked.has(key)) asked.set(key, { id: `web-${fresh(16)}`, secret: fresh(32) });
    const { id, secret } = asked.get(key);
    busy.add(key);
    try {
      if (form.dataset.once) body.client_request_id = id;
      const flow = { confirm: confirmed, token }[form.dataset.flow];
      const said = await (flow ? flow(path, body, secret) : send(form.dataset.method, path, body));
      if (said.status !== "asked") asked.delete(key);
      return said;
    } catch (error) {
      if (error.final) asked.delete(key);
      throw error;
    } finally {
      busy.delete(key);
    }
  }

  // The token that lets a paused build go on never leaves this page: its hash is made known, its proof is shown.
  async function confirmed(path, body, secret) {
    const proof = await sha256(`onceward|${secret}`);
    await send("POST", path.replace(/resume$/, "confirm"), {
      client_request_id: `${body.client_request_id}-token`,
      token_hash: await sha256(proof),
    });
    return send("POST", path, { ...body, proof });
  }

  async function token(path, body, secret) {
    const made = `owt_${secret}`;
    const hash = await sha256(await sha256(`onceward|${made}`));
    const said = await send("POST", path, { ...body, token_hash: hash });
    return { ...said, shown: made };
  }

  async function sure(form) {
    if (!form.dataset.confirm) return true;
    const dialog = document.getElementById("ask");
    document.getElementById("ask-text").textContent = form.dataset.confirm;
    dialog.returnValue = "no";
    dialog.showModal();
    await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
    return dialog.returnValue === "yes";
  }

  async function submitted(form) {
    const refused = form.querySelector(".refused");
    const button = form.querySelector("button");
    if (!(await sure(form))) return;
    refused.hidden = true;
    button.disabled = true;
    try {
      const said = await act(form);
      if (said) done(form, said);
    } catch (error) {
      refused.textContent = error.message;
      refused.hidden = false;
    } finally {
      button.disabled = false;
    }
  }

  function done(form, said) {
    const answer = document.getElementById("answer");
    if (said.shown) {
      const shown = document.createElement("p");
      shown.className = "notice shown";
      shown.textContent = `${said.shown} — shown once, kept nowhere: copy it now.`;
      form.after(shown);
    }
    if (answer) {
      answer.textContent = JSON.stringify(said, null, 2);
      answer.hidden = false;
    }
    const goes = form.dataset.goes?.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(said[name] ?? ""));
    if (goes && said.status !== "asked") location.assign(goes);
    else {
      toast(said.status === "asked" ? "Sent; the kernel has not answered yet." : "Done.");
      document.body.dispatchEvent(new CustomEvent("onceward"));
    }
  }

  function toast(text) {
    const place = document.getElementById("toast");
    place.textContent = text;
    place.classList.add("on");
    clearTimeout(place.timer);
    place.timer = setTimeout(() => place.classList.remove("on"), 2500);
  }

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form.act")) return;
    event.preventDefault();
    submitted(event.target);
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      toast("Copied.");
    } catch { toast("This browser does not let pages copy text."); }
  });
  document.getElementById("signout")?.addEventListener("click", async () => {
    try { await send("POST", "/signout", {}); } finally { location.assign("/signin"); }
  });
  return { toast };
})();
