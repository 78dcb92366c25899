// What a report says of a node, in words and tones. No elements.
//
// Exports:
//   livenessOf(node)       {tone, text}
//   partitionsOf(node)     [{partition, role, leader, term, applied, behind, lag_seconds, …}]; without a
//                          report, those that it leads
//   leads(node)            the partitions that the node leads
//   diskOf(node)           {tone, text, stalls} of the disk of the worst partition; null if unknown
//   behindOf(node)         {tone, text} of the partition that is behind most
//   clockOf(node)          the largest offset in s; undefined if unknown
//   snapshotOf(node)       the oldest of the last snapshots of its partitions; undefined if unknown
//   slotsOf(node)          {used, total}; null if unknown
//   boundsOf(node)         [{name, used, max, share, tone}] of what bounds its load, the most used first
//   overloadOf(node)       {tone, text, share} of the first of them; null if unknown
//   queuesOf(activity, workers)  [{tag, queued, served}] of the queues that have a tag; served says
//                          that a worker runs activities with it

import { count, duration } from './format.js';

const slowWrite = 0.1; // s
const longLag = 5; // s
const fine = ['alive', 'live', 'up', 'self', 'reachable', 'ready'];

export function livenessOf(node) {
  if (node.liveness === 'unreachable' || (node.report === false && !node.liveness)) {
    const since = node.last_contact_seconds > 0 ? ` for ${duration(Math.round(node.last_contact_seconds))}` : '';
    return { tone: 'bad', text: `no answer${since}` };
  }
  if (node.report === false) return { tone: 'warn', text: 'no report' };
  if (node.not_ready) return { tone: 'warn', text: 'not ready' };
  const text = node.liveness || 'alive';
  return { tone: fine.includes(text) ? 'good' : 'warn', text };
}

export function partitionsOf(node) {
  if (Array.isArray(node.partitions)) return node.partitions;
  if (!node.partitions) return (node.leader_of ?? []).map((partition) => ({ partition, role: 'leader' }));
  return Object.entries(node.partitions).map(([partition, each]) => ({ partition: Number(partition), ...each }));
}

// A value of the node itself and of its partitions, where there is one.
function valuesOf(node, name) {
  return [node, ...partitionsOf(node)].map((each) => each[name]).filter((value) => value !== undefined && value !== null);
}

export function leads(node) {
  if (Array.isArray(node.leader_of)) return node.leader_of;
  return partitionsOf(node).filter((each) => each.role === 'leader').map((each) => each.partition);
}

export function diskOf(node) {
  const disks = valuesOf(node, 'disk');
  if (disks.length === 0) return null;
  const most = (name) => Math.max(0, ...disks.map((disk) => disk[name] ?? 0));
  const stalls = most('stalls');
  if (disks.some((disk) => disk.full)) return { tone: 'bad', text: 'full', stalls };
  if (most('hangs_seconds') > 0) return { tone: 'bad', text: `a write hangs for ${duration(most('hangs_seconds'))}`, stalls };
  const quantiles = [['p50', most('write_p50_seconds')], ['p99', most('write_p99_seconds')]].filter(([, seconds]) => seconds > 0);
  const text = quantiles.map(([name, seconds]) => `${name} ${duration(seconds)}`).join(', ') || 'no writes yet';
  return { tone: most('write_p99_seconds') > slowWrite ? 'warn' : 'good', text, stalls };
}

export function behindOf(node) {
  const seconds = Math.max(0, ...valuesOf(node, 'lag_seconds'));
  const behind = Math.max(0, ...valuesOf(node, 'behind'));
  if (seconds > longLag && behind > 0) return { tone: 'warn', text: duration(seconds) };
  return { tone: 'good', text: behind > 0 ? `${count(behind)} ${behind === 1 ? 'entry' : 'entries'}` : 'none' };
}

export function clockOf(node) {
  return valuesOf(node, 'clock_offset_seconds').sort((a, b) => Math.abs(b) - Math.abs(a))[0];
}

export function snapshotOf(node) {
  return valuesOf(node, 'snapshot').filter((each) => each.time).sort((a, b) => Date.parse(a.time) - Date.parse(b.time))[0];
}

export function slotsOf(node) {
  const total = node.slots?.total ?? node.slots;
  const free = node.slots?.free ?? node.free_slots;
  return typeof total === 'number' && typeof free === 'number' ? { used: total - free, total } : null;
}

function toneOf(share) {
  return share > 0.9 ? 'bad' : share > 0.6 ? 'warn' : 'good';
}

// Two shapes: {turns: {used, max}} and {turns, turns_max}.
export function boundsOf(node) {
  const all = node.overload ?? {};
  const bounds = [];
  for (const [name, value] of Object.entries(all)) {
    const used = value?.used ?? value;
    const max = value?.max ?? all[`${name}_max`];
    if (typeof used !== 'number' || !(max > 0)) continue;
    bounds.push({ name: name.replaceAll('_', ' '), used, max, share: used / max, tone: toneOf(used / max) });
  }
  return bounds.sort((a, b) => b.share - a.share);
}

export function overloadOf(node) {
  if (!node.overload) return null;
  const [worst] = boundsOf(node);
  if (!worst || worst.used === 0) return { tone: 'good', share: 0, text: 'idle' };
  return { tone: worst.tone, share: worst.share, text: `${worst.share < 0.01 ? '< 1' : Math.round(worst.share * 100)}% of ${worst.name}` };
}

export function queuesOf(activity, workers) {
  const served = new Set((workers ?? []).flatMap((each) => each.tags ?? []));
  return (activity.queues ?? []).filter((each) => each.tag).map((each) => ({ ...each, served: served.has(each.tag) }));
}
