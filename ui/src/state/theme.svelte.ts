/**
 * The color theme: the user's choice, stored in this browser, or the system setting.
 */

export type Theme = "system" | "light" | "dark";

const KEY = "tympan.theme";

class ThemeChoice {
  chosen = $state<Theme>(readChoice());

  constructor() {
    apply(this.chosen);
  }

  choose(theme: Theme): void {
    this.chosen = theme;
    apply(theme);
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
  }
}

function readChoice(): Theme {
  try {
    const stored = localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : "system";
  } catch {
    return "system";
  }
}

function apply(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export const theme = new ThemeChoice();
