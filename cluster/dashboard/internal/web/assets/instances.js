// The list of instances.

import { html, useEffect } from './lib/htm-preact.js';
import { get, may, pageURL } from './api.js';
import { BulkMenu, SelectionBar } from './bulk.js';
import { Empty, Menu, More, StateBadge, Table, Texts, usePages, useSelection } from './components.js';
import { FilterInput } from './filterinput.js';
import { orderOf, withoutOrder, withOrder } from './filtertext.js';
import { count, Time } from './format.js';
import { useFetched, useReload } from './live.js';
import { mount, useParam } from './page.js';
import { startInstance } from './start.js';
import { Views } from './views.js';

const pageSize = 100;
const countMax = 10000; // more are shown as "at least"

function reasonOf(row) {
  if (row.mismatch) return `expected ${row.mismatch.expected || '?'}, found ${row.mismatch.found || '?'}`;
  if (row.error) return [row.error.code, row.error.message].filter(Boolean).join(': ');
  return row.summary ?? '';
}

const columns = [
  { id: 'id', label: 'Instance', sortable: true, cell: (row) => html`<a class="mono" href=${pageURL(['instances', row.id])}>${row.id}</a>
    <span class="sub clamp">${reasonOf(row)}</span>` },
  { id: 'state', label: 'State', cell: (row) => html`<${StateBadge} state=${row.state} />` },
  { id: 'name', label: 'Orchestration', cell: (row) => html`${row.name} <span class="quiet nowrap">${row.version}</span>` },
  { id: 'created', label: 'Started', sortable: true, cell: (row) => html`<${Time} value=${row.created_at} />` },
  { id: 'updated', label: 'Last event', sortable: true, cell: (row) => html`<${Time} value=${row.updated_at} />` },
  { id: 'texts', label: 'Tags, attributes', wide: true, cell: (row) => (row.tags || row.attributes) && html`
    <${Texts} values=${row.tags} filter="tag" />${' '}<${Texts} values=${row.attributes} filter="attr" />` },
];

const orders = { id: 'ID', created: 'Start', updated: 'Last event', ended: 'End (ended ones)', timer: 'Next timer' };

function SortMenu({ filter, onSelect }) {
  const { column, descending } = orderOf(filter);
  const items = Object.entries(orders).map(([id, label]) => ({
    label: id === column ? `${label} ${descending ? '↓' : '↑'}` : label, act: () => onSelect(withOrder(filter, id)),
  }));
  return html`<${Menu} label=${`Sort: ${orders[column] ?? column}`} items=${items} />`;
}

function None({ filter, onSelect }) {
  if (withoutOrder(filter) === '') {
    return html`<${Empty} title="There are no instances yet.">Start one from your program or with the command
      ${' '}<code>tenuto start</code>.<//>`;
  }
  return html`<${Empty} title="No instance matches this filter.">
    <button type="button" onClick=${() => onSelect('order=-updated')}>Show all instances</button><//>`;
}

const pageOf = (answer) => ({ items: answer.instances ?? [], next: answer.next });

function Instances() {
  const [filter, setFilter] = useParam('filter', 'order=-updated');
  const pages = usePages(filter, async ({ after, limit, signal }) => {
    const answer = await get(['instances'], { filter, after, limit: String(Math.max(limit ?? 0, pageSize)) }, signal);
    return pageOf(answer);
  });
  const topic = pages.error?.status === 400 ? null : `list:${filter}`; // a wrong filter cannot be followed
  const counted = useFetched(filter, (signal) => get(['count'], { filter, max: countMax }, signal), topic,
    (kind, data) => ({ count: data, state: false })[kind]);
  const selection = useSelection(pages.rows, (row) => row.id);
  const selectable = may('cancel') || may('terminate') || may('suspend') || may('purge');
  useReload(topic, pages.reload, (kind, data) => kind === 'count' || (kind === 'state' && pages.take(pageOf(data))));
  useEffect(() => selection.clear(), [filter]);
  const total = counted.data?.count;
  const atLeast = counted.data?.at_least ? 'at least ' : '';
  return html`<div class="page-head"><h1>Instances</h1>
      ${total !== undefined && html`<span class="quiet">${atLeast}${count(total)} match</span>`}
      <div class="end"><${SortMenu} filter=${filter} onSelect=${setFilter} />
        <${BulkMenu} filter=${filter} />
        ${may('start') && html`<button type="button" class="primary" data-action="start" onClick=${() => startInstance()}>Start…</button>`}</div></div>
    <${FilterInput} value=${filter} onSubmit=${setFilter} />
    <${Views} filter=${filter} onSelect=${setFilter} />
    ${pages.rows.length > 0 && html`<${Table} columns=${columns} rows=${pages.rows} rowKey=${(row) => row.id} label="Instances"
      sort=${orderOf(filter)} onSort=${(column) => setFilter(withOrder(filter, column))} selection=${selectable ? selection : null}
      href=${(row) => pageURL(['instances', row.id])} />`}
    ${pages.rows.length === 0 && pages.done && html`<${None} filter=${filter} onSelect=${setFilter} />`}
    <${More} pages=${pages} what="instances" />
    <${SelectionBar} selection=${selection} filter=${filter} total=${total} atLeast=${atLeast} onDone=${pages.reload} />`;
}

mount(Instances);
