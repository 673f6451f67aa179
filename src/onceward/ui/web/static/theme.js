// Before anything is drawn: the theme that was chosen, if one was.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("onceward-theme"); } catch { /* a browser that keeps nothing */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
