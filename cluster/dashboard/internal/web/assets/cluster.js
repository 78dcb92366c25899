// The cluster: a card for each node, its partitions, settings, join tokens.

import { html } from './lib/htm-preact.js';
import { get } from './api.js';
import { NodeActions, TransferMenu } from './clusteractions.js';
import { Badge, Empty, Facts, Fetched, Meter, Table } from './components.js';
import { bytes, count, duration, now, Payload, Time } from './format.js';
import { useFetched } from './live.js';
import { behindOf, boundsOf, clockOf, diskOf, leads, livenessOf, partitionsOf, slotsOf, snapshotOf } from './nodestate.js';
import { mount } from './page.js';

const certificateSoon = 14 * 86400e3; // ms
const clockFar = 0.5; // s

function Certificate({ value }) {
  if (!value) return null;
  const soon = Date.parse(value) - now() < certificateSoon;
  return html`<span class=${soon ? 'bad' : ''}><${Time} value=${value} /></span>`;
}

function Snapshot({ snapshot }) {
  if (!snapshot?.time) return html`<span class="quiet">none yet</span>`;
  return html`<${Time} value=${snapshot.time} /> <span class="quiet">index ${count(snapshot.index)}${snapshot.bytes ? `, ${bytes(snapshot.bytes)}` : ''}</span>`;
}

function Disk({ node }) {
  const { tone, text, stalls } = diskOf(node);
  return html`<span class=${tone}>${text}</span>${stalls > 0 && html` <span class="quiet">${count(stalls)} ${stalls === 1 ? 'stall' : 'stalls'}</span>`}`;
}

function Load({ node }) {
  const bounds = boundsOf(node);
  if (bounds.length === 0) return 'idle';
  return html`<span class="bounds">${bounds.map(({ name, used, max, tone }) => html`<span key=${name} class="row nowrap">
    <${Meter} value=${used} max=${max} tone=${tone} label=${`${name}: ${used} of ${max}`} /> ${name}
    ${' '}<span class="quiet">${name.endsWith('bytes') ? `${bytes(used)} of ${bytes(max)}` : `${short(used)} of ${short(max)}`}</span></span>`)}</span>`;
}

function short(number) {
  return number >= 10000 ? `${Math.round(number / 1000)}k` : count(number);
}

function Backups({ backups }) {
  return html`${backups.latest ? html`<${Time} value=${backups.latest} />, ${bytes(backups.bytes ?? 0)}` : 'none'}
    ${backups.total > 0 && ` · now ${bytes(backups.written ?? 0)} of ${bytes(backups.total)}`}
    ${backups.failures > 0 && html` <span class="bad">failed ${count(backups.failures)} times since: ${backups.error}</span>`}`;
}

function NodeCard({ node, nodes, reload }) {
  const live = livenessOf(node);
  const behind = behindOf(node);
  const offset = clockOf(node);
  const slots = slotsOf(node);
  const snapshot = snapshotOf(node);
  const led = leads(node);
  return html`<article class="panel node" aria-labelledby=${`node-${node.id}`} data-row tabindex="-1">
    <header class="row"><h2 id=${`node-${node.id}`}>${node.id}</h2><${Badge} tone=${live.tone}>${live.text}<//>
      ${(node.not_ready || node.report_error) && html`<span class="bad">${node.not_ready || node.report_error}</span>`}
      ${node.role === 'standby' && html`<${Badge}>standby<//>`}
      ${node.role !== 'standby' && node.voter === false && html`<${Badge} tone="warn">no vote yet<//>`}${node.draining && html`<${Badge} tone="warn">draining<//>`}
      <span class="end"><${NodeActions} node=${node} nodes=${nodes} onDone=${reload} /></span></header>
    <${Facts} items=${[
      ['Address', node.address && html`<span class="mono">${node.address}</span>`],
      ['Version', (node.version || node.revision) && html`<span class="mono">${node.version || node.revision.slice(0, 12)}</span>`],
      ['Protocol', node.protocol && `${node.protocol}${node.used_protocol && node.used_protocol !== node.protocol ? `, the cluster uses ${node.used_protocol}` : ''}`],
      ['Up for', node.uptime_seconds && duration(node.uptime_seconds)],
      ['Role', node.role && `${node.role}${node.pinned_role ? `, set to ${node.pinned_role}` : ''}`],
      ['Zone', node.zone],
      ['Leads', led.length > 0 ? led.join(', ') : live.tone !== 'bad' && 'nothing'],
      ['Behind', live.tone !== 'bad' && html`<span class=${behind.tone}>${behind.text}</span>`],
      ['Disk writes', diskOf(node) && html`<${Disk} node=${node} />`],
      ['Clock offset', offset !== undefined && html`<span class=${Math.abs(offset) > clockFar ? 'bad' : ''}>${duration(offset)}</span>`],
      ['Last snapshot', node.partitions && html`<${Snapshot} snapshot=${snapshot} />`],
      ['Quarantined', node.quarantined > 0 && html`<span class="bad">${count(node.quarantined)} ${node.quarantined === 1 ? 'replica differs' : 'replicas differ'} from the majority</span>`],
      ['Stopped', node.stopped > 0 && html`<span class="bad">${count(node.stopped)} ${node.stopped === 1 ? 'instance has' : 'instances have'} no majority of equal replicas</span>`],
      ['Certificate expires', node.certificate_expires && html`<${Certificate} value=${node.certificate_expires} />`],
      ['Last backup', node.backups && html`<${Backups} backups=${node.backups} />`],
      ['Lineage', node.lineage && html`<span class="mono">${node.lineage.id.slice(0, 12)}</span> <span class="quiet">${node.lineage.how} from ${node.lineage.source}, <${Time} value=${node.lineage.since} /></span>`],
      ['Slots', slots && `${count(slots.used)} of ${count(slots.total)} in use`],
      ['Load', node.overload && html`<${Load} node=${node} />`],
    ]} />
  </article>`;
}

function matrix(nodes) {
  const rows = new Map();
  for (const node of nodes) {
    for (const each of partitionsOf(node)) {
      const row = rows.get(each.partition) ?? { partition: each.partition, byNode: {}, leader: '', term: 0, applied: 0 };
      row.byNode[node.id] = each;
      if (each.role === 'leader') row.leader = node.id;
      row.term = Math.max(row.term, each.term ?? 0);
      row.applied = Math.max(row.applied, each.applied ?? 0);
      rows.set(each.partition, row);
    }
  }
  return [...rows.values()].sort((a, b) => a.partition - b.partition);
}

function Replica({ each }) {
  if (!each) return html`<span class="quiet">–</span>`;
  const behind = each.behind > 0 ? ` ${short(each.behind)} behind` : '';
  return html`<${Badge} tone=${each.role === 'leader' ? 'good' : each.role === 'candidate' ? 'warn' : 'quiet'}>${each.role}<//>
    ${behind && html`<span class=${each.lag_seconds > 5 ? 'bad' : 'quiet'}>${behind}</span>`}`;
}

function Partitions({ nodes, reload }) {
  const rows = matrix(nodes);
  if (rows.length === 0) return html`<${Empty} title="No node has reported its partitions." />`;
  const columns = [
    { id: 'partition', label: 'Partition', cell: (row) => html`<strong>${row.partition}</strong>` },
    ...nodes.map((node) => ({ id: `at-${node.id}`, label: node.id, cell: (row) => html`<${Replica} each=${row.byNode[node.id]} />` })),
    { id: 'term', label: 'Term', numeric: true, cell: (row) => (row.term ? count(row.term) : '–') },
    { id: 'applied', label: 'Applied index', numeric: true, cell: (row) => (row.applied ? count(row.applied) : '–') },
    { id: 'actions', label: 'Actions', actions: true, cell: (row) => html`<${TransferMenu} row=${row} nodes=${nodes} onDone=${reload} />` },
  ];
  return html`<${Table} columns=${columns} rows=${rows} rowKey=${(row) => row.partition} label="Partitions" />`;
}

const tokenColumns = [
  { id: 'id', label: 'Token', cell: (each) => html`<span class="mono">${each.id ?? each.name}</span>` },
  { id: 'node', label: 'For', cell: (each) => each.node ?? each.node_id ?? 'any node' },
  { id: 'expires', label: 'Expires', cell: (each) => html`<${Time} value=${each.expires_at ?? each.expires} />` },
];

// The stream has no settings and join tokens: not everyone may see them.
let fetched = {};

async function load(signal) {
  const data = await get(['cluster'], {}, signal);
  fetched = { settings: data.settings, join_tokens: data.join_tokens };
  return data;
}

// An upgrade that has not been confirmed, as the nodes report it.
function Upgrade({ nodes }) {
  const node = nodes.find((each) => each.next_protocol > 0);
  return node && html`<div class="panel" role="status">The cluster uses protocol ${node.used_protocol}. Every node speaks
    ${node.next_protocol}, which it uses by itself at <${Time} value=${node.next_protocol_at} />, or
    after <span class="mono">tenuto cluster finalize</span>. Until then nodes may return to the previous build.</div>`;
}

function Cluster() {
  const cluster = useFetched('cluster', load, 'cluster',
    (kind, data) => (kind === 'state' && data.nodes ? { ...fetched, ...data } : undefined));
  return html`<div class="page-head"><h1>Cluster</h1></div>
    <${Fetched} result=${cluster} what="Asking the nodes">${(data) => html`
      <${Upgrade} nodes=${data.nodes} />
      <div class="node-cards">${data.nodes.map((node) => html`<${NodeCard} key=${node.id} node=${node} nodes=${data.nodes} reload=${cluster.reload} />`)}</div>
      <section aria-labelledby="partitions"><h2 id="partitions">Partitions</h2><${Partitions} nodes=${data.nodes} reload=${cluster.reload} /></section>
      ${data.settings && html`<section aria-labelledby="settings"><h2 id="settings">Settings</h2><div class="panel"><${Payload}
        value=${{ json: data.settings }} name="settings" open /></div></section>`}
      ${data.join_tokens?.length > 0 && html`<section aria-labelledby="tokens"><h2 id="tokens">Join tokens</h2>
        <${Table} columns=${tokenColumns} rows=${data.join_tokens} rowKey=${(each) => each.id ?? each.name} label="Join tokens" /></section>`}`}<//>`;
}

mount(Cluster);
