/* An OpenCL driver of one GPU, which makes no context, and is broken in a way that the name of its file tells:
     libfake-crash-load.so       it crashes (or "abort", "exit", "hang") as it is loaded, or at "entry", "platforms", "platforminfo",
                                 "devices", "deviceinfo", "context": in the first call of that kind
     libfake-error-1035.so       the query of this number fails, of the platform (09..) or the device (10..)
     libfake-bytes-102B.so       the query of this number gives text that is not UTF-8
     libfake-empty-102F.so       ... no text
     libfake-zero-1002.so        ... zeros
     libfake-version-10.so       it has OpenCL 1.0
     libfake-error-platforms.so  the call fails (or "devices"); "zero": it gives none
     libfake-sound-.so           nothing else is wrong with it                                                                     */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *table[256];
static struct { void **functions; } platform = { table }, device = { table };
static char how[32], where[32];

static void read_name(void) {
  Dl_info about;
  const char *name;
  if (dladdr((void *)read_name, &about) && (name = strstr(about.dli_fname, "libfake-"))) sscanf(name, "libfake-%31[^-]-%31[^.]", how, where);
}

static int is(const char *way, const char *place) { return !strcmp(how, way) && !strcmp(where, place); }

static void reach(const char *place) {
  if (strcmp(where, place)) return;
  if (!strcmp(how, "crash")) *(volatile int *)0 = 1;
  if (!strcmp(how, "abort")) { fprintf(stderr, "fake driver: assertion failed\n"); abort(); }
  if (!strcmp(how, "exit")) exit(7);
  if (!strcmp(how, "hang")) for (;;) sleep(1);
}

static int is_query(const char *way, uint32_t name) { return !strcmp(how, way) && strtoul(where, 0, 16) == name; }

static int32_t give(uint32_t name, size_t size, void *value, size_t *needed, const void *from, size_t n) {
  if (is_query("error", name)) return -30;
  if (needed) *needed = n;
  if (!value) return 0;
  if (size < n) return -30;
  if (is_query("zero", name)) memset(value, 0, n); else memcpy(value, from, n);
  return 0;
}

static int32_t text(uint32_t name, size_t size, void *value, size_t *needed, const char *s) {
  if (is_query("bytes", name)) s = "Fake \xae\xff";
  if (is_query("empty", name)) s = "";
  return give(name, size, value, needed, s, strlen(s) + 1);
}

static int32_t platform_info(void *of, uint32_t name, size_t size, void *value, size_t *needed) {
  reach("platforminfo");
  switch (name) {
    case 0x0900: return text(name, size, value, needed, "FULL_PROFILE");
    case 0x0901: return text(name, size, value, needed, is("version", "10") ? "OpenCL 1.0 fake" : "OpenCL 1.2 fake");
    case 0x0902: return text(name, size, value, needed, "Fake Platform");
    case 0x0903: return text(name, size, value, needed, "Fake Vendor");
    case 0x0904: return text(name, size, value, needed, "cl_khr_icd");
    case 0x0920: return text(name, size, value, needed, "FAKE");
  }
  return -30;
}

static int32_t device_ids(void *of, uint64_t type, uint32_t room, void **out, uint32_t *count) {
  reach("devices");
  if (is("error", "devices")) return -30;
  if (is("zero", "devices")) { if (count) *count = 0; return 0; }
  if (count) *count = 1;
  if (out && room) out[0] = &device;
  return 0;
}

static int32_t device_info(void *of, uint32_t name, size_t size, void *value, size_t *needed) {
  uint32_t u = name == 0x1002 ? 8 : name == 0x1003 ? 3 : name == 0x1019 ? 1024 : 1;
  uint64_t l = name == 0x1000 ? 4 : name == 0x1010 ? 1ul << 28 : name == 0x101F ? 1ul << 30 : name == 0x1023 ? 1 << 15 : 0;
  size_t s[3] = { 256, 256, 256 };
  void *p = &platform;
  int old = is("version", "10");
  reach("deviceinfo");
  if (old && (name == 0x1035 || name == 0x103A || name == 0x103D || name >= 0x1040)) return -30;
  switch (name) {
    case 0x102B: return text(name, size, value, needed, "Fake GPU");
    case 0x102C: return text(name, size, value, needed, "Fake Vendor");
    case 0x102D: return text(name, size, value, needed, "1.0");
    case 0x102E: return text(name, size, value, needed, "FULL_PROFILE");
    case 0x102F: return text(name, size, value, needed, old ? "OpenCL 1.0 fake" : "OpenCL 1.2 fake");
    case 0x103D: return text(name, size, value, needed, "OpenCL C 1.2 fake");
    case 0x1030: return text(name, size, value, needed, "");
    case 0x1031: return give(name, size, value, needed, &p, sizeof p);
    case 0x1004: case 0x1013: return give(name, size, value, needed, s, sizeof *s);
    case 0x1005: return give(name, size, value, needed, s, sizeof s);
    case 0x1000: case 0x1010: case 0x101F: case 0x1020: case 0x1023: case 0x1029: case 0x102A: case 0x1032:
      return give(name, size, value, needed, &l, sizeof l);
    case 0x1053: return -30;
    default: return give(name, size, value, needed, &u, sizeof u);
  }
}

static void *create_context(void *properties, uint32_t count, void *devices, void *notify, void *data, int32_t *error) {
  reach("context");
  if (error) *error = -6;
  return 0;
}

static int32_t nothing(void) { return -59; }

int32_t clIcdGetPlatformIDsKHR(uint32_t room, void **out, uint32_t *count) {
  for (int i = 0; i < 256; i++) table[i] = nothing;
  table[1] = platform_info, table[2] = device_ids, table[3] = device_info, table[4] = create_context;
  reach("platforms");
  if (is("error", "platforms")) return -6;
  if (is("zero", "platforms")) { if (count) *count = 0; return -1001; }
  if (count) *count = 1;
  if (out && room) out[0] = &platform;
  return 0;
}

int32_t clGetPlatformInfo(void *of, uint32_t name, size_t size, void *value, size_t *needed) {
  return platform_info(of, name, size, value, needed);
}

void *clGetExtensionFunctionAddress(const char *name) {
  reach("entry");
  if (!strcmp(name, "clIcdGetPlatformIDsKHR")) return clIcdGetPlatformIDsKHR;
  return strcmp(name, "clGetPlatformInfo") ? 0 : (void *)clGetPlatformInfo;
}

__attribute__((constructor)) static void load(void) {
  read_name();
  reach("load");
}
