// SPDX-License-Identifier: Apache-2.0
// The files behind emulated devices, and what the system says about them: whether they may be opened, how long they may
// become, what is free where they lie. Every refusal names the file and the figures.
#pragma once

#include "allocator/base/base.h"

#include <cstdint>
#include <optional>
#include <string>

namespace stillwake::emulation {

/// Makes a file for a device's memory that only this process can reach. Errors: kOutOfHostMemory.
[[nodiscard]] Result<int> private_device_file();
/// Opens a file of a share, and makes it where it is missing. Follows no link. Errors: kInvalidArgument for what is not
/// a regular file, and for a file of another user, naming the owner; else kOutOfHostMemory.
[[nodiscard]] Result<int> open_share_file(const std::string& path);
/// The same for the memory of a device, with its length set. Errors: also kInvalidArgument for a file that no emulated
/// device left there; it is not changed.
[[nodiscard]] Result<int> open_share_device(const std::string& path);
/// Removes a device's file, and nothing else that may have its name.
void remove_share_device(const std::string& path);

/// The error for a share's file that is not what belongs there: the file, what is wrong with it, and what to do.
tl::unexpected<Error> wrong_share_file(const std::string& path, const std::string& what);

/// The length of a device's file: more offsets than can ever be given out.
inline constexpr std::uint64_t kDeviceFileLength = std::uint64_t{1} << 60;
/// Sets the length of a device's file. Errors: kOutOfHostMemory.
[[nodiscard]] Result<void> lengthen_device_file(int file, const std::string& path);
/// Makes sure that the bytes [offset, offset + size) of the file have room; the system's error, 0 for success. Not
/// beyond the file limit: see over_file_limit.
int allocate_space(int file, std::uint64_t offset, Bytes size);

/// The sentence for a file that was refused `needed` bytes: with what is free where it lies, and the system's error.
std::string no_room(int file, const std::string& path, Bytes needed, int error);
/// The sentence for a file that may not reach as far as `end` because of RLIMIT_FSIZE; nothing where it may. Asked
/// first: the system ends a process that tries.
std::optional<std::string> over_file_limit(const std::string& path, std::uint64_t end);
/// The sentence for `size` bytes more that a control group has no room for; nothing where they fit. Asked first: the
/// system ends a process of a full group. /proc and /sys are read below `system_root`.
std::optional<std::string> over_group_limit(const std::string& path, Bytes size, const std::string& system_root);

} // namespace stillwake::emulation
