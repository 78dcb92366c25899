// Small components.
//
// Exports:
//   StateBadge({state})             the state of an instance, with a tone and a shape
//   Badge({tone, children})         tones: good, bad, warn, busy, quiet
//   Empty({title, children})        an empty state; children say what to do
//   ErrorNotice({error, retry})     what went wrong and what to do; retry is a function
//   Loading({what})
//   Fetched({result, what, children})  Loading, ErrorNotice, or children(data) of useFetched's result
//   Tabs({tabs, current, onSelect, label})  tabs: [{id, label}]; the caller draws the panel with
//                                   id `panel-ID`, role tabpanel and aria-labelledby `tab-ID`
//   Menu({label, items, tone})      a button that opens items: [{label, dataAction, act, danger, hidden}];
//                                   dataAction is the attribute data-action, for tests
//   Copy({text, label})             a button that copies text
//   Meter({value, max, label, tone})   a small bar
//   Facts({items})                  a definition list: [[label, content]]; empty contents are left out
//   Texts({values, filter})         tags or attributes; filter is 'tag' or 'attr' and makes them links

import { html, useEffect, useRef, useState } from './lib/htm-preact.js';
import { pageURL } from './api.js';
import { notify } from './dialog.js';
import { quote } from './filtertext.js';

const tones = {
  running: 'busy', completed: 'good', failed: 'bad', terminated: 'quiet', canceled: 'quiet',
  stalled: 'bad', hung: 'bad', suspended: 'warn', paused: 'warn', 'waiting for code': 'warn',
  'continued as new': 'quiet', stopped: 'quiet',
};

export function StateBadge({ state }) {
  return html`<${Badge} tone=${tones[state] ?? 'quiet'}>${state}<//>`;
}

export function Badge({ tone = 'quiet', children }) {
  return html`<span class=${`badge tone-${tone}`}>${children}</span>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<div>${children}</div>`}</div>`;
}

const advice = {
  unreachable: 'Check that the process that serves this page is running, then try again.',
  unauthenticated: 'Sign in to the application, then reload this page.',
  not_authorized: 'Ask an operator of the cluster for the right.',
  not_found: 'It may have been purged after its retention, or the address has a typo.',
  busy: 'The node is busy. It will take requests again in a moment.',
  unavailable: 'No leader answered. A new one is usually elected within seconds.',
};

const adviceByStatus = { 401: 'unauthenticated', 403: 'not_authorized', 404: 'not_found', 429: 'busy', 503: 'unavailable' };

export function ErrorNotice({ error, retry }) {
  const hint = advice[error.code] ?? advice[adviceByStatus[error.status]];
  return html`<div class="notice tone-bad" role="alert">
    <p><strong>${error.message || 'Something went wrong.'}</strong>${' '}
      ${error.status ? html`<span class="quiet">(${error.status} ${error.code})</span>` : ''}</p>
    ${hint && html`<p>${hint}</p>`}
    ${error.outcome === 'unknown' && error.status && html`<p>The outcome is unknown: look before you repeat it.</p>`}
    ${retry && html`<p><button type="button" onClick=${retry}>Try again</button></p>`}
  </div>`;
}

export function Loading({ what = 'Loading' }) {
  return html`<p class="loading" role="status">${what}…</p>`;
}

export function Fetched({ result, what, children }) {
  const draw = [children].flat().find((child) => typeof child === 'function');
  if (result.data === undefined) {
    return result.error ? html`<${ErrorNotice} error=${result.error} retry=${result.reload} />` : html`<${Loading} what=${what} />`;
  }
  return html`${result.error && html`<${ErrorNotice} error=${result.error} retry=${result.reload} />`}${draw(result.data)}`;
}

export function Tabs({ tabs, current, onSelect, label }) {
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex((tab) => tab.id === current);
    const next = (at + step + tabs.length) % tabs.length;
    onSelect(tabs[next].id);
    list.current.children[next].focus();
    event.preventDefault();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
    ${tabs.map((tab) => html`<button type="button" role="tab" key=${tab.id} id=${`tab-${tab.id}`}
      aria-selected=${tab.id === current ? 'true' : 'false'} aria-controls=${tab.id === current ? `panel-${tab.id}` : undefined}
      tabindex=${tab.id === current ? 0 : -1} onClick=${() => onSelect(tab.id)}>${tab.label}</button>`)}
  </div>`;
}

// Above everything (top layer), so that no box with a scrollbar cuts it off; inside the window.
function place(items, button) {
  items.showPopover();
  const at = button.getBoundingClientRect();
  const fits = at.bottom + items.offsetHeight + 8 < innerHeight || at.top < items.offsetHeight + 8;
  items.style.left = `${Math.max(8, at.right - items.offsetWidth)}px`;
  items.style.top = fits ? `${at.bottom + 4}px` : `${at.top - items.offsetHeight - 4}px`;
}

function useMenu(root) {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    if (!open) return undefined;
    const items = root.current.querySelector('.menu-items');
    place(items, root.current.querySelector('button'));
    items.querySelector('button, input:checked')?.focus({ preventScroll: true });
    const outside = (event) => root.current?.contains(event.target) || setOpen(false);
    const scrolled = (event) => items.contains(event.target) || setOpen(false);
    document.addEventListener('pointerdown', outside);
    document.addEventListener('scroll', scrolled, { capture: true, passive: true });
    return () => {
      document.removeEventListener('pointerdown', outside);
      document.removeEventListener('scroll', scrolled, { capture: true });
    };
  }, [open]);
  const keys = (event) => {
    if (!open) return;
    if (event.key === 'Escape') {
      setOpen(false);
      root.current.querySelector('button').focus();
      event.stopPropagation();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...root.current.querySelectorAll('.menu-items > button')];
    if (!step || buttons.length === 0) return;
    const at = buttons.indexOf(document.activeElement);
    buttons[(at + step + buttons.length) % buttons.length].focus();
    event.preventDefault();
  };
  return { open, setOpen, keys };
}

export function Menu({ label, items, tone = '', children }) {
  const root = useRef(null);
  const { open, setOpen, keys } = useMenu(root);
  const shown = items?.filter((item) => item && !item.hidden) ?? [];
  if (items && shown.length === 0) return null;
  return html`<div class="menu" ref=${root} onKeyDown=${keys}>
    <button type="button" class=${tone} aria-expanded=${open ? 'true' : 'false'} onClick=${() => setOpen(!open)}>
      ${label} <span aria-hidden="true">▾</span></button>
    ${open && html`<div class="menu-items" popover="manual">
      ${shown.map((item) => html`<button type="button" key=${item.label} class=${item.danger ? 'danger' : ''}
        data-action=${item.dataAction} onClick=${() => { setOpen(false); item.act(); }}>${item.label}</button>`)}
      ${children}</div>`}
  </div>`;
}

export function Copy({ text, label = 'Copy' }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      notify('Copied.');
    } catch {
      notify('The browser does not permit copying here. Select the text instead.', 'bad');
    }
  };
  return html`<button type="button" class="small" onClick=${copy}>${label}</button>`;
}

export function Meter({ value, max = 1, label, tone = 'busy' }) {
  const share = max > 0 ? Math.min(1, Math.max(0, value / max)) : 0;
  return html`<span class="meter" role="img" aria-label=${label}>
    <span class=${`meter-fill tone-${tone}`} style=${{ width: `${(share * 100).toFixed(1)}%` }}></span></span>`;
}

export function Facts({ items }) {
  const shown = items.filter(([, content]) => content !== undefined && content !== null && content !== '' && content !== false);
  return html`<dl class="facts">${shown.map(([label, content]) =>
    html`<div key=${label}><dt>${label}</dt><dd>${content}</dd></div>`)}</dl>`;
}

export function Texts({ values, filter }) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0) return null;
  return html`<span class="texts">${entries.map(([key, value]) => {
    const text = html`<span class="text-key">${key}</span> ${value}`;
    if (!filter) return html`<span class="text" key=${key}>${text}</span>`;
    const words = `${filter}.${quote(key)}=${quote(value)}`;
    return html`<a class="text" key=${key} href=${pageURL(['instances'], { filter: words })}>${text}</a>`;
  })}</span>`;
}
