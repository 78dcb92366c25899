// Actions on many instances. What would happen is shown before it does.
//
// Exports:
//   SelectionBar({selection, filter, total, atLeast, onDone})  for the selected rows; atLeast: a text
//                                                     before the total
//   BulkMenu({filter, label})                         for all instances that match the filter
//
// Selected rows are acted on one by one from here. All that match a filter are acted on by a bulk job
// of the cluster, which continues when this page is closed.

import { html } from './lib/htm-preact.js';
import { may, pageURL, post } from './api.js';
import { ask, Menu, notify, StateBadge } from './components.js';
import { withoutOrder } from './filtertext.js';
import { count } from './format.js';

const atOnce = 4; // calls in flight for selected rows

const inProgress = ['running', 'hung', 'suspended', 'stalled', 'waiting for code'];
const ended = ['completed', 'failed', 'canceled', 'terminated'];

// action: the word of the API; right: that of the session; on: the states that accept it; noReason:
// nothing records one; dataAction: the attribute data-action for selected rows and for all that
// match; without one, the action is not offered there.
const actions = [
  { action: 'cancel', right: 'cancel', label: 'Cancel', on: inProgress, dataAction: { selected: 'selected-cancel', all: 'all-cancel' } },
  { action: 'terminate', right: 'terminate', label: 'Terminate', danger: true, on: inProgress, dataAction: { selected: 'selected-terminate', all: 'all-terminate' } },
  { action: 'suspend', right: 'suspend', label: 'Suspend', on: ['running', 'hung', 'waiting for code'], dataAction: { selected: 'selected-suspend', all: 'all-suspend' } },
  { action: 'resume', right: 'resume', label: 'Resume', on: ['suspended'], dataAction: { selected: 'selected-resume', all: 'all-resume' } },
  { action: 'retry', right: 'retry', label: 'Retry', on: ['stalled', 'waiting for code'], noReason: true, dataAction: { selected: 'selected-retry' } },
  { action: 'retry-now', right: 'retry now', label: 'Retry activities now', on: ['running'], dataAction: { all: 'all-retry-now' } },
  { action: 'hold', right: 'hold', label: 'Hold operations', on: ['running'], dataAction: { all: 'all-hold' } },
  { action: 'release', right: 'release', label: 'Release operations', on: ['running'], dataAction: { all: 'all-release' } },
  { action: 'rerun', right: 'rerun', label: 'Rerun', on: [...inProgress, ...ended], dataAction: { selected: 'selected-rerun', all: 'all-rerun' } },
  { action: 'purge', right: 'purge', label: 'Purge', danger: true, noReason: true, on: ended, dataAction: { selected: 'selected-purge', all: 'all-purge' } },
];

function byState(rows) {
  const counts = {};
  for (const row of rows) counts[row.state] = (counts[row.state] ?? 0) + 1;
  return counts;
}

function StateCounts({ counts }) {
  return html`<span class="row">${Object.entries(counts ?? {}).map(([state, number]) =>
    html`<span key=${state}>${count(number)} <${StateBadge} state=${state} /></span>`)}</span>`;
}

function Sample({ rows, total }) {
  const shown = rows.slice(0, 8);
  return html`<ul class="sample">${shown.map((row) => html`<li key=${row.id}><code>${row.id}</code>
    <span class="quiet"> ${row.name}</span></li>`)}
    ${total > shown.length && html`<li class="quiet">and ${count(total - shown.length)} more</li>`}</ul>`;
}

function previewOfRows(kind, rows) {
  const fit = rows.filter((row) => kind.on.includes(row.state));
  const other = rows.filter((row) => !kind.on.includes(row.state));
  if (fit.length === 0) throw new Error(`None of the selected instances is in a state that accepts this: ${kind.on.join(', ')}.`);
  return html`<p><strong>${kind.label}: ${count(fit.length)} ${fit.length === 1 ? 'instance' : 'instances'}</strong></p>
    <${StateCounts} counts=${byState(fit)} /><${Sample} rows=${fit} total=${fit.length} />
    ${other.length > 0 && html`<p>${count(other.length)} would be left out, as their states do not accept this:</p>
      <${StateCounts} counts=${byState(other)} />`}`;
}

/** Calls act for each row, a few at once; returns the errors. */
async function each(rows, act) {
  const waiting = [...rows];
  const errors = [];
  const work = async () => {
    for (let row = waiting.shift(); row; row = waiting.shift()) {
      try {
        await act(row);
      } catch (error) {
        errors.push({ row, error });
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, work));
  return errors;
}

async function actOnRows(kind, rows, reason) {
  const fit = rows.filter((row) => kind.on.includes(row.state));
  const errors = await each(fit, (row) => post(['instances', row.id, kind.action], kind.noReason ? {} : { reason }));
  const done = fit.length - errors.length;
  if (done > 0) notify(`${kind.label}: accepted for ${count(done)} of ${count(fit.length)}.`);
  if (errors.length > 0) {
    const { row, error } = errors[0];
    notify(`${kind.label}: ${count(errors.length)} refused. ${row.id}: ${error.message}`, 'bad');
  }
}

function askForRows(kind, selection, onDone) {
  const rows = selection.rows;
  return ask({
    title: `${kind.label} the selected instances`,
    reason: !kind.noReason,
    danger: kind.danger,
    confirm: `${kind.label} instances`,
    preview: async () => previewOfRows(kind, rows),
    run: async ({ reason }) => {
      await actOnRows(kind, rows, reason);
      selection.clear();
      onDone();
    },
  });
}

export function SelectionBar({ selection, filter, total, atLeast, onDone }) {
  if (selection.keys.length === 0) return null;
  const allowed = actions.filter((kind) => kind.dataAction.selected && may(kind.right));
  return html`<div class="selection" role="region" aria-label="Selection">
    <strong>${count(selection.keys.length)} selected</strong>
    ${allowed.map((kind) => html`<button type="button" key=${kind.action} class=${kind.danger ? 'danger' : ''}
      data-action=${kind.dataAction.selected} onClick=${() => askForRows(kind, selection, onDone)}>${kind.label}…</button>`)}
    ${total > selection.keys.length && html`<${BulkMenu} filter=${filter} label=${`All that match: ${atLeast}${count(total)}`} />`}
    <button type="button" class="plain" onClick=${selection.clear}>Clear</button>
  </div>`;
}

function previewOfJob(kind, answer) {
  return html`<p><strong>${kind.label}: ${answer.estimated ? 'about ' : ''}${count(answer.count)} ${answer.count === 1 ? 'instance matches' : 'instances match'}</strong></p>
    <${StateCounts} counts=${answer.states} /><${Sample} rows=${answer.sample ?? []} total=${answer.count} />
    <p class="quiet">An instance that does not accept it when the job gets there is listed as refused.</p>`;
}

function askForFilter(kind, filter) {
  const body = (values) => ({ filter, action: kind.action, ...values });
  return ask({
    title: `${kind.label} all that match`,
    text: html`<p>Filter: <code>${filter || 'all instances'}</code></p>`,
    fields: [{ name: 'rate', label: 'Instances per second', type: 'number', value: '100', help: '0.01 to 10,000. The job can be paused and stopped.' }],
    reason: true,
    danger: kind.danger,
    confirm: `Start the job: ${kind.label.toLowerCase()}`,
    preview: async (values) => previewOfJob(kind, await post(['bulk'], { ...body(values), dry_run: true })),
    run: async (values) => {
      const job = await post(['bulk'], body(values));
      location.assign(pageURL(['jobs', job.id]));
    },
  });
}

export function BulkMenu({ filter, label = 'Act on all that match' }) {
  const text = withoutOrder(filter);
  const items = actions.filter((kind) => kind.dataAction.all).map((kind) => ({
    label: `${kind.label}…`, dataAction: kind.dataAction.all, danger: kind.danger, hidden: !may('start') || !may(kind.right), act: () => askForFilter(kind, text),
  }));
  return html`<${Menu} label=${label} items=${items} />`;
}
