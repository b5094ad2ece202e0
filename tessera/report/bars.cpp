#include "tessera/report/bars.h"

#include <algorithm>

#include "tessera/report/format.h"
#include "tessera/report/markup.h"

namespace tessera::report {

std::string bar_chart(const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) {
    most = std::max(most, bar.value);
  }
  const auto width = [most](double value) {
    return attribute(most > 0 ? std::clamp(value / most, 0.0, 1.0) * 100 : 0.0);
  };
  std::string out = "<div class=\"bars\">\n";
  for (const Bar& bar : bars) {
    out += fill(
        "<span class=\"label\">{}</span><span class=\"track\"><i style=\"width:{}%\"></i>"
        "<i class=\"inner\" style=\"width:{}%\"></i></span><span class=\"value\">{}</span>\n",
        {escape(bar.label), width(bar.value), width(bar.inner), escape(bar.text)});
  }
  return out + "</div>\n";
}

} // namespace tessera::report
