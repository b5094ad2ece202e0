#include "tessera/checkpoint/safetensors.h"

#include <fstream>
#include <functional>
#include <random>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "temporary_directory.h"
#include "tests/support/test_folder.h"

namespace tessera::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::message_of;

// A file by hand: length, header, data.
std::string file_bytes(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

NamedTensors one_of_each() {
  at::manual_seed(7);
  const auto random = at::randn({3, 5}) * 50;
  NamedTensors tensors;
  for (const auto dtype :
       {at::kByte,
        at::kDouble,
        at::kBFloat16,
        at::kFloat,
        at::kHalf,
        at::kLong,
        at::kInt,
        at::kShort,
        at::kChar}) {
    tensors.emplace_back(str("t.", c10::toString(dtype)), random.abs().to(dtype));
  }
  tensors.emplace_back("mask", random > 0);
  tensors.emplace_back("scalar", at::tensor(-0.0));
  tensors.emplace_back("nothing", at::empty({4, 0, 2}));
  tensors.emplace_back("transposed", random.t());
  tensors.emplace_back("not a number", at::full({2}, std::numeric_limits<float>::quiet_NaN()));
  return tensors;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  const auto left = a.contiguous();
  const auto right = b.contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (left.nbytes() == 0 || // then there is no pointer to compare
          std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

TEST(Safetensors, EveryDtypeAndShapeComesBackBitForBit) {
  const TemporaryDirectory dir;
  const auto tensors = one_of_each();
  const auto record =
      write_safetensors(dir / "a.safetensors", tensors, {{"format", "pt"}, {"é", "\"\\\n"}});
  const auto read = read_safetensors(dir / "a.safetensors");
  ASSERT_EQ(read.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    EXPECT_TRUE(same(read.at(name), tensor)) << name;
    const auto host = tensor.contiguous();
    EXPECT_EQ(
        record.data_checksums[i],
        checksum_of({static_cast<const char*>(host.data_ptr()), host.nbytes()}))
        << name;
  }
  const SafetensorsFile file(dir / "a.safetensors");
  EXPECT_EQ(file.metadata().at("é"), "\"\\\n");
  const std::string bytes = bytes_of(dir / "a.safetensors");
  EXPECT_EQ(record.file.size_bytes, bytes.size());
  EXPECT_EQ(record.file.checksum, checksum_of(bytes));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("a.safetensors"));
}

TEST(Safetensors, AMappedFileIsTheSameTensorsAndStaysAsItIs) {
  const TemporaryDirectory dir;
  const auto tensors = one_of_each();
  write_safetensors(dir / "a.safetensors", tensors);
  const auto mapped = map_safetensors(dir / "a.safetensors");
  ASSERT_EQ(mapped.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(same(mapped.at(name), tensor)) << name;
  }
  // All of one mapping, and a change is this process's own.
  EXPECT_TRUE(mapped.at("t.Double").storage().is_alias_of(mapped.at("t.Byte").storage()));
  mapped.at("t.Float").zero_();
  EXPECT_TRUE(same(read_safetensors(dir / "a.safetensors").at("t.Float"), tensors.at(3).second));
  // A file may put an element anywhere.
  const std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                             R"("y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} )";
  const float number = 1.5F;
  std::string data(5, '\7');
  std::memcpy(data.data() + 1, &number, sizeof(number));
  std::ofstream(dir / "b.safetensors", std::ios::binary) << file_bytes(header, data);
  EXPECT_EQ(map_safetensors(dir / "b.safetensors").at("x").item<float>(), number);
  EXPECT_THROW(map_safetensors(dir / "none"), CheckpointError);
}

TEST(Safetensors, EveryTensorIsAlignedAndTheHeaderPaddedToEight) {
  const TemporaryDirectory dir;
  write_safetensors(dir / "a", one_of_each());
  const SafetensorsFile file(dir / "a");
  for (const auto& [name, info] : file.tensors()) {
    EXPECT_EQ(info.begin % c10::elementSize(info.dtype), 0U) << name;
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_of(dir / "a").data(), 8);
  EXPECT_EQ(header_bytes % 8, 0U);
}

TEST(Safetensors, SameTensorsGiveSameBytes) {
  const TemporaryDirectory dir;
  write_safetensors(dir / "a", one_of_each(), {{"b", "1"}, {"a", "2"}});
  write_safetensors(dir / "b", one_of_each(), {{"a", "2"}, {"b", "1"}});
  EXPECT_EQ(bytes_of(dir / "a"), bytes_of(dir / "b"));
}

TEST(Safetensors, TheBytesAreTheFormatsOwn) {
  const TemporaryDirectory dir;
  write_safetensors(dir / "a", {{"x", at::tensor({1, 2}, at::kByte)}});
  const std::string header = R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(bytes_of(dir / "a"), file_bytes(header + padding, "\1\2"));
}

TEST(Safetensors, AnEmptyFileOfTensorsIsFine) {
  const TemporaryDirectory dir;
  write_safetensors(dir / "a", {});
  EXPECT_TRUE(read_safetensors(dir / "a").empty());
}

TEST(Safetensors, WhatCannotBeWrittenIsNamed) {
  const TemporaryDirectory dir;
  const auto one = at::ones(1);
  const auto writing = [&](const NamedTensors& tensors) {
    return message_of([&] { write_safetensors(dir / "a", tensors); });
  };
  EXPECT_THAT(writing({{"x", one}, {"x", one}}), HasSubstr("\"x\" is given tw"));
  EXPECT_THAT(
      writing({{"c", at::ones(1, at::kComplexFloat)}}),
      AllOf(HasSubstr("\"c\""), HasSubstr("ComplexFloat")));
  EXPECT_THAT(writing({{"u", at::Tensor()}}), HasSubstr("\"u\" has no data"));
  EXPECT_THAT(
      writing({{"m", at::empty({2}, at::device(at::kMeta))}}), HasSubstr("\"m\" has no data"));
  EXPECT_THAT(writing({{"s", one.to_sparse()}}), HasSubstr("sparse"));
  EXPECT_THAT(writing({{"\xff", one}}), HasSubstr("UTF-8"));
  EXPECT_THAT(writing({{"__metadata__", one}}), HasSubstr("reserves"));
  EXPECT_THAT(
      message_of([&] {
        write_safetensors(dir / "no/a", {{"x", one}});
      }),
      AllOf(HasSubstr("no/a"), HasSubstr("No such file")));
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(Safetensors, WhatIsWrongWithAFileIsSaid) {
  const TemporaryDirectory dir;
  const auto reading = [&](const std::string& bytes) {
    set_bytes(dir / "bad", bytes);
    return message_of([&] { read_safetensors(dir / "bad"); });
  };
  const auto entry = [](const std::string& text) {
    return file_bytes(R"({"x":)" + text + "}", "1234");
  };
  EXPECT_THAT(
      message_of([&] { read_safetensors(dir / "none"); }),
      AllOf(HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(message_of([&] { read_safetensors(dir.path()); }), HasSubstr("not a plain file"));
  EXPECT_THAT(reading("1234"), HasSubstr("it has 4 bytes"));
  EXPECT_THAT(reading(file_bytes("{", "").substr(0, 8)), HasSubstr("follow"));
  EXPECT_THAT(reading(file_bytes("[]", "")), HasSubstr("no JSON object"));
  EXPECT_THAT(reading(file_bytes("{\"x\"", "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(
      reading(file_bytes("{\"a\":" + std::string(100000, '['), "")), HasSubstr("nested deeper"));
  EXPECT_THAT(reading(file_bytes(R"({"x":1,"x":2})", "")), HasSubstr("stands twice"));
  EXPECT_THAT(reading(entry("3")), HasSubstr("expected an object"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"F8","shape":[],"data_offsets":[0,4]})")),
      HasSubstr("unknown dtype \"F8\""));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})")),
      HasSubstr("found -1"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"F32","shape":[0.5],"data_offsets":[0,4]})")),
      HasSubstr("found 0.5"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})")),
      HasSubstr("need 8 bytes"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"F32","shape":[4611686018427387904,4,0],)"
                    R"("data_offsets":[0,0]})")),
      HasSubstr("too large"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})")), HasSubstr("torn"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"U8","shape":[3],"data_offsets":[1,4]})")), HasSubstr("hole"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"U8","shape":[3],"data_offsets":[0,3]})")),
      HasSubstr("1 bytes after"));
  EXPECT_THAT(
      reading(entry(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})")),
      HasSubstr("other than 0 and 1"));
  EXPECT_THAT(
      reading(file_bytes(R"({"__metadata__":{"a":1}})", "")), HasSubstr("must be a string"));
}

// Whatever happens to a file, reading it gives tensors or a CheckpointError.
TEST(Safetensors, RandomDamageGivesAnErrorOrTensors) {
  const TemporaryDirectory dir;
  write_safetensors(dir / "good", one_of_each(), {{"format", "pt"}});
  const std::string good = bytes_of(dir / "good");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, good.data(), 8);
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = good;
    // Most damage in the header, where it is interpreted.
    const std::size_t at = i % 4 == 0 ? below(bytes.size()) : below(8 + header_bytes);
    switch (i % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.erase(at, 1 + below(9));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(20)));
        break;
      default:
        bytes[at] = "0123456789[]{},:\"-e"[below(19)];
        break;
    }
    set_bytes(dir / "bad", bytes);
    try {
      read_safetensors(dir / "bad");
    } catch (const CheckpointError& error) {
      ++refused;
      ASSERT_THAT(error.what(), HasSubstr("bad")) << "mutation " << i;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Checksum, DoesNotDependOnHowTheStreamIsCut) {
  std::mt19937 random(1);
  std::string bytes(1000, '\0');
  for (auto& byte : bytes) {
    byte = static_cast<char>(random());
  }
  const auto whole = checksum_of(bytes);
  for (int i = 0; i < 200; ++i) {
    Checksum checksum;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = std::min<std::size_t>(random() % 200, bytes.size() - at);
      checksum.update(bytes.data() + at, count);
      at += count;
    }
    ASSERT_EQ(checksum.value(), whole);
  }
  // Part of the file format: a change makes every old checkpoint "torn".
  EXPECT_EQ(to_hex(checksum_of("Tessera")), "fbe9121373d0d418");
}

TEST(Checksum, SeesEveryFlippedBitAndEveryCut) {
  std::string bytes(300, '\0');
  std::set<std::uint64_t> values = {checksum_of(bytes)};
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(values.insert(checksum_of(bytes)).second) << bit;
    bytes[bit / 8] = '\0';
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(values.insert(checksum_of(bytes.substr(0, length))).second);
  }
}

TEST(Checksum, HexadecimalFormIsStrict) {
  EXPECT_EQ(from_hex(to_hex(0x0123456789abcdef), "x"), 0x0123456789abcdefU);
  EXPECT_THROW(from_hex("123", "x"), CheckpointError);
  EXPECT_THROW(from_hex("0123456789ABCDEF", "x"), CheckpointError);
}

} // namespace
} // namespace tessera::checkpoint
