/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of the C header is found in the shared library by its name, and one sleep works through them. The
   program links nothing of ours. The names come from the header's own text, so that a new function is looked for too.
 */
#include "shard/stillwake_c.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises that the bits are the same. */
#define FIND(name)                                                                                                     \
  do {                                                                                                                 \
    void* found = dlsym(library, #name);                                                                               \
    if (found == NULL) {                                                                                               \
      fprintf(stderr, "the library lacks " #name "\n");                                                                \
      return 1;                                                                                                        \
    }                                                                                                                  \
    memcpy(&name##_, &found, sizeof found);                                                                            \
  } while (0)

/* Looks up every name that begins a parameter list in the header; answers how many there are, -1 when one is missing.
 */
static int find_all(void* library, const char* header) {
  char line[512];
  int found = 0;
  FILE* file = fopen(header, "r");
  if (file == NULL) {
    perror(header);
    return -1;
  }
  while (fgets(line, sizeof line, file) != NULL) {
    const char* declared = strstr(line, "STILLWAKE_API");
    char name[128];
    if (declared == line) {
      const char* end = strchr(line, '(');
      const char* begin = end;
      while (begin != NULL && begin > line && (begin[-1] == '_' || (begin[-1] >= 'a' && begin[-1] <= 'z'))) {
        --begin;
      }
      if (end == NULL || end == begin || (size_t)(end - begin) >= sizeof name) {
        fprintf(stderr, "no name in: %s", line);
        fclose(file);
        return -1;
      }
      memcpy(name, begin, (size_t)(end - begin));
      name[end - begin] = '\0';
      if (dlsym(library, name) == NULL) {
        fprintf(stderr, "the library lacks %s\n", name);
        fclose(file);
        return -1;
      }
      ++found;
    }
  }
  fclose(file);
  return found;
}

int main(int count, char** words) {
  void* library = count == 3 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  const char* (*stillwake_version_)(void);
  const char* (*stillwake_last_error_)(void);
  stillwake_status (*stillwake_driver_open_)(const stillwake_driver_options*, stillwake_driver**);
  stillwake_status (*stillwake_driver_close_)(stillwake_driver*);
  stillwake_status (*stillwake_shard_create_)(stillwake_driver*, const stillwake_shard_options*, stillwake_shard**);
  stillwake_status (*stillwake_shard_destroy_)(stillwake_shard*);
  stillwake_status (*stillwake_shard_allocate_)(stillwake_shard*, uint64_t, void*, int32_t, void**);
  stillwake_status (*stillwake_sleep_)(stillwake_shard* const*, size_t, const stillwake_sleep_options*,
                                       stillwake_report**);
  stillwake_status (*stillwake_wake_)(stillwake_shard* const*, size_t, const stillwake_wake_options*,
                                      stillwake_report**);
  stillwake_driver_options driver_options = {0};
  stillwake_shard_options shard_options = {0};
  stillwake_driver* driver = NULL;
  stillwake_shard* shard = NULL;
  void* pointer = NULL;
  int functions;

  if (library == NULL) {
    fprintf(stderr, "usage: c_api_dlopen LIBRARY HEADER: %s\n", count == 3 ? dlerror() : "both are needed");
    return 1;
  }
  functions = find_all(library, words[2]);
  if (functions < 50) {
    fprintf(stderr, "found %d functions of %s\n", functions, words[2]);
    return 1;
  }
  FIND(stillwake_version);
  FIND(stillwake_last_error);
  FIND(stillwake_driver_open);
  FIND(stillwake_driver_close);
  FIND(stillwake_shard_create);
  FIND(stillwake_shard_destroy);
  FIND(stillwake_shard_allocate);
  FIND(stillwake_sleep);
  FIND(stillwake_wake);
  driver_options.struct_size = sizeof driver_options;
  driver_options.kind = STILLWAKE_DRIVER_EMULATED;
  shard_options.struct_size = sizeof shard_options;
  shard_options.name = "weights";
  if (stillwake_driver_open_(&driver_options, &driver) != STILLWAKE_OK ||
      stillwake_shard_create_(driver, &shard_options, &shard) != STILLWAKE_OK ||
      stillwake_shard_allocate_(shard, 100, NULL, STILLWAKE_BLOCK_SHARED, &pointer) != STILLWAKE_OK) {
    fprintf(stderr, "set up: %s\n", stillwake_last_error_());
    return 1;
  }
  memcpy(pointer, "still here", 11);
  if (stillwake_sleep_(&shard, 1, NULL, NULL) != STILLWAKE_OK ||
      stillwake_wake_(&shard, 1, NULL, NULL) != STILLWAKE_OK || strcmp((const char*)pointer, "still here") != 0 ||
      stillwake_shard_destroy_(shard) != STILLWAKE_OK || stillwake_driver_close_(driver) != STILLWAKE_OK) {
    fprintf(stderr, "sleep and wake: %s\n", stillwake_last_error_());
    return 1;
  }
  printf("version %s through dlopen, %d functions\n", stillwake_version_(), functions);
  return 0;
}
