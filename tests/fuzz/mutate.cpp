#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>

namespace tessera::fuzz {

namespace {

class Mutation {
 public:
  Mutation(std::string text, std::mt19937_64& random) : text_(std::move(text)), random_(random) {}

  void change(const std::vector<std::string>& seeds) {
    switch (below(9)) {
      case 0:
        flip_bit();
        break;
      case 1:
        replace_byte();
        break;
      case 2:
        text_.insert(place(), 1, byte());
        break;
      case 3:
        text_.erase(place(), 1 + below(8));
        break;
      case 4:
        text_.resize(place()); // torn
        break;
      case 5:
        text_.insert(place(), piece_of(text_));
        break;
      case 6:
        text_.insert(place(), piece_of(seeds[below(seeds.size())]));
        break;
      case 7:
        replace_binary_number();
        break;
      default:
        replace_decimal_number();
    }
  }

  std::string take() {
    return std::move(text_);
  }

 private:
  // Not std::uniform_int_distribution: its results differ between libraries.
  std::size_t below(std::size_t limit) {
    return static_cast<std::size_t>(random_() % std::max<std::size_t>(1, limit));
  }
  std::size_t place() {
    return below(text_.size() + 1);
  }
  char byte() {
    constexpr char kMeaningful[] = "{}[]\",:0123456789.eE+-truefalsn\\ \n\0\xff";
    return below(2) == 0 ? static_cast<char>(below(256))
                         : kMeaningful[below(sizeof(kMeaningful) - 1)];
  }
  std::string piece_of(const std::string& text) {
    return text.substr(below(text.size() + 1), 1 + below(40));
  }
  void flip_bit() {
    if (!text_.empty()) {
      char& at = text_[below(text_.size())];
      at = static_cast<char>(at ^ (1 << below(8)));
    }
  }
  void replace_byte() {
    if (!text_.empty()) {
      text_[below(text_.size())] = byte();
    }
  }
  void replace_binary_number() {
    constexpr std::array<std::uint64_t, 10> kNumbers = {
        0,
        1,
        0x7f,
        0xff,
        0x7fffffff,
        0xffffffff,
        0x100000000,
        0x7fffffffffffffff,
        0x8000000000000000,
        0xffffffffffffffff};
    const std::uint64_t number = kNumbers[below(kNumbers.size())];
    const std::size_t width = std::size_t{1} << below(4);
    if (text_.size() >= width) {
      std::memcpy(&text_[below(text_.size() - width + 1)], &number, width);
    }
  }
  void replace_decimal_number() {
    constexpr std::array<const char*, 12> kNumbers = {
        "0",
        "-1",
        "1",
        "2147483647",
        "2147483648",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "1e308",
        "1e999",
        "0.5",
        "-0.0"};
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    const auto start = static_cast<std::ptrdiff_t>(place());
    const auto begin = std::find_if(text_.begin() + start, text_.end(), is_digit);
    const auto end = std::find_if_not(begin, text_.end(), is_digit);
    text_.replace(begin, end, kNumbers[below(kNumbers.size())]);
  }

  std::string text_;
  std::mt19937_64& random_;
};

} // namespace

std::string
mutated(const std::vector<std::string>& seeds, std::size_t base, std::mt19937_64& random) {
  Mutation mutation(seeds[base], random);
  // One change in half of the cases: what is nearly valid goes deepest.
  const std::uint64_t changes = random() % 2 == 0 ? 1 : 2 + random() % 7;
  for (std::uint64_t i = 0; i < changes; ++i) {
    mutation.change(seeds);
  }
  return mutation.take();
}

} // namespace tessera::fuzz
