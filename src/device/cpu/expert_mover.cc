#include "device/cpu/expert_mover.h"

#include <sys/resource.h>

#include <system_error>

#include "base/check.h"

namespace tessera::cpu {
namespace {

// A tenth of a core that the steps want too.
constexpr int kNice = 10;

}  // namespace

Result<std::unique_ptr<ExpertMover>> ExpertMover::create(Weights& weights, const Model& model) {
  std::unique_ptr<ExpertMover> mover(new ExpertMover(weights, model));
  try {
    mover->thread_ = std::thread([mover = mover.get()] { mover->run(); });
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "cannot start a thread that copies experts: {}",
                       error.what());
  }
  return mover;
}

ExpertMover::ExpertMover(Weights& weights, const Model& model) : weights_(weights), model_(model) {
  rows_.reserve(weights.expert_rows_room());
}

ExpertMover::~ExpertMover() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::over;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ExpertMover::begin(const ExpertMove& move) {
  move_ = move;
  place_ = weights_.vacate(move);
  {
    const std::lock_guard lock(mutex_);
    CHECK(state_ == State::idle, "an expert is being copied");
    state_ = State::asked;
  }
  changed_.notify_one();
}

Result<bool> ExpertMover::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::copied) return false;
    state_ = State::idle;
  }
  TESSERA_TRY(model_.file().check_intact());
  weights_.admit(move_, place_);
  return true;
}

void ExpertMover::run() {
  (void)::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return state_ == State::asked || state_ == State::over; });
    if (state_ == State::over) return;
    lock.unlock();
    weights_.pack_expert(move_, place_, rows_);
    lock.lock();
    if (state_ == State::asked) state_ = State::copied;
  }
}

}  // namespace tessera::cpu
