// Runs in a page that holds the report in a frame of a given width (a window cannot be as narrow as a phone),
// and leaves what it found as JSON in an element named "measured".

const SLACK = 1.5; // pixels that do not count

function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const problems = [];
  const style = e => view.getComputedStyle(e);
  const box = e => e.getBoundingClientRect();
  const name = e => `${e.tagName.toLowerCase()}.${e.getAttribute('class') || ''} "${(e.textContent || '').trim().slice(0, 40)}"`;
  const shown = e => box(e).width > 0 && box(e).height > 0 && e.checkVisibility();
  const scrolls = e => e !== root && e !== null && (/auto|scroll|hidden/.test(style(e).overflowX) || scrolls(e.parentElement));
  const overlap = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > SLACK && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > SLACK;
  const everything = [...page.body.querySelectorAll('*')];

  for (const e of everything) {
    const partOfPicture = e.closest('svg') && e.tagName !== 'svg';
    if (!shown(e) || partOfPicture || scrolls(e)) continue;
    if (box(e).right > root.clientWidth + 1 || box(e).left < -1) problems.push(`beyond the page: ${name(e)}`);
  }

  for (const parent of everything) {
    if (parent.closest('svg, pre, p, li')) continue;
    const children = [...parent.children].filter(e => shown(e) && style(e).display !== 'inline');
    for (const [i, first] of children.entries())
      for (const second of children.slice(i + 1, i + 12))
        if (overlap(box(first), box(second))) problems.push(`overlap: ${name(first)} and ${name(second)}`);
  }

  const pictures = [...page.querySelectorAll('svg')].filter(shown);
  for (const svg of pictures) {
    const edge = box(svg);
    const words = [...svg.querySelectorAll('text')].filter(e => !e.closest('.point') && !e.matches('.slope'));
    for (const [i, word] of words.entries()) {
      const r = box(word);
      if (r.right > edge.right + 2 || r.left < edge.left - 2 || r.bottom > edge.bottom + 2 || r.top < edge.top - 2)
        problems.push(`outside its picture: ${name(word)}`);
      for (const other of words.slice(i + 1))
        if (overlap(r, box(other))) problems.push(`words overlap: ${name(word)} and ${name(other)}`);
    }
    for (const group of svg.querySelectorAll('g.box, .graph g.kernel')) {
      const outline = box(group.querySelector('rect'));
      for (const text of group.querySelectorAll(':scope > text'))
        if (box(text).left < outline.left - 1 || box(text).right > outline.right + 1)
          problems.push(`wider than its box: ${name(text)}`);
    }
  }

  const leaves = everything.filter(e => shown(e) && !e.closest('svg') && !e.childElementCount && e.textContent.trim());
  return {
    problems,
    width: root.clientWidth,
    scrollWidth: root.scrollWidth,
    pictures: pictures.length,
    smallest: Math.min(...leaves.map(e => parseFloat(style(e).fontSize))),
  };
}

const frame = document.querySelector('iframe');
frame.addEventListener('load', () => {
  const out = document.createElement('pre');
  out.id = 'measured';
  try {
    out.textContent = JSON.stringify(measure(frame));
  } catch (error) {
    out.textContent = JSON.stringify({problems: [String(error)]});
  }
  document.body.append(out);
});
