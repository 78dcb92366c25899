// What an instance waits for, and what an operator can do about each operation.
//
// Exports:
//   Pending({id, state, operations, onDone, onSelect})   state: of the instance

import { html } from './lib/htm-preact.js';
import { pageURL } from './api.js';
import { Badge, Empty } from './basics.js';
import { Payload, Time } from './format.js';
import { hasEnded, recordsNothing } from './instance-actions.js';
import { operationActions } from './instance-operations.js';
import { Table } from './table.js';

const typeNames = {
  ActivityScheduled: 'activity',
  TimerCreated: 'timer',
  ExternalSubscribed: 'waits for event',
  ExternalEvent: 'buffered event',
  SubOrchestrationScheduled: 'child',
  MessageSent: 'message',
};

const stateTones = { running: 'busy', 'backing off': 'bad', held: 'warn', paused: 'warn' };

export function Pending({ id, state, operations, onDone, onSelect }) {
  if (operations.length === 0) {
    const ended = hasEnded(state);
    return html`<${Empty} title=${ended ? 'The run has ended: nothing is open.' : 'Nothing is open.'}>
      ${ended ? 'The history shows what it has done.' : 'If the instance does not continue, look at its stack: the code may be hung or stalled.'}<//>`;
  }
  const columns = [
    { id: 'operation', label: 'Operation', cell: (o) => html`<${What} operation=${o} onSelect=${onSelect} />` },
    { id: 'state', label: 'State', cell: (o) => html`<${StateOf} operation=${o} />` },
    { id: 'since', label: 'Since', cell: (o) => html`<${Time} value=${o.since} />` },
    { id: 'next', label: 'Due', cell: (o) => html`<${Time} value=${o.next_attempt || o.fire_at || ''} />` },
    { id: 'error', label: 'Last error', wide: true, cell: (o) => html`<${Problem} operation=${o} />` },
    { id: 'actions', label: 'Actions', actions: true, cell: (o) => html`<${Buttons} id=${id} operation=${o} all=${operations} onDone=${onDone} />` },
  ];
  if (recordsNothing(state)) {
    columns.pop(); // actions would be refused
  }
  return html`<div class="pending"><${Table} columns=${columns} rows=${operations} label="Open operations"
    rowKey=${(o) => `${o.execution}/${o.event_id}/${o.type}/${o.name}`} /></div>`;
}

function What({ operation, onSelect }) {
  const child = operation.child_id;
  return html`
    <span class="pending-type">${typeNames[operation.type] || operation.type}</span>
    ${' '}<strong>${operation.name}</strong>
    ${operation.event_id ? html` <button type="button" class="link" onClick=${() => onSelect(operation.event_id, '')}>event ${operation.event_id}</button>` : null}
    ${child ? html` <a href=${pageURL(['instances', child])}>${child}</a>` : null}
    ${operation.receiver ? html` to <a href=${pageURL(['instances', operation.receiver])}>${operation.receiver}</a>` : null}`;
}

function StateOf({ operation }) {
  const { state, held, buffered, failed_attempts: failed, heartbeat } = operation;
  return html`
    ${state ? html`<${Badge} tone=${stateTones[state] || 'quiet'}>${state}<//> ` : null}
    ${held && state !== 'held' ? html`<${Badge} tone="warn">held<//> ` : null}
    ${failed ? html`<span class="pending-attempts">${failed} failed</span> ` : null}
    ${buffered ? html`<span>${buffered} buffered</span>` : null}
    ${state === 'paused' || operation.paused_reason ? html`<span class="quiet">paused by ${operation.paused_by || 'an operator'}
      ${operation.paused_reason ? `: ${operation.paused_reason}` : ''}</span>` : null}
    ${heartbeat ? html`<div>heartbeat <${Payload} value=${heartbeat} name="heartbeat" /></div>` : null}`;
}

function Problem({ operation }) {
  const error = operation.last_error;
  if (!error) {
    return html`<span class="quiet">–</span>`;
  }
  return html`<span class="pending-error">${typeof error === 'string' ? error : [error.code, error.message].filter(Boolean).join(': ')}</span>`;
}

function Buttons({ id, operation, all, onDone }) {
  const isOldest = all.find((o) => o.type === operation.type && o.name === operation.name) === operation;
  const actions = operationActions(id, operation, isOldest, onDone);
  return html`<span class="pending-buttons">${actions.map(({ label, dataAction, act, danger }) => html`
    <button type="button" class=${danger ? 'small danger' : 'small'} key=${label} data-action=${dataAction} onClick=${act}
      aria-label=${`${label}: ${operation.name || typeNames[operation.type]} event ${operation.event_id}`}>${label}</button>`)}</span>`;
}
