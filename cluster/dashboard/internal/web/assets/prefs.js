// What the user has chosen for all pages, kept in the browser's storage where that is permitted.
//
// Exports:
//   prefs()              the current choices: {theme, zone, times}
//   setPref(name, value) changes one of them and redraws all components that use usePrefs
//   usePrefs()           hook: prefs(), and a redraw when one changes
//   choices              the permitted values and their labels, by name; the first is the default
//   stored(key), store(key, value)  JSON values of single pages, such as saved views

import { useEffect, useState } from './lib/htm-preact.js';

export const choices = {
  theme: [['system', 'As the system'], ['light', 'Light'], ['dark', 'Dark']],
  zone: [['local', 'Local time'], ['utc', 'UTC']],
  times: [['relative', 'Relative (5 min ago)'], ['absolute', 'Absolute (14:03:21)']],
};

const listeners = new Set();
const current = {};
for (const [name, values] of Object.entries(choices)) {
  const kept = read(`tenuto-${name}`);
  current[name] = values.some(([value]) => value === kept) ? kept : values[0][0];
}

function read(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function write(key, text) {
  try {
    localStorage.setItem(key, text);
  } catch {
    // Storage may be forbidden or full. The choice lasts until the page is left.
  }
}

export function prefs() {
  return current;
}

export function setPref(name, value) {
  current[name] = value;
  write(`tenuto-${name}`, value);
  if (name === 'theme') {
    if (value === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  }
  listeners.forEach((listener) => listener());
}

export function usePrefs() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const listener = () => redraw((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return current;
}

export function stored(key, fallback) {
  try {
    return JSON.parse(read(`tenuto-${key}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

export function store(key, value) {
  write(`tenuto-${key}`, JSON.stringify(value));
}
