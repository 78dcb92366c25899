// Charts of rates over time, drawn as SVG.
//
// Exports:
//   Rates({rates})  starts, ends and failures per second of the last hour, one below the other with one
//                   cursor. rates: {step_seconds, end, started, ended, failed}; numbers per step,
//                   oldest first, the last one in progress. The arrow keys move the cursor.

import { html, useState } from './lib/htm-preact.js';
import { absolute, duration, relative, short } from './format.js';

const series = [
  { name: 'started', label: 'Starts' },
  { name: 'ended', label: 'Ends' },
  { name: 'failed', label: 'Failures' },
];

const height = 54;
const headroom = 4;
const shownAtLeast = 60; // steps

/** A round number that is not below the value. */
function niceMax(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999);
}

// The last step is in progress: its count would look like a drop.
function perSecond(counts, step) {
  return (counts ?? []).slice(0, -1).map((each) => each / step);
}

/** Without the steps before the first count, which nodes that started lately do not have. */
function trimmed(rates) {
  const length = rates.started?.length ?? 0;
  const counted = (step) => series.some(({ name }) => rates[name]?.[step] > 0);
  let first = 0;
  while (first < length - shownAtLeast - 1 && !counted(first)) first++;
  return { ...rates, ...Object.fromEntries(series.map(({ name }) => [name, (rates[name] ?? []).slice(first)])) };
}

function paths(values, max) {
  const y = (value) => (height - (value / max) * (height - headroom)).toFixed(2);
  let line = '';
  values.forEach((value, i) => {
    line += `${i === 0 ? 'M' : 'L'}${i},${y(value)}`;
  });
  return { line, area: `${line}L${values.length - 1},${height}L0,${height}Z` };
}

function timeAt(rates, length, index) {
  return new Date(Date.parse(rates.end) - (length - index) * rates.step_seconds * 1000).toISOString();
}

export function Rates({ rates: reported }) {
  const rates = trimmed(reported);
  const [at, setAt] = useState(null);
  const length = Math.max(0, (rates.started?.length ?? 0) - 1);
  if (length < 2) return html`<p class="quiet">The nodes have counted nothing yet.</p>`;
  const clamp = (index) => Math.max(0, Math.min(length - 1, index));
  const point = (event) => {
    const box = event.currentTarget.querySelector('svg').getBoundingClientRect();
    setAt(clamp(Math.round(((event.clientX - box.left) / box.width) * (length - 1))));
  };
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
    if (event.key === 'Escape') setAt(null);
    if (!step) return;
    setAt(clamp((at ?? length - 1) + step));
    event.preventDefault();
  };
  const shown = at ?? length - 1;
  const time = timeAt(rates, length, shown);
  const values = series.map(({ name }) => perSecond(rates[name], rates.step_seconds));
  const reading = series.map(({ label }, i) => `${label} ${short(values[i][shown] ?? 0)}/s`).join(', ');
  return html`<div class="rates" role="slider" tabindex="0" aria-label="Rates of the last hour" aria-valuemin="0"
    aria-valuemax=${length - 1} aria-valuenow=${shown} aria-valuetext=${`${absolute(time)}: ${reading}`}
    onPointerMove=${point} onPointerLeave=${() => setAt(null)} onKeyDown=${keys}>
    ${series.map((each, i) => html`<${Series} key=${each.name} each=${each} values=${values[i]} at=${at} shown=${shown} />`)}
    <div class="rates-axis"><span>${duration(length * rates.step_seconds)} ago</span>
      <span class="rates-time">${at === null ? 'per second, mean of 10 s' : `${absolute(time)} (${relative(time)})`}</span><span>now</span></div>
  </div>`;
}

function Series({ each, values, at, shown }) {
  const peak = Math.max(0, ...values);
  const max = niceMax(peak);
  const { line, area } = paths(values, max);
  return html`<div class=${`rate rate-${each.name}`}>
    <div class="rate-label"><span>${each.label}</span>
      <strong>${short(values[shown] ?? 0)}<small>/s</small></strong><small>peak ${short(peak)}</small></div>
    <svg viewBox=${`0 0 ${values.length - 1} ${height}`} preserveAspectRatio="none" aria-hidden="true" focusable="false">
      <line class="rate-grid" x1="0" x2=${values.length - 1} y1=${headroom} y2=${headroom} />
      <path class="rate-area" d=${area} /><path class="rate-line" d=${line} />
      <line class="rate-base" x1="0" x2=${values.length - 1} y1=${height - 0.5} y2=${height - 0.5} />
      ${at !== null && html`<line class="rate-cursor" x1=${at} x2=${at} y1="0" y2=${height} />`}
    </svg></div>`;
}
