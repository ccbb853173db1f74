// FixedQueue: first in, first out, with room for as many as it was made for.
//
//   FixedQueue<Frame> queue(4);
//   if (!queue.full()) std::swap(queue.push(), frame);
//   use(queue.front());
//   queue.pop();
//
// Nothing is allocated after that. An item that was popped keeps what it owns, for one that is
// pushed later: the last one that was popped comes first, so that no more of them come to own
// something than were in the queue at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace tessera {

template <typename T>
class FixedQueue {
 public:
  explicit FixedQueue(std::size_t room = 0) : items_(room), order_(room) {
    for (std::size_t i = room; i-- > 0;) free_.push_back(i);
  }

  bool empty() const { return size_ == 0; }
  bool full() const { return free_.empty(); }
  std::size_t size() const { return size_; }

  // The place of the next one, with whatever was there before; push() puts it into the queue.
  T& next() {
    CHECK(!full());
    return items_[free_.back()];
  }
  T& push() {
    T& item = next();
    order_[(first_ + size_++) % order_.size()] = free_.back();
    free_.pop_back();
    return item;
  }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  void pop() {
    CHECK(!empty());
    free_.push_back(order_[first_]);
    first_ = (first_ + 1) % order_.size();
    --size_;
  }
  void clear() {
    while (!empty()) pop();
  }

  // The i-th, from the oldest on.
  T& operator[](std::size_t i) { return items_[place(i)]; }
  const T& operator[](std::size_t i) const { return items_[place(i)]; }

 private:
  std::size_t place(std::size_t i) const {
    CHECK(i < size_);
    return order_[(first_ + i) % order_.size()];
  }

  std::vector<T> items_;
  std::vector<std::size_t> order_;  // places of those in the queue, from first_ on
  std::vector<std::size_t> free_;   // the other places; its memory is there from the start
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace tessera
