// The page of one schedule: when it starts runs, the next due times, the last results.

import { html } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Badge, Facts, Fetched, Table } from './components.js';
import { absolute, count, duration, Payload, Time, relative } from './format.js';
import { useFetched } from './live.js';
import { mount } from './page.js';
import { ScheduleActions, ScheduleState, specText } from './scheduleparts.js';

const tones = { completed: 'good', failed: 'bad', running: 'busy', exists: 'warn', missed: 'warn' };

const columns = [
  { id: 'due', label: 'Due', cell: (each) => html`<${Time} value=${each.due} />` },
  { id: 'outcome', label: 'Outcome', cell: (each) => html`<${Badge} tone=${tones[each.outcome] ?? 'quiet'}>${each.outcome}<//>` },
  { id: 'cause', label: 'Cause', cell: (each) => each.cause ?? '' },
  { id: 'run', label: 'Run', cell: (each) => each.run_id && html`<a class="mono" href=${pageURL(['instances', each.run_id])}>${each.run_id}</a>` },
];

function Next({ schedule }) {
  const times = schedule.next ?? [];
  if (times.length === 0) return html`<p class="quiet">It has no due times after now.</p>`;
  return html`<ol class="times">${times.map((time) => html`<li key=${time}><time datetime=${time}>${absolute(time)}</time>
    <span class="quiet"> ${relative(time)}</span></li>`)}</ol>
    ${schedule.paused && html`<p class="quiet">It is paused: these start nothing until it is resumed.</p>`}`;
}

function Details({ schedule, reload }) {
  const spec = schedule.spec ?? {};
  return html`<div class="page-head"><h1>${schedule.id}</h1><${ScheduleState} schedule=${schedule} />
      <div class="end"><${ScheduleActions} schedule=${schedule} onDone=${reload} /></div></div>
    ${schedule.problem && html`<div class="notice tone-bad" role="alert"><p><strong>${schedule.problem}</strong></p>
      <p>The schedule tries again each minute. Correct its spec, or install the time zone on the nodes.</p></div>`}
    <section class="panel"><${Facts} items=${[
      ['When', html`<code>${specText(spec)}</code>`],
      ['Starts', schedule.orchestration],
      ['While an earlier run is in progress', spec.overlap],
      ['Starts late, up to', spec.catch_up_seconds && duration(spec.catch_up_seconds)],
      ['Jitter', spec.jitter_seconds && duration(spec.jitter_seconds)],
      ['From', spec.from && html`<${Time} value=${spec.from} />`],
      ['Until', spec.until && html`<${Time} value=${spec.until} />`],
      ['Started', schedule.started !== undefined && count(schedule.started)],
      ['Skipped', schedule.skipped !== undefined && count(schedule.skipped)],
      ['Missed', schedule.missed !== undefined && html`<span class=${schedule.missed > 0 ? 'bad' : ''}>${count(schedule.missed)}</span>`],
      ['Note', schedule.note],
      ['Input', schedule.input && html`<${Payload} value=${schedule.input} name="input" />`],
      ['Instance', html`<a href=${pageURL(['instances', schedule.id])}>history of the schedule</a>`],
    ]} /></section>
    <div class="columns">
      <section aria-labelledby="last"><h2 id="last">Last results</h2>
        ${schedule.last?.length ? html`<${Table} columns=${columns} rows=${schedule.last} rowKey=${(each) => `${each.due} ${each.run_id ?? ''}`}
          label="Last results" href=${(each) => each.run_id && pageURL(['instances', each.run_id])} />` : html`<p class="quiet">It has started no run yet.</p>`}</section>
      <section aria-labelledby="next"><h2 id="next">Next due times</h2><div class="panel"><${Next} schedule=${schedule} /></div></section>
    </div>`;
}

function Schedule({ id }) {
  const schedule = useFetched(id, (signal) => get(['schedules', id], {}, signal), `instance:${id}`);
  return html`<p class="crumb"><a href=${pageURL(['schedules'])}>Schedules</a></p>
    ${!schedule.data && html`<h1>${id}</h1>`}
    <${Fetched} result=${schedule} what="Loading the schedule">${(data) => html`<${Details} schedule=${data} reload=${schedule.reload} />`}<//>`;
}

mount(Schedule);
