// The actions on one instance, each with its dialog.
//
// Exports:
//   instanceActions(status, onDone)   {buttons, menu: [{label, dataAction, act, danger, hidden}], rewind, fork}

import { html } from './lib/htm-preact.js';
import { get, may, pageURL, post } from './api.js';
import { ask, notify } from './dialog.js';
import { Payload } from './format.js';

const endStates = new Set(['completed', 'failed', 'canceled', 'terminated']);
const waitingStates = new Set(['stalled', 'waiting for code', 'hung']);

/** Reports whether an instance in a state has ended. */
export const hasEnded = (state) => endStates.has(state);

/** Reports whether an instance in a state records nothing until its code can continue. */
export const recordsNothing = (state) => waitingStates.has(state);

/** Reports whether histories of an orchestration can be copied. Those of tenuto itself cannot. */
const isCopyable = (name) => !name.startsWith('tenuto.');

/** Reports whether an instance can begin a new run: not while a parent waits for the present one. */
const isRepeatable = ({ name, state, parent_id: parent }) => isCopyable(name) && (!parent || hasEnded(state));

/**
 * Returns what the user may do with an instance. rewind(eventId) and fork(eventId) are null if the
 * user may not. onDone is called after each action that was done.
 */
export function instanceActions(status, execution, onDone) {
  const { id, state } = status;
  const ended = hasEnded(state);
  const simple = (verb, options) => act({ ...options, run: (values) => post(['instances', id, verb], values) }, onDone);
  const input = (verb, options) => simple(verb, waits(state, options));
  const suspended = state === 'suspended';
  const stuck = state === 'stalled' || state === 'waiting for code';
  const again = isRepeatable(status);
  const menu = [
    { label: 'Send event…', dataAction: 'send-event', right: 'send', shown: !ended, act: () => act(waits(state, sendDialog(id)), onDone) },
    { label: 'Update…', dataAction: 'update', right: 'update', shown: !ended, act: () => update(id, state, onDone) },
    { label: 'Query…', right: 'query', shown: true, act: () => query(id) },
    { label: 'Read key-value map…', right: 'query', shown: true, act: () => readMap(id) },
    { label: 'Suspend…', dataAction: 'suspend', right: 'suspend', shown: !ended && !suspended, act: () => input('suspend', suspendDialog), first: true },
    { label: 'Resume…', dataAction: 'resume', right: 'resume', shown: !ended && suspended, act: () => input('resume', resumeDialog), first: true },
    { label: 'Retry…', dataAction: 'retry', right: 'retry', shown: stuck, act: () => simple('retry', retryDialog), first: true },
    { label: 'Rerun…', dataAction: 'rerun', right: 'rerun', shown: again, act: () => simple('rerun', rerunDialog(ended)), first: ended },
    { label: 'Rewind…', dataAction: 'rewind', right: 'rewind', shown: again, act: () => copy('rewind', status, execution, 0, onDone) },
    { label: 'Fork…', dataAction: 'fork', right: 'fork', shown: isCopyable(status.name), act: () => copy('fork', status, execution, 0, onDone) },
    { label: 'Cancel…', dataAction: 'cancel', right: 'cancel', shown: !ended, act: () => input('cancel', cancelDialog), first: true },
    { label: 'Terminate…', dataAction: 'terminate', right: 'terminate', shown: !ended, danger: true, act: () => simple('terminate', terminateDialog(id)) },
    { label: 'Purge…', dataAction: 'purge', right: 'purge', shown: ended, danger: true, act: () => purge(id) },
  ].filter((item) => item.shown && may(item.right));
  const begin = (verb, allowed) => (allowed && may(verb) ? (eventId) => copy(verb, status, execution, eventId, onDone) : null);
  return {
    buttons: menu.filter((item) => item.first),
    menu: menu.filter((item) => !item.first),
    rewind: begin('rewind', again),
    fork: begin('fork', isCopyable(status.name)),
  };
}

async function act({ done, ...dialog }, onDone) {
  const answer = await ask({ reason: true, ...dialog });
  if (answer) {
    notify(done);
    onDone(answer);
  }
  return answer;
}

/** Returns the dialog of an input. It says if the input will be recorded only later. */
function waits(state, dialog) {
  if (!recordsNothing(state)) {
    return dialog;
  }
  const text = html`${dialog.text && html`<p>${dialog.text}</p>`}<p>The instance is ${state}: this waits until its code continues.</p>`;
  return { ...dialog, text };
}

const suspendDialog = {
  title: 'Suspend', confirm: 'Suspend', done: 'Suspended.',
  text: 'The code does not continue until you resume it. Running activities continue, and events are kept for later.',
};
const resumeDialog = { title: 'Resume', confirm: 'Resume', done: 'Resumed.', text: 'The code continues where it stopped.' };
const cancelDialog = {
  title: 'Cancel the run', confirm: 'Cancel the run', done: 'Cancellation requested.', danger: true,
  text: 'The code is asked to end. Before it ends, it may compensate what it has done.',
};
const retryDialog = {
  title: 'Retry', confirm: 'Retry', done: 'The code runs again.', reason: false, // nothing would record it
  text: 'The code runs again on the history of the instance. The outcome differs only if the leader\'s node has other code now.',
};
const rerunDialog = (ended) => ({
  title: 'Rerun', confirm: 'Rerun', done: 'A new run has begun.', danger: !ended,
  text: `A new run begins with the input and the options of the latest one.${ended ? '' : ' The run in progress is terminated.'}`,
});
const terminateDialog = (id) => ({
  title: 'Terminate', confirm: 'Terminate', done: 'Terminated.', danger: true, typed: id,
  text: 'The run ends at once. The code does not notice and compensates nothing. Consider canceling it instead.',
});

const nameField = (label) => ({ name: 'name', label, required: true });
const inputField = (label) => ({ name: 'input', label, type: 'json', help: 'JSON. If it is empty: null.' });

const sendDialog = (id) => ({
  title: 'Send an event', confirm: 'Send', done: 'The event is recorded.',
  fields: [nameField('Name of the event'), { ...inputField('Data'), name: 'data' }],
  run: ({ name, ...body }) => post(['instances', id, 'events', name], body),
});

async function update(id, state, onDone) {
  const answer = await act(waits(state, {
    title: 'Update', confirm: 'Update', done: 'The update has ended.',
    text: 'The handler of the update runs in the instance and is recorded. This waits for its answer.',
    fields: [nameField('Name of the update'), inputField('Input')],
    run: ({ name, ...body }) => post(['instances', id, 'updates', name], body),
  }), onDone);
  if (answer) {
    show('Answer of the update', answer.output);
  }
}

async function query(id) {
  const answer = await ask({
    title: 'Query', confirm: 'Ask', text: 'The handler of the query reads the state of the instance. Nothing is recorded.',
    fields: [nameField('Name of the query'), inputField('Input')],
    run: ({ name, input }) => get(['instances', id, 'query', name], input === undefined || input === null ? {} : { input: JSON.stringify(input) }),
  });
  if (answer) {
    show('Answer of the query', answer.output);
  }
}

async function readMap(id) {
  const answer = await ask({
    title: 'Read a key-value map', confirm: 'Read', fields: [nameField('Name of the map')],
    run: ({ name }) => get(['instances', id, 'kv', name]),
  });
  if (answer) {
    show('Values', { json: answer.values ?? answer });
  }
}

function show(title, value) {
  return ask({ title, confirm: 'Close', text: html`<${Payload} value=${value ?? { json: null }} name="answer" open />` });
}

async function purge(id) {
  const answer = await ask({
    title: 'Purge', confirm: 'Purge', danger: true, typed: id,
    text: 'The instance and all of its histories are deleted. This cannot be undone.',
    run: () => post(['instances', id, 'purge']),
  });
  if (answer) {
    location.assign(pageURL(['instances']));
  }
}

/** Asks for the point of a rewind or a fork and begins the run. */
async function copy(verb, { id, state, last_event_id: last }, execution, eventId, onDone) {
  const isFork = verb === 'fork';
  const latest = Math.max(1, last - (hasEnded(state) ? 1 : 0));
  const fields = [{
    name: 'event_id', label: 'Last event to keep', type: 'number', required: true, value: String(eventId || latest),
    help: 'The code continues after it. Operations that were open there run again.',
  }];
  if (isFork) {
    fields.push({ name: 'id', label: 'ID of the new instance', help: 'Empty: the cluster chooses one.' });
  }
  fields.push({ name: 'drop_events', label: 'Drop the external events that came later', type: 'checkbox', help: 'Otherwise the new run receives them at its beginning.' });
  const answer = await act({
    title: isFork ? 'Fork' : 'Rewind', confirm: isFork ? 'Fork' : 'Rewind', fields,
    danger: !isFork && !hasEnded(state),
    done: isFork ? 'A new instance has begun.' : 'A new run has begun.',
    text: isFork
      ? 'A new instance begins with a copy of the history up to an event. This one is not changed.'
      : `A new run of this instance begins with a copy of the history up to an event.${hasEnded(state) ? '' : ' The run in progress is terminated.'}`,
    run: (values) => post(['instances', id, verb], { ...values, execution }),
  }, onDone);
  if (answer && isFork && answer.id) {
    location.assign(pageURL(['instances', answer.id]));
  }
}
