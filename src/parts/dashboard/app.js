'use strict';
// The page of `picolet dashboard`. What a pod or an image can name is only ever set as text.
{
  const $ = (id) => document.getElementById(id);
  const STORE = 'picolet-token';
  // Of a log that are kept.
  const LINES = 1000;
  // Characters of one line that are shown.
  const LINE = 4096;
  // Pods that are listed as not ready.
  const MOST = 10;
  // Characters of the reason beside each of them.
  const REASON = 240;
  // Ms between two questions, at least.
  const PAUSE = 1000;
  const HOUR = 3600;

  // The token comes behind the # of the URL, which no server and no other page sees, and stays in this tab.
  if (/^#\w+$/.test(location.hash)) {
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
    const wanted = new Map();
    for (const item of items) {
      let id = key(item);
      while (wanted.has(id)) id += '+';
      wanted.set(id, item);
    }
    if (!items.length && none) wanted.set(none);
    // What is gone goes first: then nothing else is moved, and a log keeps its place.
    for (const [id, child] of old) {
      if (wanted.has(id)) continue;
      if (child.contains($('log'))) $('pods').after($('log'));
      child.remove();
    }
    let at = list.firstElementChild;
    for (const [id, item] of wanted) {
      let child = old.get(id);
      if (!child) {
        child = item ? make(item) : el('li', 'dim', id);
        child.dataset.key = id;
      }
      if (child === at) at = at.nextElementSibling;
      else list.insertBefore(child, at);
      child.show?.(item);
    }
  };
  const fill = (id, ...more) => keep($(id), ...more);
  // A text that the field of that id looks for.
  const has = (id, text) => text.toLowerCase().includes($(id).value.toLowerCase());

  // By which the node's clock is ahead of this one, ms.
  let ahead = 0;
  // As the commands write it: up to so many seconds in this unit, and the rest in that one.
  const AGES = [
    [120, 1, 's'],
    [600, 60, 'm', 1, 's'],
    [10800, 60, 'm'],
    [28800, HOUR, 'h', 60, 'm'],
    [172800, HOUR, 'h'],
    [691200, 86400, 'd', HOUR, 'h'],
    [63072000, 86400, 'd'],
    [252288000, 31536000, 'y', 86400, 'd'],
    [Infinity, 31536000, 'y'],
  ];
  const age = (at) => {
    if (!at) return '';
    const s = Math.max(0, Math.floor((Date.now() + ahead - new Date(at)) / 1000));
    const [, size, unit, less, word] = AGES.find(([end]) => s < end);
    const rest = less && Math.floor((s % size) / less);
    return Math.floor(s / size) + unit + (rest ? rest + word : '');
  };
  const bytes = (n) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    for (; n >= 1024 && unit < 4; unit++) n /= 1024;
    return (n < 10 && unit ? n.toFixed(1) : Math.round(n)) + ' ' + units[unit];
  };
  const cores = (n) => (n / 1000).toFixed(3);
  const join = (...words) => words.filter(Boolean).join(' · ');

  let state = { node: { name: 'picolet' }, pressure: { short: [], order: [] }, pods: [], pulls: [], events: [], images: [] };
  let gone = '';
  let usage = {};
  let samples = [];
  let seen = '';
  let from = 0;

  const said = (text) => set($('said'), text);
  const attempt = (work) => async (e) => {
    try {
      await work(e);
    } catch (e) {
      said(e.message);
    }
  };
  // Hands on each piece of an answer.
  const read = async (answer, take) => {
    const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await text.read();
      if (done) return;
      take(value);
    }
  };
  const button = (text, label, click) => {
    const made = el('button', '', text);
    made.type = 'button';
    made.setAttribute('aria-label', text + ' of ' + label);
    made.addEventListener('click', click);
    return made;
  };

  const LEVELS = ['error', 'warning', 'ok'];
  const BUSY = /^(Running|Pending|ContainerCreating|PodInitializing|Terminating|NotReady|Init:\d.*)$/;
  const mood = ({ status, ready }) => {
    if (/^(Completed|Succeeded) |^Running (\d+)\/\2$/.test(status + ' ' + ready)) return 'ok';
    return BUSY.test(status) ? 'warning' : 'error';
  };
  const full = (o) => (o.namespace ? o.namespace + '/' : '') + o.name;

  const PROBES = { startupProbe: ['started', 'passed', 'not yet'], readinessProbe: ['ready', 'passes', 'fails'], livenessProbe: ['started', 'watched', 'not yet'] };
  const probe = (c, p) => p.replace('Probe', ' probe ') + PROBES[p][c[PROBES[p][0]] ? 1 : 2];
  // Which container and pod it is, a reader sees.
  const brief = (waiting) => waiting?.message?.replace(/ restarting failed container=.*/, '');
  const end = (t) => t.reason + ' (exit code ' + t.exitCode + ')';
  // A list item of some lines of text, each with its class.
  const lines = (kind, of) => (item) => {
    const made = el('li', kind, ...of(item).map(() => el('div', '', '')));
    made.show = (item) => of(item).forEach((line, n) => set(made.children[n].firstChild, ...line));
    return made;
  };
  const container = lines('c', (c) => {
    const { running, terminated, waiting } = (!gone && c.state) || {};
    const word = running ? 'Running' : terminated ? 'Terminated: ' + end(terminated) : waiting ? join('Waiting', waiting.reason) : 'Unknown';
    return [
      [c.name],
      [c.image, 'dim'],
      [join(word, age(running?.startedAt || terminated?.finishedAt), c.restarts && c.restarts + ' restarts', c.last && 'before: ' + end(c.last))],
      [c.probes.map((p) => (running ? probe(c, p) : p.replace('Probe', ' probe'))).join(', ')],
      [join((terminated || c.last)?.message, brief(waiting)), 'warning'],
    ];
  });
  const HEADS = ['Pod', 'Status', 'Ready', 'Restarts', 'Cores', 'Memory', 'Age'];
  $('heads').append(...HEADS.map(name));
  const pod = (p) => {
    const made = el('li');
    const details = el('details');
    const words = HEADS.map(() => name(''));
    // Names and states tell what they are; what numbers are is beside them or, if there is room, above.
    const summary = el('summary', 'row', ...words.map((word, n) => (n < 2 ? word : el('span', '', el('small', '', HEADS[n] + ' '), word))));
    const about = el('p', 'dim', '');
    const list = el('ul');
    const id = { namespace: p.namespace, pod: p.name };
    details.append(summary, about, list);
    if (state.actions && p.static) {
      const act = (what, path) => button(what, p.name, attempt(async () => {
        if (confirm(what + ' ' + full(p) + '?')) said(await (await ask(path + query(id), { method: 'POST' })).text());
      }));
      details.append(act('Restart', 'restart'), act('Delete', 'delete'));
    }
    made.id = 'pod-' + p.uid;
    made.append(details);
    made.show = (p) => {
      const [cpu, memory] = (!gone && usage[full(p)]) || [];
      set(words[0], full(p));
      set(words[1], gone ? 'Unknown' : p.status, gone ? 'error' : mood(p));
      set(words[2], gone ? '–' : p.ready);
      set(words[3], p.restarts + (p.restarted && p.restarts ? ' (' + age(p.restarted) + ' ago)' : ''), p.restarts ? 'warning' : '');
      set(words[4], cpu == null ? '–' : cores(cpu));
      set(words[5], memory == null ? '–' : bytes(memory));
      set(words[6], age(p.created));
      set(about.firstChild, join(p.ip && 'IP ' + p.ip, p.message));
      keep(list, p.containers, (c) => c.name, (c) => {
        const made = container(c);
        const of = { ...id, container: c.name };
        made.append(button('Log', c.name, follow(of)), button('Previous log', c.name, follow({ ...of, previous: true })));
        return made;
      });
    };
    return made;
  };
  // Why a container is not ready.
  const why = (c) => {
    const { running, terminated, waiting } = c.state || {};
    const t = waiting ? c.last : terminated?.exitCode && terminated;
    const missed = running && c.probes.find((p) => !c[PROBES[p][0]]);
    return join(t && end(t), t?.message, brief(waiting), missed && probe(c, missed));
  };
  const unready = (p) => {
    const link = el('a', '', full(p));
    link.href = '#pod-' + p.uid;
    const made = el('li', '', link, ' ', '');
    made.show = (p) => {
      const first = p.containers.find(why);
      const reason = p.message || (first && (p.containers[1] ? first.name + ': ' : '') + why(first)) || '';
      set(made.lastChild, join(p.status, p.ready + ' ready', reason.slice(0, REASON) + (reason[REASON] ? '…' : '')), mood(p));
    };
    return made;
  };
  const good = (c) => c.status === (/Pressure$|Unavailable$|Worn$/.test(c.type) ? 'False' : 'True');
  const condition = lines('', (c) => [
    [c.type + ': ' + c.status + (c.since ? ' for ' + age(c.since) : ''), good(c) ? 'ok' : 'error'],
    [good(c) ? '' : c.message || '', 'dim'],
  ]);
  const event = lines('', (e) => [
    [join(age(e.at) + ' ago', e.reason, full(e), e.count > 1 && e.count + ' times'), e.type === 'Normal' ? 'dim' : 'warning'],
    [e.message],
  ]);
  const finding = lines('', (f) => [
    [f.level + ' · ' + f.name, f.level],
    [f.message],
    [f.fix ? 'Fix: ' + f.fix : '', 'dim'],
  ]);

  const capacity = () => parseInt(state.node.memory) * 1024;
  // Title, unit, numbers of the sample, end of the scale if it is not the highest value.
  const PLOTS = [
    ['Processor (cores)', cores, [1], () => state.node.cpu * 1000],
    ['Memory', bytes, [2], capacity],
    ['Disk, used', bytes, [3], () => state.disk],
    ['Network in, out (dashed)', (n) => bytes(n) + '/s', [4, 5]],
  ];
  const plot = ([title, unit, of, most], n) => {
    const last = samples.at(-1);
    const [caption, svg, top, , start] = $('plots').children[n].children;
    const all = of.flatMap((n) => samples.map((s) => s[n])).filter((v) => v != null);
    const high = Math.max(1, ...all, most?.() || 0);
    // Until an hour has passed the plot is as wide as what there is.
    const from = Math.max(last[0] - HOUR, Math.min(samples[0][0], last[0] - 60));
    of.forEach((n, i) => {
      let d = '';
      let before = null;
      for (const s of samples) {
        if (s[n] == null || s[0] < from) continue;
        const x = ((s[0] - from) / (last[0] - from)) * 100;
        // Nobody looked: there is a gap.
        d += (before === null || s[0] - before > 30 ? 'M' : 'L') + x.toFixed(2) + ' ' + (99 - (s[n] / high) * 98).toFixed(2);
        before = s[0];
      }
      svg.children[i].setAttribute('d', d);
    });
    set(caption, title + ': ' + of.map((n) => (last[n] == null ? '–' : unit(last[n]))).join(', '));
    set(top, unit(high));
    set(start, age(from * 1000) + ' ago');
  };

  const draw = () => {
    const { node, pressure, check, pods } = state;
    document.body.className = gone && 'gone';
    set($('trouble'), gone && gone + ' – below is what was known last.');
    $('trouble').hidden = !gone;
    document.title = node.name + ' – picolet';
    set($('name'), node.name);
    set($('about'), join(node.version, node.os, node.kernel, node.architecture, node.cpu && node.cpu + ' processors', capacity() && bytes(capacity())));
    const found = check?.checks || [{ name: 'check', level: check ? 'error' : 'ok', message: check?.trouble || 'Looking…' }];
    const sorted = LEVELS.flatMap((level) => found.filter((f) => f.level === level));
    fill('short', gone ? [] : pressure.short, (s) => s.signal, lines('error', (s) => [
      ['short of ' + s.signal + ': ' + s.available + ' left, ' + s.limit + ' required, for ' + age(s.since) + (s.soft ? ' (soft)' : '')],
    ]));
    fill('errors', sorted.filter((f) => f.level === 'error'), (f) => f.name, finding);
    const bad = LEVELS.flatMap((level) => pods.filter((p) => !gone && level !== 'ok' && mood(p) === level));
    fill('unready', bad.slice(0, MOST), (p) => p.uid, unready);
    set($('more'), bad.length > MOST ? 'and ' + (bad.length - MOST) + ' more pods that are not ready' : '');
    const conditions = (!gone && node.conditions) || [];
    fill('bad', conditions.filter((c) => !good(c)), (c) => c.type, condition);
    fill('conditions', conditions.filter(good), (c) => c.type, condition);
    set($('h-pods'), 'Pods (' + pods.length + ')');
    fill('pods', pods, (p) => p.uid + (state.actions ? '!' : ''), pod, gone ? 'Not known.' : 'No pods.');
    fill('check', sorted, (f) => f.name, finding);
    fill('events', state.events, (e) => [e.namespace, e.name, e.reason, e.message].join('\n'), event, 'No events.');
    fill('pulls', state.pulls, (p) => p.split(':')[0], lines('warning', (p) => [[p]]));
    const tagged = (i) => i.name + ':' + i.tag;
    const images = [...state.images].sort((a, b) => tagged(a).localeCompare(tagged(b)));
    set($('h-images'), 'Images (' + images.length + ')');
    fill('images', images.filter((i) => has('find-images', tagged(i))), (i) => tagged(i) + i.id, lines('', (i) => [[tagged(i)], [join(bytes(i.size), i.id), 'dim']]), 'No images.');
    set($('by'), pressure.order.length ? 'By ' + pressure.by + ', the first one first.' : 'No pod may be evicted.');
    fill('next', pressure.order, full, lines('', (p) => [
      [join(full(p), 'priority ' + p.priority, 'uses ' + (p.used || '?') + ' of ' + p.request + ' asked for')],
    ]));
    $('pull').hidden = !state.actions;
    if (samples.length) PLOTS.forEach(plot);
  };

  const poll = async () => {
    const began = performance.now();
    try {
      const news = await (await ask('state' + query({ seen, from }), { signal: AbortSignal.timeout(20000) })).json();
      ahead = news.now - Date.now();
      // Of an agent that is gone the last state stays.
      if (news.state) state = news.state.node ? news.state : { ...state, ...news.state };
      // Samples of a dashboard before this one are of no use.
      if (news.from < from) [samples, from] = [[], 0];
      samples.push(...news.samples);
      samples.splice(0, samples.length - 720);
      [seen, from, usage] = [news.seen, news.from, news.usage];
      gone = state.trouble || '';
    } catch (e) {
      gone = e instanceof TypeError ? 'The dashboard does not answer. Is picolet dashboard still running?' : e.message;
    }
    draw();
    // A slow board is asked less often; nobody looks at a hidden page.
    setTimeout(next, Math.max(PAUSE, 3 * (performance.now() - began)));
  };
  const next = () => (document.hidden ? document.addEventListener('visibilitychange', next, { once: true }) : poll());

  // Colours of a terminal, as red, green, blue: 16, a cube, greys.
  const PALETTE = '888f775c8ea57afd9f5cdccc888faa9ebfd8acfebf9effff';
  const colour = (n) => {
    if (n < 16) return [0, 1, 2].map((i) => parseInt(PALETTE[3 * n + i], 16) * 17);
    return [36, 6, 1].map((size) => {
      const step = Math.floor((n - 16) / size) % 6;
      return n < 232 ? step && step * 40 + 55 : n * 10 - 2312;
    });
  };
  const light = ([r, g, b]) => 0.3 * r + 0.6 * g + 0.1 * b;
  // Of the log; see style.css.
  const BACK = [17, 17, 17];
  const FRONT = [238, 238, 238];
  const KEYS = { 3: 'front', 4: 'back', 9: 'front', 10: 'back' };
  let pen = {};
  const dip = (codes) => {
    while (codes.length) {
      const code = +codes.shift();
      const key = KEYS[Math.floor(code / 10)];
      const n = code % 10;
      if (!code) pen = {};
      else if (code < 10) pen[code] = true;
      else if (code < 30) {
        delete pen[n];
        // Both bold and faint end so.
        if (n === 2) delete pen[1];
      } else if (!key) continue;
      else if (n < 8) pen[key] = colour(code < 90 ? n : n + 8);
      else if (n > 8) delete pen[key];
      else pen[key] = codes.shift() === '5' ? colour(+codes.shift()) : codes.splice(0, 3).map(Number);
    }
  };
  const paint = (text) => {
    let { front = FRONT, back = BACK } = pen;
    if (pen[7]) [front, back] = [back, front];
    // Nobody hides text in its background.
    if (Math.abs(light(front) - light(back)) < 50) front = light(back) < 128 ? FRONT : BACK;
    const made = el('span', Object.keys(pen).map((n) => 's' + n).join(' '));
    made.textContent = text;
    if (front !== FRONT) made.style.color = 'rgb(' + front + ')';
    if (back !== BACK) made.style.background = 'rgb(' + back + ')';
    return made;
  };
  // What a terminal obeys and does not show: of it only colours matter here.
  const ESCAPES = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*.)/;
  const STAMP = /^\d{4}-\S+Z /;

  let reading = null;
  let opener = null;
  let shown = {};
  const box = $('lines');
  const close = () => {
    reading?.abort();
    reading = null;
    $('log').hidden = true;
    opener?.focus();
  };
  $('close').addEventListener('click', close);
  const sift = (line) => (line.hidden = !has('find-lines', line.textContent));
  const isAtEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  addEventListener('input', () => {
    draw();
    const atEnd = isAtEnd();
    [...box.children].forEach(sift);
    if (atEnd) box.scrollTop = box.scrollHeight;
  });
  $('save').addEventListener('click', attempt(async () => {
    const text = await (await ask('log' + query({ ...shown, all: true }))).text();
    const link = el('a');
    link.href = URL.createObjectURL(new Blob([$('times').checked ? text : text.replace(RegExp(STAMP, 'gm'), '')]));
    link.download = shown.pod + '_' + shown.container + '.log';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), PAUSE);
  }));
  const line = (text, kind) => {
    const made = el('div', kind);
    made.dir = 'auto';
    const [stamp] = STAMP.exec(text) || [''];
    made.append(name(stamp));
    text = text.slice(stamp.length);
    // A colour that ends in what is cut off ends here.
    if (text.length > LINE) text = text.slice(0, LINE) + '…\x1b[m';
    // What follows a carriage return is written over what was before it.
    const parts = text.replace(/\r+$/, '').replace(/.*\r/s, '').split(ESCAPES);
    for (let n = 0; n < parts.length; n += 3) {
      if (parts[n - 1] === 'm') dip(parts[n - 2].split(/;|:+/));
      if (parts[n]) made.append(paint(parts[n]));
    }
    sift(made);
    return made;
  };
  const follow = (id) => async ({ currentTarget }) => {
    close();
    const own = (reading = new AbortController());
    [opener, shown, pen] = [currentTarget, id, {}];
    opener.parentNode.append($('log'));
    $('h-log').replaceChildren(...['Log of ', id.namespace + '/' + id.pod, ' ', id.container, id.previous ? ' before its last restart' : ''].map(name));
    box.replaceChildren();
    $('log').hidden = false;
    $('log').scrollIntoView({ block: 'nearest' });
    box.focus();
    const add = (texts, kind) => {
      const atEnd = isAtEnd();
      box.append(...texts.map((text) => line(text, kind)));
      // Who reads further up goes on reading there.
      const high = box.scrollHeight;
      while (box.childElementCount > LINES) box.firstChild.remove();
      box.scrollTop = atEnd ? high : box.scrollTop - high + box.scrollHeight;
    };
    try {
      const answer = await ask('log' + query(id), { signal: own.signal });
      let rest = '';
      await read(answer, (value) => {
        const parts = (rest + value).split('\n');
        rest = parts.pop().slice(0, 2 * LINE);
        add(parts.slice(-LINES));
      });
      if (rest) add([rest]);
      add(['The log ends here.'], 'dim');
    } catch (e) {
      if (reading === own) add([e.message], 'error');
    }
  };

  $('pull').addEventListener('submit', attempt(async (e) => {
    e.preventDefault();
    const reference = $('reference').value.trim();
    await read(await ask('pull' + query({ reference }), { method: 'POST' }), (value) => said(reference + ': ' + value.trimEnd().split('\n').pop()));
  }));

  next();
}
