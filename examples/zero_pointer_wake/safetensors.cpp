// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/safetensors.h"

#include "examples/zero_pointer_wake/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace example {
namespace {

using stillwake::ErrorCode;
using stillwake::failure;
using stillwake::Result;

constexpr std::uint64_t kLengthBytes = 8;
/// The limit of the format's own library: a longer header is an attack or an accident.
constexpr std::uint64_t kLongestHeader = 100'000'000;

std::uint64_t little_endian(const unsigned char* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8 | bytes[i];
  }
  return value;
}

/// The tensors' bytes follow each other from 0 to the end of the file. Expects them in order.
Result<void> check_gapless(const std::string& path, const std::vector<Tensor>& tensors, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  const Tensor* before = nullptr;
  for (const Tensor& tensor : tensors) {
    const std::string name = printable_name(tensor.name);
    if (tensor.end > data_bytes) {
      return failure(ErrorCode::kInvalidArgument,
                     fmt::format("{}: tensor '{}' ends at byte {} of the data, but the file holds only {}: it is cut, "
                                 "or its offsets are wrong",
                                 path, name, tensor.end, data_bytes));
    }
    if (tensor.begin < at) {
      return failure(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: tensors '{}' and '{}' overlap: the second begins at byte {}, the first ends at {}", path,
                      printable_name(before->name), name, tensor.begin, at));
    }
    if (tensor.begin > at) {
      return failure(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: a hole of {} bytes lies before tensor '{}', which begins at byte {} instead of {}", path,
                      tensor.begin - at, name, tensor.begin, at));
    }
    at = tensor.end;
    before = &tensor;
  }
  if (at != data_bytes) {
    return failure(ErrorCode::kInvalidArgument,
                   fmt::format("{}: {} bytes follow the last tensor, which ends at byte {} of the data; none should",
                               path, data_bytes - at, at));
  }
  return {};
}

} // namespace

std::string shape_text(const Tensor& tensor) {
  return tensor.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(tensor.shape, " x "));
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  const auto wrong = [&path](const std::string& sentence) {
    return failure(ErrorCode::kInvalidArgument, path + ": " + sentence);
  };
  // Without O_NONBLOCK a named pipe would wait here for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return wrong(
        fmt::format("cannot be opened ({}); a .safetensors file that can be read is needed", std::strerror(errno)));
  }
  struct stat facts {};
  const bool known = ::fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
  const auto length = known ? static_cast<std::uint64_t>(facts.st_size) : 0;
  void* mapped = length < kLengthBytes
                     ? MAP_FAILED
                     : ::mmap(nullptr, static_cast<std::size_t>(length), PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int map_error = errno;
  ::close(descriptor);
  if (!known) {
    return wrong("is not a regular file; a .safetensors file is needed");
  }
  if (length < kLengthBytes) {
    return wrong(fmt::format("has {} bytes, fewer than the 8 that hold the header's length", length));
  }
  if (mapped == MAP_FAILED) {
    return wrong(fmt::format("its {} bytes cannot be mapped ({})", length, std::strerror(map_error)));
  }
  SafetensorsFile file(mapped, static_cast<std::size_t>(length));

  const auto* bytes = static_cast<const unsigned char*>(mapped);
  const std::uint64_t header = little_endian(bytes);
  if (header > kLongestHeader) {
    return wrong(fmt::format("says that its header has {} bytes; at most {} are believed", header, kLongestHeader));
  }
  if (header > length - kLengthBytes) {
    return wrong(
        fmt::format("says that its header has {} bytes, but only {} follow: it is cut, or no .safetensors file", header,
                    length - kLengthBytes));
  }
  const auto* text = reinterpret_cast<const char*>(bytes) + kLengthBytes;
  auto tensors = read_header({text, static_cast<std::size_t>(header)});
  if (!tensors) {
    return wrong(tensors.error().message);
  }
  std::stable_sort(tensors->begin(), tensors->end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  if (auto gapless = check_gapless(path, *tensors, length - kLengthBytes - header); !gapless) {
    return failure(std::move(gapless).error());
  }
  file.data_ = static_cast<const std::byte*>(mapped) + kLengthBytes + header;
  file.tensors_ = *std::move(tensors);
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapped_ != nullptr) {
    ::munmap(mapped_, length_);
  }
}

} // namespace example
