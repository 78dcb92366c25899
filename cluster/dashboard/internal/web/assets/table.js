// Tables and lists that load more at their end.
//
// Exports:
//   Table({columns, rows, rowKey, label, sort, onSort, selection, href, empty})
//     columns: [{id, label, cell(row), sortable, numeric, wide, actions}]. On narrow screens each
//     row is a card: the first column is its title, the others have their labels.
//     sort: {column, descending}; onSort(column id) changes it.
//     selection: of useSelection. href(row): the page of a row, used by the key Enter.
//   usePages(key, load, rowKey)  pages of an API list: {rows, error, loading, done, more, reload, take}.
//     load({after, limit, signal}) returns {items, next}. reload asks for all rows that are shown, at
//     most 1,000 (limit; otherwise undefined), from the beginning. take({items, next}) shows a first
//     page, or returns false: more is shown, reload. Another key begins anew.
//   useUnanswered(pages)  reloads while rows are "unanswered": the API has not waited for them
//   More({pages, what})  the end of an infinite list: loads more when it becomes visible
//   useSelection(rows, rowKey)  {has, toggle, all, toggleAll, clear, keys, rows}

import { html, useCallback, useEffect, useMemo, useRef, useState } from './lib/htm-preact.js';
import { ErrorNotice } from './basics.js';

export function Table({ columns, rows, rowKey, label, sort, onSort, selection, href }) {
  return html`<div class="table-box"><table class="cards" role="table" aria-label=${label}>
    <thead role="rowgroup"><tr role="row">
      ${selection && html`<th scope="col" role="columnheader" class="select">
        <input type="checkbox" aria-label="Select all rows shown" checked=${selection.all}
          indeterminate=${!selection.all && selection.keys.length > 0} onChange=${selection.toggleAll} /></th>`}
      ${columns.map((column) => html`<${Heading} key=${column.id} column=${column} sort=${sort} onSort=${onSort} />`)}
    </tr></thead>
    <tbody role="rowgroup">
      ${rows.map((row) => html`<${Row} key=${rowKey(row)} row=${row} columns=${columns} name=${rowKey(row)}
        selected=${selection?.has(rowKey(row))} toggle=${selection?.toggle} href=${href?.(row)} />`)}
    </tbody>
  </table></div>`;
}

function Heading({ column, sort, onSort }) {
  const sorted = sort && sort.column === column.id;
  const direction = sorted ? (sort.descending ? 'descending' : 'ascending') : undefined;
  const mark = { ascending: '↑', descending: '↓' }[direction] ?? '';
  return html`<th scope="col" role="columnheader" aria-sort=${direction} class=${column.numeric ? 'numeric' : ''}>
    ${column.sortable
      ? html`<button type="button" class="sort" onClick=${() => onSort(column.id)}>${column.label}
          <span class="sort-mark" aria-hidden="true">${mark}</span></button>`
      : html`<span class=${column.actions ? 'hidden-label' : ''}>${column.label}</span>`}
  </th>`;
}

function cellClass(column) {
  return ['numeric', 'wide', 'actions'].filter((name) => column[name]).join(' ');
}

function Row({ row, columns, name, selected, toggle, href }) {
  return html`<tr role="row" data-row tabindex="-1" data-href=${href} class=${selected ? 'selected' : ''}>
    ${toggle && html`<td role="cell" class="select"><input type="checkbox" aria-label=${`Select ${name}`} data-select
      checked=${selected} onChange=${() => toggle(name)} /></td>`}
    ${columns.map((column) => html`<td role="cell" key=${column.id} class=${cellClass(column)}>
      <span class="cell-label" aria-hidden="true">${column.actions ? '' : column.label}</span>
      <div class="cell">${column.cell(row)}</div></td>`)}
  </tr>`;
}

const startPages = { rows: [], next: '', error: null, loading: true, done: false, extra: null };
const reloadMax = 1000; // rows that reload asks for at once

function settled(rows, next, extra) {
  return { rows, next, error: null, loading: false, done: next === '', extra };
}

// The rows after a reload. If the answer has fewer than before, the others are kept at their end.
function reloaded(old, { items, next = '', ...extra }, rowKey) {
  if (items.length >= old.rows.length || next === '') return settled(items, next, extra);
  const fresh = new Set(items.map(rowKey));
  const kept = old.rows.slice(items.length).filter((row) => !fresh.has(rowKey(row)));
  return settled([...items, ...kept], old.next, extra);
}

export function usePages(key, load, rowKey = (row) => row.id) {
  const [state, setState] = useState(startPages);
  const latest = useRef({});
  latest.current = { load, rowKey, state };
  const abort = useRef(null);
  const run = useCallback(async (request, merge) => {
    abort.current?.abort();
    const mine = new AbortController();
    abort.current = mine;
    try {
      const answer = await latest.current.load({ ...request, signal: mine.signal });
      if (!mine.signal.aborted) setState((old) => merge(old, answer));
    } catch (error) {
      if (!mine.signal.aborted) setState((old) => ({ ...old, error, loading: false }));
    }
  }, []);
  const reload = useCallback(() => {
    const loaded = latest.current.state.rows.length;
    return run({ after: '', limit: loaded > 0 ? Math.min(loaded, reloadMax) : undefined },
      (old, answer) => reloaded(old, answer, latest.current.rowKey));
  }, []);
  const more = useCallback(() => {
    const { next, loading, done } = latest.current.state;
    if (loading || done) return;
    setState((old) => ({ ...old, loading: true, error: null }));
    run({ after: next }, (old, { items, next: following = '', ...extra }) => settled([...old.rows, ...items], following, extra));
  }, []);
  // Shows the first page that a stream has sent, if it is all that a reload would read.
  const take = useCallback((answer) => {
    const { rows, loading } = latest.current.state;
    if (loading || (rows.length > answer.items.length && answer.next)) return false;
    abort.current?.abort();
    setState((old) => reloaded(old, answer, latest.current.rowKey));
    return true;
  }, []);
  useEffect(() => {
    setState(startPages);
    run({ after: '' }, (old, { items, next = '', ...extra }) => settled(items, next, extra));
    return () => abort.current?.abort();
  }, [key]);
  return { ...state, more, reload, take };
}

const askAgain = 500; // ms

export function useUnanswered(pages) {
  useEffect(() => {
    if (!pages.rows.some((row) => row.unanswered)) return undefined;
    const timer = setTimeout(pages.reload, askAgain);
    return () => clearTimeout(timer);
  }, [pages.rows]);
}

export function More({ pages, what }) {
  const end = useRef(null);
  useEffect(() => {
    if (pages.error || pages.done) return undefined;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) pages.more();
    }, { rootMargin: '600px' });
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [pages.rows.length, pages.loading, pages.done, pages.error]);
  return html`<div class="more" ref=${end}>
    ${pages.error && html`<${ErrorNotice} error=${pages.error} retry=${pages.rows.length ? pages.more : pages.reload} />`}
    ${pages.loading && html`<p class="loading" role="status">Loading…</p>`}
    ${!pages.loading && !pages.done && !pages.error &&
      html`<button type="button" onClick=${pages.more}>Load more ${what}</button>`}
    ${pages.done && pages.rows.length > 20 && html`<p class="quiet">These are all ${what}.</p>`}
  </div>`;
}

export function useSelection(rows, rowKey) {
  const [keys, setKeys] = useState([]);
  const set = useMemo(() => new Set(keys), [keys]);
  const shown = rows.map(rowKey);
  const all = shown.length > 0 && shown.every((key) => set.has(key));
  return {
    keys,
    rows: rows.filter((row) => set.has(rowKey(row))),
    all,
    has: (key) => set.has(key),
    toggle: (key) => setKeys(set.has(key) ? keys.filter((each) => each !== key) : [...keys, key]),
    toggleAll: () => setKeys(all ? [] : shown),
    clear: () => setKeys([]),
  };
}
