// Changes of the cluster. Each asks for a confirmation; removing and draining a node for its ID.
//
// Exports:
//   NodeActions({node, count, onDone})       drain, remove
//   TransferMenu({row, nodes, onDone})       leadership of a partition to another node

import { html } from './lib/htm-preact.js';
import { may, post } from './api.js';
import { ask, Menu, notify } from './components.js';
import { leads, livenessOf } from './nodestate.js';

function remove(node, total, onDone) {
  const left = total - 1;
  const spare = Math.max(0, Math.ceil(left / 2) - 1);
  return ask({
    title: `Remove the node ${node.id}`,
    text: html`<p>The node leaves the cluster for good. It can come back only with an empty data directory.</p>
      <p>${left === 1 ? 'One node is left' : `${left} nodes are left`}; they survive the loss of
        ${' '}${spare || 'none'} of them.</p>
      ${livenessOf(node).tone !== 'bad' && html`<p>It is in use now. Stop its process first if you can.</p>`}`,
    reason: true,
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

function drain(node, onDone) {
  return ask({
    title: `Drain the node ${node.id}`,
    text: html`<p>It gives its partitions to other nodes and takes no new activities. Those in progress end first.</p>`,
    reason: true,
    typed: node.id,
    confirm: 'Drain the node',
    run: async (values) => {
      await post(['cluster', 'nodes', node.id, 'drain'], values);
      notify(`The node ${node.id} drains.`);
      onDone();
    },
  });
}

export function NodeActions({ node, count, onDone }) {
  return html`<${Menu} label=${html`Actions<span class="visually-hidden"> of ${node.id}</span>`} items=${[
    { label: 'Drain…', hidden: !may('drain') || livenessOf(node).tone === 'bad', act: () => drain(node, onDone) },
    { label: 'Remove…', danger: true, hidden: !may('remove member') || count < 2, act: () => remove(node, count, onDone) },
  ]} />`;
}

function transfer(row, to, onDone) {
  return ask({
    title: `Transfer partition ${row.partition} to ${to.id}`,
    text: html`<p>${to.id} becomes the leader of partition ${row.partition}${row.leader && ` instead of ${row.leader}`}.
      Its instances wait for a moment; nothing is lost.</p>
      ${leads(to).length > 0 && html`<p>${to.id} leads ${leads(to).length === 1 ? 'one other partition' : `${leads(to).length} other partitions`} already.</p>`}`,
    reason: true,
    confirm: 'Transfer',
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
    items=${others.map((node) => ({ label: `To ${node.id}…`, act: () => transfer(row, node, onDone) }))} />`;
}
