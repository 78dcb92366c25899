// Keys that work while no field has the focus.
//
// Exports:
//   useKeys(bindings)  hook: bindings is {key: [label, function]}; the labels are shown by '?'
//   moveRow(step)      moves the focus among the elements with the attribute data-row
//   Keys()             the bindings of all pages and the help; page.js mounts it
//
// All pages: '/' focuses the element with data-search, 'j' and 'k' move among the rows, Enter opens
// the row (its attribute data-href), 'x' selects it, '?' shows the keys.

import { html, useEffect, useRef, useState } from './lib/htm-preact.js';

/** @type {Set<{current: Record<string, [string, (event: KeyboardEvent) => void]>}>} */
const layers = new Set();

export function useKeys(bindings) {
  const layer = useRef(bindings);
  layer.current = bindings;
  useEffect(() => {
    layers.add(layer);
    return () => layers.delete(layer);
  }, []);
}

export function moveRow(step) {
  const rows = [...document.querySelectorAll('[data-row]')];
  if (rows.length === 0) return;
  const at = rows.indexOf(document.activeElement?.closest('[data-row]'));
  const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + step));
  rows[next].focus();
  rows[next].scrollIntoView({ block: 'nearest' });
}

function currentRow() {
  return document.activeElement?.closest('[data-row]');
}

const common = (showHelp) => ({
  '/': ['Search or filter', () => document.querySelector('[data-search]')?.focus()],
  j: ['Next row', () => moveRow(1)],
  k: ['Previous row', () => moveRow(-1)],
  Enter: ['Open the row', openRow],
  x: ['Select the row', () => currentRow()?.querySelector('[data-select]')?.click()],
  '?': ['Show the keys', showHelp],
});

function openRow() {
  const href = currentRow()?.dataset.href;
  if (href) location.assign(href);
}

function handle(event, bindings) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target;
  if (target.closest('input, textarea, select, [contenteditable], dialog')) {
    if (event.key === 'Escape' && target.matches('[data-search]')) target.blur();
    return;
  }
  if (event.key === 'Enter' && !target.matches('[data-row]')) return;
  const binding = [...layers].map((layer) => layer.current[event.key]).find(Boolean) ?? bindings[event.key];
  if (!binding) return;
  event.preventDefault();
  binding[1](event);
}

export function Keys() {
  const [open, setOpen] = useState(false);
  const dialog = useRef(null);
  useEffect(() => {
    const bindings = common(() => setOpen(true));
    const listener = (event) => handle(event, bindings);
    document.addEventListener('keydown', listener);
    return () => document.removeEventListener('keydown', listener);
  }, []);
  useEffect(() => {
    if (open) dialog.current.showModal();
  }, [open]);
  if (!open) return null;
  const all = Object.entries(Object.assign({}, common(() => {}), ...[...layers].map((layer) => layer.current)));
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="keys-title" onClose=${() => setOpen(false)}>
    <h2 id="keys-title">Keys</h2>
    <dl class="keys">${all.map(([key, [label]]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${label}</dd></div>`)}</dl>
    <div class="dialog-buttons"><button type="button" class="primary" onClick=${() => setOpen(false)}>Close</button></div>
  </dialog>`;
}
