#include "visible_devices.hpp"

#include <strings.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// -1 when the entry names no device or more than one.
int physical_index(const std::string& entry, int physical_count) {
  if (entry.rfind("GPU-", 0) == 0) {
    int found = -1;
    for (int i = 0; i < physical_count; ++i) {
      if (strncasecmp(uuid_text(device_uuid(i)).c_str(), entry.c_str(), entry.size()) != 0)
        continue;
      if (found >= 0) return -1;
      found = i;
    }
    return found;
  }
  if (entry.empty() || entry.size() > 4) return -1;
  if (entry.find_first_not_of("0123456789") != std::string::npos) return -1;
  const int index = std::atoi(entry.c_str());
  return index < physical_count ? index : -1;
}

}  // namespace

CUuuid device_uuid(int index) {
  CUuuid uuid{};
  for (int half = 0; half < 2; ++half) {
    const uint64_t bits = mixed(static_cast<uint64_t>(index) * 2 + static_cast<uint64_t>(half));
    for (int i = 0; i < 8; ++i) uuid.bytes[half * 8 + i] = static_cast<char>(bits >> (8 * i));
  }
  return uuid;
}

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

std::vector<int> visible_devices(const char* variable, int physical_count) {
  std::vector<int> visible;
  if (!variable) {
    for (int i = 0; i < physical_count; ++i) visible.push_back(i);
    return visible;
  }
  const std::string list = variable;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const int index = physical_index(trimmed(list.substr(begin, end - begin)), physical_count);
    if (index < 0 || std::find(visible.begin(), visible.end(), index) != visible.end()) break;
    visible.push_back(index);
    begin = end + 1;
  }
  return visible;
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
