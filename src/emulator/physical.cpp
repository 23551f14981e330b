#include "physical.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "devices.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

constexpr char magic[16] = "pt-emulated-gpu";
constexpr uint32_t abi = 1;
// Nobody who holds a descriptor can shrink the file under another process's mapping.
constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW;

std::atomic<long> created{0};
std::atomic<long> descriptors{0};

Token random_token() {
  Token token{};
  if (getrandom(token.data(), sizeof token, 0) != static_cast<ssize_t>(sizeof token)) {
    // Before the pool is ready, and where the call is not allowed, time and pid still tell objects
    // apart.
    static std::atomic<uint64_t> serial{0};
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    token[0] = static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
    token[1] = (static_cast<uint64_t>(getpid()) << 32) | serial.fetch_add(1);
  }
  return token;
}

CUresult make_file(const Metadata& metadata, int* descriptor) {
  const int file = memfd_create("parallel-tensor-emulated", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) {
    return errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
  }
  const auto end = static_cast<off_t>(metadata.size + page_size());
  if (ftruncate(file, end) != 0 ||
      pwrite(file, &metadata, sizeof metadata, static_cast<off_t>(metadata.size)) !=
          static_cast<ssize_t>(sizeof metadata) ||
      fcntl(file, F_ADD_SEALS, required_seals | F_SEAL_SEAL) != 0) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *descriptor = file;
  return CUDA_SUCCESS;
}

}  // namespace

size_t page_size() noexcept {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

bool read_metadata(int descriptor, Metadata* metadata) noexcept {
  struct stat status {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const auto page = static_cast<off_t>(page_size());
  if (status.st_size <= page) return false;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & required_seals) != required_seals) return false;
  return pread(descriptor, metadata, sizeof *metadata, status.st_size - page) ==
             static_cast<ssize_t>(sizeof *metadata) &&
         std::memcmp(metadata->magic, magic, sizeof magic) == 0 && metadata->abi == abi &&
         metadata->size == static_cast<uint64_t>(status.st_size - page);
}

CUresult Physical::create(Metadata metadata, int device, std::shared_ptr<Physical>* physical) {
  std::memcpy(metadata.magic, magic, sizeof magic);
  metadata.abi = abi;
  metadata.token = random_token();
  auto& devices = Devices::instance();
  const bool on_device = device != CU_DEVICE_INVALID;
  if (on_device) {
    metadata.device = devices.uuid(device);
    if (!devices.charge(device, metadata.size)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  int descriptor = -1;
  if (CUresult result = make_file(metadata, &descriptor); result != CUDA_SUCCESS) {
    if (on_device) devices.refund(device, metadata.size);
    return result;
  }
  physical->reset(new Physical(descriptor, metadata, device, on_device ? metadata.size : 0, true));
  ++created;
  ++descriptors;
  return CUDA_SUCCESS;
}

std::shared_ptr<Physical> Physical::adopt(int descriptor, const Metadata& metadata) {
  const int device = metadata.location_type == CU_MEM_LOCATION_TYPE_DEVICE
                         ? Devices::instance().ordinal_of(metadata.device)
                         : CU_DEVICE_INVALID;
  std::shared_ptr<Physical> physical(new Physical(descriptor, metadata, device, 0, false));
  ++descriptors;
  return physical;
}

Physical::~Physical() {
  close(descriptor_);
  --descriptors;
  if (created_) --created;
  if (charged_ > 0) Devices::instance().refund(device_, charged_);
}

long Physical::created_count() noexcept { return created.load(); }
long Physical::descriptor_count() noexcept { return descriptors.load(); }

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
