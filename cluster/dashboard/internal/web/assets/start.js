// The dialog that starts an instance.
//
// Exports:
//   startInstance()

import { get, pageURL, post } from './api.js';
import { ask } from './dialog.js';

const codeWait = 2000; // ms; without an answer the name is typed

async function namesOfCode() {
  try {
    const code = await get(['code'], {}, AbortSignal.timeout(codeWait));
    const names = (code.definitions ?? []).filter((each) => each.kind !== 'activity').map((each) => each.name);
    return [...new Set(names)].filter((name) => !name.startsWith('tenuto.')).sort();
  } catch {
    return [];
  }
}

export async function startInstance() {
  const names = await namesOfCode();
  const name = { name: 'name', label: 'Orchestration', required: true };
  await ask({
    title: 'Start an instance',
    fields: [
      names.length > 0 ? { ...name, type: 'select', value: names[0], options: names.map((each) => [each, each]) } : name,
      { name: 'id', label: 'Instance ID', help: 'Without one, a random ID is used.' },
      { name: 'input', label: 'Input', type: 'json', rows: 6, help: 'JSON.' },
      { name: 'tags', label: 'Tags', type: 'json', rows: 2, help: 'A JSON object of texts, such as {"tenant": "acme"}.' },
      { name: 'start_at', label: 'Not before', type: 'time' },
    ],
    confirm: 'Start',
    run: async (values) => {
      const started = await post(['instances'], values);
      location.assign(pageURL(['instances', started.id]));
    },
  });
}
