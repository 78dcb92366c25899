// The events of one execution, read in pages as they are needed, without a DOM.
//
// Exports:
//   pageSize                         events in a page
//   createHistory(execution, last)   an empty history with events 1 to last
//   addEvents(history, events)       adds events that were read or that have come live
//   missingPages(history, first, last)   the pages that are needed to show rows [first, last)
//   related(history, eventId)        the event IDs of the operation that an event belongs to
//   toneOf(type)                     how a type of events looks: start, good, bad, operator, plain
//   summarize(event, formatTime)     what the event says, as one line
//   payloadsOf(event)                its payloads, each {field, value}
//   fieldsOf(event, formatTime)      its other fields, each [name, text]
//   matches(event, words)            whether the text of an event contains all words
//   canCopyTo(event)                 whether a run can be rewound to the event or forked at it

export const pageSize = 250;

// Fields of an event that the table shows in columns of their own.
const columns = new Set(['event_id', 'type', 'time', 'name', 'execution', 'source_event_id']);

// Fields that can be payloads. Others are shown as text.
const payloadFields = new Set(['input', 'output', 'result', 'data', 'value', 'custom_status', 'payload', 'status']);

const isTime = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

const ends = /^Orchestration(Completed|Failed|Canceled|Terminated|ContinuedAsNew)$/;

export function createHistory(execution, last) {
  return { execution, last, events: new Map(), pages: new Map(), operations: new Map() };
}

/** Adds events, and the operations that they open, end or change. */
export function addEvents(history, events) {
  for (const event of events) {
    history.events.set(event.event_id, event);
    history.last = Math.max(history.last, event.event_id);
    const operation = operationOf(event);
    if (operation) {
      const others = history.operations.get(operation) || new Set([operation]);
      others.add(event.event_id);
      history.operations.set(operation, others);
    }
  }
}

function operationOf(event) {
  return event.source_event_id || event.operation_event_id || event.operation || 0;
}

/** Returns the numbers of pages, from 0, of which rows [first, last) need one that is not there. */
export function missingPages(history, first, last) {
  const missing = [];
  const end = Math.min(last, history.last);
  for (let page = Math.floor(first / pageSize); page * pageSize < end; page++) {
    if (!history.pages.has(page) && !isComplete(history, page)) {
      missing.push(page);
    }
  }
  return missing;
}

function isComplete(history, page) {
  const last = Math.min((page + 1) * pageSize, history.last);
  for (let id = page * pageSize + 1; id <= last; id++) {
    if (!history.events.has(id)) {
      return false;
    }
  }
  return true;
}

/** Returns the event IDs of the operation of an event, as far as they are known. */
export function related(history, eventId) {
  const event = history.events.get(eventId);
  const operation = event && operationOf(event) || eventId;
  return history.operations.get(operation) || new Set([eventId]);
}

/** Returns the tone of an event type. */
export function toneOf(type) {
  if (/(Failed|Rejected|Terminated)$/.test(type)) {
    return 'bad';
  }
  if (/(Completed|Fired|Delivered)$/.test(type)) {
    return 'good';
  }
  if (/(Scheduled|TimerCreated|Subscribed|MessageSent)$/.test(type)) {
    return 'start';
  }
  return /^(ExternalEvent|OperationControlled|CancelRequested|HistoryCopied|Orchestration)/.test(type) ? 'operator' : 'plain';
}

/** Returns the payloads of an event, each {field, value}. */
export function payloadsOf(event) {
  return Object.entries(event)
    .filter(([field, value]) => isPayload(field, value))
    .map(([field, value]) => ({ field, value }));
}

/** Reports whether a value is a payload: {json}, {base64}, {truncated} or {redacted}. */
export function isPayload(field, value) {
  if (!value || typeof value !== 'object' || Array.isArray(value)) {
    return false;
  }
  return ['json', 'base64', 'truncated', 'redacted'].some((key) => key in value) || payloadFields.has(field) && 'content_type' in value;
}

/** Returns the fields of an event that are neither columns nor payloads, as texts. */
export function fieldsOf(event, formatTime = (time) => time) {
  return Object.entries(event)
    .filter(([field, value]) => !columns.has(field) && !isPayload(field, value) && value !== '' && value !== null && value !== undefined)
    .map(([field, value]) => {
      if (field === 'attempts') {
        return ['known attempts', value.map((attempt) => attemptText(attempt, formatTime)).join('; ')];
      }
      return [names[field] || field.replaceAll('_', ' '), isTime.test(value) ? formatTime(value) : textOf(value)];
    });
}

const names = { attempt_count: 'attempts' };

function attemptText({ number, from, to, error }, formatTime) {
  return `${number}: ${formatTime(from)} to ${formatTime(to)}${error ? `, ${textOf(error)}` : ''}`;
}

function textOf(value) {
  if (value && typeof value === 'object') {
    if ('code' in value && 'message' in value) {
      return value.code ? `${value.code}: ${value.message}` : value.message;
    }
    return JSON.stringify(value);
  }
  return String(value);
}

/** Returns the text of a payload on one line, cut to max characters. */
export function payloadText(payload, max = 200) {
  if (payload.redacted) {
    return 'redacted';
  }
  if (payload.truncated) {
    return `${payload.bytes} bytes, not loaded`;
  }
  const text = 'json' in payload ? JSON.stringify(payload.json) : `base64 ${payload.base64}`;
  return text.length > max ? text.slice(0, max) + '…' : text;
}

const quiet = new Set(['known attempts', 'principal', 'reason', 'request id', 'headers', 'options', 'trace']);

/** Returns what an event says, as one line: its error, fields and payloads. */
export function summarize(event, formatTime) {
  const texts = payloadsOf(event).map(({ field, value }) => `${field} ${payloadText(value)}`);
  const fields = fieldsOf(event, formatTime);
  for (const [name, text] of fields) {
    if (!quiet.has(name)) {
      texts.push(name === 'error' ? text : `${name} ${text}`);
    }
  }
  if (event.principal) {
    texts.push(`by ${event.principal}`);
  }
  if (event.reason) {
    texts.push(`because “${event.reason}”`);
  }
  return texts.join(' · ');
}

/** Reports whether the text of an event contains all words, which are in lower case. */
export function matches(event, words) {
  const text = `${event.event_id} ${event.type} ${event.name || ''} ${JSON.stringify(event)}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Reports whether a run can be rewound to the event or forked at it. */
export function canCopyTo(event) {
  return !ends.test(event.type);
}
