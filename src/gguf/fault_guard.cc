#include "gguf/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace tessera::gguf {
namespace {

// A free slot has used == false and begin == end == 0. begin is written last and cleared first.
struct Slot {
  std::atomic<bool> used{false};
  std::atomic<bool> faulted{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
};

constexpr std::size_t kSlots = 1024;

// What a signal handler needs has to be reachable without arguments.
constinit std::array<Slot, kSlots> slots;
constinit std::atomic<std::uintptr_t> page_bytes{0};
struct sigaction previous_action;  // written before the handler can run
std::once_flag install_once;

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);
static_assert(std::atomic<bool>::is_always_lock_free);

Slot* find_slot(std::uintptr_t address) {
  for (Slot& slot : slots) {
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin) continue;
    const std::uintptr_t end = slot.end.load(std::memory_order_acquire);
    // Read again: begin and end must belong to the same use of the slot.
    if (address < end && slot.begin.load(std::memory_order_acquire) == begin) return &slot;
  }
  return nullptr;
}

bool put_zero_page(std::uintptr_t address) {
  const std::uintptr_t page = address & ~(page_bytes.load(std::memory_order_relaxed) - 1);
  void* at = reinterpret_cast<void*>(page);  // NOLINT: an address from the kernel
  return mmap(at, page_bytes.load(std::memory_order_relaxed), PROT_READ,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void pass_on(int signal_number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal_number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal_number);
  } else {
    // A fault happens again on return; a signal that somebody sent is sent again.
    sigaction(signal_number, &previous_action, nullptr);
    if (info->si_code <= 0) raise(signal_number);
  }
}

void on_bus_error(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  // Codes above zero come from the kernel; only those have an address.
  if (info->si_code > 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    Slot* slot = find_slot(address);
    if (slot != nullptr && put_zero_page(address)) {
      slot->faulted.store(true, std::memory_order_release);
      errno = saved_errno;
      return;
    }
  }
  pass_on(signal_number, info, context);
  errno = saved_errno;
}

void install_handler() {
  page_bytes.store(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)));
  struct sigaction action = {};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, nullptr, &previous_action);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

Result<FaultGuard> FaultGuard::create(const void* begin, std::size_t bytes) {
  std::call_once(install_once, install_handler);
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (slots[i].used.exchange(true, std::memory_order_acq_rel)) continue;
    slots[i].faulted.store(false, std::memory_order_relaxed);
    slots[i].end.store(first + bytes, std::memory_order_release);
    slots[i].begin.store(first, std::memory_order_release);
    return FaultGuard(static_cast<int>(i));
  }
  return Error::make(ErrorCode::exhausted, "more than {} model files are open", kSlots);
}

FaultGuard::~FaultGuard() {
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<std::size_t>(slot_)];
  slot.begin.store(0, std::memory_order_release);
  slot.end.store(0, std::memory_order_release);
  slot.used.store(false, std::memory_order_release);
}

bool FaultGuard::faulted() const {
  return slot_ >= 0 &&
         slots[static_cast<std::size_t>(slot_)].faulted.load(std::memory_order_acquire);
}

}  // namespace tessera::gguf
