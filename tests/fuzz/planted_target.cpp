// Targets with a fault that the driver must find.
#include <stdexcept>

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  return {"{\"a\": 12}", "[1, 2, 3]"};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::fuzz;
  const std::string text(reinterpret_cast<const char*>(data), size);
#ifdef PLANTED_crash
  // Deep enough that chance alone needs mutations of numbers.
  if (text.find("2147483648") != std::string::npos) {
    broken("planted");
  }
#endif
#ifdef PLANTED_throw
  if (text.find("-1") != std::string::npos) {
    throw std::runtime_error("planted");
  }
#endif
#ifdef PLANTED_one_sided
  count(true);
#else
  count(text.find('3') != std::string::npos || text.find('a') != std::string::npos);
#endif
  return 0;
}
