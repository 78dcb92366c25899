// The list of bulk jobs.

import { html } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Empty, More, StateBadge, Table, usePages, useUnanswered } from './components.js';
import { Time } from './format.js';
import { JobActions, Progress } from './jobparts.js';
import { useReload } from './live.js';
import { mount } from './page.js';

const columns = (reload) => [
  { id: 'id', label: 'Job', cell: (job) => html`<a class="mono" href=${pageURL(['jobs', job.id])}>${job.id}</a>
    ${job.unanswered && html`<span class="sub">Loading…</span>`}
    ${job.reason && html`<span class="sub">${job.reason}</span>`}` },
  { id: 'state', label: 'State', cell: (job) => (job.error ? html`<span class="bad">${job.error.message ?? job.error}</span>` : html`<${StateBadge} state=${job.state} />`) },
  { id: 'action', label: 'Action', cell: (job) => job.action },
  { id: 'filter', label: 'Filter', cell: (job) => !job.unanswered && html`<code>${job.filter || 'all instances'}</code>` },
  { id: 'progress', label: 'Progress', cell: (job) => !job.unanswered && html`<${Progress} job=${job} />` },
  { id: 'started', label: 'Started', cell: (job) => html`<${Time} value=${job.started_at} />${job.principal && html`<span class="sub">by ${job.principal}</span>`}` },
  { id: 'actions', label: 'Actions', actions: true, cell: (job) => html`<${JobActions} job=${job} onDone=${reload} />` },
];

function Jobs() {
  const pages = usePages('jobs', async ({ after, signal }) => {
    const answer = await get(['jobs'], { after, soon: after ? undefined : true }, signal);
    return { items: answer.jobs ?? [], next: answer.next };
  });
  useReload('list:name=tenuto.bulk', pages.reload);
  useUnanswered(pages);
  return html`<div class="page-head"><h1>Bulk jobs</h1></div>
    ${pages.rows.length > 0 && html`<${Table} columns=${columns(pages.reload)} rows=${pages.rows} rowKey=${(job) => job.id} label="Bulk jobs"
      href=${(job) => pageURL(['jobs', job.id])} />`}
    ${pages.rows.length === 0 && pages.done && html`<${Empty} title="There are no bulk jobs.">
      A job repeats one action over all instances that match a filter. Begin one from
      ${' '}<a href=${pageURL(['instances'])}>the list of instances</a>.<//>`}
    <${More} pages=${pages} what="jobs" />`;
}

mount(Jobs);
