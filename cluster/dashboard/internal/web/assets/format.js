// Times, durations, numbers and payloads as text and as elements. Payloads only become text nodes.
//
// Exports:
//   now()                      time of the server in ms, estimated
//   setServerTime(text)        tells this module the time of an answer, by the server's clock
//   absolute(time, precise)    '2026-01-02 15:04:05', in the chosen zone; precise: with ms
//   relative(time)             '5 min ago', 'in 3 s'
//   duration(seconds)          '350 ms', '1.2 s', '3 min 4 s', '2 d 3 h'
//   count(number)              with separators: '12,345'
//   short(number)              '12.3k'
//   bytes(number)              '1.5 MiB'
//   Time({value, precise, empty})  a <time> element as the user has chosen, redrawn as time passes
//   useNow(ms)                 hook: redraws every ms, returns now()
//   Payload({value, name, open, href})  a payload of the API: folded, pretty, as text
//   payloadText(value, indent) a payload as one text

import { html, useEffect, useState } from './lib/htm-preact.js';
import { usePrefs, prefs } from './prefs.js';

let offset = 0; // ms from the browser's clock to the server's

export function now() {
  return Date.now() + offset;
}

export function setServerTime(text) {
  const time = Date.parse(text);
  if (!Number.isNaN(time)) offset = time - Date.now();
}

const pad = (number, width = 2) => String(number).padStart(width, '0');

export function absolute(time, precise) {
  const date = new Date(time);
  if (!time || Number.isNaN(date.getTime())) return '';
  const utc = prefs().zone === 'utc';
  const part = (name) => (utc ? date[`getUTC${name}`]() : date[`get${name}`]());
  const day = `${part('FullYear')}-${pad(part('Month') + 1)}-${pad(part('Date'))}`;
  const clock = `${pad(part('Hours'))}:${pad(part('Minutes'))}:${pad(part('Seconds'))}`;
  return `${day} ${clock}${precise ? `.${pad(part('Milliseconds'), 3)}` : ''}${utc ? ' UTC' : ''}`;
}

const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];

export function duration(seconds) {
  if (seconds === undefined || seconds === null || Number.isNaN(seconds)) return '';
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return '0 s';
  if (seconds < 0.001) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 2 : 1))} s`;
  const first = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[first];
  const whole = Math.floor(seconds / size);
  const [lower, lowerSize] = units[first + 1];
  const rest = Math.floor((seconds - whole * size) / lowerSize);
  return rest > 0 ? `${whole} ${unit} ${rest} ${lower}` : `${whole} ${unit}`;
}

export function relative(time) {
  const date = Date.parse(time);
  if (Number.isNaN(date)) return '';
  const seconds = (now() - date) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return 'now';
  const [unit, length] = units.find(([, each]) => size >= each) ?? units[3];
  const text = `${Math.floor(size / length)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

const plain = new Intl.NumberFormat('en-US');

export function count(number) {
  return typeof number === 'number' ? plain.format(number) : '–';
}

export function short(number) {
  if (typeof number !== 'number') return '–';
  if (Math.abs(number) < 1000) return String(Number(number.toPrecision(3)));
  const [size, suffix] = [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([each]) => Math.abs(number) >= each);
  return `${Number((number / size).toPrecision(3))}${suffix}`;
}

export function bytes(number) {
  if (typeof number !== 'number') return '–';
  let value = number;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (value < 1024 || unit === 'GiB') return `${Number(value.toPrecision(3))} ${unit}`;
    value /= 1024;
  }
  return '';
}

export function useNow(every) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((n) => n + 1), every);
    return () => clearInterval(timer);
  }, [every]);
  return now();
}

export function Time({ value, precise, empty = '–' }) {
  const chosen = usePrefs();
  useNow(chosen.times === 'relative' ? 5000 : 3600000);
  if (!value || value.startsWith('0001-')) return html`<span class="quiet">${empty}</span>`;
  const exact = absolute(value, precise).replace(' UTC', ''); // the header shows the zone
  const ago = relative(value);
  const isRelative = chosen.times === 'relative';
  return html`<time datetime=${value} title=${isRelative ? absolute(value, true) : ago}>
    ${isRelative ? ago : exact}</time>`;
}

// Payload values of the API, see its documentation: exactly one of these fields is set.
function special(value) {
  if (value === undefined || value === null) return 'none';
  if (value.redacted) return 'redacted';
  if (value.truncated) return `${bytes(value.bytes)}, not shown`;
  return '';
}

export function payloadText(value, indent = 2) {
  const instead = special(value);
  if (instead) return instead;
  if (value.base64 !== undefined) return `base64: ${value.base64}`;
  const content = typeof value === 'object' && 'json' in value ? value.json : value;
  return JSON.stringify(content, null, indent) ?? '';
}

const foldAbove = 120; // characters of the text on one line

export function Payload({ value, name = 'payload', open = false, href }) {
  const [isOpen, setOpen] = useState(open);
  const instead = special(value);
  if (instead) {
    return html`<span class="payload-note">${instead}${value?.truncated && href &&
      html` <a href=${href} target="_blank" rel="noopener">Open ${name} whole</a>`}</span>`;
  }
  const line = payloadText(value, 0);
  if (line.length <= foldAbove && !open) return html`<code class="payload-line">${line}</code>`;
  return html`<div class="payload">
    <button type="button" class="fold" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      <span class="fold-mark" aria-hidden="true">${isOpen ? '▾' : '▸'}</span>
      ${isOpen ? `Fold ${name}` : html`<code class="payload-line">${line.slice(0, foldAbove)}…</code>`}
    </button>
    ${isOpen && html`<pre class="payload-text" tabindex="0" aria-label=${name}>${payloadText(value)}</pre>`}
  </div>`;
}
