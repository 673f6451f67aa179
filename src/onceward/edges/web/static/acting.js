// Whatever changes something: sent as JSON, with an id that was made with the form, so that it is done once.
"use strict";
const Acting = (() => {
  const csrf = document.querySelector('meta[name="onceward"]')?.dataset.csrf || "";
  const hex = (bytes) => Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
  const fresh = (count) => hex(crypto.getRandomValues(new Uint8Array(count)));

  async function sha256(text) {
    if (!crypto.subtle) throw new Error("A browser makes this only over https, or on the machine itself.");
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
      throw new Error([said.detail || `The server answered ${answer.status}.`, ...ways].join("\n"));
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
      if (at < 1) throw new Error(`Write it as name=value, one a line: ${line}`);
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
    if (form.dataset.once) body.client_request_id = form.dataset.id ||= `web-${fresh(16)}`;
    if (form.dataset.flow === "confirm") return confirmed(path, body);
    if (form.dataset.flow === "token") return token(path, body);
    return send(form.dataset.method, path, body);
  }

  // The token that lets a paused build go on never leaves this page: its hash is made known, its proof is shown.
  async function confirmed(path, body) {
    const proof = await sha256(`onceward|${fresh(32)}`);
    await send("POST", path.replace(/resume$/, "confirm"), {
      client_request_id: `${body.client_request_id}-token-${fresh(4)}`,
      token_hash: await sha256(proof),
    });
    return send("POST", path, { ...body, client_request_id: `${body.client_request_id}-${fresh(4)}`, proof });
  }

  async function token(path, body) {
    const made = `owt_${fresh(32)}`;
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
    if (button.disabled || !(await sure(form))) return;
    refused.hidden = true;
    button.disabled = true;
    try {
      const said = await act(form);
      delete form.dataset.id;
      done(form, said);
    } catch (error) {
      refused.textContent = error.message;
      refused.hidden = false;
      // What was refused is not what is sent next: another id.
      delete form.dataset.id;
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
      toast(said.status === "asked" ? "Asked: the kernel has not answered yet." : "Done.");
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
    } catch { toast("This browser does not let pages copy."); }
  });
  document.getElementById("signout")?.addEventListener("click", async () => {
    try { await send("POST", "/signout", {}); } finally { location.assign("/signin"); }
  });
  return { toast };
})();
