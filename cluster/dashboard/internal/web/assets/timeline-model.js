// What the timeline of an execution shows, as plain data without a DOM.
//
// Exports:
//   milliseconds(text)              Unix milliseconds of an RFC 3339 time, with its microseconds; null for none
//   createTimeline(answer)          the timeline of an answer of the API
//   applyEvent(timeline, event)     adds an event that was recorded later; reports whether anything changed
//   extend(timeline, events)        adds events that came live: 'changed', 'same', or 'gap' if some are missing
//   annotate(timeline, operations)   adds what is known of open operations; reports whether that changed
//   bounds(timeline, now)           the first and the last moment that the timeline shows
//   segmentsOf(row, now)            the segments of the bar of a row
//   attemptsText(row)               how many attempts there were, or "" for one
//   describeRow(row, now, format)   the row as one sentence
//   flatten(timeline, expanded)     the rows of a timeline and of its expanded children, in order
//   kinds                           the kinds of rows, with their names
//
// All times in a timeline are Unix milliseconds in cluster time.

/** The kinds of rows and their names for people. */
export const kinds = {
  activity: 'activity',
  timer: 'timer',
  event: 'wait for event',
  child: 'child',
  message: 'message',
};

// The kind of operation that an event of each type opens.
const opens = {
  ActivityScheduled: 'activity',
  TimerCreated: 'timer',
  ExternalSubscribed: 'event',
  SubOrchestrationScheduled: 'child',
  MessageSent: 'message',
};

// The outcome that an event of each type gives to its operation.
const closes = {
  ActivityCompleted: 'completed',
  ActivityFailed: 'failed',
  TimerFired: 'fired',
  ExternalEvent: 'received',
  SubOrchestrationCompleted: 'completed',
  SubOrchestrationFailed: 'failed',
  MessageDelivered: 'delivered',
  MessageRejected: 'rejected',
  CancelRequested: 'canceled',
};

// The kind of mark for each type of event that is no end of an operation.
const markKinds = {
  ExternalEvent: 'event',
  SideEffectRecorded: 'side effect',
  StatusSet: 'status',
  AttributeSet: 'attribute',
  ValueSet: 'value',
  OperationControlled: 'control',
  HistoryCopied: 'copied',
  OrchestrationChained: 'chained',
  OrchestrationSuspended: 'suspended',
  OrchestrationResumed: 'resumed',
  OrchestrationCancelRequested: 'cancel requested',
};

const endTypes = /^Orchestration(Completed|Failed|Canceled|Terminated|ContinuedAsNew)$/;

/** Returns Unix milliseconds of an RFC 3339 time with up to nine decimals, or null for none. */
export function milliseconds(text) {
  if (!text) {
    return null;
  }
  const whole = /^(.*T\d\d:\d\d:\d\d)\.(\d+)(.*)$/.exec(text);
  const time = whole ? Date.parse(whole[1] + whole[3]) + Number('0.' + whole[2]) * 1000 : Date.parse(text);
  return Number.isNaN(time) ? null : time;
}

/** Returns the timeline of an answer of `instances/{id}/timeline`. */
export function createTimeline(answer) {
  const timeline = {
    execution: answer.execution,
    startedAt: milliseconds(answer.started_at),
    endedAt: milliseconds(answer.ended_at),
    rows: (answer.rows || []).map(newRow),
    marks: (answer.marks || []).map(newMark),
    byEvent: new Map(),
    lastEvent: 0,
    latest: milliseconds(answer.started_at) || 0,
  };
  for (const row of timeline.rows) {
    timeline.byEvent.set(row.eventId, row);
    timeline.lastEvent = Math.max(timeline.lastEvent, row.eventId, row.closedBy || 0);
    timeline.latest = Math.max(timeline.latest, latestOf(row));
  }
  for (const mark of timeline.marks) {
    timeline.lastEvent = Math.max(timeline.lastEvent, mark.eventId);
    timeline.latest = Math.max(timeline.latest, mark.time);
  }
  timeline.lastEvent = Math.max(timeline.lastEvent, answer.last_event_id || 0);
  return timeline;
}

function newRow(row) {
  return {
    eventId: row.event_id,
    kind: row.kind,
    name: row.name || '',
    from: milliseconds(row.from),
    to: milliseconds(row.to),
    outcome: row.outcome || 'open',
    attempts: attemptsOf(row.attempts),
    attemptCount: row.attempt_count || 0,
    childId: row.child_id || '',
    receiver: row.receiver || '',
    fireAt: milliseconds(row.fire_at),
    closedBy: row.closed_by || 0,
    state: '', // of an open activity; see annotate
    failedAttempts: 0,
    lastError: '',
  };
}

function attemptsOf(attempts) {
  return (attempts || []).map((attempt) => ({
    number: attempt.number,
    from: milliseconds(attempt.from),
    to: milliseconds(attempt.to),
    error: errorText(attempt.error),
  }));
}

function newMark(mark) {
  return { eventId: mark.event_id, time: milliseconds(mark.time), kind: mark.kind || 'event', text: mark.text || '' };
}

function errorText(error) {
  if (!error) {
    return '';
  }
  return typeof error === 'string' ? error : [error.code, error.message].filter(Boolean).join(': ');
}

function latestOf(row) {
  return row.attempts.reduce((latest, a) => Math.max(latest, a.to || a.from || 0), Math.max(row.from, row.to || 0));
}

/**
 * Adds an event of the same execution that was recorded after those of the timeline, and returns
 * whether the timeline has changed. Events that it has already are ignored.
 */
export function applyEvent(timeline, event) {
  if (event.execution && event.execution !== timeline.execution || event.event_id <= timeline.lastEvent) {
    return false;
  }
  const time = milliseconds(event.time);
  timeline.lastEvent = event.event_id;
  timeline.latest = Math.max(timeline.latest, time);
  if (endTypes.test(event.type)) {
    timeline.endedAt = time;
  }
  if (opens[event.type]) {
    openRow(timeline, event, time);
  } else if (!closeRow(timeline, event, time) && markKinds[event.type]) {
    timeline.marks.push({ eventId: event.event_id, time, kind: markKinds[event.type], text: event.name || '' });
  }
  return true;
}

function openRow(timeline, event, time) {
  const row = newRow({ event_id: event.event_id, kind: opens[event.type], name: event.name, child_id: event.child_id, receiver: event.receiver });
  row.from = time;
  row.fireAt = milliseconds(event.fire_at);
  timeline.rows.push(row);
  timeline.byEvent.set(row.eventId, row);
}

// closeRow ends the operation that an event completes, and returns whether there is one.
function closeRow(timeline, event, time) {
  let row = timeline.byEvent.get(event.source_event_id);
  if (event.type === 'ExternalEvent') {
    timeline.marks.push({ eventId: event.event_id, time, kind: 'event', text: event.name || '' });
    row = row || timeline.rows.find((r) => r.kind === 'event' && r.outcome === 'open' && r.name === event.name);
  }
  if (!row || !closes[event.type]) {
    return event.type === 'ExternalEvent';
  }
  row.to = time;
  row.outcome = closes[event.type];
  row.closedBy = event.event_id;
  row.attemptCount = event.attempt_count || row.attemptCount;
  row.attempts = attemptsOf(event.attempts);
  return true;
}

/** Adds events that came live. 'gap' means that others are missing: then nothing was added. */
export function extend(timeline, events) {
  const mine = events.filter((e) => !e.execution || e.execution === timeline.execution);
  const news = mine.filter((e) => e.event_id > timeline.lastEvent);
  if (news.some((e, i) => e.event_id !== timeline.lastEvent + 1 + i)) {
    return 'gap';
  }
  return news.map((e) => applyEvent(timeline, e)).some(Boolean) ? 'changed' : 'same';
}

/**
 * Adds to open rows what `instances/{id}/pending` says of them, because failed attempts are no events.
 * Reports whether anything changed.
 */
export function annotate(timeline, operations) {
  let changed = false;
  for (const operation of operations) {
    const row = timeline.byEvent.get(operation.event_id);
    if (!row || operation.execution && operation.execution !== timeline.execution || row.to !== null) {
      continue;
    }
    const failed = operation.failed_attempts || 0;
    const state = operation.held ? 'held' : operation.state || '';
    const attempts = attemptsOf(operation.attempts);
    if (state !== row.state || failed !== row.failedAttempts || attempts.length !== row.attempts.length) {
      Object.assign(row, { state, failedAttempts: failed, lastError: errorText(operation.last_error), attempts });
      changed = true;
    }
  }
  return changed;
}

/** Returns the first and the last moment of a timeline. An open execution ends now. */
export function bounds(timeline, now) {
  const start = timeline.startedAt || now;
  let end = timeline.endedAt;
  if (end === null) {
    end = Math.max(now, timeline.latest);
  }
  return { start, end: Math.max(end, timeline.latest, start + 0.1) };
}

const waits = { timer: 'timer', event: 'wait', message: 'message', child: 'child' };

/**
 * Returns the segments of a row's bar in their order, each {from, to, tone, number, error}. Tones:
 * queued, running, completed, failed, backoff, canceled, timer, wait, child, message. several says that
 * the segment stands for more than one attempt.
 */
export function segmentsOf(row, now) {
  const end = row.to === null ? Math.max(now, row.from) : row.to;
  if (row.kind !== 'activity') {
    const bad = row.outcome === 'failed' || row.outcome === 'rejected' ? 'failed' : null;
    return [{ from: row.from, to: end, tone: bad || (row.outcome === 'canceled' ? 'canceled' : waits[row.kind] || 'wait') }];
  }
  if (!row.attempts.length) {
    const several = row.outcome === 'open' ? row.failedAttempts > 0 : row.attemptCount > 1;
    return [{ from: row.from, to: end, tone: toneOf(row), several }];
  }
  const segments = [];
  let at = row.from;
  for (const [i, attempt] of row.attempts.entries()) {
    const from = Math.max(at, attempt.from === null ? at : attempt.from);
    if (from > at) {
      const omitted = !i && attempt.number > 1; // only the latest attempts are recorded
      segments.push({ from: at, to: from, tone: i || omitted ? 'backoff' : 'queued', several: omitted });
    }
    const last = i === row.attempts.length - 1;
    const to = attempt.to === null ? (last ? end : from) : attempt.to;
    const tone = attempt.error ? 'failed' : last ? toneOfEnd(attempt.to === null ? 'open' : row.outcome) : 'running';
    segments.push({ from, to: Math.max(from, to), tone: tone === 'queued' ? 'running' : tone, number: attempt.number, error: attempt.error });
    at = Math.max(from, to);
  }
  if (end > at) {
    segments.push({ from: at, to: end, tone: row.outcome === 'open' ? 'backoff' : toneOfEnd(row.outcome) });
  }
  return segments;
}

// toneOf is the tone of an activity of which the attempts are not known.
function toneOf(row) {
  if (row.outcome !== 'open') {
    return toneOfEnd(row.outcome);
  }
  return { running: 'running', ending: 'running', 'backing off': 'backoff' }[row.state] || 'queued';
}

function toneOfEnd(outcome) {
  return { completed: 'completed', failed: 'failed', canceled: 'canceled' }[outcome] || 'queued';
}

/** Returns how many attempts there were, if that is worth saying, or "". */
export function attemptsText(row) {
  if (row.outcome === 'open' && row.failedAttempts) {
    return `${row.failedAttempts} failed`;
  }
  const attempts = Math.max(row.attempts.length, row.attemptCount);
  return attempts > 1 ? `${attempts} attempts` : '';
}

/** Describes a row in words. format is a function for durations in seconds. */
export function describeRow(row, now, format) {
  const end = row.to === null ? now : row.to;
  const took = format(Math.max(0, end - row.from) / 1000);
  const parts = [kinds[row.kind] || row.kind, row.outcome === 'open' ? `open for ${took}` : `${row.outcome} after ${took}`];
  const open = row.outcome === 'open';
  if (open && row.state) {
    parts.push(row.state);
  }
  const attempts = attemptsText(row);
  if (attempts) {
    parts.push(attempts);
  }
  const failed = row.attempts.filter((a) => a.error).pop();
  const error = failed ? failed.error : row.lastError;
  if (error && row.outcome !== 'completed') {
    parts.push(`last error ${error}`);
  }
  return parts.join(', ');
}

/**
 * Returns the rows to show, each {row, depth, key, instanceId, open, end}, or {note} instead of a row.
 * end is when the execution ended, for operations that were open then. expanded maps the key of a
 * child's row to its timeline, or to a text while there is none.
 */
export function flatten(timeline, expanded, keep = () => true, depth = 0, prefix = '', instanceId = '') {
  const shown = [];
  for (const row of timeline.rows) {
    if (!keep(row)) {
      continue;
    }
    const key = prefix + row.eventId;
    const child = expanded.get(key);
    shown.push({ row, depth, key, instanceId, open: child !== undefined, end: timeline.endedAt });
    if (typeof child === 'string') {
      shown.push({ note: child, depth: depth + 1, key: key + '/note' });
    } else if (child) {
      const rows = flatten(child, expanded, keep, depth + 1, key + '/', row.childId);
      shown.push(...rows.length ? rows : [{ note: 'This child has no operations yet.', depth: depth + 1, key: key + '/note' }]);
    }
  }
  return shown;
}
