// The page of one bulk job: its progress and what it could not act on.

import { html, useEffect, useRef } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Badge, Facts, Fetched, More, StateBadge, Table, usePages } from './components.js';
import { count, duration, Payload, Time } from './format.js';
import { isOver, JobActions, Progress } from './jobparts.js';
import { useFetched } from './live.js';
import { mount } from './page.js';

const columns = [
  { id: 'id', label: 'Instance', cell: (each) => html`<a class="mono" href=${pageURL(['instances', each.id])}>${each.id}</a>` },
  { id: 'outcome', label: 'Outcome', cell: (each) => html`<${Badge} tone=${each.unknown ? 'bad' : 'warn'}>${each.unknown ? 'unknown' : 'refused'}<//>` },
  { id: 'why', label: 'Why', wide: true, cell: (each) => each.error?.message ?? each.error ?? each.reason ?? '' },
];

function remaining(job) {
  const left = (job.matching ?? 0) - (job.visited ?? 0);
  const speed = job.speed || job.rate;
  return job.state === 'running' && left > 0 && speed > 0 ? `about ${duration(left / speed)}` : '';
}

function Details({ job, reload }) {
  return html`<div class="page-head"><h1>${job.action} <small>bulk job</small></h1><${StateBadge} state=${job.state} />
      <div class="end"><${JobActions} job=${job} onDone=${reload} /></div></div>
    <section class="panel stack"><${Progress} job=${job} />
      <${Facts} items=${[
        ['ID', html`<a class="mono" href=${pageURL(['instances', job.id])}>${job.id}</a>`],
        ['Filter', html`<a class="mono" href=${pageURL(['instances'], { filter: job.filter })}>${job.filter || 'all instances'}</a>`],
        ['Visited', count(job.visited ?? 0)],
        ['Rate', job.rate && `${count(job.rate)} per second`],
        ['Time left', remaining(job)],
        ['Started', job.started_at && html`<${Time} value=${job.started_at} />`],
        ['Principal', job.principal],
        ['Reason', job.reason],
        ['Hidden arguments', job.arguments_redacted?.join(', ')],
        ['Arguments', job.arguments && Object.keys(job.arguments).length > 0 && html`<${Payload} value=${{ json: job.arguments }} name="arguments" />`],
      ]} /></section>
    <${Refusals} job=${job} />`;
}

function Refusals({ job }) {
  const pages = usePages(job.id, async ({ after, limit, signal }) => {
    const answer = await get(['jobs', job.id, 'refusals'], { after, limit }, signal);
    return { items: answer.refusals, next: answer.next };
  });
  const kept = job.refusals_kept ?? 0;
  const listed = useRef(kept);
  useEffect(() => { // the call reads the history of the job
    if (listed.current !== kept) pages.reload();
    listed.current = kept;
  }, [kept]);
  return html`<section aria-labelledby="refusals"><h2 id="refusals">Refused or unknown</h2>
    ${pages.rows.length === 0 && pages.done && html`<p class="quiet">${isOver(job) ? 'The job acted on every instance that it visited.' : 'Nothing so far.'}</p>`}
    ${pages.rows.length > 0 && html`<${Table} columns=${columns} rows=${pages.rows} rowKey=${(each) => each.id} label="Instances with a refusal or an unknown outcome"
      href=${(each) => pageURL(['instances', each.id])} />`}
    <${More} pages=${pages} what="instances" /></section>`;
}

function Job({ id }) {
  const job = useFetched(id, (signal) => get(['jobs', id], {}, signal), `instance:${id}`);
  return html`<p class="crumb"><a href=${pageURL(['jobs'])}>Bulk jobs</a></p>
    ${!job.data && html`<h1>${id}</h1>`}
    <${Fetched} result=${job} what="Loading the job">${(data) => html`<${Details} job=${data} reload=${job.reload} />`}<//>`;
}

mount(Job);
