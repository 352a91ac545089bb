// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/safetensors_header.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <unordered_set>

namespace example {
namespace {

using stillwake::ErrorCode;
using stillwake::failure;
using stillwake::Result;

struct Dtype {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array kDtypes{
    Dtype{"BOOL", 8},    Dtype{"U8", 8},   Dtype{"I8", 8},   Dtype{"F8_E4M3", 8}, Dtype{"F8_E5M2", 8},
    Dtype{"F8_E8M0", 8}, Dtype{"U16", 16}, Dtype{"I16", 16}, Dtype{"F16", 16},    Dtype{"BF16", 16},
    Dtype{"U32", 32},    Dtype{"I32", 32}, Dtype{"F32", 32}, Dtype{"U64", 64},    Dtype{"I64", 64},
    Dtype{"F64", 64},    Dtype{"C64", 64}, Dtype{"F4", 4},   Dtype{"F6_E2M3", 6}, Dtype{"F6_E3M2", 6},
};
constexpr std::size_t kMostDimensions = 64;

/// Why the tensor's size does not fit its shape and dtype, or nothing.
std::optional<std::string> wrong_size(const Tensor& tensor) {
  const std::optional<std::uint64_t> bits = dtype_bits(tensor.dtype);
  if (!bits) {
    std::string known;
    for (const Dtype& dtype : kDtypes) {
      known += known.empty() ? "" : ", ";
      known += dtype.name;
    }
    return fmt::format("has the unknown dtype '{}'; known are {}", printable_name(tensor.dtype), known);
  }
  std::uint64_t product = *bits;
  bool is_empty = false;
  for (const std::uint64_t dimension : tensor.shape) {
    is_empty = is_empty || dimension == 0;
  }
  for (const std::uint64_t dimension : tensor.shape) {
    if (!is_empty && __builtin_mul_overflow(product, dimension, &product)) {
      return fmt::format("has the shape {} of {}, more bits than 64 bits can count", shape_text(tensor), tensor.dtype);
    }
  }
  product = is_empty ? 0 : product;
  if (product % 8 != 0) {
    return fmt::format("has {} bits, shape {} of {}, which fill no whole byte", product, shape_text(tensor),
                       tensor.dtype);
  }
  if (tensor.begin > tensor.end) {
    return fmt::format("begins at byte {}, after its end at {}", tensor.begin, tensor.end);
  }
  if (tensor.end - tensor.begin != product / 8) {
    return fmt::format("has {} bytes between its offsets, but shape {} of {} makes {}", tensor.end - tensor.begin,
                       shape_text(tensor), tensor.dtype, product / 8);
  }
  return std::nullopt;
}

/// Receives the JSON as it is parsed, so that no tree is built and a deep or doubled thing is refused where it stands.
/// Depth 1 holds names, depth 2 the fields of one tensor, depth 3 the numbers of shape and data_offsets.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
public:
  std::vector<Tensor> tensors;
  std::string fault;

  bool null() override { return refuse_value("null"); }
  bool boolean(bool) override { return refuse_value("a truth value"); }
  bool number_integer(number_integer_t value) override {
    return refuse(fmt::format("{} holds {}; only whole numbers from 0 on are allowed", place(), value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse(fmt::format("{} holds {}; only whole numbers below 2^64 are allowed", place(), printable_name(text)));
  }
  bool binary(binary_t&) override { return refuse_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) {
      return refuse_value(fmt::format("the number {}", value));
    }
    if (field_ == "shape") {
      tensors.back().shape.push_back(value);
      return tensors.back().shape.size() <= kMostDimensions ||
             refuse(fmt::format("{} has more than {} dimensions", place(), kMostDimensions));
    }
    (offsets_ == 0 ? tensors.back().begin : tensors.back().end) = value;
    return ++offsets_ <= 2 || refuse(fmt::format("{} has more than 2 numbers; begin and end are needed", place()));
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") {
      return refuse_value(fmt::format("the text '{}'", printable_name(text)));
    }
    tensors.back().dtype = text;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ > 1) {
      return refuse_value("an object");
    }
    if (++depth_ == 2) {
      fields_ = 0;
    }
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (!names_.insert(name).second) {
        return refuse(fmt::format("the name '{}' stands twice in the header", printable_name(name)));
      }
      in_metadata_ = name == "__metadata__";
      name_ = name;
      field_.clear();
      if (!in_metadata_) {
        tensors.emplace_back().name = name;
        offsets_ = 0;
      }
      return true;
    }
    field_ = name;
    if (in_metadata_) {
      return true;
    }
    const unsigned bit = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    if (bit == 0) {
      return refuse(fmt::format("tensor '{}' has a field '{}'; allowed are dtype, shape and data_offsets",
                                printable_name(name_), printable_name(name)));
    }
    if ((fields_ & bit) != 0) {
      return refuse(fmt::format("tensor '{}' has the field '{}' twice", printable_name(name_), name));
    }
    fields_ |= bit;
    return true;
  }

  bool end_object() override {
    if (depth_-- != 2 || in_metadata_) {
      return true;
    }
    if (fields_ != 7) {
      const char* lacking = (fields_ & 1) == 0 ? "dtype" : (fields_ & 2) == 0 ? "shape" : "data_offsets";
      return refuse(fmt::format("tensor '{}' lacks its {}", printable_name(name_), lacking));
    }
    if (offsets_ != 2) {
      return refuse(
          fmt::format("tensor '{}' has {} data_offsets; begin and end are needed", printable_name(name_), offsets_));
    }
    const std::optional<std::string> wrong = wrong_size(tensors.back());
    return !wrong || refuse(fmt::format("tensor '{}' {}", printable_name(name_), *wrong));
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") {
      return refuse_value("a list");
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return refuse(fmt::format("its header is not JSON, from byte {} on", position));
  }

private:
  /// Where the parser stands, in words.
  std::string place() const {
    if (depth_ == 0) {
      return "the header";
    }
    return depth_ == 1 || field_.empty() ? fmt::format("tensor '{}'", printable_name(name_))
                                         : fmt::format("'{}' of '{}'", printable_name(field_), printable_name(name_));
  }
  bool refuse(std::string sentence) {
    fault = std::move(sentence);
    return false;
  }
  bool refuse_value(const std::string& value) {
    const char* right = "a tensor is an object of dtype, shape and data_offsets";
    if (depth_ == 0) {
      right = "it is an object of tensors";
    } else if (in_metadata_) {
      right = "__metadata__ is an object of texts";
    } else if (depth_ > 1) {
      right = field_ == "dtype" ? "a dtype is a text" : "shape and data_offsets are lists of whole numbers";
    }
    return refuse(fmt::format("{} is {}; {}", place(), value, right));
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  unsigned fields_ = 0; // of the tensor: 1 dtype, 2 shape, 4 data_offsets
  int offsets_ = 0;     // numbers of data_offsets seen
  std::string name_;
  std::string field_;
  std::unordered_set<std::string> names_;
};

} // namespace

std::optional<std::uint64_t> dtype_bits(std::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.name == dtype) {
      return known.bits;
    }
  }
  return std::nullopt;
}

std::string printable_name(std::string_view name) {
  constexpr std::size_t kMost = 80;
  std::string text(name.substr(0, kMost));
  unsigned char before = 0;
  for (char& character : text) {
    const auto code = static_cast<unsigned char>(character);
    // After 0xc2 stand the control characters of Latin 1, which some terminals obey too.
    const bool is_control = code < 0x20 || code == 0x7f || (before == 0xc2 && code < 0xa0);
    character = is_control ? '?' : character;
    before = code;
  }
  // A character of several bytes that the limit cut would garble the line.
  while (name.size() > kMost && !text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) {
    text.pop_back();
  }
  return name.size() > kMost ? text + "..." : text;
}

Result<std::vector<Tensor>> read_header(std::string_view text) {
  if (text.empty() || text.front() != '{') {
    return failure(ErrorCode::kInvalidArgument,
                   "its header does not begin with '{', as that of a .safetensors file does");
  }
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    return failure(ErrorCode::kInvalidArgument, events.fault);
  }
  return std::move(events.tensors);
}

} // namespace example
