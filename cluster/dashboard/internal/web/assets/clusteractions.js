// Changes of the cluster. Each asks for a confirmation that says what happens; removing a node for its ID.
//
// Exports:
//   NodeActions({node, nodes, onDone})       drain, remove
//   TransferMenu({row, nodes, onDone})       leadership of a partition to another node

import { html } from './lib/htm-preact.js';
import { may, post } from './api.js';
import { ask, logged, Menu, notify } from './components.js';
import { leads, livenessOf } from './nodestate.js';

// What is left without a node: how many voters, and how many of them may fail.
function Left({ node, nodes }) {
  const voters = nodes.filter((each) => each.id !== node.id && each.voter !== false);
  const down = voters.filter((each) => livenessOf(each).tone === 'bad').length;
  const spare = Math.max(0, Math.ceil(voters.length / 2) - 1);
  return html`<p>Voters left: ${voters.map((each) => each.id).join(', ') || 'none'}. The cluster then tolerates
    ${' '}${spare === 1 ? '1 failed node' : `${spare || 'no'} failed nodes`}${down > 0 && `; ${down} of them ${down === 1 ? 'does' : 'do'} not answer now`}.</p>`;
}

function remove(node, nodes, onDone) {
  const led = leads(node);
  return ask({
    title: `Remove the node ${node.id}`,
    text: html`<p>The node leaves the cluster for good. It can come back only with an empty data directory.</p>
      <${Left} node=${node} nodes=${nodes} />
      ${led.length > 0 && html`<p>It leads ${led.length === 1 ? 'partition' : 'partitions'} ${led.join(', ')}: drain it first.</p>`}
      ${livenessOf(node).tone !== 'bad' && html`<p>It is in use now. Stop its process first if you can.</p>`}`,
    reason: logged,
    typed: node.id,
    danger: true,
    confirm: 'Remove the node',
    run: async (values) => {
      await post(['cluster', 'nodes', node.id, 'remove'], values);
      notify(`The node ${node.id} is removed.`);
      onDone();
    },
  });
}

function Moves({ node, moved }) {
  if (moved.length === 0) return html`<p>${node.id} leads nothing: nothing would move.</p>`;
  return html`<ul>${moved.map((each) => html`<li key=${each.partition}>Partition ${each.partition} moves to ${each.to}.</li>`)}</ul>`;
}

function drain(node, onDone) {
  const path = ['cluster', 'nodes', node.id, 'drain'];
  return ask({
    title: `Drain the node ${node.id}`,
    text: html`<p>Other nodes become the leaders of what it leads. It keeps its votes, and may lead again later: to restart it,
      stop it right afterwards.</p>`,
    reason: logged,
    confirm: 'Drain the node',
    preview: async (values) => html`<${Moves} node=${node} moved=${(await post(path, { ...values, dry_run: true })).moved} />`,
    run: async (values) => {
      const { moved } = await post(path, values);
      notify(`Partitions moved from ${node.id}: ${moved.length}.`);
      onDone();
    },
  });
}

export function NodeActions({ node, nodes, onDone }) {
  return html`<${Menu} label=${html`Actions<span class="visually-hidden"> of ${node.id}</span>`} items=${[
    { label: 'Drain…', dataAction: 'drain-node', hidden: !may('transfer leadership') || livenessOf(node).tone === 'bad', act: () => drain(node, onDone) },
    { label: 'Remove…', dataAction: 'remove-node', danger: true, hidden: !may('remove member') || nodes.length < 2, act: () => remove(node, nodes, onDone) },
  ]} />`;
}

function transfer(row, to, onDone) {
  return ask({
    title: `Transfer partition ${row.partition} to ${to.id}`,
    text: html`<p>${to.id} becomes the leader of partition ${row.partition}${row.leader && ` instead of ${row.leader}`}.
      Its instances wait for a moment; nothing is lost.</p>
      ${leads(to).length > 0 && html`<p>${to.id} leads ${leads(to).length === 1 ? 'one other partition' : `${leads(to).length} other partitions`} already.</p>`}`,
    reason: logged,
    confirm: 'Transfer',
    preview: async () => html`<${Moves} node=${{ id: row.leader }} moved=${[{ partition: row.partition, to: to.id }]} />`,
    run: async (values) => {
      await post(['cluster', 'partitions', String(row.partition), 'transfer'], { ...values, to: to.id });
      notify(`Partition ${row.partition} is transferred to ${to.id}.`);
      onDone();
    },
  });
}

export function TransferMenu({ row, nodes, onDone }) {
  if (!may('transfer leadership')) return null;
  const others = nodes.filter((node) => node.id !== row.leader && livenessOf(node).tone !== 'bad' && node.voter !== false);
  return html`<${Menu} label=${html`Transfer<span class="visually-hidden"> partition ${row.partition}</span>`}
    items=${others.map((node) => ({ label: `To ${node.id}…`, dataAction: 'transfer-leadership', act: () => transfer(row, node, onDone) }))} />`;
}
