// Light or dark, by the system or by choice; a plain script, so that it runs before the first paint.
(() => {
  const root = document.documentElement;
  const KEY = "turnwire.theme";

  function stored() {
    try { return localStorage.getItem(KEY); } catch { return null; }
  }

  function isDark() {
    if (root.dataset.theme) return root.dataset.theme === "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches;
  }

  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme")?.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem(KEY, root.dataset.theme); } catch { /* until the page is closed */ }
    });
  });
})();
