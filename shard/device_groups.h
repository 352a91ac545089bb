// SPDX-License-Identifier: Apache-2.0
// A transition splits its set by device: what happens on one device is a group, a struct with a `Device* device`.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <algorithm>
#include <vector>

namespace stillwake {

/// The group of the device, made when it is missing. Groups are in the order in which their devices were first met;
/// the reference holds until the next is made.
template <class Group> Group& group_of(std::vector<Group>& groups, Device& device) {
  auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.device == &device; });
  if (group == groups.end()) {
    groups.emplace_back();
    group = std::prev(groups.end());
    group->device = &device;
  }
  return *group;
}

/// So many pages that are missing on a device.
struct DeviceNeed {
  Device* device = nullptr;
  Pages pages;
};

} // namespace stillwake
