#include "models/data/json_tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/ustring.h>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

const icu::Normalizer2* normalizer_of(UnicodeForm form, UErrorCode& status) {
  switch (form) {
    case UnicodeForm::kNfc:
      return icu::Normalizer2::getNFCInstance(status);
    case UnicodeForm::kNfd:
      return icu::Normalizer2::getNFDInstance(status);
    case UnicodeForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(status);
    case UnicodeForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(status);
  }
  return nullptr;
}

} // namespace

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char byte : text) {
    count += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

bool is_white_space(Character character) {
  return u_isUWhiteSpace(character) != 0;
}

bool is_punctuation(Character character) {
  const bool ascii_symbol =
      character < 128 && character > 32 && character != 127 && u_isalnum(character) == 0;
  return ascii_symbol || (U_GET_GC_MASK(character) & U_GC_P_MASK) != 0;
}

bool is_numeric(Character character) {
  return (U_GET_GC_MASK(character) & U_GC_N_MASK) != 0;
}

bool is_other(Character character) {
  return (U_GET_GC_MASK(character) & U_GC_C_MASK) != 0;
}

bool is_nonspacing_mark(Character character) {
  return u_charType(character) == U_NON_SPACING_MARK;
}

std::string to_form(const std::string& text, UnicodeForm form) {
  UErrorCode status = U_ZERO_ERROR;
  std::string made;
  icu::StringByteSink<std::string> sink(&made);
  const icu::Normalizer2* normalizer = normalizer_of(form, status);
  if (U_SUCCESS(status)) {
    normalizer->normalizeUTF8(
        0,
        icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())),
        sink,
        nullptr,
        status);
  }
  TESSERA_CHECK(U_SUCCESS(status), "ICU cannot normalize a text: ", u_errorName(status));
  return made;
}

std::string to_lower(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for_each_character(text, [&](Character character, std::string_view bytes) {
    if (character < 128) {
      lower += static_cast<char>(
          character >= 'A' && character <= 'Z' ? character - 'A' + 'a' : character);
    } else if (u_hasBinaryProperty(character, UCHAR_CHANGES_WHEN_LOWERCASED) == 0) {
      lower += bytes;
    } else {
      icu::UnicodeString(character).toLower(icu::Locale::getRoot()).toUTF8String(lower);
    }
  });
  return lower;
}

} // namespace tessera::data
