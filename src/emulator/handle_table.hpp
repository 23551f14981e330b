/// @file
/// Opaque driver handles: numbers that are never reused and are not pointers, so that a stale one
/// is known as such.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// A new number; above the values that cuda.h gives a meaning (CU_STREAM_LEGACY).
inline uint64_t next_handle() noexcept {
  static std::atomic<uint64_t> last{0x10000};
  return last.fetch_add(0x10, std::memory_order_relaxed);
}

/// What handles of one kind stand for; `Handle` is an opaque pointer type. Thread-safe.
template <typename Handle, typename Object>
class HandleTable {
 public:
  Handle add(std::shared_ptr<Object> object) {
    const uint64_t number = next_handle();
    std::lock_guard lock(mutex_);
    objects_.emplace(number, std::move(object));
    return reinterpret_cast<Handle>(number);
  }

  /// Null when the handle is not in the table.
  std::shared_ptr<Object> find(Handle handle) const {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  /// Removes the handle and gives what it stood for.
  std::shared_ptr<Object> take(Handle handle) {
    std::lock_guard lock(mutex_);
    auto node = objects_.extract(reinterpret_cast<uint64_t>(handle));
    return node.empty() ? nullptr : std::move(node.mapped());
  }

  /// Removes all objects that `condition` accepts and gives them.
  template <typename Condition>
  std::vector<std::shared_ptr<Object>> take_if(Condition condition) {
    std::vector<std::shared_ptr<Object>> taken;
    std::lock_guard lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      if (condition(*entry->second)) {
        taken.push_back(std::move(entry->second));
        entry = objects_.erase(entry);
      } else {
        ++entry;
      }
    }
    return taken;
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return objects_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Object>> objects_;
};

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
