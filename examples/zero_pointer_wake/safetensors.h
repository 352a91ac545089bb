// SPDX-License-Identifier: Apache-2.0
// A SafetensorsFile is an opened .safetensors file: an 8-byte little-endian length, a JSON header of that length that
// names every tensor, then the tensors' bytes without a gap. Whatever is wrong with a file is told in one sentence,
// with the value that is wrong and what would be right; nothing of a file is believed before it is checked.
#pragma once

#include "shard/stillwake.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace example {

struct Tensor {
  std::string name;
  std::string dtype; ///< as the file spells it, "F32" for instance
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0; ///< [begin, end) of the data, which starts after the header
  std::uint64_t end = 0;

  stillwake::Bytes size() const { return stillwake::Bytes(end - begin); }
};

/// "384 x 1536", "scalar" for no dimension at all.
std::string shape_text(const Tensor& tensor);

class SafetensorsFile {
public:
  /// Maps the file and checks all of it but the tensors' values. Errors: kInvalidArgument with one sentence.
  /// Another program that shortens the file later ends this one with SIGBUS, as with any mapped file.
  [[nodiscard]] static stillwake::Result<SafetensorsFile> open(const std::string& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)), length_(other.length_), data_(other.data_),
        tensors_(std::move(other.tensors_)) {}
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  /// In the order of their bytes.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::byte* bytes(const Tensor& tensor) const { return data_ + tensor.begin; }

private:
  SafetensorsFile(void* mapped, std::size_t length) : mapped_(mapped), length_(length) {}

  void* mapped_;
  std::size_t length_;
  const std::byte* data_ = nullptr;
  std::vector<Tensor> tensors_;
};

} // namespace example
