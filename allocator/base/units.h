// SPDX-License-Identifier: Apache-2.0
// The units of the whole library as types: bytes and pages cannot be added, an address is no size.
// Only the arithmetic that means something exists. C++17, no includes of the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct CUstream_st;

namespace stillwake {

/// A stream of the driver (`CUstream`, `cudaStream_t`); null is the legacy default stream.
using Stream = CUstream_st*;

class Pages;

/// A size or an offset in bytes.
class Bytes {
public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : count_(count) {}
  constexpr explicit Bytes(Pages pages);

  constexpr std::uint64_t count() const { return count_; }
  constexpr std::size_t size() const { return static_cast<std::size_t>(count_); }

  constexpr Bytes& operator+=(Bytes other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count_ -= other.count_;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t times) { return Bytes(a.count_ * times); }
  friend constexpr Bytes operator/(Bytes a, std::uint64_t parts) { return Bytes(a.count_ / parts); }
  friend constexpr std::uint64_t operator/(Bytes a, Bytes b) { return a.count_ / b.count_; }
  friend constexpr Bytes operator%(Bytes a, Bytes b) { return Bytes(a.count_ % b.count_); }
  friend constexpr bool operator==(Bytes a, Bytes b) { return a.count_ == b.count_; }
  friend constexpr bool operator!=(Bytes a, Bytes b) { return a.count_ != b.count_; }
  friend constexpr bool operator<(Bytes a, Bytes b) { return a.count_ < b.count_; }
  friend constexpr bool operator<=(Bytes a, Bytes b) { return a.count_ <= b.count_; }
  friend constexpr bool operator>(Bytes a, Bytes b) { return a.count_ > b.count_; }
  friend constexpr bool operator>=(Bytes a, Bytes b) { return a.count_ >= b.count_; }

private:
  std::uint64_t count_ = 0;
};

constexpr Bytes kKiB{1024};
constexpr Bytes kMiB{1024 * 1024};
constexpr Bytes kGiB{1024ull * 1024 * 1024};

/// The driver's granularity for device memory, and our unit of fingerprints and backing: 2 MiB.
constexpr Bytes kPageBytes{2ull * 1024 * 1024};

/// A count of pages, or the index of a page in its reservation.
class Pages {
public:
  constexpr Pages() = default;
  constexpr explicit Pages(std::uint64_t count) : count_(count) {}

  constexpr std::uint64_t count() const { return count_; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(count_); }

  constexpr Pages& operator+=(Pages other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Pages& operator-=(Pages other) {
    count_ -= other.count_;
    return *this;
  }
  constexpr Pages& operator++() {
    ++count_;
    return *this;
  }
  friend constexpr Pages operator+(Pages a, Pages b) { return Pages(a.count_ + b.count_); }
  friend constexpr Pages operator-(Pages a, Pages b) { return Pages(a.count_ - b.count_); }
  friend constexpr bool operator==(Pages a, Pages b) { return a.count_ == b.count_; }
  friend constexpr bool operator!=(Pages a, Pages b) { return a.count_ != b.count_; }
  friend constexpr bool operator<(Pages a, Pages b) { return a.count_ < b.count_; }
  friend constexpr bool operator<=(Pages a, Pages b) { return a.count_ <= b.count_; }
  friend constexpr bool operator>(Pages a, Pages b) { return a.count_ > b.count_; }
  friend constexpr bool operator>=(Pages a, Pages b) { return a.count_ >= b.count_; }

private:
  std::uint64_t count_ = 0;
};

constexpr Bytes::Bytes(Pages pages) : count_(pages.count() * kPageBytes.count()) {}

/// The pages that an offset lies behind: whole pages below it.
constexpr Pages pages_below(Bytes offset) { return Pages(offset.count() / kPageBytes.count()); }
/// The pages needed to hold a size.
constexpr Pages pages_holding(Bytes size) {
  return Pages(size.count() / kPageBytes.count() + (size.count() % kPageBytes.count() != 0 ? 1 : 0));
}
/// Rounds a size up to a power of two or any other step. The caller makes sure that it does not wrap.
constexpr Bytes round_up(Bytes size, Bytes step) {
  return Bytes((size.count() + step.count() - 1) / step.count() * step.count());
}

/// Neighbouring pages [first, first + count) of one reservation.
struct PageRange {
  Pages first;
  Pages count;

  constexpr Pages end() const { return first + count; }
  constexpr bool empty() const { return count == Pages(0); }
  constexpr bool contains(Pages page) const { return first <= page && page < end(); }
  friend constexpr bool operator==(PageRange a, PageRange b) { return a.first == b.first && a.count == b.count; }
  friend constexpr bool operator!=(PageRange a, PageRange b) { return !(a == b); }
};

/// An address of device memory. Only differences and offsets make sense.
class DeviceAddress {
public:
  constexpr DeviceAddress() = default;
  constexpr explicit DeviceAddress(std::uint64_t value) : value_(value) {}
  explicit DeviceAddress(const void* pointer) : value_(reinterpret_cast<std::uintptr_t>(pointer)) {}

  constexpr std::uint64_t value() const { return value_; }
  void* pointer() const { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(value_)); }

  friend constexpr DeviceAddress operator+(DeviceAddress a, Bytes b) { return DeviceAddress(a.value_ + b.count()); }
  friend constexpr Bytes operator-(DeviceAddress a, DeviceAddress b) { return Bytes(a.value_ - b.value_); }
  friend constexpr bool operator==(DeviceAddress a, DeviceAddress b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(DeviceAddress a, DeviceAddress b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(DeviceAddress a, DeviceAddress b) { return a.value_ < b.value_; }
  friend constexpr bool operator<=(DeviceAddress a, DeviceAddress b) { return a.value_ <= b.value_; }

private:
  std::uint64_t value_ = 0;
};

/// The ordinal of a device, as the driver counts them: 0 is the first.
class DeviceIndex {
public:
  constexpr DeviceIndex() = default;
  constexpr explicit DeviceIndex(int value) : value_(value) {}
  constexpr int value() const { return value_; }
  friend constexpr bool operator==(DeviceIndex a, DeviceIndex b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(DeviceIndex a, DeviceIndex b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(DeviceIndex a, DeviceIndex b) { return a.value_ < b.value_; }

private:
  int value_ = 0;
};

} // namespace stillwake

template <> struct std::hash<stillwake::DeviceAddress> {
  std::size_t operator()(stillwake::DeviceAddress address) const noexcept {
    return std::hash<std::uint64_t>{}(address.value());
  }
};
