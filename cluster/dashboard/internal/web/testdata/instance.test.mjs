// Tests of the pure modules of the page of one instance; run by TestInstanceModules with node --test.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as model from '../assets/timeline-model.js';
import * as layout from '../assets/timeline-layout.js';
import * as history from '../assets/history-model.js';

const at = (ms) => new Date(1_700_000_000_000 + ms).toISOString();
const ms = (n) => 1_700_000_000_000 + n;

function sample() {
  return model.createTimeline({
    execution: 1, started_at: at(0), ended_at: null,
    rows: [
      {
        event_id: 2, kind: 'activity', name: 'charge', from: at(10), to: null, outcome: '',
        attempts: [{ number: 1, from: at(20), to: at(30), error: { code: 'bank', message: 'down' } }, { number: 2, from: at(50), to: null }],
      },
      { event_id: 3, kind: 'timer', name: '', from: at(10), to: at(60), outcome: 'fired' },
      { event_id: 5, kind: 'child', name: 'ship', from: at(10), to: null, child_id: 'order-1/ship' },
    ],
    marks: [{ event_id: 4, time: at(10), kind: 'side effect', text: 'uuid' }],
  });
}

test('a time has its microseconds', () => {
  assert.ok(Math.abs(model.milliseconds('2023-11-14T22:13:20.000123456Z') - 1_700_000_000_000.123) < 0.001);
  assert.equal(model.milliseconds('2023-11-14T22:13:20Z'), 1_700_000_000_000);
  assert.equal(model.milliseconds(''), null);
  assert.equal(model.milliseconds('yesterday'), null);
});

test('an activity shows its queue, attempts and pauses between them', () => {
  const [row] = sample().rows;
  const tones = model.segmentsOf(row, ms(80)).map((s) => [s.tone, Math.round(s.from - ms(0)), Math.round(s.to - ms(0))]);
  assert.deepEqual(tones, [['queued', 10, 20], ['failed', 20, 30], ['backoff', 30, 50], ['running', 50, 80]]);
});

test('a timer and a child have tones of their own', () => {
  const rows = sample().rows;
  assert.deepEqual(model.segmentsOf(rows[1], ms(80)).map((s) => s.tone), ['timer']);
  assert.deepEqual(model.segmentsOf(rows[2], ms(80)).map((s) => s.tone), ['child']);
});

test('an event that comes live ends its operation', () => {
  const timeline = sample();
  assert.ok(model.applyEvent(timeline, { event_id: 6, type: 'ActivityCompleted', time: at(90), source_event_id: 2, attempt_count: 2,
    attempts: [{ number: 1, from: at(20), to: at(30), error: { code: 'bank', message: 'down' } }, { number: 2, from: at(50), to: at(90) }] }));
  const row = timeline.byEvent.get(2);
  assert.equal(row.outcome, 'completed');
  assert.equal(row.to, ms(90));
  assert.equal(row.attempts[1].to, ms(90));
  assert.equal(model.applyEvent(timeline, { event_id: 6, type: 'ActivityCompleted', time: at(90), source_event_id: 2 }), false);
});

test('an event that comes live opens an operation and adds a mark', () => {
  const timeline = sample();
  model.applyEvent(timeline, { event_id: 6, type: 'ExternalSubscribed', time: at(70), name: 'paid' });
  model.applyEvent(timeline, { event_id: 7, type: 'ExternalEvent', time: at(95), name: 'paid' });
  model.applyEvent(timeline, { event_id: 8, type: 'OrchestrationCompleted', time: at(99) });
  assert.equal(timeline.byEvent.get(6).outcome, 'received');
  assert.equal(timeline.marks.length, 2);
  assert.deepEqual(model.bounds(timeline, ms(500)).end, ms(99));
});

test('events of another execution do not change a timeline', () => {
  assert.equal(model.applyEvent(sample(), { execution: 2, event_id: 9, type: 'TimerCreated', time: at(99) }), false);
});

test('an activity without known attempts shows what is pending', () => {
  const timeline = model.createTimeline({ execution: 1, started_at: at(0), rows: [{ event_id: 2, kind: 'activity', name: 'mail', from: at(1), to: null }] });
  const operation = { event_id: 2, execution: 1, state: 'backing off', failed_attempts: 3, last_error: { code: 'smtp', message: 'later' } };
  assert.ok(model.annotate(timeline, [operation]));
  assert.ok(!model.annotate(timeline, [operation]));
  const [row] = timeline.rows;
  assert.deepEqual(model.segmentsOf(row, ms(9)).map((s) => [s.tone, s.several]), [['backoff', true]]);
  assert.equal(model.describeRow(row, ms(9), (s) => `${s} s`), 'activity, open for 0.008 s, backing off, 3 failed, last error smtp: later');
  model.applyEvent(timeline, { event_id: 3, type: 'ActivityCompleted', time: at(9), source_event_id: 2, attempt_count: 4 });
  assert.equal(model.attemptsText(row), '4 attempts');
});

test('a gap between live events is noticed', () => {
  const timeline = sample();
  assert.equal(model.extend(timeline, [{ event_id: 5, type: 'TimerCreated', time: at(99) }]), 'same');
  assert.equal(model.extend(timeline, [{ event_id: 8, type: 'TimerCreated', time: at(99) }]), 'gap');
  assert.equal(model.extend(timeline, [{ event_id: 6, type: 'TimerCreated', time: at(99) }, { event_id: 7, type: 'StatusSet', time: at(99) }]), 'changed');
  assert.equal(timeline.rows.length, 4);
});

test('an expanded child shows its rows below its own', () => {
  const timeline = sample();
  const child = model.createTimeline({ execution: 1, started_at: at(11), rows: [{ event_id: 2, kind: 'timer', from: at(12), to: null }] });
  const rows = model.flatten(timeline, new Map([['5', child]]));
  assert.deepEqual(rows.map((r) => [r.key, r.depth]), [['2', 0], ['3', 0], ['5', 0], ['5/2', 1]]);
  const loading = model.flatten(timeline, new Map([['5', 'Loading.']]));
  assert.equal(loading[3].note, 'Loading.');
});

test('a row is described in words', () => {
  const text = model.describeRow(sample().rows[0], ms(80), (s) => `${s.toFixed(2)} s`);
  assert.equal(text, 'activity, open for 0.07 s, 2 attempts, last error bank: down');
});

test('zooming keeps the moment under the cursor, and never shows more than there is', () => {
  const bounds = { start: 0, end: 1000 };
  const whole = layout.fit(bounds);
  const near = layout.zoom(whole, bounds, 0.5, 250);
  assert.ok(Math.abs(layout.position(250, near) - layout.position(250, whole)) < 1e-9);
  assert.deepEqual(layout.zoom(near, bounds, 100), whole);
  assert.deepEqual(layout.pan(near, bounds, -10).start, whole.start);
  assert.ok(layout.showsAll(whole, bounds) && !layout.showsAll(near, bounds));
});

test('segments outside of the view are not drawn, others are cut', () => {
  const placed = layout.place([{ from: 0, to: 5 }, { from: 5, to: 15 }, { from: 30, to: 40 }], { start: 10, end: 20 });
  assert.deepEqual(placed.map((p) => [p.left, p.width]), [[0, 50]]);
});

test('the scale has round steps', () => {
  const labels = layout.ticks({ start: 0, end: 1000 }, 0, 600).map((t) => t.label);
  assert.deepEqual(labels, ['+0 ms', '+200 ms', '+400 ms', '+600 ms', '+800 ms', '+1.0 s']);
  assert.deepEqual(layout.ticks({ start: 0, end: 7_200_000 }, 0, 500).map((t) => t.label), ['+0 m', '+30 m', '+1 h', '+1 h 30 m', '+2 h']);
  assert.deepEqual(layout.ticks({ start: 0, end: 0.4 }, 0, 240).map((t) => t.label), ['+0.0 ms', '+0.2 ms', '+0.4 ms']);
});

test('marks that would overlap are joined', () => {
  const marks = [0, 1, 500, 2000].map((time, i) => ({ time, kind: i ? 'event' : 'side effect', eventId: i }));
  const bins = layout.binMarks(marks, { start: 0, end: 1000 }, 900);
  assert.deepEqual(bins.map((b) => [b.marks, b.kind]), [[2, 'several'], [1, 'event']]);
});

test('the density counts what is open', () => {
  const rows = [{ from: 0, to: 40, attempts: [], outcome: 'completed' }, { from: 30, to: null, attempts: [], outcome: 'open' }, { from: 10, to: 20, attempts: [], outcome: 'failed' }];
  const { open, failed, most } = layout.density(rows, { start: 0, end: 100 }, 10, 60);
  assert.deepEqual([...open], [1, 2, 2, 2, 2, 1, 1, 0, 0, 0]);
  assert.equal(failed[2], 1);
  assert.equal(most, 2);
});

test('of 50,000 rows only the visible ones are drawn', () => {
  const rows = Array.from({ length: 50_000 }, (_, i) => ({ event_id: 2 + i, kind: 'activity', name: 'a', from: at(i), to: at(i + 5), outcome: 'completed', attempts: [] }));
  const timeline = model.createTimeline({ execution: 1, started_at: at(0), ended_at: at(60_000), rows });
  const bounds = model.bounds(timeline, ms(0));
  layout.density(timeline.rows, bounds, 1000, ms(0));
  const shown = model.flatten(timeline, new Map());
  const { first, last } = layout.windowOf(600_000, 600, 24, shown.length);
  for (const { row } of shown.slice(first, last)) {
    layout.place(model.segmentsOf(row, ms(0)), layout.fit(bounds));
  }
  assert.equal(shown.length, 50_000);
  assert.ok(last - first < 60);
});

test('only pages that are missing are read', () => {
  const h = history.createHistory(1, 600);
  assert.deepEqual(history.missingPages(h, 240, 260), [0, 1]);
  h.pages.set(0, 'loading');
  assert.deepEqual(history.missingPages(h, 0, 260), [1]);
  history.addEvents(h, Array.from({ length: 100 }, (_, i) => ({ event_id: 501 + i, type: 'TimerCreated' })));
  assert.deepEqual(history.missingPages(h, 590, 700), []);
});

test('all events of an operation are related', () => {
  const h = history.createHistory(1, 4);
  history.addEvents(h, [{ event_id: 2, type: 'ActivityScheduled' }, { event_id: 3, type: 'TimerCreated' }, { event_id: 4, type: 'ActivityCompleted', source_event_id: 2 }]);
  assert.deepEqual([...history.related(h, 2)], [2, 4]);
  assert.deepEqual([...history.related(h, 4)], [2, 4]);
  assert.deepEqual([...history.related(h, 3)], [3]);
});

test('payloads and fields of an event are told apart', () => {
  const event = { event_id: 2, type: 'ActivityFailed', time: at(0), input: { json: { a: 1 } }, error: { code: 'bank', message: 'down' }, attempt_count: 3, principal: 'gw' };
  assert.deepEqual(history.payloadsOf(event).map((p) => p.field), ['input']);
  assert.equal(history.summarize(event), 'input {"a":1} · bank: down · attempts 3 · by gw');
  assert.ok(history.matches(event, ['bank', 'failed']));
  assert.ok(!history.matches(event, ['absent']));
  assert.equal(history.payloadText({ redacted: true }), 'redacted');
  assert.equal(history.payloadText({ truncated: true, bytes: 70000 }), '70000 bytes, not loaded');
});

test('no run goes on from an event that ended one', () => {
  assert.ok(history.canCopyTo({ type: 'ActivityCompleted' }));
  assert.ok(!history.canCopyTo({ type: 'OrchestrationCompleted' }));
});
