#include "tessera/report/format.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/report/text_table.h"

namespace tessera::report {
namespace {

TEST(Format, BytesInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1023.9 * 1024), "1.00 MiB"); // not 1024 KiB
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(13.25 * 1024 * 1024), "13.2 MiB");
  EXPECT_EQ(format_bytes(std::pow(1024, 4)), "1.00 TiB");
}

TEST(Format, CountsInDecimalUnits) {
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.7), "1.00 k");
  EXPECT_EQ(format_count(12'345'678), "12.3 M");
  EXPECT_EQ(format_count(175e9), "175 B");
  EXPECT_EQ(format_count(0.5), "0.50");
}

TEST(Format, TimesFromMicrosecondsToHours) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(12.3e-6), "12.3 us");
  EXPECT_EQ(format_seconds(0.0015), "1.50 ms");
  EXPECT_EQ(format_seconds(999.4e-6), "999 us");
  EXPECT_EQ(format_seconds(999.6e-6), "1.00 ms"); // not 1000 us
  EXPECT_EQ(format_seconds(0.9994), "999 ms");
  EXPECT_EQ(format_seconds(0.9996), "1.00 s");
  EXPECT_EQ(format_seconds(-0.9996), "-1.00 s");
  EXPECT_EQ(format_seconds(2), "2.00 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(7500), "2 h 5 min");
}

TEST(Format, NumbersThatAreNone) {
  const double nan = std::nan("");
  EXPECT_EQ(format_number(nan), "NaN");
  EXPECT_EQ(format_bytes(nan), "NaN");
  EXPECT_EQ(format_seconds(nan), "NaN");
  EXPECT_EQ(format_share(nan), "NaN");
  EXPECT_EQ(format_number(-std::numeric_limits<double>::infinity()), "-infinity");
}

TEST(Format, EscapesWhatMarksUp) {
  EXPECT_EQ(
      escape("<a href='x' b=\"y\">&\x01\t\n"),
      "&lt;a href=&#39;x&#39; b=&quot;y&quot;&gt;&amp;\xEF\xBF\xBD\t\n");
}

TEST(Format, Base64AsInTheStandard) {
  // RFC 4648, section 10.
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe"), "//4=");
}

TEST(TextTable, FiguresStandRightAndWordsLeft) {
  const std::string text =
      to_text({{"rank", "host", "bytes"}, {{"0", "a", "1.00 KiB"}, {"10", "bb", "-"}}});
  EXPECT_EQ(
      text,
      "rank  host     bytes\n"
      "----  ----  --------\n"
      "   0  a     1.00 KiB\n"
      "  10  bb           -\n");
}

TEST(TextTable, CountsCharactersNotBytes) {
  EXPECT_EQ(to_text({{"name", "x"}, {{"\xC3\xBC", "a"}}}), "name  x\n----  -\n\xC3\xBC     a\n");
}

TEST(TextTable, RefusesRowsOfAnotherLength) {
  EXPECT_THROW(to_text({{"a", "b"}, {{"1"}}}), InternalError);
}

} // namespace
} // namespace tessera::report
