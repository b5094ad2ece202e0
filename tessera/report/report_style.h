#pragma once

namespace tessera::report {

/// The page's style sheet. Style alone selects steps, zoom and the values under the pointer, so
/// that the page needs no script. Colours are variables; a dark screen gets its own.
inline constexpr const char* kStyle = R"(
:root { color-scheme: light dark;
  --ink: #1b2430; --soft: #566474; --line: #dde3ea; --axis: #98a5b3; --paper: #fff;
  --panel: #f3f5f8; --faint: #a9c6e8; --first: #2b6cb8; --second: #c65a11; --good: #23803f;
  --bad: #c02b2b; --open: #a36a00;
  --forward: #2b66ad; --forward-odd: #a8cbf2; --backward: #b3541a; --backward-odd: #f5c59f;
  --comm: #8456b8; --optimizer: #6d7a88; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e9ef; --soft: #9daab8; --line: #2e3843; --axis: #5d6b7a; --paper: #12171d;
  --panel: #1b222a; --faint: #4a76a3; --first: #6fb0f5; --second: #f59a55; --good: #58c47a;
  --bad: #ff7b72; --open: #e3b341;
  --forward: #2f6fbd; --forward-odd: #a8cbf2; --backward: #b8581d; --backward-odd: #f5c59f;
  --comm: #b18be0; --optimizer: #8794a2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1360px; padding: 28px 28px 60px;
  color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 12px; padding-bottom: 5px;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 15px; margin: 18px 0 6px; }
.under, .note { color: var(--soft); margin: 3px 0 12px; font-size: 14px; overflow-wrap: anywhere; }
.state { margin: 8px 0 0; overflow-wrap: anywhere; }
.state i { display: inline-block; width: 11px; height: 11px; border-radius: 50%;
  margin-right: 8px; background: var(--open); }
.state i.finished, .state i.stopped { background: var(--good); }
.state i.failed { background: var(--bad); }
.figures { display: grid; gap: 10px; margin: 18px 0 0;
  grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); }
.figures div { border: 1px solid var(--line); border-radius: 6px; padding: 9px 13px; }
.figures b { display: block; font-size: 20px; line-height: 1.3; font-weight: 600; }
.figures span, .figures small { display: block; font-size: 13px; line-height: 1.4; }
.figures small { color: var(--soft); margin-top: 2px; font-size: 12px; }
.pair { display: grid; gap: 6px 34px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.chart .name { margin: 0; font-weight: 600; font-size: 14px; }
.legend, .key { margin: 2px 0 0; font-size: 13px; color: var(--soft); }
.legend span, .key span { display: inline-block; margin-right: 18px; }
.legend svg { display: inline-block; margin-right: 6px; }
.plot { margin: 30px 14px 0 62px; padding-bottom: 46px; }
svg { display: block; overflow: visible; }
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink);
  font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--soft); }
svg .grid { stroke: var(--line); }
svg .axis { stroke: var(--axis); }
svg path { fill: none; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
path.raw { stroke: var(--faint); stroke-width: 1; }
path.main { stroke: var(--first); }
path.second { stroke: var(--second); }
circle.raw { fill: var(--faint); }
circle.main { fill: var(--first); }
circle.second { fill: var(--second); }
.at > * { visibility: hidden; pointer-events: none; }
.at > rect { visibility: visible; pointer-events: all; fill: transparent; }
.at > line { stroke: var(--axis); stroke-dasharray: 3 3; }
.at > text { font-weight: 600; }
.at:hover > * { visibility: visible; }
.bars { display: grid; grid-template-columns: max-content minmax(60px, 1fr) max-content;
  gap: 7px 12px; align-items: center; font-size: 13px; }
.bars .label, .bars .value { color: var(--soft); overflow-wrap: anywhere; }
.bars .track { position: relative; height: 18px; }
.bars i { position: absolute; left: 0; top: 0; height: 100%; border-radius: 2px;
  background: var(--faint); }
.bars i.inner { background: var(--first); }
.timeline { display: flex; gap: 10px; margin-top: 6px; }
.ranks span { display: flex; flex-direction: column; justify-content: center; line-height: 1.2;
  padding-bottom: 8px; font-size: 13px; white-space: nowrap; }
.ranks i { font-style: normal; font-size: 11px; color: var(--soft); }
.scroll { overflow-x: auto; }
.timeline .scroll { flex: 1; min-width: 0; }
.timeline svg { min-width: 640px; overflow: hidden; }
.timeline rect.row { fill: var(--panel); }
.timeline rect:not(.row) { stroke: var(--paper); stroke-width: 0.7; }
.timeline rect:not(.row):hover { stroke: var(--ink); stroke-width: 2; }
rect.forward, i.forward { fill: var(--forward); background: var(--forward); }
rect.backward, i.backward { fill: var(--backward); background: var(--backward); }
rect.forward.odd { fill: var(--forward-odd); }
rect.backward.odd { fill: var(--backward-odd); }
rect.comm, i.comm { fill: var(--comm); background: var(--comm); }
rect.optimizer, i.optimizer { fill: var(--optimizer); background: var(--optimizer); }
.key i { display: inline-block; width: 13px; height: 13px; border-radius: 2px;
  margin: 0 6px -2px 0; }
.key i.row { background: var(--panel); border: 1px solid var(--axis); }
svg .batch { fill: #fff; font-size: 11px; pointer-events: none; }
svg .batch.odd { fill: #14202e; }
.from2, .from4, .from8 { display: none; }
.choice > input { position: absolute; opacity: 0; pointer-events: none; }
.choice > label { display: inline-block; padding: 2px 11px; margin: 0 5px 10px 0;
  border: 1px solid var(--line); border-radius: 12px; font-size: 13px;
  color: var(--soft); cursor: pointer; }
.choice > input:checked + label { background: var(--ink); color: var(--paper); }
.choice > input:focus-visible + label { outline: 2px solid var(--first); }
.choice > .said { margin: 0 8px 0 0; color: var(--soft); font-size: 13px; }
.choice > .zoom { margin-left: 22px; }
.panel { display: none; }
.z2:checked ~ .panel svg { width: 200%; min-width: 1280px; }
.z4:checked ~ .panel svg { width: 400%; min-width: 2560px; }
.z8:checked ~ .panel svg { width: 800%; min-width: 5120px; }
.z2:checked ~ .panel .from2, .z4:checked ~ .panel .from2, .z4:checked ~ .panel .from4,
.z8:checked ~ .panel .from2, .z8:checked ~ .panel .from4, .z8:checked ~ .panel .from8 {
  display: inline; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 4px 18px 4px 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
.facts td { overflow-wrap: anywhere; }
.list td { white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--soft); }
details pre { background: var(--panel); padding: 12px; border-radius: 6px; margin-top: 8px; }
figure { margin: 0 0 14px; padding: 10px 14px;
  border-left: 3px solid var(--first); background: var(--panel); }
figure b { font-weight: 600; }
figcaption { color: var(--soft); font-size: 13px; margin-bottom: 4px; }
.tree { background: #fff; border-radius: 6px; }
.tree img { display: block; min-width: 720px; max-width: 100%; }
@media (max-width: 640px) {
  body { padding: 18px 14px 40px; }
  .figures { grid-template-columns: repeat(2, 1fr); gap: 8px; }
  .figures div { padding: 8px 10px; }
  .figures b { font-size: 18px; }
  .plot { margin: 28px 8px 0 54px; padding-bottom: 44px; }
  svg .spare { display: none; }
  .legend span { display: block; margin: 0; }
  .at > text { font-size: 11px; }
  .choice > .zoom { display: block; margin: 0 0 4px; }
  .bars { grid-template-columns: auto auto; grid-auto-flow: dense; gap: 2px 10px; }
  .bars .track { grid-column: 1 / -1; height: 14px; margin-bottom: 8px; }
  .bars .label { grid-column: 1; }
  .bars .value { grid-column: 2; text-align: right; }
  .facts th, .facts td { display: block; border-bottom: 0; padding: 0; }
  .facts td { padding-bottom: 10px; }
}
)";

} // namespace tessera::report
