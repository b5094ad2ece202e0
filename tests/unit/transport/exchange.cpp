#include "tests/unit/transport/exchange.h"

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/tensor/value.h"

namespace tessera::transport::testing {

namespace {

constexpr at::ScalarType kDtypes[] = {
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kHalf,
    at::kFloat,
    at::kDouble,
    at::kComplexFloat,
    at::kComplexDouble,
    at::kBool,
    at::kBFloat16,
};

Header numbered(std::int64_t a, std::int64_t b) {
  Header header{};
  std::memcpy(header.data(), &a, sizeof(a));
  std::memcpy(header.data() + sizeof(a), &b, sizeof(b));
  return header;
}

std::pair<std::int64_t, std::int64_t> numbers(const Header& header) {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::memcpy(&a, header.data(), sizeof(a));
  std::memcpy(&b, header.data() + sizeof(a), sizeof(b));
  return {a, b};
}

// Deterministic and different for each sender, dtype and size.
at::Tensor sample(int rank, at::ScalarType dtype, std::int64_t rows) {
  return (torch::arange(rows * 7).reshape({rows, 7}) % 11 + rank).to(dtype);
}

c10::IValue sample_value(int rank) {
  std::vector<c10::IValue> parts;
  for (const auto dtype : kDtypes) {
    parts.emplace_back(sample(rank, dtype, 3));
    parts.emplace_back(sample(rank, dtype, 900)); // too large to go inline
  }
  const at::Tensor base = sample(rank, at::kFloat, 500);
  parts.emplace_back(base.t());
  parts.emplace_back(base.slice(0, 3, 400, 2).select(1, 4));
  parts.emplace_back(torch::ones({1}).expand({4, 3}));
  parts.emplace_back(torch::zeros({0, 9}));
  parts.emplace_back(torch::tensor(2.5));
  parts.emplace_back(torch::empty({1000, 1000}, torch::device(torch::kMeta)));
  parts.emplace_back(at::Tensor());
  parts.emplace_back(torch::conj(sample(rank, at::kComplexFloat, 2)));
  parts.emplace_back(sample(rank, at::kFloat, 4).requires_grad_());
  parts.push_back(pack(std::make_tuple(
      std::string(100000, 'x'),
      -1.5,
      rank,
      true,
      std::vector<std::optional<int>>{3, std::nullopt})));
  return c10::ivalue::Tuple::create(std::move(parts));
}

void expect_same(const c10::IValue& got, const c10::IValue& sent) {
  if (sent.isTuple()) {
    const auto& a = got.toTupleRef().elements();
    const auto& b = sent.toTupleRef().elements();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      expect_same(a[i], b[i]);
    }
    return;
  }
  if (!sent.isTensor()) {
    EXPECT_EQ(got, sent);
    return;
  }
  const at::Tensor a = got.toTensor();
  const at::Tensor b = sent.toTensor();
  ASSERT_EQ(a.defined(), b.defined());
  if (!b.defined()) {
    return;
  }
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  EXPECT_EQ(a.device().type(), b.device().type());
  EXPECT_FALSE(a.requires_grad());
  if (!b.is_meta()) {
    EXPECT_TRUE(torch::equal(a, b.detach()));
  }
}

// A message of random shape whose content can be told from its number.
struct Letter {
  std::int64_t thread;
  std::int64_t number;
  at::Tensor filled(std::size_t bytes) const {
    return torch::full(
        {static_cast<std::int64_t>(bytes / 4)},
        static_cast<int>(number % 1000 + thread * 1000),
        torch::kInt);
  }
};

std::size_t random_bytes(std::mt19937& random, std::size_t largest) {
  // Half of them small, the rest anything.
  const std::size_t most = random() % 2 == 0 ? 2000 : largest;
  return random() % most;
}

void send_letters(const Side& side, const Traffic& traffic, int thread) {
  std::mt19937 random(traffic.seed + static_cast<unsigned>(side.rank * 100 + thread));
  for (int number = 0; number < traffic.messages; ++number) {
    const Letter letter{thread, number};
    for (int to = 0; to < side.size; ++to) {
      const auto first = letter.filled(random_bytes(random, traffic.largest));
      const auto second = letter.filled(random_bytes(random, traffic.largest));
      side.transport.send(
          to, numbered(thread, number), pack(std::make_tuple(first, number, second)));
    }
  }
}

void receive_letters(const Side& side, const Traffic& traffic) {
  std::map<std::pair<int, std::int64_t>, std::int64_t> next;
  const int total = traffic.messages * traffic.threads * side.size;
  for (int i = 0; i < total; ++i) {
    const Parcel parcel = take(side);
    const auto [thread, number] = numbers(parcel.header);
    auto& expected = next[{parcel.source, thread}];
    ASSERT_EQ(number, expected) << "from " << parcel.source;
    ++expected;
    const auto [first, body_number, second] =
        unpack<std::tuple<at::Tensor, std::int64_t, at::Tensor>>(parcel.body);
    ASSERT_EQ(body_number, number);
    const Letter letter{thread, number};
    for (const at::Tensor& tensor : {first, second}) {
      const auto bytes = static_cast<std::size_t>(tensor.numel()) * 4;
      ASSERT_TRUE(torch::equal(tensor, letter.filled(bytes)))
          << number << " from " << parcel.source;
    }
  }
}

} // namespace

Parcel take(const Side& side) {
  auto parcel = side.transport.receive(std::chrono::minutes(1));
  if (!parcel) {
    throw std::runtime_error("no message within a minute");
  }
  return std::move(*parcel);
}

void check_values(const Side& side) {
  const c10::IValue mine = sample_value(side.rank);
  for (int to = 0; to < side.size; ++to) {
    side.transport.send(to, numbered(side.rank, to), mine);
    side.transport.send(to, numbered(side.rank, -to), {});
  }
  std::map<int, int> count;
  for (int i = 0; i < side.size * 2; ++i) {
    const Parcel parcel = take(side);
    const int nth = count[parcel.source]++;
    const auto [from, to] = numbers(parcel.header);
    EXPECT_EQ(from, parcel.source);
    EXPECT_EQ(to, nth == 0 ? side.rank : -side.rank);
    expect_same(parcel.body, nth == 0 ? sample_value(parcel.source) : c10::IValue());
  }
  EXPECT_EQ(count.size(), static_cast<std::size_t>(side.size));
  EXPECT_FALSE(side.transport.try_receive().has_value());
}

void check_traffic(const Side& side, const Traffic& traffic) {
  std::vector<std::thread> senders;
  for (int thread = 0; thread < traffic.threads; ++thread) {
    senders.emplace_back([&, thread] { send_letters(side, traffic, thread); });
  }
  if (traffic.send_first) {
    for (auto& sender : senders) {
      sender.join();
    }
    senders.clear();
  }
  receive_letters(side, traffic);
  for (auto& sender : senders) {
    sender.join();
  }
}

void check_lifetime(const Side& side, int messages) {
  const int to = (side.rank + 1) % side.size;
  const int from = (side.rank + side.size - 1) % side.size;
  at::Tensor original = torch::full({50000}, side.rank + 1.0);
  side.transport.send(to, numbered(-1, 0), original);
  original.fill_(-1);
  const Parcel first = take(side);
  ASSERT_EQ(first.source, from);
  at::Tensor held = first.body.toTensor();
  for (int i = 0; i < messages; ++i) {
    side.transport.send(
        to, numbered(0, i), torch::full({i % 100 == 0 ? 20000 : 600}, static_cast<double>(i)));
    const Parcel parcel = take(side);
    ASSERT_EQ(numbers(parcel.header).second, i);
    ASSERT_EQ(parcel.body.toTensor()[0].item<double>(), i);
  }
  EXPECT_TRUE(torch::equal(held, torch::full({50000}, from + 1.0)));
  held.add_(1); // it is the receiver's own
  EXPECT_TRUE(torch::equal(held, torch::full({50000}, from + 2.0)));
}

} // namespace tessera::transport::testing
