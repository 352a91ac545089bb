// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/demo_options.h"

#include <CLI/CLI.hpp>

#include <iostream>

namespace example {

std::optional<DemoOptions> read_options(int count, char** words, int& status) {
  DemoOptions options;
  CLI::App app("Weights of a real model sleep and wake on the device, and not one pointer changes.",
               "zero_pointer_wake");
  app.add_option("--weights", options.weights, "a .safetensors file")->required();
  app.add_option("--device", options.device, "which device, 0 is the first")->check(CLI::Range(0, 1023));
  app.add_flag("--emulated", options.emulated, "use the emulated driver; no GPU is needed");
  app.add_option("--cycles", options.cycles, "how many times to sleep and wake")->check(CLI::Range(1, 1'000'000));
  app.add_option("--copies", options.copies, "how many times to load the model, to fill a big device")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--pinning-threads", options.pinning_threads, "threads that pin host memory, 0: the library chooses")
      ->check(CLI::Range(0, 256));
  app.add_flag("--change", options.change, "change every byte between two cycles, as training would");
  app.add_flag("--prepare", options.prepare, "pin host memory before the first sleep");
  app.add_flag("--all", options.all, "show every tensor");
  app.footer("Exit status: 0 when every pointer and byte is as it was, 1 when not, 2 for a wrong option or file.");
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      status = app.exit(error); // --help
    } else {
      std::cerr << "zero_pointer_wake: " << error.what() << " (--help lists the options)\n";
      status = 2;
    }
    return std::nullopt;
  }
  return options;
}

} // namespace example
