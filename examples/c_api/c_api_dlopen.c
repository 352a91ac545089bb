/* SPDX-License-Identifier: Apache-2.0 */
/* c_api_dlopen: the same without linking Stillwake. `c_api_dlopen LIBRARY [--emulated]` opens the shared library and
   finds the functions by name; other languages do it like this. */
#include "examples/c_api/device_bytes.h"
#include "shard/stillwake_c.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kContent[] = "here before the sleep, here after it";

static void* find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "c_api_dlopen: the library lacks %s\n", name);
    exit(1);
  }
  return found;
}

int main(int count, char** words) {
  const char* (*version)(void);
  const char* (*last_error)(void);
  stillwake_status (*driver_open)(const stillwake_driver_options*, stillwake_driver**);
  stillwake_status (*driver_close)(stillwake_driver*);
  stillwake_status (*driver_kind)(stillwake_driver*, int32_t*);
  stillwake_status (*shard_create)(stillwake_driver*, const stillwake_shard_options*, stillwake_shard**);
  stillwake_status (*shard_destroy)(stillwake_shard*);
  stillwake_status (*shard_allocate)(stillwake_shard*, uint64_t, void*, int32_t, void**);
  stillwake_status (*sleep_set)(stillwake_shard* const*, size_t, const stillwake_sleep_options*, stillwake_report**);
  stillwake_status (*wake_set)(stillwake_shard* const*, size_t, const stillwake_wake_options*, stillwake_report**);
  struct {
    const char* name;
    void* function; /* where the address goes: POSIX promises that a function's fits an object pointer */
  } const functions[] = {
      {"stillwake_version", &version},
      {"stillwake_last_error", &last_error},
      {"stillwake_driver_open", &driver_open},
      {"stillwake_driver_close", &driver_close},
      {"stillwake_driver_kind", &driver_kind},
      {"stillwake_shard_create", &shard_create},
      {"stillwake_shard_destroy", &shard_destroy},
      {"stillwake_shard_allocate", &shard_allocate},
      {"stillwake_sleep", &sleep_set},
      {"stillwake_wake", &wake_set},
  };
  stillwake_driver_options driver_options = {0};
  stillwake_shard_options shard_options = {0};
  stillwake_driver* driver = NULL;
  stillwake_shard* shard = NULL;
  void* block = NULL;
  void* library;
  char content[sizeof kContent] = "";
  char series[32];
  int32_t kind = 0;
  size_t i;

  if (count < 2 || count > 3 || (count == 3 && strcmp(words[2], "--emulated") != 0)) {
    fprintf(stderr, "usage: c_api_dlopen LIBRARY [--emulated]\n");
    return 2;
  }
  library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "c_api_dlopen: %s\n", dlerror());
    return 2;
  }
  for (i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
    void* found = find(library, functions[i].name);
    memcpy(functions[i].function, &found, sizeof found);
  }
  /* Before 1.0 a minor version may change the interface. */
  snprintf(series, sizeof series, "%d.%d.", STILLWAKE_VERSION_MAJOR, STILLWAKE_VERSION_MINOR);
  if (strncmp(version(), series, strlen(series)) != 0) {
    fprintf(stderr, "c_api_dlopen: version %s; %sx is needed\n", version(), series);
    return 1;
  }

  driver_options.struct_size = sizeof driver_options;
  driver_options.kind = count == 3 ? STILLWAKE_DRIVER_EMULATED : STILLWAKE_DRIVER_UNSET;
  shard_options.struct_size = sizeof shard_options;
  shard_options.name = "weights";
  if (driver_open(&driver_options, &driver) != STILLWAKE_OK || driver_kind(driver, &kind) != STILLWAKE_OK ||
      shard_create(driver, &shard_options, &shard) != STILLWAKE_OK ||
      shard_allocate(shard, sizeof content, NULL, STILLWAKE_BLOCK_SHARED, &block) != STILLWAKE_OK) {
    fprintf(stderr, "c_api_dlopen: %s\n", last_error());
    return 1;
  }
  if (!device_bytes_open(kind == STILLWAKE_DRIVER_EMULATED, 0) ||
      !device_bytes_write(block, kContent, sizeof kContent)) {
    return 1;
  }
  if (sleep_set(&shard, 1, NULL, NULL) != STILLWAKE_OK || wake_set(&shard, 1, NULL, NULL) != STILLWAKE_OK) {
    fprintf(stderr, "c_api_dlopen: %s\n", last_error());
    return 1;
  }
  if (!device_bytes_read(content, block, sizeof content) || strcmp(content, kContent) != 0) {
    fprintf(stderr, "c_api_dlopen: the content is '%.40s'\n", content);
    return 1;
  }
  printf("version %s: '%s', still at %p\n", version(), content, block);
  return shard_destroy(shard) == STILLWAKE_OK && driver_close(driver) == STILLWAKE_OK ? 0 : 1;
}
