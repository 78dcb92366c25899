// What a report says of a node, in words and tones. No elements.
//
// Exports:
//   livenessOf(node)       {tone, text}
//   partitionsOf(node)     [{partition, role, leader, term, applied, behind, lag_seconds}]
//   leads(node)            the partitions that the node leads
//   diskOf(node)           {tone, text}
//   lagOf(node)            {tone, text} of the partition that is behind most
//   overloadOf(node)       {tone, text, share} of the bound that is used most

import { count, duration } from './format.js';

const slowWrite = 0.1; // s
const longLag = 5; // s

export function livenessOf(node) {
  if (node.report === false || node.liveness === 'unreachable') {
    const since = node.last_contact_seconds ? `, ${duration(node.last_contact_seconds)} ago` : '';
    return { tone: 'bad', text: `does not answer${since}` };
  }
  const text = node.liveness || 'alive';
  return { tone: ['alive', 'live', 'up', 'self', 'reachable'].includes(text) ? 'good' : 'warn', text };
}

export function partitionsOf(node) {
  if (Array.isArray(node.partitions)) return node.partitions;
  return Object.entries(node.partitions ?? {}).map(([partition, each]) => ({ partition: Number(partition), ...each }));
}

export function leads(node) {
  if (Array.isArray(node.leader_of)) return node.leader_of;
  return partitionsOf(node).filter((each) => each.role === 'leader').map((each) => each.partition);
}

export function diskOf(node) {
  const disk = node.disk;
  if (!disk) return { tone: 'quiet', text: 'unknown' };
  if (disk.full) return { tone: 'bad', text: 'full' };
  if (disk.hangs_seconds > 0) return { tone: 'bad', text: `hangs for ${duration(disk.hangs_seconds)}` };
  const slow = disk.write_p99_seconds > slowWrite;
  return { tone: slow ? 'warn' : 'good', text: `p99 ${duration(disk.write_p99_seconds) || '–'}` };
}

export function lagOf(node) {
  const seconds = Math.max(node.lag_seconds ?? 0, ...partitionsOf(node).map((each) => each.lag_seconds ?? 0));
  const behind = Math.max(node.behind ?? 0, ...partitionsOf(node).map((each) => each.behind ?? 0));
  if (seconds > longLag) return { tone: 'warn', text: `${duration(seconds)} behind` };
  return { tone: 'good', text: behind > 0 ? `${count(behind)} entries` : 'none' };
}

export function overloadOf(node) {
  const bounds = Object.entries(node.overload ?? {}).filter(([, each]) => each && typeof each === 'object' && each.max > 0);
  let worst = { share: 0, name: '' };
  for (const [name, each] of bounds) {
    if (each.used / each.max > worst.share) worst = { share: each.used / each.max, name: name.replaceAll('_', ' ') };
  }
  const percent = `${Math.round(worst.share * 100)}%`;
  const tone = worst.share > 0.9 ? 'bad' : worst.share > 0.6 ? 'warn' : 'good';
  return { tone, share: worst.share, text: worst.name ? `${percent} of ${worst.name}` : 'idle' };
}
