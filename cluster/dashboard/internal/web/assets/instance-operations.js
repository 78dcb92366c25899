// The actions on one open operation, each with its dialog.
//
// Exports:
//   operationActions(id, operation, isOldest, onDone)   what the user may do with it: [{label, dataAction, act, danger}]

import { html } from './lib/htm-preact.js';
import { may, post } from './api.js';
import { ask, notify } from './dialog.js';

const timed = ['ActivityScheduled', 'TimerCreated'];
const ending = ['ActivityScheduled', 'SubOrchestrationScheduled'];

/**
 * isOldest: no older subscription waits for the same event, and would get it first. onDone is called
 * after each action that was done.
 */
export function operationActions(id, operation, isOldest, onDone) {
  const { type, held, state } = operation;
  if (!operation.event_id) {
    return [];
  }
  const isActivity = type === 'ActivityScheduled';
  const isHeld = held || state === 'held';
  const backsOff = Boolean(operation.next_attempt);
  const all = [
    { label: 'Retry now', dataAction: 'retry-activity', right: 'retry now', shown: isActivity && backsOff && !isHeld, ask: retryNow },
    { label: 'Fire now', dataAction: 'fire-timer', right: 'fire now', shown: type === 'TimerCreated' && !isHeld, ask: fireNow },
    { label: 'Hold', dataAction: 'hold', right: 'hold', shown: timed.includes(type) && !isHeld, ask: hold },
    { label: 'Release', dataAction: 'release', right: 'release', shown: timed.includes(type) && isHeld, ask: release },
    { label: 'Adjust', dataAction: 'adjust-activity', right: 'adjust', shown: isActivity, ask: adjust },
    { label: 'Complete', dataAction: 'complete-operation', right: 'complete operation', shown: ending.includes(type) || (type === 'ExternalSubscribed' && isOldest), ask: complete },
    { label: 'Fail', dataAction: 'fail-operation', right: 'fail operation', shown: ending.includes(type), ask: fail, danger: true },
  ];
  return all.filter((a) => a.shown && may(a.right)).map((a) => ({
    label: a.label, dataAction: a.dataAction, danger: a.danger, act: () => run(id, operation, a.label, a.ask(operation), onDone),
  }));
}

async function run(id, operation, label, { verb, done, body = (values) => values, ...dialog }, onDone) {
  const answer = await ask({
    title: `${label}: ${operation.name || 'operation'} (event ${operation.event_id})`,
    confirm: label,
    reason: true,
    ...dialog,
    run: (values) => post(['instances', id, 'operations', String(operation.execution), String(operation.event_id), verb], body(values)),
  });
  if (answer) {
    notify(done);
    onDone();
  }
}

const retryNow = () => ({ verb: 'retry-now', done: 'The next attempt begins.', text: 'The next attempt begins at once, instead of at the end of the backoff.' });
const fireNow = () => ({ verb: 'fire-now', done: 'The timer has fired.', text: 'The timer fires before it is due. The code gets the time for which it was created.' });
const release = () => ({ verb: 'release', done: 'Released.', text: 'An attempt or a timer that became due meanwhile begins or fires at once.' });
const hold = () => ({
  verb: 'hold', done: 'Held.',
  text: 'No attempt begins and the timer does not fire until you release it. A running attempt continues. Timeouts keep running.',
});

const complete = (operation) => ({
  verb: 'complete', done: 'Completed.',
  text: operation.type === 'ExternalSubscribed'
    ? 'The subscription receives the value as the data of an event.'
    : 'It ends with this result, which the code decodes as any other. A running attempt is canceled.',
  fields: [{ name: 'output', label: 'Result', type: 'json', value: 'null', required: true, help: 'JSON of the type that the code expects' }],
});

const fail = () => ({
  verb: 'fail', done: 'Failed.', danger: true,
  text: 'It ends with this error. There is no further attempt, whatever the retry policy says.',
  fields: [
    { name: 'message', label: 'Message', required: true },
    { name: 'code', label: 'Code', help: 'A short name that the code can compare' },
  ],
  body: ({ message, code, reason }) => ({ error: { code, message }, reason }),
});

const seconds = (name, label) => ({ name, label, type: 'number', help: 'seconds' });

const adjust = () => ({
  verb: 'adjust', done: 'Adjusted.',
  text: html`Fields that are empty stay as they are. A new timeout counts from the same moment as the old one. A new retry policy
    replaces the old one as a whole.`,
  fields: [
    seconds('start_to_close_seconds', 'Timeout of an attempt'),
    seconds('schedule_to_close_seconds', 'Timeout of all attempts'),
    seconds('schedule_to_start_seconds', 'Timeout before the first attempt'),
    seconds('heartbeat_seconds', 'Timeout between heartbeats'),
    { name: 'max_attempts', label: 'Attempts at most', type: 'number', help: 'begins a new retry policy' },
    seconds('initial_interval_seconds', 'First pause of the retry policy'),
    seconds('max_interval_seconds', 'Longest pause of the retry policy'),
  ],
  body: adjustBody,
});

const policyFields = ['max_attempts', 'initial_interval_seconds', 'max_interval_seconds'];

function adjustBody(values) {
  const body = {};
  const policy = {};
  for (const [name, value] of Object.entries(values)) {
    (policyFields.includes(name) ? policy : body)[name] = value;
  }
  return Object.keys(policy).length ? { ...body, retry: policy } : body;
}
