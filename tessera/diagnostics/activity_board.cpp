#include "tessera/diagnostics/activity_board.h"

#include <atomic>
#include <new>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::diagnostics {

namespace {

std::atomic<ActivityBoard*> g_board{nullptr};

} // namespace

ActivityBoard::ActivityBoard(int rank)
    : rank_(rank), own_(ipc::Segment::create(sizeof(ActivityPage))) {
  new (own_.data()) ActivityPage;
}

void ActivityBoard::add(int rank, const std::string& host, const ipc::SegmentAddress& address) {
  Neighbour neighbour;
  try {
    neighbour.memory = ipc::Segment::open(address);
  } catch (const CommError&) {
    return;
  }
  neighbour.rank = rank;
  neighbour.host = host;
  neighbour.process = std::make_unique<ProcessWatch>(address.process);
  neighbours_.push_back(std::move(neighbour));
}

const ActivityBoard::Neighbour* ActivityBoard::find(int rank) const noexcept {
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == rank) {
      return &neighbour;
    }
  }
  return nullptr;
}

ActivityPage& ActivityBoard::first_page() const noexcept {
  ActivityPage* first_page = &page();
  int first = rank_;
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.rank < first) {
      first = neighbour.rank;
      first_page = &neighbour.page();
    }
  }
  return *first_page;
}

const ActivityBoard* ActivityBoard::published() noexcept {
  return g_board.load(std::memory_order_acquire);
}

ActivityPage* ActivityBoard::own_page() noexcept {
  const ActivityBoard* board = published();
  return board == nullptr ? nullptr : &board->page();
}

void ActivityBoard::publish(std::unique_ptr<ActivityBoard> board) {
  delete g_board.exchange(board.release());
}

} // namespace tessera::diagnostics
