"""The page's style sheet. One file, no fonts fetched: it must read well on a phone, on paper and in the dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #faf8f4; --card: #ffffff; --ink: #22211e; --dim: #67645d; --line: #e2ddd2; --soft: #f1ede4;
  --accent: #a8401f; --good: #2b7a4b; --bad: #b3261e; --grey: #b9b4a8; --pale: #ddd8cc;
  --h0: #c2562d; --h1: #2f7f86; --h2: #8a5aa8; --h3: #b58a12; --h4: #3f6fb5; --h5: #a83e6c;
  --c: #77736a; --s: #55751f; --n: #9a4d12; --k: #8a3ba0; --v: #1f6f8b; --f: #1d4f9c; --d: #8d6a00;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "URW Palladio L", Georgia, serif;
  --sans: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #171614; --card: #1f1e1b; --ink: #eae7df; --dim: #a19d92; --line: #36332d; --soft: #282621;
    --accent: #f0895f; --good: #6cc48c; --bad: #ff8a80; --grey: #6d695f; --pale: #3b3831;
    --h0: #ee8a5f; --h1: #5cc0c8; --h2: #c297de; --h3: #dcb64b; --h4: #82abe8; --h5: #e381ac;
    --c: #938e83; --s: #a9c774; --n: #e6a06a; --k: #d59ae6; --v: #74c3dc; --f: #8fb8f2; --d: #d8b958;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--sans);
  overflow-wrap: break-word;
}
header.page, main, footer { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
header.page { padding-top: 40px; padding-bottom: 8px; }
.mark {
  font: 600 .8rem/1 var(--sans); letter-spacing: .14em; text-transform: uppercase; color: var(--accent);
  margin: 0 0 .9rem;
}
h1, h2, h3 { font-family: var(--serif); font-weight: 600; line-height: 1.2; margin: 0; text-wrap: balance; }
h1 { font-size: clamp(1.7rem, 5vw, 2.6rem); letter-spacing: -.01em; }
h2 { font-size: clamp(1.15rem, 4.6vw, 1.9rem); font-family: var(--mono); font-weight: 600; letter-spacing: -.02em; }
h3 { font-size: 1.3rem; margin-bottom: .35rem; }
h4 { font: 600 .92rem/1.35 var(--mono); margin: 0; }
p { margin: .4rem 0; max-width: 76ch; }
a { color: var(--accent); text-underline-offset: .2em; text-decoration-thickness: 1px; }
a:focus-visible, summary:focus-visible, pre:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
code, .mono { font-family: var(--mono); font-size: .9em; }
.dim, figcaption, .missing { color: var(--dim); }
figcaption { font-size: .86rem; margin: 0 0 .8rem; max-width: 110ch; }
figure { margin: 0; min-width: 0; }
footer { color: var(--dim); font-size: .85rem; padding-top: 8px; padding-bottom: 56px; }

table.overview { border-collapse: collapse; width: 100%; margin: 1.6rem 0 .4rem; font-size: .95rem; }
table.overview th {
  text-align: right; font-weight: 500; color: var(--dim); font-size: .82rem; padding: .3rem .6rem;
}
table.overview td {
  text-align: right; padding: .55rem .6rem; border-top: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap;
}
table.overview th:first-child, table.overview td:first-child {
  text-align: left; padding-left: 0; white-space: normal;
}
table.overview td.big { font-weight: 650; color: var(--accent); }

article { border-top: 2px solid var(--ink); margin-top: 3rem; padding-top: 1.6rem; }
.headline { display: flex; flex-wrap: wrap; gap: .4rem 2rem; align-items: baseline; margin: 1rem 0 .3rem; }
.headline .from { color: var(--dim); font-size: 1.5rem; font-family: var(--serif); }
.headline .to {
  font-size: clamp(2.1rem, 8vw, 3.3rem); line-height: 1.1; font-family: var(--serif); font-weight: 600;
}
.headline .ratio { font-size: 1.25rem; color: var(--accent); font-weight: 600; }
.headline .ratio small { font-weight: 400; color: var(--dim); font-size: .9rem; }
.pill {
  display: inline-block; border-radius: 99px; padding: .12rem .75rem; font-size: .85rem; font-weight: 600;
  border: 1.5px solid currentColor;
}
.good { color: var(--good); } .bad { color: var(--bad); } .plain { color: var(--dim); }
nav.parts { display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; margin: .9rem 0 0; font-size: .9rem; }
section { margin-top: 2.4rem; }

.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px 22px; }
.card + .card { margin-top: 18px; }
.pair > .card + .card { margin-top: 0; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 18px; align-items: start; }
.pane { overflow: auto; max-height: 980px; }
.pane svg { display: block; margin: 0 auto; height: auto; max-width: 100%; }
.pair.long { grid-template-columns: minmax(0, 1fr); } .pair.long > .card + .card { margin-top: 0; }

svg text { font-family: var(--mono); font-size: 12px; fill: var(--ink); text-anchor: middle; }
.graph .edge { fill: none; stroke: var(--dim); stroke-width: 1.2; opacity: .75; }
.graph .tip { fill: var(--dim); }
.graph .box rect { fill: var(--soft); stroke: var(--grey); }
.graph .box.inside rect { fill: var(--card); stroke: var(--line); }
.graph .box.input rect, .graph .box.output rect { fill: none; stroke-dasharray: 3 3; }
.graph .note { font-size: 10px; fill: var(--dim); }
.graph .kernel > rect { fill: var(--hue); fill-opacity: .09; stroke: var(--hue); stroke-width: 2; }
.graph .kernel > .name { font-weight: 650; fill: var(--hue); }
.hue0 { --hue: var(--h0); } .hue1 { --hue: var(--h1); } .hue2 { --hue: var(--h2); }
.hue3 { --hue: var(--h3); } .hue4 { --hue: var(--h4); } .hue5 { --hue: var(--h5); }

.roofline { width: 100%; height: auto; display: block; }
.roofline.narrow { display: none; }
.roofline .grid { stroke: var(--line); stroke-width: 1; }
.roofline .tick, .roofline .axis { font-size: 11px; fill: var(--dim); font-family: var(--sans); }
.roofline .side { text-anchor: end; } .roofline .start { text-anchor: start; }
.roofline .roof { fill: none; stroke: var(--ink); stroke-width: 1.8; }
.roofline .ceiling { text-anchor: end; font-size: 11px; fill: var(--dim); }
.roofline .slope { font-size: 11px; fill: var(--dim); }
.roofline .leader { stroke: var(--dim); stroke-width: 1; }
.roofline .point circle { fill: var(--card); stroke: var(--ink); stroke-width: 2; }
.roofline .point.kernel circle { stroke: var(--hue); }
.roofline .point.candidate circle { fill: var(--accent); stroke: var(--accent); }
.roofline .point.candidate text { fill: var(--card); }
.roofline .point text { font-size: 11px; font-weight: 650; font-family: var(--sans); }
ol.legend { columns: 2; column-gap: 2.4rem; padding-left: 1.5rem; font-size: .88rem; margin: 1rem 0 0; }
ol.legend li { break-inside: avoid; padding-left: .2rem; }
ol.legend li::marker { color: var(--dim); font-weight: 600; }

.bars { display: grid; gap: 9px; }
.bar {
  display: grid; grid-template-columns: minmax(7rem, 13rem) minmax(0, 1fr) 11rem; gap: 14px;
  align-items: center;
}
.bar .who { font: .88rem/1.3 var(--mono); text-align: right; overflow-wrap: anywhere; }
.bar .track { display: flex; height: 24px; background: var(--soft); border-radius: 5px; overflow: hidden; }
.bar .track i {
  display: block; height: 100%; min-width: 2px; background: var(--grey); box-shadow: inset -1px 0 0 var(--card);
}
.bar .track i.own { background: var(--hue); } .bar .track i.candidate { background: var(--accent); }
.bar .track i.wait { background: var(--pale); } .bar .track i.floor { background: var(--ink); }
.bar .ms { font-variant-numeric: tabular-nums; font-size: .92rem; }
.bar .ms em { font-style: normal; color: var(--dim); margin-left: .35rem; }
.bar.candidate .ms { font-weight: 650; } .bar.candidate .ms em { color: var(--accent); }
ul.key {
  list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .9rem 0 0; padding: 0;
  font-size: .85rem;
}
ul.key li { overflow-wrap: anywhere; }
ul.key i {
  display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .45em;
  background: var(--hue, var(--grey));
}
ul.key i.wait { background: var(--pale); border: 1px solid var(--grey); }

table.rows { border-collapse: collapse; width: 100%; font-size: .9rem; }
table.rows th {
  text-align: left; font-weight: 500; color: var(--dim); font-size: .8rem; padding: .3rem .7rem .3rem 0;
  vertical-align: bottom;
}
table.rows td {
  padding: .5rem .7rem .5rem 0; border-top: 1px solid var(--line); vertical-align: top;
  font-variant-numeric: tabular-nums;
}
table.rows td.mono { overflow-wrap: anywhere; }
table.rows td.number { white-space: nowrap; }
ul.checks { list-style: none; margin: 0; padding: 0; columns: 2; column-gap: 2.4rem; font-size: .9rem; }
ul.checks li { break-inside: avoid; padding: .32rem 0 .32rem 1.6rem; position: relative; overflow-wrap: anywhere; }
ul.checks li::before { position: absolute; left: 0; font-weight: 700; }
ul.checks .held::before { content: "✓"; color: var(--good); }
ul.checks .skipped::before { content: "–"; }
ul.checks .failed::before { content: "✗"; color: var(--bad); }
ul.checks small { display: block; color: var(--dim); font-size: .82rem; line-height: 1.35; }
ul.laws strong { font-weight: 600; }
ul.laws { padding-left: 1.2rem; margin: .4rem 0; } ul.laws li { padding: .15rem 0; }
dl.facts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: .8rem 1.6rem; margin: 0;
  font-size: .9rem;
}
dl.facts dt { color: var(--dim); font-size: .8rem; } dl.facts dd { margin: 0; overflow-wrap: anywhere; }

details { border-top: 1px solid var(--line); padding: .7rem 0; }
details:first-of-type { border-top: 0; }
summary { cursor: pointer; font: 600 .95rem/1.4 var(--mono); overflow-wrap: anywhere; }
summary small { font: 400 .85rem var(--sans); color: var(--dim); margin-left: .6rem; }
.beside {
  display: grid; grid-template-columns: minmax(0, 19rem) minmax(0, 1fr); gap: 18px; margin-top: .8rem;
  align-items: start;
}
ol.lines { list-style: none; margin: 0; padding: 0; font-size: .84rem; position: sticky; top: 12px; }
ol.lines li {
  display: grid; grid-template-columns: 2.6rem minmax(0, 1fr); gap: .6rem; padding: .3rem 0;
  border-top: 1px solid var(--line);
}
ol.lines li:first-child { border-top: 0; }
ol.lines code { overflow-wrap: anywhere; white-space: pre-wrap; }
.from { font: 600 .75rem/1.5 var(--mono); color: var(--hue, transparent); text-align: right; }
ol.lines .from { border-right: 3px solid var(--hue, var(--line)); padding-right: .45rem; font-size: .85rem; }
pre.code {
  margin: 0; font: .8rem/1.5 var(--mono); overflow-x: auto; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; tab-size: 2; max-height: 640px;
}
pre.code .line { display: block; white-space: pre; min-width: max-content; }
pre.code .line > .from {
  display: inline-block; width: 2.6rem; margin-right: .9rem; padding-right: .4rem;
  border-right: 3px solid var(--hue, var(--line)); user-select: none;
}
pre .c { color: var(--c); font-style: italic; }
pre .s { color: var(--s); }
pre .n { color: var(--n); }
pre .k { color: var(--k); }
pre .v { color: var(--v); }
pre .f { color: var(--f); }
pre .d { color: var(--d); }
pre .l { color: var(--accent); font-weight: 700; }

@media (max-width: 960px) {
  table.stack thead { display: none; }
  table.stack tr {
    display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .5rem .8rem;
    border-top: 1px solid var(--line); padding: .8rem 0;
  }
  table.stack td, table.rows.stack td.number {
    display: block; border: 0; padding: 0; text-align: left; white-space: normal; overflow-wrap: anywhere;
  }
  table.stack td:first-child, table.stack td.whole { grid-column: 1 / -1; }
  table.stack td::before { content: attr(data-label); display: block; color: var(--dim); font: .76rem/1.3 var(--sans); }
  table.stack td:first-child::before { display: none; }
  table.stack td:empty, table.rows.stack td.number:empty { display: none; }
}
@media (max-width: 760px) {
  body { font-size: 15px; }
  header.page, main, footer { padding-left: 16px; padding-right: 16px; }
  .card { padding: 16px 14px; border-radius: 12px; }
  .pair, .beside { grid-template-columns: minmax(0, 1fr); }
  .roofline.wide { display: none; } .roofline.narrow { display: block; }
  ol.legend, ul.checks { columns: 1; }
  dl.facts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  ol.lines { position: static; }
  .bar { grid-template-columns: minmax(0, 1fr) auto; gap: 2px 12px; }
  .bar .who { text-align: left; grid-row: 1; }
  .bar .ms { grid-row: 1; grid-column: 2; }
  .bar .track { grid-row: 2; grid-column: 1 / -1; height: 18px; }
  pre.code { font-size: .74rem; max-height: 520px; }
}
@media print {
  :root {
    --paper: #fff; --card: #fff; --ink: #000; --dim: #444; --line: #ccc; --soft: #f3f3f3; --accent: #8c3010;
    --grey: #aaa; --pale: #ddd; --good: #1d6b3b; --bad: #a01b14;
    --h0: #c2562d; --h1: #2f7f86; --h2: #8a5aa8; --h3: #b58a12; --h4: #3f6fb5; --h5: #a83e6c;
    --c: #666; --s: #46651a; --n: #8a4510; --k: #7a2f90; --v: #1f6f8b; --f: #1d4f9c; --d: #7d5e00;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 10.5pt; }
  header.page, main, footer { max-width: none; padding: 0; }
  article { break-before: page; } article:first-of-type { break-before: auto; }
  .card, figure, .bar, ul.checks li, tr { break-inside: avoid; }
  .card.long { break-inside: auto; }
  .pane, pre.code { max-height: none; overflow: visible; }
  .pane svg { max-width: 100%; height: auto; }
  pre.code .line { white-space: pre-wrap; min-width: 0; overflow-wrap: anywhere; }
  pre.code { font-size: 7.5pt; }
  .beside { grid-template-columns: minmax(0, 1fr); } ol.lines { position: static; }
  details::details-content { content-visibility: visible; block-size: auto; }
  nav { display: none !important; }
}
"""
