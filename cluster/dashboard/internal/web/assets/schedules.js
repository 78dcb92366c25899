// The list of schedules.

import { html } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Empty, More, Table, usePages, useUnanswered } from './components.js';
import { count, Time } from './format.js';
import { useReload } from './live.js';
import { mount } from './page.js';
import { Results, ScheduleActions, ScheduleState, specText } from './scheduleparts.js';

function remark(schedule) {
  if (schedule.unanswered) return 'Loading…';
  if (schedule.error) return schedule.error.message ?? schedule.error;
  return schedule.problem || schedule.note || '';
}

const columns = (reload) => [
  { id: 'id', label: 'Schedule', cell: (each) => html`<a class="mono" href=${pageURL(['schedules', each.id])}>${each.id}</a>
    <span class=${`sub ${each.problem || each.error ? 'bad' : ''}`}>${remark(each)}</span>` },
  { id: 'state', label: 'State', cell: (each) => html`<${ScheduleState} schedule=${each} />` },
  { id: 'orchestration', label: 'Starts', cell: (each) => each.orchestration ?? '' },
  { id: 'spec', label: 'When', cell: (each) => html`<code>${specText(each.spec)}</code>` },
  { id: 'next', label: 'Next', cell: (each) => !each.unanswered && (each.paused ? html`<span class="quiet">when resumed</span>` : html`<${Time} value=${each.next?.[0]} empty="never" />`) },
  { id: 'last', label: 'Last results', cell: (each) => !each.unanswered && html`<${Results} schedule=${each} />
    ${each.missed > 0 && html` <span class="bad nowrap">${count(each.missed)} missed</span>`}` },
  { id: 'actions', label: 'Actions', actions: true, cell: (each) => html`<${ScheduleActions} schedule=${each} onDone=${reload} />` },
];

function Schedules() {
  const pages = usePages('schedules', async ({ after, signal }) => {
    const answer = await get(['schedules'], { after, soon: after ? undefined : true }, signal);
    return { items: answer.schedules ?? [], next: answer.next };
  });
  useReload('list:name=tenuto.schedule', pages.reload);
  useUnanswered(pages);
  return html`<div class="page-head"><h1>Schedules</h1></div>
    ${pages.rows.length > 0 && html`<${Table} columns=${columns(pages.reload)} rows=${pages.rows} rowKey=${(each) => each.id} label="Schedules"
      href=${(each) => pageURL(['schedules', each.id])} />`}
    ${pages.rows.length === 0 && pages.done && html`<${Empty} title="There are no schedules.">
      Create one with <code>schedule.Create</code> in your program, or with <code>tenuto schedule create</code>.<//>`}
    <${More} pages=${pages} what="schedules" />`;
}

mount(Schedules);
