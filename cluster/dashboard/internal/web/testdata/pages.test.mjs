// Tests of what the pages compute without elements; run by TestPageModules_ComputeIfNodeIsInstalled with node --test.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as filter from '../assets/filtertext.js';
import * as format from '../assets/format.js';
import * as nodes from '../assets/nodestate.js';
import { setPref } from '../assets/prefs.js';

test('the order of a filter is read and replaced', () => {
  assert.deepEqual(filter.orderOf('state=failed order=-updated'), { column: 'updated', descending: true });
  assert.deepEqual(filter.orderOf('tag.order=-updated'), { column: 'id', descending: false });
  assert.equal(filter.withOrder('state=failed order=-updated', 'updated'), 'state=failed order=updated');
  assert.equal(filter.withOrder('', 'created'), 'order=-created');
  assert.equal(filter.withOrder('order=-created name=x', 'id'), 'name=x order=id');
  assert.equal(filter.withoutOrder('order=id'), '');
});

test('keys and values are quoted if they need it', () => {
  assert.equal(filter.quote('acme'), 'acme');
  assert.equal(filter.quote('eu west'), '"eu west"');
  assert.equal(filter.quote('say "yes"'), '"say \\"yes\\""');
  assert.equal(filter.quote(''), '""');
});

test('a suggestion replaces the whole word, also if the user has typed since', () => {
  const text = 'state=failed name=che x=y';
  const completed = { text, start: 13, end: 21 };
  const accept = (typed, cursor, suggestion) => filter.withSuggestion(typed, cursor, completed, suggestion);
  assert.deepEqual(accept(text, 19, 'name=checkout'), { text: 'state=failed name=checkout x=y', cursor: 27 });
  assert.deepEqual(accept(text, 15, 'name='), { text: 'state=failed name= x=y', cursor: 18 });
  assert.deepEqual(accept('state=failed name=chec x=y', 22, 'name=checkout'), { text: 'state=failed name=checkout x=y', cursor: 27 });
  assert.deepEqual(accept('name=che x=y', 8, 'name=checkout'), { text: 'name=che x=y', cursor: 8 });
  assert.deepEqual(accept(text, 2, 'name=checkout'), { text, cursor: 2 });
  const keyed = { text: 'sta=failed', start: 0, end: 4 };
  assert.deepEqual(filter.withSuggestion(keyed.text, 2, keyed, 'state='), { text: 'state=failed', cursor: 6 });
});

test('durations have two units at most', () => {
  for (const [seconds, want] of [
    [0, '0 s'], [0.0000123, '12 µs'], [0.0125, '12.5 ms'], [0.35, '350 ms'], [1.234, '1.23 s'], [59.96, '60 s'], [61, '1 min 1 s'],
    [3600, '1 h'], [93784, '1 d 2 h'], [-2, '−2 s'],
  ]) assert.equal(format.duration(seconds), want);
});

test('numbers are short', () => {
  assert.deepEqual([0, 3.14159, 999, 12345, 1.5e6].map(format.short), ['0', '3.14', '999', '12.3k', '1.5M']);
  assert.equal(format.count(1234567), '1,234,567');
  assert.equal(format.bytes(73400320), '70 MiB');
});

test('times follow the cluster and the zone', (t) => {
  t.mock.method(Date, 'now', () => 1_700_000_000_000);
  format.setServerTime(new Date(Date.now() + 3600e3).toISOString());
  assert.equal(format.relative(new Date(Date.now() + 3590e3).toISOString()), '10 s ago');
  assert.equal(format.relative(new Date(Date.now() + 3600e3 + 125e3).toISOString()), 'in 2 min');
  setPref('zone', 'utc');
  assert.equal(format.absolute('2026-01-02T03:04:05.678901Z', true), '2026-01-02 03:04:05.678 UTC');
  assert.equal(format.absolute(''), '');
});

test('payloads say what they are', () => {
  assert.equal(format.payloadText({ json: { a: '<script>' } }, 0), '{"a":"<script>"}');
  assert.equal(format.payloadText({ json: null }, 0), 'null');
  assert.equal(format.payloadText({ base64: 'AAE=' }), 'base64: AAE=');
  assert.equal(format.payloadText({ redacted: true }), 'redacted');
  assert.equal(format.payloadText({ truncated: true, bytes: 70000 }), '68.4 KiB, not shown');
});

test('a node is as bad as its worst part', () => {
  assert.equal(nodes.livenessOf({ liveness: 'alive' }).tone, 'good');
  assert.equal(nodes.livenessOf({ liveness: 'unreachable', last_contact_seconds: 70 }).text, 'no answer for 1 min 10 s');
  assert.equal(nodes.livenessOf({ liveness: 'alive', report: false }).text, 'no report');
  assert.equal(nodes.diskOf({ disk: { full: true } }).tone, 'bad');
  assert.equal(nodes.diskOf({ disk: { write_p99_seconds: 0.2 } }).tone, 'warn');
  assert.equal(nodes.overloadOf({ overload: { a: { used: 1, max: 10 }, b: { used: 95, max: 100 } } }).text, '95% of b');
  assert.equal(nodes.overloadOf({ overload: { turns: 64, turns_max: 128, hung: 3 } }).text, '50% of turns');
  assert.equal(nodes.clockOf({ partitions: [{ clock_offset_seconds: 0.1 }, { clock_offset_seconds: -0.3 }] }), -0.3);
  assert.deepEqual(nodes.slotsOf({ slots: 100, free_slots: 30 }), { used: 70, total: 100 });
  assert.deepEqual(nodes.leads({ partitions: [{ partition: 0, role: 'leader' }, { partition: 1, role: 'follower' }] }), [0]);
});

test('queues by tag say whether a worker has the tag', () => {
  const activity = { queues: [{ tag: '', queued: 1 }, { tag: 'arm', queued: 2 }, { tag: 'gpu', queued: 3 }] };
  assert.deepEqual(nodes.queuesOf(activity, [{ node: 'a' }, { node: 'b', tags: ['gpu'] }]),
    [{ tag: 'arm', queued: 2, served: false }, { tag: 'gpu', queued: 3, served: true }]);
  assert.deepEqual(nodes.queuesOf({}, undefined), []);
});
