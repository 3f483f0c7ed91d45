'use strict';
// The page of `picolet dashboard`. What a pod or an image can name is only ever set as text.
{
  const $ = (id) => document.getElementById(id);
  const STORE = 'picolet-token';
  const LINES = 1000; // of a log that are kept
  const LINE = 4096; // characters of one line that are shown
  const PAUSE = 1000; // ms between two questions, at least
  const HOUR = 3600;

  // The token comes behind the # of the URL, which no server and no other page sees, and stays in this tab.
  if (location.hash.length > 1) {
    sessionStorage.setItem(STORE, location.hash.slice(1));
    history.replaceState(null, '', location.pathname);
  }
  const headers = { authorization: 'Bearer ' + sessionStorage.getItem(STORE) };
  const ask = async (path, more) => {
    const answer = await fetch(path, { headers, ...more });
    if (!answer.ok) throw Error(await answer.text());
    return answer;
  };
  const query = (fields) => '?' + new URLSearchParams(fields);

  // An element of that class with these children: texts, isolated from what is around them, or elements.
  const el = (tag, kind, ...children) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    for (const child of children) made.append(child instanceof Node ? child : name(child));
    return made;
  };
  const name = (text) => {
    const made = document.createElement('bdi');
    made.textContent = text;
    return made;
  };
  const set = (node, text, kind) => {
    if (node.textContent !== text) node.textContent = text;
    if (kind !== undefined && node.className !== kind) node.className = kind;
  };
  // Keeps the children of a list, each by its key, so that what is open or has the focus stays so.
  const keep = (list, items, key, make, none) => {
    const old = new Map([...list.children].map((child) => [child.dataset.key, child]));
    let at = list.firstElementChild;
    const put = (id, made) => {
      let child = old.get(id);
      old.delete(id);
      if (!child) {
        child = made();
        child.dataset.key = id;
      }
      if (child === at) at = at.nextElementSibling;
      else list.insertBefore(child, at);
      return child;
    };
    const taken = new Set();
    for (const item of items) {
      let id = key(item);
      while (taken.has(id)) id += '+';
      taken.add(id);
      put(id, () => make(item)).show?.(item);
    }
    if (!items.length && none) put('none', () => el('li', 'dim', none));
    for (const child of old.values()) child.remove();
  };

  let now = 0; // ms since 1970, by the node's clock
  let received = 0; // when that was heard, by performance.now()
  const time = () => now + performance.now() - received;
  const age = (at) => {
    if (!at) return '';
    const s = Math.max(0, Math.floor((time() - Date.parse(at)) / 1000));
    if (s < 120) return s + 's';
    if (s < 7200) return Math.floor(s / 60) + 'm';
    if (s < 172800) return Math.floor(s / 3600) + 'h';
    return Math.floor(s / 86400) + 'd';
  };
  const bytes = (n) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    for (; n >= 1024 && unit < 4; unit++) n /= 1024;
    return (n < 10 && unit ? n.toFixed(1) : Math.round(n)) + ' ' + units[unit];
  };
  const milli = (n) => n + 'm';
  const join = (...words) => words.filter(Boolean).join(' · ');

  let state = null;
  let usage = {};
  let samples = [];
  let seen = '';
  let from = 0;

  const said = (text) => set($('said'), text);
  const act = async (path, fields) => {
    try {
      said(await (await ask(path + query(fields), { method: 'POST' })).text());
    } catch (e) {
      said(e.message);
    }
  };
  const button = (text, label, click) => {
    const made = el('button', '', text);
    made.type = 'button';
    made.setAttribute('aria-label', text + ' of ' + label);
    made.addEventListener('click', click);
    return made;
  };

  const GOOD = ['Running', 'Completed', 'Succeeded'];
  const BUSY = ['Pending', 'ContainerCreating', 'PodInitializing', 'Terminating', 'NotReady'];
  const mood = (word) =>
    GOOD.includes(word) ? 'good' : BUSY.includes(word) || word.startsWith('Init:') ? 'warn' : 'bad';

  const end = (t) => t.reason + ' (exit code ' + t.exitCode + ')';
  const container = (pod, c) => {
    const made = el('div', 'c');
    const [title, image, line, probes, message] = [0, 1, 2, 3, 4].map(() => el('div'));
    const id = { namespace: pod.namespace, pod: pod.name, container: c.name };
    made.append(title, image, line, probes, message);
    made.append(button('Log', c.name, () => follow(id)));
    made.append(button('Previous log', c.name, () => follow({ ...id, previous: true })));
    title.append(name(c.name));
    image.append(name(c.image));
    image.className = 'dim';
    for (const part of [line, probes, message]) part.append(name(''));
    message.className = 'warn';
    made.show = (c) => {
      const { running, terminated, waiting } = c.state || {};
      const at = running || terminated || waiting || {};
      const word = running ? 'Running' : terminated ? 'Terminated: ' + end(terminated) : 'Waiting' + (at.reason ? ': ' + at.reason : '');
      const since = age(at.startedAt && running ? at.startedAt : at.finishedAt);
      set(line.firstChild, join(word, since, c.restarts && c.restarts + ' restarts', c.last && 'before: ' + end(c.last)));
      const words = {
        startupProbe: c.started ? 'passed' : 'not yet',
        readinessProbe: c.ready ? 'passes' : 'fails',
        livenessProbe: c.started ? 'watched' : 'not yet',
      };
      set(probes.firstChild, c.probes.map((p) => p.replace('Probe', ' probe') + (running ? ' ' + words[p] : '')).join(', '));
      set(message.firstChild, at.message || c.last?.message || '');
    };
    return made;
  };
  const pod = (p) => {
    const made = el('li');
    const details = el('details');
    const words = [0, 1, 2, 3, 4, 5].map(() => name(''));
    const summary = el('summary', '', ...words);
    const about = el('p', 'dim', '');
    const list = el('div');
    const full = p.namespace + '/' + p.name;
    const id = { namespace: p.namespace, pod: p.name };
    details.append(summary, about, list);
    if (state.actions && p.static) {
      const sure = (what, path) => () => confirm(what + ' ' + full + '?') && act(path, id);
      details.append(button('Restart', p.name, sure('Restart', 'restart')));
      details.append(button('Delete', p.name, sure('Delete', 'delete')));
    }
    made.append(details);
    made.show = (p) => {
      const [cpu, memory] = usage[full] || [];
      const restarts = p.restarts === 1 ? '1 restart' : p.restarts + ' restarts';
      set(words[0], full);
      set(words[1], p.status, mood(p.status));
      set(words[2], p.ready + ' ready');
      set(words[3], restarts + (p.restarted && p.restarts ? ' (' + age(p.restarted) + ' ago)' : ''), p.restarts ? 'warn' : '');
      set(words[4], join(cpu != null && milli(cpu), memory != null && bytes(memory)));
      set(words[5], age(p.created));
      set(about.firstChild, join(p.ip, p.message));
      keep(list, p.containers, (c) => c.name, (c) => container(p, c));
    };
    return made;
  };
  // A list item of some lines of text.
  const lines = (kind, of) => (item) => {
    const made = el('li', kind);
    made.show = (item) => {
      const texts = of(item);
      while (made.children.length < texts.length) made.append(el('div', '', ''));
      texts.forEach(([text, kind], n) => {
        const line = made.children[n];
        set(line.firstChild, text);
        if (line.className !== kind) line.className = kind;
      });
    };
    return made;
  };
  const condition = lines('', (c) => {
    const bad = /Pressure$|Unavailable$/.test(c.type) ? 'True' : 'False';
    const good = c.status !== bad && c.status !== 'Unknown';
    const since = c.since ? ' for ' + age(c.since) : '';
    return [
      [c.type + ': ' + c.status + since, good ? 'good' : 'bad'],
      [good ? '' : c.message || '', 'dim'],
    ];
  });
  const event = lines('', (e) => [
    [join(age(e.at) + ' ago', e.reason, e.namespace ? e.namespace + '/' + e.name : e.name, e.count > 1 && e.count + ' times'), e.type === 'Normal' ? 'dim' : 'warn'],
    [e.message, ''],
  ]);
  const finding = lines('', (f) => [
    [f.level + ' · ' + f.name, { ok: 'good', warning: 'warn' }[f.level] || 'bad'],
    [f.message, ''],
    [f.fix ? 'Fix: ' + f.fix : '', 'dim'],
  ]);

  // Numbers of the sample, title, unit.
  const PLOTS = [
    ['Processor', milli, [1]],
    ['Memory', bytes, [2]],
    ['Disk', bytes, [3]],
    ['Network in, out', (n) => bytes(n) + '/s', [4, 5]],
  ];
  const plot = ([title, unit, of]) => {
    const figure = el('figure');
    const caption = el('figcaption', '', '');
    const ns = 'http://www.w3.org/2000/svg';
    const svg = document.createElementNS(ns, 'svg');
    svg.setAttribute('viewBox', '0 0 100 100');
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('role', 'img');
    const paths = of.map(() => svg.appendChild(document.createElementNS(ns, 'path')));
    figure.append(caption, svg);
    figure.show = () => {
      const last = samples.at(-1);
      if (!last) return;
      const all = of.flatMap((n) => samples.map((s) => s[n])).filter((v) => v != null);
      const top = Math.max(1, ...all);
      // Until an hour has passed the plot is as wide as what there is.
      const start = Math.max(last[0] - HOUR, Math.min(samples[0][0], last[0] - 60));
      of.forEach((n, i) => {
        let d = '';
        let before = null;
        for (const s of samples) {
          if (s[n] == null || s[0] < start) continue;
          const x = ((s[0] - start) / (last[0] - start)) * 100;
          // Nobody looked: there is a gap.
          d += (before === null || s[0] - before > 30 ? 'M' : 'L') + x.toFixed(2) + ' ' + (98 - (s[n] / top) * 96).toFixed(2);
          before = s[0];
        }
        paths[i].setAttribute('d', d);
      });
      const text = of.map((n) => (last[n] == null ? '–' : unit(last[n]))).join(', ');
      set(caption.firstChild, title + ': ' + text + (all.length ? ' (top ' + unit(top) + ')' : ''));
      svg.setAttribute('aria-label', caption.textContent);
    };
    return figure;
  };
  keep($('plots'), PLOTS, (p) => p[0], plot);

  const draw = () => {
    if (!state || !state.node) return;
    const { node, pressure, check } = state;
    document.title = node.name + ' – picolet';
    set($('name'), node.name);
    set($('about'), join(node.version, node.os, node.kernel, node.architecture, node.cpu && node.cpu + ' processors', parseInt(node.memory) && bytes(parseInt(node.memory) * 1024)));
    keep($('conditions'), node.conditions || [], (c) => c.type, condition);
    keep($('short'), pressure.short, (s) => s.signal, lines('bad', (s) => [
      ['short of ' + s.signal + ': ' + s.available + ' left, ' + s.limit + ' must be, for ' + age(s.since) + (s.soft ? ' (soft)' : ''), ''],
    ]));
    keep($('pods'), state.pods, (p) => p.uid + (state.actions ? '!' : ''), pod, 'No pods.');
    keep($('events'), state.events, (e) => [e.namespace, e.name, e.reason, e.message].join('\n'), event, 'No events.');
    keep($('pulls'), state.pulls, (p) => p.split(':')[0], lines('warn', (p) => [[p, '']]));
    keep($('images'), state.images, (i) => i.name + ':' + i.tag + i.id, lines('', (i) => [[i.name + ':' + i.tag, ''], [join(bytes(i.size), i.id), 'dim']]), 'No images.');
    const found = check?.checks || [{ name: 'check', level: check?.trouble ? 'error' : 'ok', message: check?.trouble || 'Looking…' }];
    const rank = (f) => ['error', 'warning', 'ok'].indexOf(f.level);
    keep($('check'), [...found].sort((a, b) => rank(a) - rank(b)), (f) => f.name, finding);
    set($('by'), pressure.order.length ? 'By ' + pressure.by + ', the first one first.' : 'No pod may be evicted.');
    keep($('next'), pressure.order, (p) => p.namespace + '/' + p.name, lines('', (p) => [
      [join(p.namespace + '/' + p.name, 'priority ' + p.priority, 'uses ' + (p.used || '?') + ' of ' + p.request + ' asked for'), ''],
    ]));
    $('pull').hidden = !state.actions;
    for (const figure of $('plots').children) figure.show();
    if (samples.length) {
      const began = new Date(samples[0][0] * 1000).toLocaleTimeString();
      set($('began'), 'The plots begin at ' + began + ', when this dashboard was first looked at: the agent keeps no history.');
    }
  };

  const trouble = (text) => {
    set($('trouble'), text || '');
    $('trouble').hidden = !text;
  };
  const poll = async () => {
    const began = performance.now();
    try {
      const news = await (await ask('state' + query({ seen, from }), { signal: AbortSignal.timeout(20000) })).json();
      [now, received] = [news.now, performance.now()];
      if (news.state) state = news.state;
      // Samples of a dashboard before this one are of no use.
      if (news.from < from) [samples, from] = [[], 0];
      samples.push(...news.samples);
      samples.splice(0, samples.length - 720);
      [seen, from, usage] = [news.seen, news.from, news.usage];
      trouble(state.trouble);
      draw();
    } catch (e) {
      trouble(e instanceof TypeError ? 'The dashboard does not answer. Is picolet dashboard still running?' : e.message);
    }
    // A slow board is asked less often; nobody looks at a hidden page.
    setTimeout(next, Math.max(PAUSE, 3 * (performance.now() - began)));
  };
  const next = () => (document.hidden ? document.addEventListener('visibilitychange', next, { once: true }) : poll());

  let reading = null;
  const close = () => {
    reading?.abort();
    reading = null;
    $('log').hidden = true;
  };
  $('close').addEventListener('click', close);
  const follow = async (id) => {
    close();
    const own = (reading = new AbortController());
    const box = $('lines');
    $('h-log').replaceChildren('Log of ', name(id.namespace + '/' + id.pod), ' ', name(id.container), id.previous ? ', before the last restart' : '');
    box.replaceChildren();
    $('log').hidden = false;
    $('log').scrollIntoView({ block: 'nearest' });
    box.focus();
    const add = (text, kind) => {
      const line = el('div', kind || '');
      line.dir = 'auto';
      line.textContent = text.length > LINE ? text.slice(0, LINE) + '…' : text;
      const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
      box.append(line);
      if (box.childElementCount > LINES) box.firstChild.remove();
      if (atEnd) box.scrollTop = box.scrollHeight;
    };
    try {
      const answer = await ask('log' + query(id), { signal: own.signal });
      let rest = '';
      const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await text.read();
        if (done) break;
        const parts = (rest + value).split('\n');
        rest = parts.pop().slice(0, LINE + 1);
        for (const part of parts.slice(-LINES)) add(part);
      }
      if (rest) add(rest);
      add('The log ends here.', 'dim');
    } catch (e) {
      if (reading === own) add(e.message, 'bad');
    }
  };

  $('pull').addEventListener('submit', async (e) => {
    e.preventDefault();
    const reference = $('reference').value.trim();
    try {
      const answer = await ask('pull' + query({ reference }), { method: 'POST' });
      const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await text.read();
        if (done) break;
        said(reference + ': ' + value.trimEnd().split('\n').pop());
      }
    } catch (e) {
      said(e.message);
    }
  });

  next();
}
