#include "tessera/transport/message.h"

#include <random>
#include <string>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

namespace tessera::transport {
namespace {

using comm::assemble;
using comm::describe;
using comm::Place;
using comm::strip;
using comm::Stripped;
using comm::TensorStub;

std::vector<std::byte> encode_all(const c10::IValue& body) {
  const Stripped stripped = strip(body);
  std::vector<TensorStub> stubs;
  std::vector<std::byte> payload;
  for (const auto& tensor : stripped.tensors) {
    TensorStub stub = describe(tensor);
    if (stub.bytes != 0) {
      stub.place = Place::kInline;
      stub.offset = payload.size();
      const auto dense = tensor.contiguous();
      const auto* data = static_cast<const std::byte*>(dense.data_ptr());
      payload.insert(payload.end(), data, data + stub.bytes);
    }
    stubs.push_back(stub);
  }
  Header header{};
  header[5] = std::byte{17};
  return encode(header, stubs, stripped.structure, payload);
}

c10::IValue decode_all(const std::vector<std::byte>& bytes) {
  const MessageView message = decode(bytes.data(), bytes.size());
  std::vector<at::Tensor> tensors;
  std::uint64_t left = 1 << 20; // of damaged messages
  for (const auto& stub : message.stubs) {
    if (stub.place == Place::kInline) {
      at::Tensor tensor = at::empty(stub.shape, at::dtype(stub.dtype));
      std::memcpy(tensor.data_ptr(), message.payload + stub.offset, stub.bytes);
      tensors.push_back(tensor);
    } else if (stub.bytes < left) {
      left -= stub.bytes;
      tensors.push_back(at::empty(stub.shape, at::dtype(stub.dtype)));
    } else {
      throw CommError("too large for this test");
    }
  }
  return assemble(message, tensors);
}

c10::IValue everything() {
  c10::List<at::Tensor> list;
  list.push_back(torch::arange(4));
  list.push_back(torch::full({2}, 3.5));
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("key", torch::ones({3, 2}));
  return pack(std::make_tuple(
      torch::arange(6).reshape({2, 3}),
      std::string("text"),
      std::vector<std::optional<double>>{1.5, std::nullopt},
      std::make_tuple(-3, true, false),
      c10::IValue(list),
      c10::IValue(dict),
      torch::Tensor(),
      c10::IValue(at::Tensor()),
      torch::zeros({0, 5}, torch::kInt)));
}

TEST(Message, EveryKindOfValueComesBack) {
  const auto bytes = encode_all(everything());
  const auto view = decode(bytes.data(), bytes.size());
  EXPECT_EQ(view.header[5], std::byte{17});
  const c10::IValue value = decode_all(bytes);
  const auto parts = tessera::detail::copy_elements(value);
  EXPECT_TRUE(torch::equal(parts[0].toTensor(), torch::arange(6).reshape({2, 3})));
  EXPECT_EQ(parts[1].toStringRef(), "text");
  using Options = std::vector<std::optional<double>>;
  EXPECT_EQ(unpack<Options>(parts[2]), (Options{1.5, std::nullopt}));
  EXPECT_EQ((unpack<std::tuple<int, bool, bool>>(parts[3])), std::make_tuple(-3, true, false));
  EXPECT_TRUE(torch::equal(parts[4].toTensorVector()[1], torch::full({2}, 3.5)));
  EXPECT_TRUE(torch::equal(parts[5].toGenericDict().at("key").toTensor(), torch::ones({3, 2})));
  EXPECT_TRUE(parts[6].isNone());
  EXPECT_FALSE(parts[7].toTensor().defined());
  EXPECT_EQ(parts[8].toTensor().sizes().vec(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(parts[8].toTensor().scalar_type(), torch::kInt);
}

TEST(Message, ATensorPassedThreeTimesTravelsOnce) {
  const auto x = torch::ones(3);
  const Stripped stripped = strip(pack(std::make_tuple(x, x, x)));
  EXPECT_EQ(stripped.tensors.size(), 1U);
}

TEST(Message, WhatCannotTravelIsRefusedByName) {
  const auto sparse = torch::eye(3).to_sparse();
  try {
    describe(sparse);
    FAIL() << "a sparse tensor was taken";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("Sparse"), std::string::npos);
  }
  c10::IValue nested = 1;
  for (int i = 0; i < 300; ++i) {
    nested = c10::ivalue::Tuple::create({nested});
  }
  EXPECT_THROW(strip(nested), CommError);
}

TEST(Message, EveryTruncationIsAnError) {
  const auto bytes = encode_all(everything());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly that size, so that a sanitizer sees any step outside.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + size);
    EXPECT_THROW(decode_all(cut), CommError) << size;
  }
}

TEST(Message, RandomDamageIsAnErrorOrAnotherValue) {
  const auto bytes = encode_all(everything());
  std::mt19937_64 random(11);
  int errors = 0;
  constexpr int kRounds = 50000;
  for (int round = 0; round < kRounds; ++round) {
    auto damaged = bytes;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      auto& byte = damaged[random() % damaged.size()];
      switch (random() % 3) {
        case 0:
          byte ^= std::byte{1} << (random() % 8);
          break;
        case 1:
          byte = static_cast<std::byte>(random());
          break;
        default:
          byte = random() % 2 == 0 ? std::byte{0} : std::byte{255};
      }
    }
    try {
      decode_all(damaged);
    } catch (const CommError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, kRounds / 10);
}

TEST(Message, RandomBytesAreAnError) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> noise(random() % 400);
    for (auto& byte : noise) {
      byte = static_cast<std::byte>(random());
    }
    EXPECT_THROW(decode_all(noise), CommError);
  }
}

} // namespace
} // namespace tessera::transport
