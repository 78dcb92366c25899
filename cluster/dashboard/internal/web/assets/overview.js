// The overview: what needs attention, counts by state, rates of the last hour, the cluster's nodes.

import { html } from './lib/htm-preact.js';
import { get, pageURL } from './api.js';
import { Rates } from './chart.js';
import { NodeStrip } from './nodes.js';
import { Badge, Empty, Fetched, StateBadge } from './components.js';
import { count, Time } from './format.js';
import { useFetched } from './live.js';
import { mount } from './page.js';

// The tone and the label of each kind of attention, the most urgent first.
const kinds = {
  stalled: ['bad', 'stalled'],
  hung: ['bad', 'hung'],
  member: ['bad', 'cluster'],
  disk: ['bad', 'disk'],
  'waiting for code': ['warn', 'waiting for code'],
  failing: ['warn', 'failing'],
  schedule_missed: ['warn', 'schedule'],
  certificate: ['warn', 'certificate'],
  oldest_waiting: ['quiet', 'oldest'],
};

const states = [
  'running', 'stalled', 'hung', 'suspended', 'waiting for code', 'completed', 'failed', 'canceled', 'terminated',
];

function target(item) {
  if (item.filter) return pageURL(['instances'], { filter: item.filter });
  if (item.kind === 'schedule_missed') return pageURL(item.instance_id ? ['schedules', item.instance_id] : ['schedules']);
  if (item.instance_id) return pageURL(['instances', item.instance_id]);
  return pageURL(['cluster']);
}

function Attention({ items }) {
  const urgency = Object.keys(kinds);
  const rank = (item) => (kinds[item.kind] ? urgency.indexOf(item.kind) : urgency.length);
  const sorted = [...(items ?? [])].sort((a, b) => rank(a) - rank(b));
  const quiet = sorted.every((item) => item.kind === 'oldest_waiting');
  return html`<section aria-labelledby="attention"><h2 id="attention">Needs attention</h2>
    ${quiet && html`<p class="all-well"><span aria-hidden="true">✓</span> Nothing needs attention.</p>`}
    ${sorted.length > 0 && html`<ul class="attention">${sorted.map((item) => html`<${AttentionItem} item=${item}
      key=${`${item.kind} ${item.instance_id ?? ''} ${item.title}`} />`)}</ul>`}
  </section>`;
}

function AttentionItem({ item }) {
  const [tone, label] = kinds[item.kind] ?? ['warn', item.kind];
  return html`<li class=${`attention-item edge-${tone}`} data-row tabindex="-1" data-href=${target(item)}>
    <${Badge} tone=${tone}>${label}<//>
    <div class="attention-text"><a href=${target(item)}>${item.title}</a>
      ${item.text && html`<span class="sub">${item.text}</span>`}</div>
    ${item.count > 0 && html`<span class="attention-count" title="instances">${count(item.count)}</span>`}
    ${item.since && html`<span class="quiet nowrap attention-since">since <${Time} value=${item.since} /></span>`}
  </li>`;
}

function Counts({ counts }) {
  const byState = Object.fromEntries((counts ?? []).map((each) => [each.state, each.count]));
  const known = [...states, ...Object.keys(byState).filter((state) => !states.includes(state) && state !== 'continued as new')];
  const total = Object.values(byState).reduce((sum, each) => sum + each, 0);
  return html`<section aria-labelledby="counts"><h2 id="counts">Instances</h2>
    ${total === 0
      ? html`<${Empty} title="There are no instances yet.">Start one from your program, with the command
          ${' '}<code>tenuto start</code>, or with <code>POST api/instances</code>.<//>`
      : html`<div class="tiles">
        ${known.map((state) => html`<a class=${`tile ${byState[state] ? '' : 'zero'}`} key=${state}
          href=${pageURL(['instances'], { filter: `state=${state.replaceAll(' ', '-')} order=-updated` })}>
          <span class="tile-count">${count(byState[state] ?? 0)}</span><${StateBadge} state=${state} /></a>`)}
      </div>`}
  </section>`;
}

function Overview() {
  const overview = useFetched('overview', (signal) => get(['overview'], {}, signal), 'overview',
    (kind, data) => (kind === 'state' && data.counts ? data : undefined));
  return html`<h1 class="visually-hidden">Overview</h1>
    <${Fetched} result=${overview} what="Loading the overview">${(data) => html`
      <${Attention} items=${data.attention} />
      <${Counts} counts=${data.counts} />
      <div class="columns">
        <section aria-labelledby="rates"><h2 id="rates">Rates</h2><div class="panel"><${Rates} rates=${data.rates ?? {}} /></div></section>
        <section aria-labelledby="nodes"><h2 id="nodes"><a href=${pageURL(['cluster'])}>Cluster</a></h2>
          <${NodeStrip} nodes=${data.cluster?.nodes ?? []} /></section>
      </div>`}<//>`;
}

mount(Overview);
