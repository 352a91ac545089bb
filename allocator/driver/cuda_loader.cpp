// SPDX-License-Identifier: Apache-2.0
// Fills the table from libcuda.so.1: each row asks for the version that its type was written for, so a newer driver
// cannot hand out an entry point with other arguments.
#include "allocator/driver/driver_table.h"

namespace stillwake {
namespace {

std::string readable_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// What one row asks for.
struct Row {
  CallId call;
  int version;
  bool needed;
};

class Loader {
public:
  Loader(CallGate& gate, PFN_cuGetProcAddress_v12000 find) : gate_(gate), find_(find) {}

  template <class EntryType> Result<void> bind(EntryType& entry, const Row& row) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult result = find_(to_string(row.call), &function, row.version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (result == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS && function != nullptr) {
      entry.bind_function(gate_, row.call, function);
      return {};
    }
    if (!row.needed) {
      return {};
    }
    Error error;
    error.code = ErrorCode::kDriverTooOld;
    error.message = std::string("the CUDA driver has no ") + to_string(row.call) + " of CUDA " +
                    readable_version(row.version) +
                    (found == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT ? " (it has another version of it)" : "") +
                    "; a newer driver is needed";
    return failure(std::move(error));
  }

private:
  CallGate& gate_;
  PFN_cuGetProcAddress_v12000 find_;
};

} // namespace

Result<void> load_cuda_driver(DriverTable& table) {
  const Result<DynamicLibrary> library = DynamicLibrary::open("libcuda.so.1");
  if (!library) {
    return failure(ErrorCode::kDriverMissing, "the CUDA driver could not be loaded (" + library.error().message +
                                                  "); to try without a GPU set STILLWAKE_DRIVER=emulated");
  }
  const auto find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(library->symbol("cuGetProcAddress_v2"));
  if (find == nullptr) {
    return failure(ErrorCode::kDriverTooOld,
                   "the CUDA driver has no cuGetProcAddress of CUDA 12.0; a newer driver is needed");
  }
  Loader loader(table.gate, find);
#define STILLWAKE_NEEDED(call, version) STILLWAKE_TRY(loader.bind(table.call, Row{CallId::call, version, true}));
#define STILLWAKE_OPTIONAL(call, version) STILLWAKE_TRY(loader.bind(table.call, Row{CallId::call, version, false}));
  STILLWAKE_DRIVER_CALLS(STILLWAKE_NEEDED, STILLWAKE_OPTIONAL)
#undef STILLWAKE_NEEDED
#undef STILLWAKE_OPTIONAL
  return {};
}

} // namespace stillwake
