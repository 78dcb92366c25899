// Applies the color scheme that the user has chosen before the page is drawn. Not a module: modules
// run after the first drawing. prefs.js stores the choice.
(() => {
  try {
    const theme = localStorage.getItem('tenuto-theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden. The scheme of the system applies.
  }
})();
