#pragma once

namespace tessera::report {

/// What a comparison adds to the page's style: a colour for each run, told apart by dashes as well
/// from the fifth on, and a first column that stays while a wide table moves.
inline constexpr const char* kComparisonStyle = R"(
:root { --run-a: #2b6cb8; --run-b: #c65a11; --run-c: #23803f; --run-d: #8456b8;
  --run-e: #c02b6b; --run-f: #8a6d00; --run-g: #0b7f8a; --run-h: #566474; }
@media (prefers-color-scheme: dark) { :root {
  --run-a: #6fb0f5; --run-b: #f59a55; --run-c: #58c47a; --run-d: #b89af0;
  --run-e: #ff85b5; --run-f: #e3c341; --run-g: #4fd0dc; --run-h: #9daab8; } }
path.run-a { stroke: var(--run-a); } circle.run-a { fill: var(--run-a); }
path.run-b { stroke: var(--run-b); } circle.run-b { fill: var(--run-b); }
path.run-c { stroke: var(--run-c); } circle.run-c { fill: var(--run-c); }
path.run-d { stroke: var(--run-d); } circle.run-d { fill: var(--run-d); }
path.run-e { stroke: var(--run-e); } circle.run-e { fill: var(--run-e); }
path.run-f { stroke: var(--run-f); } circle.run-f { fill: var(--run-f); }
path.run-g { stroke: var(--run-g); } circle.run-g { fill: var(--run-g); }
path.run-h { stroke: var(--run-h); } circle.run-h { fill: var(--run-h); }
path.run-e, path.run-f, path.run-g, path.run-h { stroke-dasharray: 7 4; }
.runs td svg { display: inline-block; margin-right: 8px; }
.runs td { min-width: 76px; }
.compared th:first-child { position: sticky; left: 0; background: var(--paper);
  white-space: normal; min-width: 130px; max-width: 300px; overflow-wrap: anywhere; }
.compared td { min-width: 84px; max-width: 340px; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  .compared th:first-child { max-width: 150px; }
  .compared th, .compared td { padding-right: 12px; font-size: 13px; }
}
)";

} // namespace tessera::report
