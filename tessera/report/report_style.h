#pragma once

namespace tessera::report {

/// The page's style sheet. Steps and zoom are radio buttons, so that the page
/// needs no script.
inline constexpr const char* kStyle = R"(
:root { --ink: #1d2733; --soft: #5c6b7a; --line: #dfe5ec; --paper: #fff;
  --forward: #3d7dca; --forward-odd: #6ea3e0; --backward: #e07b39;
  --backward-odd: #eda06b; --comm: #8456b8; --optimizer: #8d99a6; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 28px 24px 60px;
  color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; }
h2 { font-size: 18px; margin: 38px 0 10px; padding-bottom: 5px;
  border-bottom: 1px solid var(--line); }
.under, .note { color: var(--soft); margin: 3px 0 12px; font-size: 14px; }
.figures { display: grid; gap: 10px; margin: 20px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); }
.figures div { border: 1px solid var(--line); border-radius: 6px;
  padding: 9px 13px; }
.figures b { display: block; font-size: 20px; font-weight: 600; }
.figures span { color: var(--soft); font-size: 13px; }
.pair { display: grid; gap: 22px;
  grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg .tick { fill: var(--soft); }
svg .name { font-weight: 600; font-size: 13px; }
svg .grid { stroke: var(--line); }
svg .axis { stroke: #9aa7b5; }
svg path { fill: none; stroke-width: 2; stroke-linejoin: round; }
path.raw { stroke: #b3cdeb; stroke-width: 1; }
path.main { stroke: var(--forward); }
path.second { stroke: var(--backward); }
circle.second { fill: var(--backward); }
circle.main { fill: var(--forward); }
rect.bar { fill: #b3cdeb; }
rect.inner { fill: var(--forward); }
rect.forward, rect.backward { stroke: #fff; stroke-width: 0.6; }
rect.row { fill: #f4f6f9; }
rect.forward { fill: var(--forward); }
rect.forward.odd { fill: var(--forward-odd); }
rect.backward { fill: var(--backward); }
rect.backward.odd { fill: var(--backward-odd); }
rect.comm { fill: var(--comm); }
rect.optimizer { fill: var(--optimizer); }
svg .batch { fill: #fff; font-size: 11px; pointer-events: none; }
.key i { display: inline-block; width: 13px; height: 13px; border-radius: 2px;
  margin: 0 5px -2px 14px; }
.key i:first-child { margin-left: 0; }
.choice > input { position: absolute; opacity: 0; pointer-events: none; }
.choice > label { display: inline-block; padding: 2px 11px; margin: 0 5px 10px 0;
  border: 1px solid var(--line); border-radius: 12px; font-size: 13px;
  color: var(--soft); cursor: pointer; }
.choice > input:checked + label { background: var(--ink); color: #fff; }
.choice > input:focus-visible + label { outline: 2px solid var(--forward); }
.choice > .said { margin: 0 8px 0 0; color: var(--soft); font-size: 13px; }
.choice > .gap { display: inline-block; width: 22px; }
.panel { display: none; overflow-x: auto; }
.z2:checked ~ .panel svg { width: 200%; }
.z4:checked ~ .panel svg { width: 400%; }
.z8:checked ~ .panel svg { width: 800%; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: right; padding: 4px 14px 4px 0;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--soft); }
details pre { background: #f4f6f9; padding: 12px; border-radius: 6px;
  margin-top: 8px; }
figure { margin: 0 0 14px; padding: 10px 14px;
  border-left: 3px solid var(--forward); background: #f4f6f9; }
figure b { font-weight: 600; }
figcaption { color: var(--soft); font-size: 13px; margin-bottom: 4px; }
img.tree { max-width: 100%; }
)";

} // namespace tessera::report
