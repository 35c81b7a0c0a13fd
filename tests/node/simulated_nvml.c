/* A simulated libnvidia-ml.so.1: the functions that the node calls, with the answers in the file SIMULATED_NVML.

Each line of the file is a word and its values, which simulated_driver.py writes:

    init CODE                                               the result of nvmlInit; HANG or CRASH instead of a result
    gpu HANDLE MEMORY USE USED TOTAL DIVIDED UUID NAME      codes of errors (or 0), per cent, bytes, 0 or 1
    slice CODE SLOT TOTAL UUID NAME                         a slice of the last GPU
    isolated I J                                            a pair of GPUs without peer access
    peers CODE                                              the result of nvmlDeviceGetP2PStatus
*/

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, HANG = -1, CRASH = -2 };
enum { MOST = 8, TEXT = 96, MEMORY_V2 = 0x02000028, P2P_READ = 0, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

typedef struct device {
  int handle, memory, use, divided, slot, slices;
  unsigned long long used, total;
  char uuid[TEXT], name[TEXT];
  struct device *slice[MOST];
} device;

typedef struct {
  unsigned int version;
  unsigned long long total, reserved, free, used;
} memory_v2;

typedef struct {
  unsigned int gpu, memory;
} utilization;

static device gpus[MOST], slices[MOST];
static int isolated[MOST][MOST];
static int gpu_count, slice_count, peers;

static int read_answers(void) {
  const char *path = getenv("SIMULATED_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512];
  int result = SUCCESS, i, j;
  while (file && fgets(line, sizeof line, file)) {
    device *gpu = &gpus[gpu_count], *slice = &slices[slice_count];
    if (sscanf(line, "gpu %d %d %d %llu %llu %d %95s %95[^\n]", &gpu->handle, &gpu->memory, &gpu->use, &gpu->used,
               &gpu->total, &gpu->divided, gpu->uuid, gpu->name) == 8) {
      gpu_count++;
    } else if (sscanf(line, "slice %d %d %llu %95s %95[^\n]", &slice->handle, &slice->slot, &slice->total, slice->uuid,
                      slice->name) == 5) {
      device *whole = &gpus[gpu_count - 1];
      whole->slice[whole->slices++] = slice;
      slice_count++;
    } else if (sscanf(line, "isolated %d %d", &i, &j) == 2) {
      isolated[i][j] = isolated[j][i] = 1;
    } else if (sscanf(line, "init %d", &result) != 1 && sscanf(line, "peers %d", &peers) != 1) {
      abort();
    }
  }
  if (file) fclose(file);
  return result;
}

static int copy(const char *text, char *buffer, unsigned int length) {
  snprintf(buffer, length, "%s", text);
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) {
  int result = read_answers();
  (void)flags;
  if (result == HANG)
    for (;;) pause();
  if (result == CRASH) raise(SIGSEGV);
  return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result) {
  (void)result;
  return "a text of the library";
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
  *count = (unsigned int)gpu_count;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **found) {
  *found = &gpus[index];
  return gpus[index].handle;
}

int nvmlDeviceGetUUID(device *of, char *uuid, unsigned int length) { return copy(of->uuid, uuid, length); }

int nvmlDeviceGetName(device *of, char *name, unsigned int length) { return copy(of->name, name, length); }

int nvmlDeviceGetMemoryInfo_v2(device *of, memory_v2 *memory) {
  if (memory->version != MEMORY_V2) return INVALID_ARGUMENT;
  memory->total = of->total;
  memory->used = of->used;
  return of->memory;
}

int nvmlDeviceGetUtilizationRates(device *of, utilization *rates) {
  if (of->divided || of->use < 0) return NOT_SUPPORTED;
  rates->gpu = (unsigned int)of->use;
  return SUCCESS;
}

/* Only GPUs with slices can be divided. */
int nvmlDeviceGetMigMode(device *of, unsigned int *current, unsigned int *pending) {
  *current = *pending = (unsigned int)of->divided;
  return of->divided ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(device *of, unsigned int *count) {
  *count = of->divided ? MOST : 0;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *of, unsigned int slot, device **found) {
  for (int i = 0; i < of->slices; i++) {
    *found = of->slice[i];
    if ((*found)->slot == (int)slot) return (*found)->handle;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetP2PStatus(device *one, device *other, unsigned int what, unsigned int *status) {
  if (what != P2P_READ) return INVALID_ARGUMENT;
  *status = isolated[one - gpus][other - gpus] ? P2P_NOT_SUPPORTED : P2P_OK;
  return peers;
}
