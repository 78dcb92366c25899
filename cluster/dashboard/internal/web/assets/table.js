// Tables and lists that load more at their end.
//
// Exports:
//   Table({columns, rows, rowKey, label, sort, onSort, selection, href, empty})
//     columns: [{id, label, cell(row), sortable, numeric, wide, actions}]. On narrow screens each
//     row is a card: the first column is its title, the others have their labels.
//     sort: {column, descending}; onSort(column id) changes it.
//     selection: of useSelection. href(row): the page of a row, used by the key Enter.
//   usePages(key, load)  pages of an API list: {rows, error, loading, done, more, reload, set}.
//     load({after, signal}) returns {items, next}. reload loads the first page again and keeps the
//     others unless the key changes.
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

export function usePages(key, load) {
  const [state, setState] = useState(startPages);
  const latest = useRef(load);
  latest.current = load;
  const current = useRef({ key, state, abort: null });
  current.current.state = state;
  const run = useCallback(async (after, merge) => {
    current.current.abort?.abort();
    const abort = new AbortController();
    current.current.abort = abort;
    setState((old) => ({ ...old, loading: true }));
    try {
      const answer = await latest.current({ after, signal: abort.signal });
      if (!abort.signal.aborted) setState((old) => merge(old, answer));
    } catch (error) {
      if (!abort.signal.aborted) setState((old) => ({ ...old, error, loading: false }));
    }
  }, []);
  const settle = (rows, next, answer) => ({ rows, next, error: null, loading: false, done: next === '', extra: answer });
  const reload = useCallback(() => run('', (old, { items, next = '', ...rest }) => {
    const alone = old.rows.length <= items.length || next === '';
    const kept = alone ? [] : old.rows.slice(items.length);
    return settle([...items, ...kept], alone ? next : old.next, rest);
  }), []);
  const more = useCallback(() => {
    const { next, loading, done } = current.current.state;
    if (loading || done) return;
    run(next, (old, { items, next: following = '', ...rest }) => settle([...old.rows, ...items], following, rest));
  }, []);
  useEffect(() => {
    setState(startPages);
    run('', (old, { items, next = '', ...rest }) => settle(items, next, rest));
    return () => current.current.abort?.abort();
  }, [key]);
  return { ...state, more, reload };
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
