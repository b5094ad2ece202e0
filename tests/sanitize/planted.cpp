// One fault of each kind that a sanitizer build is there to find.
// usage: sanitize_planted race|use_after_free|leak|overflow
#include <climits>
#include <cstdio>
#include <string>
#include <thread>

namespace {

void race() {
  int shared = 0;
  std::thread other([&shared] { ++shared; });
  ++shared;
  other.join();
  std::printf("%d\n", shared);
}

void use_after_free() {
  auto* number = new int(1);
  int* volatile dangling = number;
  delete number;
  std::printf("%d\n", *dangling);
}

void leak() {
  int* volatile lost = new int[1000];
  lost[0] = 1;
  lost = nullptr;
}

void overflow() {
  volatile int largest = INT_MAX;
  std::printf("%d\n", largest + 1);
}

} // namespace

int main(int argc, char** argv) {
  const std::string fault = argc == 2 ? argv[1] : "";
  if (fault == "race") {
    race();
  } else if (fault == "use_after_free") {
    use_after_free();
  } else if (fault == "leak") {
    leak();
  } else if (fault == "overflow") {
    overflow();
  } else {
    std::fprintf(stderr, "sanitize_planted: no fault '%s'\n", fault.c_str());
    return 2;
  }
  return 0;
}
