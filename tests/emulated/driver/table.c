/* What the OpenCL loader calls, and what Python registers. */
#include "objects.h"
#include <stdlib.h>
#include <string.h>

#define OUT __attribute__((visibility("default")))

cl_icd_dispatch table;
struct _cl_platform_id the_platform = {&table};
struct _cl_device_id the_device = {&table};
build_function build_callback;
launch_function launch_callback;
drop_function drop_callback;

OUT void emulated_set_callbacks(void *build, void *launch, void *drop) {
  build_callback = build, launch_callback = launch, drop_callback = drop;
}
OUT void *emulated_alloc(size_t n) { return malloc(n); }

static cl_int refuse(void) { return CL_INVALID_OPERATION; }

OUT cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint n, cl_platform_id *out, cl_uint *count) {
  if (!table.clGetPlatformIDs) {
    for (size_t k = 0; k < sizeof table / sizeof(void *); k++) ((void **)&table)[k] = (void *)refuse;
    T(clGetPlatformIDs, clIcdGetPlatformIDsKHR);
    add_platform(), add_queues(), add_events(), add_buffers(), add_programs(), add_kernels();
  }
  if (count) *count = 1;
  if (out && n) out[0] = &the_platform;
  return CL_SUCCESS;
}
OUT cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id p, cl_platform_info name, size_t size, void *value, size_t *ret) {
  clIcdGetPlatformIDsKHR(0, 0, 0);
  return ((cl_int (*)(cl_platform_id, cl_platform_info, size_t, void *, size_t *))table.clGetPlatformInfo)(p, name, size, value, ret);
}
OUT void *CL_API_CALL clGetExtensionFunctionAddress(const char *name) {
  if (!strcmp(name, "clIcdGetPlatformIDsKHR")) return (void *)clIcdGetPlatformIDsKHR;
  return !strcmp(name, "clGetPlatformInfo") ? (void *)clGetPlatformInfo : 0;
}
