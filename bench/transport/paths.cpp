#include "bench/transport/paths.h"

#include <chrono>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <mpi.h>

#include <ATen/ATen.h>

#include "tessera/transport/transport.h"

#include "tests/mpi/transport/split_world.h"

namespace tessera::bench {

namespace {

volatile std::uint64_t sink = 0;

void read_all(const void* data, std::size_t bytes) {
  const auto* words = static_cast<const std::uint64_t*>(data);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes / sizeof(*words); ++i) {
    sum += words[i];
  }
  sink = sum;
}

class PlainMpi final : public Path {
 public:
  PlainMpi(int partner, std::size_t largest)
      : partner_(partner), out_(largest, 1), in_(largest, 2) {}

  std::string name() const override {
    return "plain MPI";
  }
  void send(std::size_t bytes) override {
    MPI_Send(out_.data(), static_cast<int>(bytes), MPI_BYTE, partner_, 1, MPI_COMM_WORLD);
  }
  void receive(std::size_t bytes, bool read) override {
    MPI_Recv(
        in_.data(),
        static_cast<int>(bytes),
        MPI_BYTE,
        partner_,
        1,
        MPI_COMM_WORLD,
        MPI_STATUS_IGNORE);
    if (read) {
      read_all(in_.data(), bytes);
    }
  }

 private:
  int partner_;
  std::vector<char> out_;
  std::vector<char> in_;
};

class ByTransport final : public Path {
 public:
  ByTransport(comm::World& world, int partner, std::size_t largest, Kind kind)
      : partner_(partner),
        kind_(kind),
        out_(at::ones({static_cast<std::int64_t>(largest)}, at::kByte)) {
    std::vector<std::string> hosts;
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (const int rank : ranks) {
      hosts.push_back(kind == Kind::kOtherNode && rank % 2 == 1 ? "b" : "a");
    }
    transport::testing::SplitWorld split(world, std::move(hosts));
    transport::Options options;
    options.zero_copy_share = kind == Kind::kCopied ? 0 : 0.5;
    transport_ = transport::make_transport(split, ranks, options);
  }

  std::string name() const override {
    switch (kind_) {
      case Kind::kMapped:
        return "mapped";
      case Kind::kCopied:
        return "copied";
      case Kind::kOtherNode:
        return "other node";
    }
    return "";
  }
  void send(std::size_t bytes) override {
    if (bytes == 0) {
      transport_->send(partner_, {}, {});
      return;
    }
    transport_->send(partner_, {}, out_.narrow(0, 0, static_cast<std::int64_t>(bytes)));
  }
  void receive(std::size_t bytes, bool read) override {
    const auto parcel = transport_->receive(std::chrono::minutes(1));
    if (!parcel) {
      throw std::runtime_error("no message within a minute");
    }
    if (read) {
      read_all(parcel->body.toTensor().data_ptr(), bytes);
    }
  }

 private:
  int partner_;
  Kind kind_;
  at::Tensor out_;
  transport::TransportPtr transport_;
};

} // namespace

PathPtr plain_mpi(int partner, std::size_t largest) {
  return std::make_unique<PlainMpi>(partner, largest);
}

PathPtr transport(comm::World& world, int partner, std::size_t largest, Kind kind) {
  return std::make_unique<ByTransport>(world, partner, largest, kind);
}

} // namespace tessera::bench
