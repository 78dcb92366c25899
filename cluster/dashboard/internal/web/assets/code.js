// The code that nodes have: definitions with their versions, activities with their rates and limits, workers.

import { html } from './lib/htm-preact.js';
import { get, may, pageURL, post } from './api.js';
import { ask, Badge, Empty, Fetched, logged, Meter, notify, Table } from './components.js';
import { quote } from './filtertext.js';
import { count, short } from './format.js';
import { useFetched } from './live.js';
import { queuesOf } from './nodestate.js';
import { mount } from './page.js';

function instancesOf(each, extra = '') {
  const version = each.version ? ` version=${quote(each.version)}` : '';
  return pageURL(['instances'], { filter: `name=${quote(each.name)}${version}${extra} order=-updated` });
}

function Unserved({ list }) {
  if (!list?.length) return null;
  return html`<div class="notice tone-warn" role="status"><p><strong>Instances wait for code that no node has.</strong>
      ${' '}Deploy a node with it, or suspend or terminate them.</p>
    <ul>${list.map((each) => html`<li key=${`${each.name} ${each.version}`}><a href=${instancesOf(each)}>${each.name} ${each.version}</a>:
      ${' '}${count(each.instances)} ${each.instances === 1 ? 'instance' : 'instances'}</li>`)}</ul></div>`;
}

function NodesOf({ nodes, all }) {
  if (!nodes?.length) return html`<span class="bad">no node</span>`;
  return nodes.length === all ? html`<span class="quiet">all nodes</span>` : nodes.join(', ');
}

const definitionColumns = (nodes) => [
  { id: 'name', label: 'Orchestration', cell: (each) => html`<a href=${instancesOf(each)}>${each.name}</a>` },
  { id: 'version', label: 'Version', cell: (each) => html`<span class="mono">${each.version || '–'}</span>` },
  { id: 'nodes', label: 'Nodes that have it', cell: (each) => html`<${NodesOf} nodes=${each.nodes} all=${nodes} />` },
  { id: 'instances', label: 'Instances', numeric: true, cell: (each) => html`<a href=${instancesOf(each, ' state=running')}>${count(each.instances ?? 0)}</a>` },
];

function pauseOrResume(activity, onDone) {
  const verb = activity.paused ? 'resume' : 'pause';
  const label = activity.paused ? 'Resume' : 'Pause';
  return ask({
    title: `${label} the activity ${activity.name}`,
    text: html`<p>${activity.paused ? 'Its attempts begin again in the whole cluster.' : 'No attempt of it begins in the whole cluster until it is resumed. Attempts in progress continue.'}</p>`,
    reason: activity.paused ? logged : 'It is shown with each activity that waits, and written to the log of the program that serves this page.',
    confirm: label,
    run: async (values) => {
      await post(['activities', activity.name, verb], values);
      notify(`The activity ${activity.name} is ${activity.paused ? 'resumed' : 'paused'}.`);
      onDone();
    },
  });
}

function rateOf(each) {
  const rate = each.rate;
  if (!rate) return html`<span class="quiet">unbounded</span>`;
  const burst = each.burst > 1 ? `, burst ${count(each.burst)}` : '';
  return typeof rate === 'number' ? `${short(rate)}/s${burst}` : `${short(rate.per_second)}/s${rate.burst > 1 ? `, burst ${count(rate.burst)}` : ''}`;
}

function QueuesByTag({ queues }) {
  return queues.map((each) => html`<br key=${each.tag} /><small class=${each.served ? 'quiet' : 'bad'}>${each.tag}: ${count(each.queued)}${
    each.served ? '' : ', no worker has the tag'}</small>`);
}

const activityColumns = (nodes, workers, reload) => [
  { id: 'name', label: 'Activity', cell: (each) => html`${each.name}${each.paused && html` <${Badge} tone="warn">paused<//>`}` },
  { id: 'nodes', label: 'Nodes that have it', cell: (each) => html`<${NodesOf} nodes=${each.nodes} all=${nodes} />` },
  { id: 'open', label: 'Open', numeric: true, cell: (each) => count(each.open ?? 0) },
  { id: 'running', label: 'Running', numeric: true, cell: (each) => html`${count(each.running ?? 0)}${each.limit > 0 && html` <small class="nowrap">limit ${count(each.limit)} per node</small>`}` },
  { id: 'queued', label: 'Queued', numeric: true, cell: (each) => html`<a href=${pageURL(['instances'], { filter: `waiting=activity:${quote(each.name)}` })}>${count(each.queued ?? 0)}</a><${QueuesByTag} queues=${queuesOf(each, workers)} />` },
  { id: 'rate', label: 'Rate', cell: rateOf },
  { id: 'actions', label: 'Actions', actions: true, cell: (each) => may(each.paused ? 'resume activity' : 'pause activity') && html`
    <button type="button" class="small" data-action=${each.paused ? 'resume-activity' : 'pause-activity'} aria-label=${`${each.paused ? 'Resume' : 'Pause'} ${each.name}`}
      onClick=${() => pauseOrResume(each, reload)}>${each.paused ? 'Resume…' : 'Pause…'}</button>` },
];

const workerColumns = [
  { id: 'node', label: 'Worker', cell: (each) => each.node },
  { id: 'slots', label: 'Slots in use', cell: (each) => {
    const used = (each.slots ?? 0) - (each.free ?? 0);
    const tone = each.slots > 0 && each.free === 0 ? 'warn' : 'busy';
    return html`<${Meter} value=${used} max=${each.slots} tone=${tone} label=${`${used} of ${each.slots} slots in use`} /> ${count(used)} of ${count(each.slots)}`;
  } },
  { id: 'free', label: 'Free', numeric: true, cell: (each) => count(each.free ?? 0) },
  { id: 'tags', label: 'Tags', cell: (each) => each.tags?.join(', ') || html`<span class="quiet">none</span>` },
];

function Part({ id, title, rows, columns, rowKey, empty }) {
  return html`<section aria-labelledby=${id}><h2 id=${id}>${title}</h2>
    ${rows?.length ? html`<${Table} columns=${columns} rows=${rows} rowKey=${rowKey} label=${title} />` : empty}</section>`;
}

function Code() {
  const code = useFetched('code', (signal) => get(['code'], {}, signal), null);
  return html`<div class="page-head"><h1>Code</h1></div>
    <${Fetched} result=${code} what="Loading the code of the nodes">${(data) => {
      const definitions = (data.definitions ?? []).filter((each) => each.kind !== 'activity');
      const nodes = new Set([...definitions, ...(data.activities ?? [])].flatMap((each) => each.nodes ?? [])).size;
      return html`<${Unserved} list=${data.unserved} />
        ${data.unknown?.length > 0 && html`<div class="notice tone-warn" role="status"><p>What these nodes have is not known,
          as they gave no report: ${data.unknown.join(', ')}.</p></div>`}
        ${data.omitted > 0 && html`<p class="quiet">${count(data.omitted)} names are left out of the nodes' reports.</p>`}
        <${Part} id="definitions" title="Orchestrations" rows=${definitions} columns=${definitionColumns(nodes)}
          rowKey=${(each) => `${each.name} ${each.version}`} empty=${html`<${Empty} title="No node has registered an orchestration.">
            Add its definition to <code>cluster.Config.Definitions</code> before the node starts.<//>`} />
        <${Part} id="activities" title="Activities" rows=${data.activities} columns=${activityColumns(nodes, data.workers, code.reload)}
          rowKey=${(each) => each.name} empty=${html`<${Empty} title="No node has registered an activity." />`} />
        <${Part} id="workers" title="Workers" rows=${data.workers} columns=${workerColumns} rowKey=${(each) => each.node}
          empty=${html`<${Empty} title="No worker is connected.">Activities wait until one is.<//>`} />`;
    }}<//>`;
}

mount(Code);
