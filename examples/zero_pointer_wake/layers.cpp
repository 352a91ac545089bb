// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/layers.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace example {
namespace {

constexpr std::size_t kMostLayers = 256;
constexpr const char* kOther = "other";

bool is_number(std::string_view part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(), [](unsigned char character) { return std::isdigit(character) != 0; });
}

/// The length of the name up to and with its first number, 0 without one.
std::size_t numbered_prefix(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (is_number(name.substr(begin, end - begin))) {
      return end;
    }
    begin = end + 1;
  }
  return 0;
}

} // namespace

std::vector<Layer> layers_of(const std::vector<std::string>& names) {
  std::unordered_set<std::string_view> numbered_roots;
  for (const std::string& name : names) {
    if (numbered_prefix(name) != 0) {
      numbered_roots.insert(std::string_view(name).substr(0, name.find('.')));
    }
  }
  std::vector<Layer> layers;
  std::unordered_map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    const std::size_t dot = name.find('.');
    std::string layer = kOther;
    if (const std::size_t prefix = numbered_prefix(name); prefix != 0) {
      layer = name.substr(0, prefix);
    } else if (dot != std::string_view::npos) {
      const bool shares_root = numbered_roots.count(name.substr(0, dot)) != 0;
      layer = name.substr(0, shares_root ? name.find('.', dot + 1) : dot);
    }
    if (layer.empty() || (known.count(layer) == 0 && layers.size() >= kMostLayers)) {
      layer = kOther;
    }
    const auto [at, is_new] = known.try_emplace(layer, layers.size());
    if (is_new) {
      layers.push_back({layer, {}});
    }
    layers[at->second].tensors.push_back(i);
  }
  return layers;
}

} // namespace example
