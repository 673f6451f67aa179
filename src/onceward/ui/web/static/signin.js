// The way in: by a code in the address, which leaves it at once, or by a token.
"use strict";
(async () => {
  const said = document.getElementById("said");
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  history.replaceState(null, "", location.pathname + location.search);

  async function signIn(body) {
    const answer = await fetch("/api/v1/signin", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (answer.ok) {
      // Kept by this server's own pages only: the cookie alone, which others of this machine may see, changes nothing.
      localStorage.setItem("onceward-csrf", (await answer.json()).csrf);
      if (location.pathname === "/signin") location.replace("/");
      else location.reload();
      return;
    }
    const problem = await answer.json().catch(() => ({}));
    said.textContent = problem.detail || "Sign-in failed.";
    said.dataset.tone = "bad";
  }

  document.getElementById("with-token").addEventListener("submit", (event) => {
    event.preventDefault();
    signIn({ token: new FormData(event.target).get("token") });
  });
  if (code) {
    said.textContent = "Signing in …";
    await signIn({ code });
  } else if (!document.getElementById("signin").dataset.over) {
    // Who came from somewhere else is in already: browsers do not show our cookie on that way.
    const answer = await fetch("/api/v1/whoami");
    if (answer.ok) location.replace(location.pathname === "/signin" ? "/" : location.href);
  }
})();
